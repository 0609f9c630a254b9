"""Structured logs on stderr: one JSON object a line for machines, coloured lines for people at a terminal.

Every entry has `event` (a stable name) and, for failures, `code` (as in model/errors.py). No payloads, and no secrets:
fields whose name says they hold one are masked here, whoever logged them. Set up once, in server.py; everybody else
calls structlog.get_logger().
"""

import logging
import sys
from typing import Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

SECRET_WORDS: Final = ("key", "token", "password", "secret", "authorization", "credential")
# Fields with a secret's word in their name that hold none.
NOT_SECRET: Final = frozenset({"key_name", "key_file", "tls_key", "keys"})
MASK: Final = "***"
# What parts without a logger report that is an error; everything else they say is for information. Damage is always here:
# tests/test_logs.py looks for names that sound like it and are not.
ERROR_EVENTS: Final = frozenset({
    "anchor_differs", "anchors_damaged", "anchors_failed", "audit_lost", "audit_unreadable", "chain_key_missing",
    "checkpoint_failed", "checkpoint_rejected", "commit_failed", "compaction_failed", "corrupt_range",
    "dead_letter_failed", "delete_failed", "directory_replaced", "group_beyond_end", "journal_conflict",
    "journal_damaged", "journal_failed", "journal_rejected", "partition_failed", "quarantine_failed",
    "retention_failed", "session_failed", "stage_damaged", "stage_lost", "storage_full", "subscription_beyond_end",
    "table_damaged", "topics_without_row",
})  # fmt: skip


def mask_secrets(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
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


def configure(
    level: str = "info", form: Literal["auto", "json", "console"] = "auto", stream: TextIO | None = None
) -> None:
    """Send structlog and the standard library's loggers (uvicorn, asyncio) to `stream` (stderr) in one form."""
    out = stream or sys.stderr
    pretty = form == "console" or (form == "auto" and out.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        mask_secrets,
    ]
    # Tracebacks without local variables: those hold payloads and keys.
    last: list[Processor] = [
        structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    ]
    if not pretty:
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        last = [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    # uvicorn tells at info level that it starts and stops, in its own words; server.py says so already.
    logging.getLogger("uvicorn").setLevel(max(number, logging.WARNING))
