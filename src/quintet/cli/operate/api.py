"""Asks the console's API for commands: logs in as a user, asks, and turns refusals into errors. The rights are that user's.

The console's listener is the one that has logins, rights and an audit for what operators do (ADR 36); a command is one more page of it.
"""

import contextlib
import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

import click

from quintet.client.core.errors import ConnectionLost
from quintet.model.errors import QuintetError

CONSOLE_DEFAULT: Final = "http://admin:admin@127.0.0.1:8090"
PORT_DEFAULT: Final = 8090
TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
OK: Final = 200
FAULTS: Final = 500  # from this status on it is the broker's fault, and its log says more

console_option: Final = click.option(
    "--console", envvar="QUINTET_CONSOLE", default=CONSOLE_DEFAULT,
    help=f"URL of the broker's console, with a user (or QUINTET_CONSOLE) [{CONSOLE_DEFAULT}].",
)  # fmt: skip
ca_option: Final = click.option(
    "--ca", type=click.Path(exists=True, dir_okay=False), help="Certificate to trust, for https."
)

Answer = Any  # JSON


class Refused(QuintetError):
    """The broker refused what was asked."""

    code = "E1000"


class Api:
    """One session of one user. Use as a context: it logs out at its end."""

    def __init__(self, url: str, ca: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"//{url}")
        try:
            host, port = parts.hostname, parts.port or PORT_DEFAULT
        except ValueError as error:
            raise click.UsageError(f"--console is no URL ({error}): write http://USER:PASSWORD@HOST:PORT.") from None
        if parts.scheme not in ("", "http", "https") or host is None:
            raise click.UsageError("--console is no URL of a console: write http://USER:PASSWORD@HOST:PORT.")
        self._place = f"{host}:{port}"
        self._origin = f"{parts.scheme or 'http'}://{parts.netloc.rpartition('@')[2]}"
        self._user = (unquote(parts.username or ""), unquote(parts.password or ""))
        self._cookie = ""
        self._connection = (
            HTTPSConnection(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context(cafile=ca))
            if parts.scheme == "https"
            else HTTPConnection(host, port, timeout=TIMEOUT_S)
        )

    def __enter__(self) -> "Api":
        name, password = self._user
        try:
            answer, _ = self._ask("POST", "/api/login", {"name": name, "password": password})
        except BaseException:
            self._connection.close()
            raise
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(QuintetError):  # it ends by itself after its idle time
            self.post("/api/logout", {})
        self._connection.close()

    def get(self, path: str, **fields: object) -> Answer:
        return self._ask("GET", f"{path}?{urlencode(fields)}", None)[1]

    def post(self, path: str, fields: dict[str, object]) -> Answer:
        return self._ask("POST", path, fields)[1]

    def _ask(self, method: str, path: str, fields: dict[str, object] | None) -> tuple[HTTPResponse, Answer]:
        headers = {"Cookie": self._cookie} if self._cookie else {}
        if fields is not None:
            headers |= {"Content-Type": "application/json", "Origin": self._origin}
        try:
            self._connection.request(method, path, json.dumps(fields) if fields is not None else None, headers)
            answer = self._connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
        except (OSError, HTTPException) as error:
            raise ConnectionLost(
                f"no answer from the console at {self._place}: {error}",
                hint="is the broker running, with listeners.console.enabled? --console URL names another one",
            ) from error
        try:
            found = json.loads(body) if body else None
        except ValueError:
            raise ConnectionLost(f"{self._place} does not answer as a console of Quintet does") from None
        if answer.status != OK:
            said = found if isinstance(found, dict) else {}
            hint = str(said.get("hint", ""))
            if answer.status >= FAULTS and said.get("request"):
                hint = f"{hint} (request {said['request']} in the broker's log)".strip()
            raise Refused(str(said.get("error", answer.reason)), hint=hint)
        return answer, found
