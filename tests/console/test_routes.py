"""Every route of the console against bad input: walks the table of operations, so that a new one cannot be forgotten.

Wrong types, missing and unknown fields, foreign origins, forged and replayed cookies, strings that are markup, control characters or far
too long: each is refused with a status and a sentence, changes nothing, and the broker goes on. The last test is the control.
"""

import asyncio
import json
import types
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import httpx2
import msgspec
import pytest

from quintet.console import app, operations
from quintet.console.app import COOKIE, Console
from quintet.console.call import Call, Operation
from quintet.console.section import ConsoleListener
from quintet.testing.line import SimBroker
from tests.console.conftest import OPEN, SAME_SITE, Browser
from tests.console.filling import MARKUP

TABLE = operations.OPERATIONS
HOSTILE = (MARKUP, "\x00\x1b[31m\u202e", "=cmd|'/c calc'!A1", "x" * 12_000, "\U0001f4a9" * 300)
FOREIGN: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.example"},
    {"sec-fetch-site": "same-origin", "origin": "null"},
    {},
]


class Got(NamedTuple):
    """What came back: of a stream, the refusal that its first event has."""

    status: int
    error: str


Send = Callable[[Operation, dict[str, Any], dict[str, str]], Got]


# -- fields -----------------------------------------------------------------------------------------------------------


def kinds(annotation: Any) -> list[Any]:
    """What a field may be: int, str, bool, list, a Literal, None."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds(part)]
    return [annotation if get_origin(annotation) is not list else list]


def right_value(annotation: Any) -> Any:
    """Some value of this type. A type that is not known here fails: teach it to this test."""
    first = kinds(annotation)[0]
    if get_origin(first) is Literal:
        return get_args(first)[0]
    return {str: "x", int: 0, bool: False, list: [], float: 0.0}[first]


def right_fields(operation: Operation) -> dict[str, Any]:
    fields = msgspec.structs.fields(operation.asks)
    return {field.name: right_value(field.type) for field in fields if field.required}


def wrong_values(annotation: Any, *, text: bool) -> list[Any]:
    """Values that are not of this type. In a query everything is text: there only numbers and words can be wrong."""
    allowed = kinds(annotation)
    word = any(get_origin(kind) is Literal for kind in allowed)
    if text:
        wrong: list[Any] = ["no number", "9" * 40, "1.5"] if {int, bool} & set(allowed) else []
        return wrong + (["no such word"] if word else [])
    wrong = [{"a": 1}, 1.5, [None]]
    wrong += [] if str in allowed else [MARKUP]
    wrong += [] if int in allowed else [7]
    wrong += [] if bool in allowed else [True]
    wrong += [] if type(None) in allowed else [None]
    return wrong + ([10**30] if int in allowed else [])


def wrong_requests(operation: Operation) -> Iterator[dict[str, Any]]:
    good = right_fields(operation)
    for field in msgspec.structs.fields(operation.asks):
        for value in wrong_values(field.type, text=operation.method == "GET"):
            yield good | {field.name: value}
        if field.required:
            yield {name: value for name, value in good.items() if name != field.name}
    yield good | {"no_such_field": "1"}


def faults(operation: Operation, send: Send) -> list[str]:
    """What a route does with wrong requests that it must not."""
    found = []
    for fields in wrong_requests(operation):
        got = send(operation, fields, {})
        if got.status != 400 or not got.error:
            found.append(f"{operation.method} {operation.path} {str(fields)[:200]}: {got}")
    return found


# -- asking a real broker ---------------------------------------------------------------------------------------------


def ask(client: httpx2.Client, operation: Operation, fields: dict[str, Any], headers: dict[str, str]) -> Got:
    if operation.method == "POST":
        answer = client.post(operation.path, json=fields, headers=headers or SAME_SITE)
        return Got(answer.status_code, _error(answer))
    params = {name: str(value) for name, value in fields.items()}
    if operation.stream is None:
        answer = client.get(operation.path, params=params, headers=headers)
        return Got(answer.status_code, _error(answer))
    with client.stream("GET", operation.path, params=params, headers=headers, timeout=60) as streamed:
        if streamed.status_code != 200:
            return Got(streamed.status_code, json.loads(streamed.read())["error"])
        event = ""
        for line in streamed.iter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                return Got(data["status"], data["error"]) if event == "refused" else Got(200, "")
    return Got(200, "")


def _error(answer: httpx2.Response) -> str:
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"].startswith(("application/json", "application/octet-stream"))
    found = answer.json() if answer.headers["content-type"] == "application/json" else None
    return str(found.get("error", "")) if isinstance(found, dict) else ""


@pytest.fixture(scope="module")
def people(address: str) -> Iterator[dict[str, httpx2.Client]]:
    """Logged in once: a login takes the time of an argon2id hash."""
    made = {name: Browser(address).log_in(name, word) for name, word in (("admin", "admin"), ("reader", "reader-word"))}
    for browser in made.values():
        OPEN.remove(browser)
    yield {name: browser.client for name, browser in made.items()}
    for browser in made.values():
        browser.client.close()


def state(admin: httpx2.Client) -> list[object]:
    """What a request that is refused must leave as it was."""
    lists = (
        "topics",
        "users",
        "rules",
        "schemas",
        "delayed",
        "transactions",
        "dead",
        "caches",
        "queues",
        "configuration",
    )
    return [admin.get(f"/api/{name}").json()["total"] for name in lists]


def test_wrong_fields_are_refused_and_change_nothing(people: dict[str, httpx2.Client]) -> None:
    before = state(people["admin"])
    found = [fault for operation in TABLE for fault in faults(operation, lambda *given: ask(people["admin"], *given))]
    assert found == []
    assert state(people["admin"]) == before


def test_without_a_session_nothing_is_answered(address: str, people: dict[str, httpx2.Client]) -> None:
    ended = Browser(address).log_in("other", "other-word")
    replayed = ended.client.cookies[COOKIE]
    ended.do("/api/logout")
    before = state(people["admin"])
    with httpx2.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as client:
        for operation in (one for one in TABLE if one.right != "open"):
            for cookie in (None, "0" * 64, MARKUP, replayed):
                headers = {} if cookie is None else {"cookie": f"{COOKIE}={cookie}"}
                headers |= SAME_SITE if operation.method == "POST" else {}
                got = ask(client, operation, right_fields(operation), headers)
                assert got.status == 401, (operation.path, cookie)
    assert state(people["admin"]) == before


def test_a_change_from_elsewhere_is_refused(people: dict[str, httpx2.Client]) -> None:
    admin = people["admin"]
    before = state(admin)
    for operation in (one for one in TABLE if one.method == "POST"):
        fields, path = right_fields(operation), operation.path
        for headers in FOREIGN:
            assert admin.post(path, json=fields, headers=headers).status_code == 403, (path, headers)
        plain = SAME_SITE | {"content-type": "text/plain"}
        assert admin.post(path, content=json.dumps(fields), headers=plain).status_code == 415, path
        assert admin.get(path).status_code == 404, "a change is never made by GET"
        for body in (b"", b"[]", b"null", b"{" * 10_000, b"\xff\xfe", b'{"topic": ' + b"9" * 5000):
            headers = SAME_SITE | {"content-type": "application/json"}
            assert admin.post(path, content=body, headers=headers).status_code == 400, (path, body[:20])
    assert state(admin) == before


def test_only_administrators_are_answered(people: dict[str, httpx2.Client]) -> None:
    for operation in (one for one in TABLE if one.right == "admin"):
        assert ask(people["reader"], operation, right_fields(operation), {}).status == 403, operation.path


def test_hostile_text_is_taken_or_refused_and_never_a_fault(address: str, people: dict[str, httpx2.Client]) -> None:
    with httpx2.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as stranger:
        for operation in TABLE:
            names = [field.name for field in msgspec.structs.fields(operation.asks) if str in kinds(field.type)]
            client = (
                stranger if operation.path == "/api/login" else people["admin"]
            )  # a login ends the session before it
            for text in HOSTILE if names else ():
                got = ask(client, operation, right_fields(operation) | dict.fromkeys(names, text), {})
                assert got.status in (200, 400, 401, 403, 404, 409), (operation.path, text[:40], got)
                assert got.status == 200 or got.error, operation.path
    assert people["admin"].get("/api/me").json()["name"] == "admin"


# -- the control ------------------------------------------------------------------------------------------------------


class Careless(msgspec.Struct):
    """Fields that nobody checks."""

    topic: Any
    limit: Any = 0


async def _careless(_call: Call, asked: Careless) -> object:
    return {"rows": [0] * int(asked.limit or 0), "topic": asked.topic.upper()}


class Around:
    """What the console of the control sees of its server: a broker, and nothing else."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.listeners: dict[str, Any] = {}


