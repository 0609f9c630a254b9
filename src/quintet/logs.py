"""Structured logs on stderr: one JSON object a line for machines, coloured lines for people at a terminal.

Every entry has `event` (a stable name) and, for failures, `code` (as in model/errors.py). No payloads, and no secrets:
fields whose name says they hold one are masked here, whoever logged them. Set up once, in server.py, which speaks through
`Logger`; parts below it call the standard library: `logging.getLogger("quintet").error("event", extra={"fields": {...}})`.

A JSON line needs a dict and json.dumps. structlog draws the lines for people and takes tracebacks apart, and is loaded then:
it brings all of rich, 85 ms of processor time in every start of a broker that writes JSON.
"""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

SECRET_WORDS: Final = ("key", "token", "password", "secret", "authorization", "credential")
# Fields with a secret's word in their name that hold none.
NOT_SECRET: Final = frozenset({"key_name", "key_file", "tls_key", "keys"})
MASK: Final = "***"
# What every entry has: no field of an event may be called so (tests/test_logs.py looks at all of them).
RESERVED_FIELDS: Final = frozenset({"event", "level", "timestamp", "logger", "exception"})
# What parts without a logger report that is an error; everything else they say is for information. Damage is always here:
# tests/test_logs.py looks for names that sound like it and are not.
ERROR_EVENTS: Final = frozenset({
    "anchor_differs", "anchors_damaged", "anchors_failed", "audit_lost", "audit_unreadable", "chain_key_missing",
    "checkpoint_failed", "checkpoint_rejected", "commit_failed", "compaction_failed", "console_failed", "corrupt_range",
    "dead_letter_failed", "delete_failed", "directory_replaced", "group_beyond_end", "journal_conflict",
    "journal_damaged", "journal_failed", "journal_rejected", "mark_failed", "partition_failed", "quarantine_failed",
    "retention_failed", "session_failed", "stage_damaged", "stage_lost", "storage_full", "subscription_beyond_end",
    "table_damaged", "topics_without_row",
})  # fmt: skip
# What an operator should look at in the morning. The rest that is no error is for information.
WARNING_EVENTS: Final = frozenset({
    "authentication_failed", "clock_jumped", "cluster_not_accepting", "cluster_refused", "delayed_wait", "forwarding_cut", "forwarding_full", "group_not_saved",
    "intent_waits", "journal_not_made", "leader_unreachable", "peer_message_dropped", "peer_unreachable", "slow_turn", "stage_not_removed", "telemetry_unreachable", "torn_tail", "wal_not_trimmed", "wal_trouble",
})  # fmt: skip
WARNING_ENDINGS: Final = ("_door_shut", "_certificate_is_authority")
# What clients can bring about as often as they like: of each so many a minute are said, the others are counted.
REPEATED_EVENTS: Final = frozenset({
    "audit_at_follower", "authentication_failed", "cluster_refused", "connection_closed", "forwarding_cut", "forwarding_full", "leader_unreachable",
    "peer_message_dropped", "session_failed", "slow_turn", "stream_reset",
})  # fmt: skip
REPEATED_MAX: Final = 120
REPEATED_WINDOW_S: Final = 60.0


Entry = dict[str, Any]


class Logger:
    """Says events with fields, through the standard library's logging."""

    def __init__(self) -> None:
        self._to = logging.getLogger("quintet")

    def info(self, event: str, **fields: object) -> None:
        self.say(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self.say(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self.say(logging.ERROR, event, fields)

    def say(self, level: int, event: str, fields: Entry) -> None:
        """Fields of any name: whoever reports from below must not fail for what a field is called. Of RESERVED_FIELDS the entry's own win."""
        raised = fields.get("exc_info")
        traced = raised if isinstance(raised, BaseException) else None
        shown = {name: value for name, value in fields.items() if name != "exc_info"}
        self._to.log(level, event, exc_info=traced, extra={"fields": shown})


class Reporter:
    """How parts without a logger speak: the name of an event decides its level, and whether a flood of it is summed up."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._log = Logger()
        self._monotonic = monotonic
        self._began = monotonic()
        self._said: dict[str, int] = {}  # in this window, those left out among them

    def __call__(self, event: str, fields: dict[str, object]) -> None:
        if event in REPEATED_EVENTS and not self._may_say(event):
            return
        if event in ERROR_EVENTS:
            level = logging.ERROR
        elif event in WARNING_EVENTS or event.endswith(WARNING_ENDINGS):
            level = logging.WARNING
        else:
            level = logging.INFO
        self._log.say(level, event, fields)

    def _may_say(self, event: str) -> bool:
        monotonic = self._monotonic()
        if monotonic - self._began >= REPEATED_WINDOW_S:
            self.sum_up()
            self._began = monotonic
        count = self._said[event] = self._said.get(event, 0) + 1
        return count <= REPEATED_MAX

    def sum_up(self) -> None:
        """Say what was left out since the last time."""
        said, self._said = self._said, {}
        for event, count in sorted(said.items()):
            if count > REPEATED_MAX:
                self._log.warning("events_left_out", of=event, times=count - REPEATED_MAX, said=REPEATED_MAX)


def mask_secrets(entry: Entry) -> Entry:
    """Mask fields named like a secret, and never show bytes: they may be someone's message."""
    return {name: MASK if _is_secret(name) else _mask(value) for name, value in entry.items()}


def _mask(fields: object) -> object:
    if isinstance(fields, dict):
        return {name: MASK if _is_secret(name) else _mask(value) for name, value in fields.items()}
    if isinstance(fields, list | tuple):
        return [_mask(value) for value in fields]
    if isinstance(fields, bytes | bytearray | memoryview):
        return f"<{len(fields)} bytes>"
    return fields


def _is_secret(name: object) -> bool:
    text = str(name).lower()
    return text not in NOT_SECRET and any(word in text for word in SECRET_WORDS)


class Lines(logging.Formatter):
    """One entry a line, by `render`."""

    def __init__(self, render: Callable[[Entry], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        entry: Entry = {} if fields is None else dict(fields)
        entry["event"] = record.getMessage()
        entry["level"] = record.levelname.lower()
        entry["timestamp"] = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        entry = mask_secrets(entry)
        if fields is None:  # not ours: uvicorn, asyncio
            entry["logger"] = record.name
        if record.exc_info and record.exc_info[1] is not None:
            entry["exc_info"] = record.exc_info
        return self._render(entry)


def _as_json(entry: Entry) -> str:
    raised = entry.pop("exc_info", None)
    if raised is not None:
        from structlog.tracebacks import ExceptionDictTransformer  # late: see above

        # Without local variables: those hold payloads and keys.
        entry["exception"] = ExceptionDictTransformer(show_locals=False)(raised)
    return json.dumps(entry, default=str)


def _for_people(colors: bool) -> Callable[[Entry], str]:
    from structlog import dev  # late: see above

    renderer = dev.ConsoleRenderer(colors=colors, exception_formatter=dev.plain_traceback)
    return lambda entry: str(renderer(None, entry["level"], entry))


def configure(
    level: str = "info", form: Literal["auto", "json", "console"] = "auto", stream: TextIO | None = None
) -> None:
    """Send everybody's entries (ours, uvicorn's, asyncio's) to `stream` (stderr) in one form."""
    out = stream or sys.stderr
    pretty = form == "console" or (form == "auto" and out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(out)
    handler.setFormatter(Lines(_for_people(out.isatty()) if pretty else _as_json))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    # uvicorn tells at info level that it starts and stops, in its own words; server.py says so already.
    logging.getLogger("uvicorn").setLevel(max(number, logging.WARNING))
