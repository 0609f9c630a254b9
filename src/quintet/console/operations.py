"""Joins the operations of all modules to one table, checks that each has its right, and repeats those that may be repeated, live."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from quintet.console import wire
from quintet.console.call import Call, Operation, answer
from quintet.console.pages import (
    cluster,
    dead,
    flow,
    holdings,
    identities,
    messages,
    operators,
    person,
    quotas,
    readers,
    schemas,
    search,
    topics,
)
from quintet.model.errors import BadRequest
from quintet.model.rights import check_rights

LIVE_S: Final = 2.0
STILL_S: Final = 15.0  # without news a line is sent all the same, so that a dead connection is noticed


class Live(msgspec.Struct, forbid_unknown_fields=True):
    """Which question to repeat: its path and query, as it would be asked alone."""

    of: str


async def _live(call: Call, ask: Live) -> AsyncIterator[tuple[str, object]]:
    """The answer of a question whenever it differs from the last; rights are asked for each time."""
    place = urlsplit(ask.of)
    operation = BY_PLACE.get(("GET", place.path))
    if operation is None or not operation.live or operation.answer is None:
        raise BadRequest(f"{place.path[:100]!r} is not a question that can be repeated")
    question = wire.asked_by_query(place.query.encode("ascii", "replace"), operation.asks)
    before, still = b"", 0.0
    while True:
        call.principal = call.console.sessions.check(call.session)
        call.permit(operation, getattr(question, "topic", ""))
        made = await answer(operation, call, question)
        encoded = wire.encode(made)
        still += LIVE_S
        if encoded != before or still > STILL_S:
            before, still = encoded, 0.0
            yield "data", made
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.console.sampler.next_walk(), STILL_S)


OPERATIONS: Final[tuple[Operation, ...]] = (
    *person.OPERATIONS,
    *flow.OPERATIONS,
    *topics.OPERATIONS,
    *messages.OPERATIONS,
    *search.OPERATIONS,
    *readers.OPERATIONS,
    *dead.OPERATIONS,
    *schemas.OPERATIONS,
    *holdings.OPERATIONS,
    *identities.OPERATIONS,
    *quotas.OPERATIONS,
    *operators.OPERATIONS,
    *cluster.OPERATIONS,
    Operation(method="GET", path="/api/live", right="known", asks=Live, stream=_live),
)
BY_PLACE: Final = {(operation.method, operation.path): operation for operation in OPERATIONS}


def check() -> None:
    """ConfigError unless every operation has a right that means something."""
    check_rights("console", BY_PLACE.keys(), {place: operation.right for place, operation in BY_PLACE.items()})
