"""What the Felix door promised before a kill, held against what is there after the restart.

    streams      every acknowledged message is in its topic, once, in order, as it was sent
    durable      what was not acknowledged comes again, in order; what was acknowledged in time does not
    group        the next member begins behind the last acknowledgement that was answered, or one that was not, and gets all
    cache        a key has its last answered value, or one of a later change that was not answered; never an older one, and
                 no version that ever was another change's; a put with a version of the past is refused
    increments   sum of the answered <= value <= sum of the attempted

Nothing here asks the broker's code; `after` is read from the files by reader.py.
"""

import time
from collections.abc import Callable

from tests.crash import reader
from tests.crash.felix_load import (
    CACHE,
    COUNTERS,
    DURABLE,
    GROUP,
    KEYS,
    STREAM,
    TOPIC,
    Consumer,
    FelixDoor,
    FelixStory,
    Read,
    look,
    payload,
)
from tests.wire import felix
from tests.wire.felix import Session

Note = Callable[[str, str], None]
QUIET_S = 0.15
SETTLE_S = 5.0


def judge(
    story: FelixStory, door: FelixDoor, after: dict[str, reader.Found], killed_at: float, saved_s: float, note: Note,
    settle_s: float = SETTLE_S,
) -> None:  # fmt: skip
    """All of it; what was not answered is settled here, so that the story can go on. settle_s: nothing more comes after this, though
    something is due."""
    while story.problems:
        note("wrong", story.problems.pop())
    found = after[TOPIC].values if TOPIC in after else {}
    judge_stream(story, found, note)
    for read in (story.durable, story.group):
        for offset, value in read.seen.items():
            if found.get(offset) != value:
                note("unsent", f"offset {offset} of {TOPIC} was delivered and is not there")
    try:
        with door.connect() as wire:
            judge_cache(story, wire, note)
            if found:
                judge_durable(story.durable, wire, set(found), killed_at, saved_s, note, settle_s)
                judge_group(story.group, wire, max(found) + 1, note, settle_s)
    except (felix.Closed, AssertionError) as error:
        note("undelivered", f"felix: {error}")


def judge_stream(story: FelixStory, found: dict[int, bytes], note: Note) -> None:
    numbers = []
    for offset, value in found.items():
        number = int(value.partition(b":")[0])
        if number >= story.published.attempted or payload(number) != value:
            note("phantom", f"{TOPIC} offset {offset} holds {value[:40]!r}")
        numbers.append(number)
    if len(set(numbers)) != len(numbers):
        note("dup", f"{TOPIC} holds something twice")
    if sorted(numbers) != numbers:
        note("reorder", f"{TOPIC} is out of order")
    for number in sorted(story.published.acked - set(numbers))[:3]:
        note("lost", f"{TOPIC} {number} was acknowledged")


def judge_durable(
    read: Read, wire: Session, there: set[int], killed_at: float, saved_s: float, note: Note, settle_s: float
) -> None:
    consumer = Consumer(wire, wire.subscribe(STREAM, durable=DURABLE, start="earliest"), read)
    old = {offset for offset, at in read.acked.items() if killed_at - at > saved_s}
    due = there - read.acked.keys()
    _drain(consumer, due, consumer.ack, settle_s)
    for offset in sorted(due - set(consumer.got))[:3]:
        note("undelivered", f"offset {offset} did not come to the durable subscriber")
    for offset in sorted(old & set(consumer.got))[:3]:
        note("again", f"offset {offset}, acknowledged long before the kill, came to the durable subscriber")


def judge_group(read: Read, wire: Session, end: int, note: Note, settle_s: float) -> None:
    promised, asked = read.committed, max(read.committed, read.asked)
    consumer = Consumer(wire, wire.subscribe(STREAM, group=GROUP, start="earliest"), read)
    _drain(consumer, set(range(asked, end)), consumer.commit, settle_s)
    first = min(consumer.got, default=end)
    if first < promised:
        note("again", f"the group got offset {first} again, its acknowledgement up to {promised} was answered")
    if first > asked or consumer.got != list(range(first, end)):
        note("undelivered", f"the group got {len(consumer.got)} from {first} on; due was {asked} to {end}")


def _drain(consumer: Consumer, due: set[int], settle: Callable[[felix.Event], None], settle_s: float) -> None:
    """Take until all that is due came, and then what else comes at once."""
    until = time.monotonic() + settle_s
    while time.monotonic() < until:
        event = consumer.take(QUIET_S)
        if event is not None:
            until = time.monotonic() + settle_s
            settle(event)
        elif due <= set(consumer.got):
            return


def judge_cache(story: FelixStory, wire: Session, note: Note) -> None:
    there = look(wire)
    for name in KEYS:
        key, (value, version) = story.keys[name], there[name]
        if value != key.value and value not in key.pending:
            note("cache", f"{name} is {_short(value)}, {_short(key.value)} was acknowledged last")
        elif value is not None and (version < key.version if value == key.value else version <= key.version):
            note("version", f"{name} has version {version}, {key.version} was acknowledged before")
        key.value, key.pending = value, []
        key.version = version or key.version
    for name in COUNTERS:
        counter, (value, version) = story.counters[name], there[name]
        number = int(value or 0)
        if not counter.acked <= number <= counter.attempted:
            note("count", f"{name} is {number}, {counter.acked} of {counter.attempted} were acknowledged")
        counter.acked = counter.attempted = number
    for name, (value, version) in there.items():
        if version and story.versions.setdefault(version, (name, value)) != (name, value):
            note("version", f"version {version} was {story.versions[version][0]}'s, and is {name}'s now")
    _past(story, wire, note)


def _past(story: FelixStory, wire: Session, note: Note) -> None:
    """Versions that were told and are not the newest: nobody may change anything by them."""
    for name in KEYS:
        newest = story.keys[name].version if story.keys[name].value is not None else 0
        told = [version for version, (of, _) in list(story.versions.items())[-50:] if of == name and version != newest]
        for version in told[-2:]:
            said = wire.ask(
                "cache_put", **felix.cache_of(CACHE), key=name, value=felix.b64(b"past"), if_version=version
            )
            if said.get("type") != "cache_conflict":
                note("version", f"{name}: a put with the past version {version} was answered with {said}")


def _short(value: bytes | None) -> str:
    return "not there" if value is None else repr(value[:20])
