"""Reads what a broker says of itself: `/readyz` and `/metrics` of its admin listener, as values by name and labels.

The metrics are Prometheus's text format; the few lines that read it here need no package, so a bare client can ask too.
"""

import re
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from quintet.client.core.errors import ConnectionLost

ADMIN_DEFAULT: Final = "http://127.0.0.1:8080"
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

admin_option: Final = click.option(
    "--admin", envvar="QUINTET_ADMIN", default=ADMIN_DEFAULT, help=f"URL of the broker's admin listener (or QUINTET_ADMIN) [{ADMIN_DEFAULT}]."
)  # fmt: skip

Labels = tuple[tuple[str, str], ...]  # by name


class Sample(NamedTuple):
    """All metrics at one moment."""

    at: float  # by the monotonic clock, in seconds
    values: dict[str, dict[Labels, float]]

    def one(self, name: str) -> float:
        """The sum over all labels; 0 if there is none."""
        return sum(self.values.get(name, {}).values())

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values by these labels."""
        found: dict[tuple[str, ...], float] = {}
        for pairs, value in self.values.get(name, {}).items():
            said = dict(pairs)
            key = tuple(said.get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + value
        return found

    def by_cell(self, name: str) -> "dict[str, Sample]":
        """What each cell says, of a broker of several, by its number; all by "" if it has one. name: a metric that every cell has."""
        cells = {dict(pairs).get("cell", "") for pairs in self.values.get(name, {})}
        if cells <= {""}:
            return {"": self}
        return {cell: self._of_cell(cell) for cell in sorted(cells, key=lambda each: (len(each), each))}

    def _of_cell(self, cell: str) -> "Sample":
        found = {
            name: {pairs: value for pairs, value in samples.items() if ("cell", cell) in pairs}
            for name, samples in self.values.items()
        }
        return Sample(self.at, {name: samples for name, samples in found.items() if samples})

    def label(self, name: str, label: str) -> str:
        """A label of the first sample of a metric."""
        return next((dict(pairs).get(label, "") for pairs in self.values.get(name, {})), "")


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Values by metric and labels; what is no sample is passed over."""
    found: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        pairs = tuple(sorted((label, _unescaped(said)) for label, said in _LABEL.findall(labels or "")))
        try:
            found.setdefault(name, {})[pairs] = float(value)
        except ValueError:
            continue
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPES.get(match[0], match[0]), text)


def get(admin: str, path: str) -> tuple[int, str]:
    """(status, text) of an answer. Raises ConnectionLost if there is none."""
    parts = urlsplit(admin if "//" in admin else f"//{admin}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise click.UsageError(f"--admin {admin!r} is no URL ({error}): write http://HOST:PORT.") from None
    if parts.scheme not in ("", "http") or host is None:
        raise click.UsageError(f"--admin {admin!r} is no URL of an admin listener: write http://HOST:PORT.")
    connection = HTTPConnection(host, port or 8080, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX).decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise ConnectionLost(
            f"no answer from the admin listener at {host}:{port or 8080}: {error}",
            hint="is the broker running, with listeners.admin.enabled? --admin http://HOST:PORT names another one",
        ) from error
    finally:
        connection.close()


def scrape(admin: str) -> Sample:
    """All metrics now."""
    status, text = get(admin, "/metrics")
    if status != HTTPStatus.OK:
        raise ConnectionLost(f"{admin}/metrics answered {status}: is this a Quintet broker's admin listener?")
    return Sample(time.monotonic(), parse(text))


def readiness(admin: str) -> tuple[bool, list[str]]:
    """(ready, lines of all checks that fail)."""
    status, text = get(admin, "/readyz?verbose")
    return status == HTTPStatus.OK, [line[4:] for line in text.splitlines() if line.startswith("[-] ")]
