"""Logs: one JSON object a line away from terminals, and nothing in them that must not leave."""

import ast
import io
import json
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from quintet import logs

REPORTS = ("report", "_report")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_when_not_a_terminal() -> None:
    out = io.StringIO()
    logs.configure(stream=out)
    logs.Logger().info("listener.open", port=5, code="I1")
    logging.getLogger("uvicorn.error").warning("odd %s", 1)
    logging.getLogger("quintet").debug("hidden")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["port"], first["code"], first["level"]) == ("listener.open", 5, "I1", "info")
    assert (second["event"], second["logger"], second["level"]) == ("odd 1", "uvicorn.error", "warning")
    assert first["timestamp"].endswith("Z")


def test_console_for_people() -> None:
    out = io.StringIO()
    logs.configure(form="console", stream=out)
    logs.Logger().info("listener.open", port=5)
    assert "listener.open" in out.getvalue()
    assert not out.getvalue().startswith("{")


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_and_payloads_stay_inside(form: str) -> None:
    out = io.StringIO()
    logs.configure(form="json" if form == "json" else "console", stream=out)
    hidden_local = "very-secret"
    log = logs.Logger()
    log.info("a", api_key=hidden_local, nested={"Token": hidden_local, "list": [{"password": hidden_local}]})
    log.info("b", payload=b"very-secret", view=memoryview(b"very-secret"))
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("quintet").exception("c", extra={"fields": {"key_name": "dev", "api_key": hidden_local}})
    try:
        raise RuntimeError("handed over")
    except RuntimeError as error:
        log.error("d", exc_info=error)
    lines = out.getvalue().splitlines()
    assert "RuntimeError: handed over" in lines if form == "console" else json.loads(lines[-1])["exception"]
    assert "very-secret" not in out.getvalue()
    assert "<11 bytes>" in out.getvalue()
    assert "broken" in out.getvalue()
    assert "dev" in out.getvalue()


def test_the_level_is_kept() -> None:
    out = io.StringIO()
    logs.configure(level="error", stream=out)
    logs.Logger().warning("quiet")
    logging.getLogger("asyncio").warning("quiet")
    assert out.getvalue() == ""


@cache
def reports(source: str) -> list[ast.Call]:
    """All calls of a module that report something. To parse one costs milliseconds, so it is done once, and not for nothing."""
    return [
        node
        for node in (ast.walk(ast.parse(source)) if "report" in source else ())
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in REPORTS
    ]


def reported(source: str) -> set[str]:
    """The names of all events that a module reports."""
    firsts = [node.args[0] for node in reports(source) if node.args]
    return {first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)}


def test_damage_is_logged_as_an_error() -> None:
    words = (
        "damage",
        "corrupt",
        "reject",
        "conflict",
        "unreadable",
        "lost",
        "fail",
        "differ",
        "without",
        "beyond",
        "replaced",
    )
    calm = {
        "authentication_failed",
        "queue_without_backlog",
    }  # by strangers, all day long; tried again by the next start
    source = Path(logs.__file__).parent
    names = {name for file in source.rglob("*.py") for name in reported(file.read_text())}
    assert {"corrupt_range", "table_damaged"} <= names  # or nothing is looked at
    assert {name for name in names if any(word in name for word in words)} - logs.ERROR_EVENTS <= calm


def test_a_flood_of_one_event_is_summed_up_and_others_are_not_lost() -> None:
    out, now = io.StringIO(), [0.0]
    logs.configure(stream=out)
    report = logs.Reporter(lambda: now[0])
    for number in range(5_000):
        report("authentication_failed", {"door": "flymq", "peer": f"10.0.0.1:{number}"})
    report("corrupt_range", {"file": "x"})
    now[0] = logs.REPEATED_WINDOW_S
    report("authentication_failed", {"door": "flymq", "peer": "10.0.0.2:1"})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == logs.REPEATED_MAX + 3
    damage, summary, last = lines[-3:]
    assert (damage["event"], damage["level"]) == ("corrupt_range", "error")
    assert (summary["event"], summary["of"], summary["level"]) == (
        "events_left_out",
        "authentication_failed",
        "warning",
    )
    assert summary["times"] == 5_000 - logs.REPEATED_MAX
    assert (last["peer"], last["level"]) == ("10.0.0.2:1", "warning")


def test_every_event_has_one_level() -> None:
    assert not logs.ERROR_EVENTS & logs.WARNING_EVENTS


def reserved(text: str) -> set[str]:
    """Reserved names among the fields that this source gives an event, if they are written out."""
    found = set[str]()
    for node in reports(text):
        if len(node.args) > 1 and isinstance(node.args[1], ast.Dict):
            names = {str(key.value) for key in node.args[1].keys if isinstance(key, ast.Constant)}
            found |= names & logs.RESERVED_FIELDS
    return found


def test_no_field_is_called_as_what_every_entry_has() -> None:
    assert reserved('self._report("audit_lost", {"event": "x"})') == {"event"}
    source = Path(logs.__file__).parent
    assert {file.name: names for file in source.rglob("*.py") if (names := reserved(file.read_text()))} == {}


def test_a_report_fails_for_no_name_of_a_field() -> None:
    """Whoever reports is in the middle of something: a field `event` once ended the delivery of a topic on a full disk."""
    out = io.StringIO()
    logs.configure(stream=out)
    fields: dict[str, object] = {name: "x" for name in [*logs.RESERVED_FIELDS, "self", "fields", "door"]}
    logs.Reporter(lambda: 0.0)("audit_lost", fields)
    entry = json.loads(out.getvalue())
    assert (entry["event"], entry["level"], entry["door"], entry["self"]) == ("audit_lost", "error", "x", "x")
    assert fields["event"] == "x", "they are the caller's"
