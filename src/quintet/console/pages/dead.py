"""Answers questions about dead letters, and sends them again from a selection that the server froze.

A selection is a list of ids, made once from a filter and kept for SELECTION_S seconds for the person who made it: what is replayed is
what was counted and shown, whatever died or was replayed meanwhile. A letter that is no longer open says so in its result.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from quintet.broker.atomic.dead_letters import DeadLetter
from quintet.console import wire
from quintet.console.call import Call, Operation
from quintet.console.pages.messages import KEY_SHOWN, VALUE_SHOWN, publish
from quintet.console.paging import List, folded, has, listed
from quintet.model.errors import BadRequest, QuintetError

PAGE_MAX: Final = 200
SELECT_MAX: Final = 10_000  # letters in one selection
LOOKED_MAX: Final = 50_000  # letters looked at for one selection
SELECTIONS_MAX: Final = 100
SELECTION_S: Final = 900.0
REPLAY_MAX: Final = 100  # of one request: the page asks again for the next
BROWSE: Final = 500
AGES: Final = ((60, "1 min"), (600, "10 min"), (3600, "1 h"), (86_400, "1 day"), (604_800, "1 week"))


class Of(msgspec.Struct, forbid_unknown_fields=True):
    """Dead letters of a topic, behind an id. `cause` is one of those counted, `text` a part of cause, error or origin."""

    topic: str
    after: str = ""
    cause: str = ""
    text: str = ""
    limit: int = 50


class Select(msgspec.Struct, forbid_unknown_fields=True):
    """Freeze what matches, or exactly these ids."""

    topic: str
    cause: str = ""
    text: str = ""
    ids: list[str] = []


class Figures(msgspec.Struct, forbid_unknown_fields=True):
    """Count what matches by cause and age."""

    topic: str
    cause: str = ""
    text: str = ""


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """Send a part of a selection again: to the topic it died in, or as copies elsewhere (then the letters stay open)."""

    topic: str
    selection: str
    skip: int = 0
    limit: int = REPLAY_MAX
    to: str = ""


class Edited(msgspec.Struct, forbid_unknown_fields=True):
    """Send one letter again with another value."""

    topic: str
    id: str
    value: str | None = None
    value_base64: str | None = None


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """Put all dead letters of a topic aside; `typed` is its name, as the person wrote it."""

    topic: str
    typed: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What was frozen, for whom, and until when (monotonic seconds)."""

    topic: str
    owner: str
    ids: tuple[str, ...]
    ends: float


def matches(letter: DeadLetter, cause: str, text: str) -> bool:
    """`text` is folded."""
    if cause and letter.cause != cause:
        return False
    words = (letter.cause, letter.error, letter.origin.decode(errors="replace"))
    return has(text, words)


def _row(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id, "partition": letter.partition, "offset": letter.offset, "cause": letter.cause, "error": letter.error,
        "attempts": letter.attempts, "first_us": letter.first_us, "last_us": letter.last_us,
        "key": wire.shown(letter.key, KEY_SHOWN), "value": wire.shown(letter.value, VALUE_SHOWN),
        "headers": len(letter.headers), "origin": letter.origin.decode(errors="replace"),
    }  # fmt: skip


async def _topics(call: Call, ask: List) -> object:
    counts = call.broker.dead_letter_counts(call.principal)
    return await listed(call, ask, ({"topic": name, "letters": count} for name, count in counts), ("topic",))


async def _letters(call: Call, ask: Of) -> object:
    if not 1 <= ask.limit <= PAGE_MAX:
        raise BadRequest(f"limit is {ask.limit}; it is 1 to {PAGE_MAX}")
    source = call.broker.dead_letters_of(call.principal, ask.topic, call.peer)
    found: list[DeadLetter] = []
    after, looked, text = ask.after, 0, folded(ask.text)
    while len(found) < ask.limit and looked < LOOKED_MAX:
        page = await call.run(call.broker.dead.browse(source, BROWSE, after, call.patience))
        if not page:
            break
        for letter in page:
            looked, after = looked + 1, letter.id
            if matches(letter, ask.cause, text):
                found.append(letter)
                if len(found) >= ask.limit:
                    break
    return {"rows": [_row(letter) for letter in found], "after": after, "total": call.broker.dead.counts(source)}


async def _one(call: Call, ask: Edited) -> object:
    source = call.broker.dead_letters_of(call.principal, ask.topic, call.peer)
    letter = await call.run(call.broker.dead.get(source, ask.id))
    return _row(letter) | {"value": wire.shown(letter.value), "key": wire.shown(letter.key)}


async def _matching(call: Call, ask: Select) -> tuple[list[DeadLetter], bool]:
    """Letters for a selection, without their values, and whether all were looked at."""
    source = call.broker.dead_letters_of(call.principal, ask.topic, call.peer)
    chosen: list[DeadLetter] = []
    wanted, after, looked, text = set(ask.ids), "", 0, folded(ask.text)
    while looked < LOOKED_MAX:
        page = await call.run(call.broker.dead.browse(source, BROWSE, after, call.patience))
        if not page:
            return chosen, True
        for letter in page:
            looked, after = looked + 1, letter.id
            if letter.id in wanted if wanted else matches(letter, ask.cause, text):
                chosen.append(letter)
                if len(chosen) >= SELECT_MAX:
                    return chosen, False
    return chosen, False


