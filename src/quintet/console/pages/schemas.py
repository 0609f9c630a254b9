"""Answers questions about schemas and pipelines; registers a schema after showing whether it may follow the one before."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final, Literal

import msgspec

from quintet.broker.schemas.registry import Schema
from quintet.console.call import Call, Operation
from quintet.console.paging import List, Row, listed
from quintet.console.wire import Empty

DEFINITION_SHOWN: Final = 256 << 10


class One(msgspec.Struct, forbid_unknown_fields=True):
    """All versions of one subject, whose name is usually a topic's."""

    topic: str


Kind = Literal["json", "avro", "protobuf"]
Mode = Literal["", "backward", "forward", "full", "none"]


class Register(msgspec.Struct, forbid_unknown_fields=True):
    """A new version of a subject. An empty mode leaves that of the subject."""

    topic: str
    type: Kind
    definition: str
    compatibility: Mode = ""


class Compare(Register, forbid_unknown_fields=True):
    """May this definition follow a version (0: the newest)?"""

    version: int = 0


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    """Let a pipeline stop."""

    name: str


def _newest(call: Call) -> Iterator[Row | None]:
    """The newest version of each subject: `walk` gives the versions of a subject one after the other."""
    last: Schema | None = None
    for schema in call.broker.schemas.walk():
        if schema is None:
            yield None
            continue
        if last is not None and last.name != schema.name:
            yield _row(call, last)
        last = schema
    if last is not None:
        yield _row(call, last)


def _row(call: Call, one: Schema) -> Row | None:
    if not call.may_see(one.name):
        return None
    return {"name": one.name, "version": one.version, "type": one.type, "compatibility": one.compatibility}


async def _list(call: Call, ask: List) -> object:
    return await listed(call, ask, _newest(call), ("name", "type"))


async def _one(call: Call, ask: One) -> object:
    found = call.broker.schemas.list(ask.topic)
    if not found:
        call.broker.schemas.get(ask.topic)  # says that there is none
    rows = [
        {
            "version": one.version,
            "type": one.type,
            "definition": one.definition[:DEFINITION_SHOWN].decode(errors="replace"),
        }
        for one in found
    ]
    return {"name": ask.topic, "compatibility": found[-1].compatibility, "versions": rows}


async def _compare(call: Call, ask: Compare) -> object:
    """What a registration would say, with nothing changed."""
    definition = ask.definition.encode("utf-8", "replace")
    asked = call.broker.schemas.compare(
        ask.topic, ask.version, ask.type, definition, ask.compatibility or None, call.wanted
    )
    return {"reasons": await call.run(asked)}


async def _register(call: Call, ask: Register) -> object:
    definition = ask.definition.encode("utf-8", "replace")
    made = await call.run(
        call.broker.schemas.register(ask.topic, ask.type, definition, ask.compatibility or None, call.wanted)
    )
    call.changed("schema.register", made.name, "register", version=made.version)
    return {"name": made.name, "version": made.version}


async def _pipelines(call: Call, _ask: Empty) -> object:
    seen = call.console.surroundings.pipelines(call.owner, call.administers)
    monotonic = call.broker.scheduler.monotonic()
    rows = [
        asdict(status.report) | {"owner": status.owner, "heard_seconds": (monotonic - status.heard_us) // 1_000_000,
                                 "stopping": status.stop_of is not None}
        for status in seen
    ]  # fmt: skip
    return {"rows": rows}


async def _stop(call: Call, ask: Stop) -> object:
    call.console.surroundings.stop_pipeline(call.owner, call.administers, ask.name)
    call.changed("config.change", ask.name, "stop pipeline")
    return {}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/schemas", right="known", asks=List, answer=_list),
    Operation(method="GET", path="/api/schema", right="read or write", asks=One, answer=_one),
    Operation(method="POST", path="/api/schema/compare", right="read or write", asks=Compare, answer=_compare),
    Operation(method="POST", path="/api/schema/register", right="write", asks=Register, answer=_register),
    Operation(method="GET", path="/api/pipelines", right="known", asks=Empty, answer=_pipelines, live=True),
    Operation(method="POST", path="/api/pipeline/stop", right="owner", asks=Stop, answer=_stop),
)