def in_process(console: Console, cookie: str) -> Send:
    """Asks an application without sockets."""

    async def sent(operation: Operation, fields: dict[str, Any]) -> Got:
        body, said = json.dumps(fields).encode(), []
        names = {
            "host": "localhost",
            "content-type": "application/json",
            "cookie": cookie,
            "sec-fetch-site": "same-origin",
        }
        head = [(name.encode(), text.encode()) for name, text in names.items()]
        scope: Any = {"type": "http", "method": operation.method, "path": operation.path, "query_string": b"", "headers": head,
                 "client": ("127.0.0.1", 1), "state": {}}  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            said.append(message)

        await console(scope, receive, send)
        answer = json.loads(said[1]["body"])
        return Got(said[0]["status"], str(answer.get("error", "")) if isinstance(answer, dict) else "")

    return lambda operation, fields, _headers: asyncio.run(sent(operation, fields))


def test_the_walk_notices_a_route_that_does_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = next(one for one in TABLE if one.path == "/api/topic/create")
    careless = Operation(method="POST", path="/api/careless", right="known", asks=Careless, answer=_careless)
    monkeypatch.setitem(operations.BY_PLACE, ("POST", careless.path), careless)
    monkeypatch.setattr(app, "BY_PLACE", operations.BY_PLACE)
    sim, reports = SimBroker(), []

    async def made() -> Console:
        around: Any = Around(sim.broker)
        return Console(
            around, ConsoleListener(), Random(1).randbytes, lambda *said: reports.append(said), failures_per_minute=3
        )

    console = asyncio.run(made())
    token = console.sessions._issue(sim.broker.authenticate(b"dev-key")[0])
    send = in_process(console, f"{COOKIE}={token}")
    monkeypatch.setattr(console.sampler, "watched", lambda: None)
    assert faults(careful, send) == []
    strict = types.SimpleNamespace(**{name: getattr(careless, name) for name in ("method", "path")}, asks=careful.asks)
    found = faults(strict, send)  # type: ignore[arg-type]  # the careless route, asked as if it had checked fields
    assert any("status=500" in one for one in found) and any("status=200" in one for one in found)
    assert reports and reports[0][0] == "console_failed"


def test_a_field_of_an_unknown_type_cannot_be_passed_over() -> None:
    class Unknown(msgspec.Struct):
        when: bytes

    operation = Operation(method="GET", path="/api/unknown", right="known", asks=Unknown)
    with pytest.raises(KeyError):
        right_fields(operation)