async def _select(call: Call, ask: Select) -> object:
    """The dry run: what would be sent, counted by cause and age, and a name for exactly that."""
    letters, whole = await _matching(call, ask)
    kept = _kept(call)
    seconds = call.broker.scheduler.monotonic() / 1e6
    for old in [name for name, one in kept.items() if one.ends < seconds]:
        del kept[old]
    while len(kept) >= SELECTIONS_MAX:
        del kept[next(iter(kept))]
    name = call.console.entropy(16).hex()
    kept[name] = Selection(ask.topic, call.owner, tuple(letter.id for letter in letters), seconds + SELECTION_S)
    size = sum(len(letter.value or b"") + len(letter.key or b"") for letter in letters)
    return {"selection": name, "count": len(letters), "bytes": size, "whole": whole, "first": [_row(one) for one in letters[:5]],
            **histograms(letters, call.broker.scheduler.now())}  # fmt: skip


async def _figures(call: Call, ask: Figures) -> object:
    """Causes and ages of all that match, counted without a selection."""
    letters, whole = await _matching(call, Select(ask.topic, ask.cause, ask.text))
    return {"count": len(letters), "whole": whole, **histograms(letters, call.broker.scheduler.now())}


def _kept(call: Call) -> dict[str, Selection]:
    kept: dict[str, Selection] = call.console.kept.setdefault("selections", {})
    return kept


def histograms(letters: Iterable[DeadLetter], now_us: int) -> dict[str, object]:
    """How many by cause, and by age."""
    causes: Counter[str] = Counter()
    ages: Counter[str] = Counter()
    for letter in letters:
        causes[letter.cause or "(no cause)"] += 1
        age = (now_us - (letter.last_us or letter.timestamp)) / 1e6
        ages[next((f"up to {name}" for bound, name in AGES if age <= bound), "older")] += 1
    order = [*(f"up to {name}" for _, name in AGES), "older"]
    return {"causes": causes.most_common(20), "ages": [(name, ages[name]) for name in order if ages[name]]}


async def _replay(call: Call, ask: Replay) -> object:
    """Each letter by itself, so that one that is refused does not keep the others; the result of each."""
    chosen = _kept(call).get(ask.selection)
    if chosen is None or chosen.owner != call.owner or chosen.topic != ask.topic:
        raise BadRequest("there is no such selection: its time is over, or it is of somebody else", hint="select again")
    if not 1 <= ask.limit <= REPLAY_MAX or ask.skip < 0:
        raise BadRequest(f"skip is 0 or more, limit 1 to {REPLAY_MAX}")
    source = call.broker.dead_letters_of(call.principal, ask.topic, call.peer)
    results = []
    for id in chosen.ids[ask.skip : ask.skip + ask.limit]:
        try:
            if ask.to and ask.to != ask.topic:
                letter = await call.run(call.broker.dead.get(source, id))
                value = None if letter.value is None else bytes(letter.value)
                await call.run(publish(call, ask.to.encode(), letter.key, value, list(letter.headers), -1))
            else:
                await call.run(call.broker.dead.replay(source, id, None))
            results.append({"id": id, "error": None})
        except QuintetError as error:
            results.append({"id": id, "error": str(error)})
    done = sum(result["error"] is None for result in results)
    if results:
        call.changed(
            "data.produce", ask.to or ask.topic, "replay dead letters", letters=done, refused=len(results) - done
        )
    return {"results": results, "left": max(len(chosen.ids) - ask.skip - len(results), 0)}


async def _edited(call: Call, ask: Edited) -> object:
    source = call.broker.dead_letters_of(call.principal, ask.topic, call.peer)
    value = wire.bytes_of(ask.value, ask.value_base64)
    await call.run(call.broker.dead.replay(source, ask.id, value))
    call.changed("data.produce", ask.topic, "replay dead letter", letter=ask.id, edited=value is not None)
    return {}


async def _purge(call: Call, ask: Purge) -> object:
    if ask.typed != ask.topic:
        raise BadRequest(f"the name that was typed is not {ask.topic!r}: nothing was purged")
    source = call.broker.dead_letters_of(call.principal, ask.topic, call.peer)
    count = await call.run(call.broker.dead.purge(source))
    call.changed("topic.delete", call.broker.dead.name_for(source).decode(), "purge dead letters", letters=count)
    return {"purged": count}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/dead", right="known", asks=List, answer=_topics, live=True),
    Operation(method="GET", path="/api/dead/figures", right="read", asks=Figures, answer=_figures),
    Operation(method="GET", path="/api/dead/letters", right="read", asks=Of, answer=_letters),
    Operation(method="GET", path="/api/dead/letter", right="read", asks=Edited, answer=_one),
    Operation(method="POST", path="/api/dead/select", right="read", asks=Select, answer=_select),
    Operation(method="POST", path="/api/dead/replay", right="write", asks=Replay, answer=_replay),
    Operation(method="POST", path="/api/dead/edit", right="write", asks=Edited, answer=_edited),
    Operation(method="POST", path="/api/dead/purge", right="manage", asks=Purge, answer=_purge),
)
