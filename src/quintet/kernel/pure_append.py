"""Appends what doors read, in pure Python: the specification of `blip_append`, `fast_append` and `fly_append` of the native twin.

What a connection's routes know goes to its topic in the call that splits the read: to the tails of memory topics, and to partitions in
files that are lent (`Holding`; natively `held.rs`). Everything else comes out for the session, and nothing overtakes it. No I/O, no
clock. `_native.pyi` says what each function promises.
"""

import struct
from typing import Generic, TypeVar

from quintet.kernel.buffer import Buffer
from quintet.kernel.items import BlipHeld, FastHeld, FlyGroup, FlyHeld
from quintet.kernel.pure_batch import head_of
from quintet.kernel.pure_blip import PUBLISH, RECORDS, RECORDS_TOPIC_AT, blip_split
from quintet.kernel.pure_fast import fast_split
from quintet.kernel.pure_fly import FRAME, MAGIC, PRODUCE_RECORDS, VERSION, fly_produced, fly_split
from quintet.kernel.pure_tails import Routes, Tails

PING, PONG = 7, 8
PONG_BYTES = 9
SETS_BYTES_MAX = 1024 * 1024  # record sets that one call appends: behind so much, the session looks at the time
SET_OP = bytes((PRODUCE_RECORDS,))
MICROSECONDS_PER_MILLISECOND = 1000
FAST_PUBLISH, FAST_OK = 3, 0x7E
HELD_SET_BYTES_MAX = 1024 * 1024  # batches of a record set of BlipMQ that is appended to files
JOURNALED, INLINE = 1, 2  # the bits of `ways`

_KIND = struct.Struct("<12xHH32xQ")  # flags, columns, producer_id
_FRAME = struct.Struct(">IBQ")
_ID = struct.Struct("<Q")
_SET_GROUP = struct.Struct(">iQIq")  # partition, offset, count, timestamp_ms
_OK = struct.Struct(">BBIHB")

View = TypeVar("View")
Target = TypeVar("Target")


class Holding:
    """What one call of a door has appended to partitions in files: whoever waits for it is known by one ticket."""

    __slots__ = ("ticket", "ways")

    def __init__(self) -> None:
        self.ticket = self.ways = 0

    def append(
        self, tails: Tails[View], handle: int, partition: int, count: int, batch: bytearray, now: int, number: int
    ) -> int:
        """Append a batch, which `Tails.takes_lent` said yes to, for group `number` of the call: its partition."""
        if not self.ways:
            tails.lents.ticket += 1
            self.ticket = tails.lents.ticket
        partition, inline = tails.publish_lent(handle, partition, batch, count, now, self.ticket, number)
        self.ways |= INLINE if inline else JOURNALED
        return partition


def blip_append(
    tails: Tails[View],
    routes: Routes[Target],
    data: Buffer,
    start: int,
    version: int,
    max_frame: int,
    origin: bytes,
    now: int,
    sets: dict[bytes, int] | None = None,
    append_sets: bool = True,
) -> tuple[bytes, list[tuple[int, ...] | tuple[object, ...]], int, int, Target | None, BlipHeld | None]:
    items, end, fatal = blip_split(data, start, version, max_frame, origin, now, sets)
    pongs = b""
    left: list[tuple[int, ...] | tuple[object, ...]] = []
    last: Target | None = None
    direct = True
    holding, held = Holding(), list[tuple[bytes, bytes]]()
    for item in items:
        route: tuple[int, Target, bool] | None = None
        if direct and item[0] == PUBLISH:
            route = _append_publishes(tails, routes, item, now, holding, held)
        elif direct and append_sets and item[0] == RECORDS and len(item) == 5:
            route = _append_set(tails, routes, item, now, holding, held)
        elif direct and item[0] == PING:
            pong = _FRAME.pack(PONG_BYTES, PONG, item[1])
            if held:  # it waits for what is before it
                held[-1] = (held[-1][0], held[-1][1] + pong)
            else:
                pongs += pong
            continue
        if route is not None:
            last = route[1]
            continue
        direct = False  # what comes behind it must not overtake it
        left.append(item)
    return pongs, left, end, fatal, last, (holding.ticket, held, holding.ways) if held else None


def _append_publishes(
    tails: Tails[View],
    routes: Routes[Target],
    item: tuple[object, ...],
    now: int,
    holding: Holding,
    held: list[tuple[bytes, bytes]],
) -> tuple[int, Target, bool] | None:
    """Where publishes to one topic went, if it is known, and in memory or lent."""
    _, qos, name, batch, ids = item
    assert isinstance(name, bytes) and isinstance(batch, bytearray) and isinstance(ids, bytes)
    route = routes.find(name)
    if route is None or (qos and not route[2]):
        return None
    count = len(ids) >> 3
    if tails.publish(route[0], batch, count):
        return route
    if not tails.takes_lent(route[0], -1, len(batch)):
        return None
    holding.append(tails, route[0], -1, count, batch, now, len(held))
    held.append((ids if qos else b"", b""))
    return route


def _append_set(
    tails: Tails[View],
    routes: Routes[Target],
    item: tuple[object, ...],
    now: int,
    holding: Holding,
    held: list[tuple[bytes, bytes]],
) -> tuple[int, Target, bool] | None:
    """Where a record set went, if its topic is known and all its partitions are there, in memory or lent."""
    _, correlation_id, head, _, groups = item
    assert isinstance(head, bytes) and isinstance(groups, list)
    route = routes.find(head[RECORDS_TOPIC_AT:])
    if route is None or (head[0] and not route[2]):
        return None
    if all(tails.takes(route[0], partition) for partition, _, _ in groups):
        for partition, batch, count in groups:
            tails.publish_at(route[0], partition, batch, count, now)
        return route
    # Each is asked for its room by itself, so what all of them take is bounded.
    if sum(len(batch) for _, batch, _ in groups) > HELD_SET_BYTES_MAX or not all(
        tails.takes_lent(route[0], partition, len(batch)) for partition, batch, _ in groups
    ):
        return None
    for partition, batch, count in groups:
        holding.append(tails, route[0], partition, count, batch, now, len(held))
    held.append((_ID.pack(correlation_id) if head[0] else b"", b""))
    return route


def fast_append(
    tails: Tails[View],
    routes: Routes[Target],
    data: Buffer,
    start: int,
    payload_max: int,
    tokens: dict[bytes, bytes | None],
    topics: dict[int, tuple[int, int]],
    now: int,
    same: bytes | None,
    answered: bool,
) -> tuple[bytes, list[tuple[object, ...]], int, int, bytes | None, bytes | None, Target | None, FastHeld | None]:
    items, end, fatal, unknown, same = fast_split(data, start, payload_max, tokens, topics, now, same)
    answers, later = b"", b""
    last: Target | None = None
    done = 0
    holding, held = Holding(), list[tuple[int, int]]()
    for item in items:
        if item[0] != FAST_PUBLISH or item[3] is None:
            break
        _, jwt, topic, batch, count = item
        assert (
            isinstance(jwt, bytes)
            and isinstance(topic, int)
            and isinstance(batch, bytearray)
            and isinstance(count, int)
        )
        route = routes.find(topic.to_bytes(4, "big") + jwt)
        if route is None:
            break
        if not tails.publish(route[0], batch, count):
            if not tails.takes_lent(route[0], -1, len(batch)):
                break
            holding.append(tails, route[0], -1, count, batch, now, len(held))
        made = _OK.pack(FAST_OK, FAST_PUBLISH, topic, 0, 0) * (count if answered else 0)
        if holding.ways:  # it waits for what is before it
            later += made
            held.append((topic, count if answered or route[2] else 0))
        else:
            answers += made
        last = route[1]
        done += 1
    waits = (holding.ticket, later, held, holding.ways) if held else None
    return answers, items[done:], end, fatal, unknown, same, last, waits


def _route_of(routes: Routes[Target], group: FlyGroup) -> tuple[int, Target, bool] | None:
    """Where a group goes, if it is to be kept and of no idempotent producer."""
    route = routes.find(group[0])
    return route if route is not None and route[2] and not _KIND.unpack_from(group[2])[2] else None


def _any_lent(tails: Tails[View], routes: Routes[Target], groups: list[FlyGroup]) -> bool:
    """Does one of them go to a partition in files, without a decision?"""
    found = [_route_of(routes, group) for group in groups]
    return any(
        route is not None and tails.takes_lent(route[0], partition, len(batch))
        for route, (_, partition, batch, _) in zip(found, groups, strict=True)
    )


class FlyAppended:
    """What is told of a run that was appended to partitions in files. `answers`: to all of it, or None if groups were left."""

    __slots__ = ("_groups", "answers", "order")

    def __init__(self, groups: list[tuple[bytes, int, bytearray, bytes]], order: bytes, answers: bytes | None) -> None:
        self._groups = groups
        self.order = order
        self.answers = answers

    def groups(self) -> list[tuple[bytes, int, bytearray, bytes]]:
        """As `fly_produced` takes them."""
        return list(self._groups)


class _Counts(Generic[View, Target], dict[bytes, int]):
    """How many partitions a topic has: as the tails have it, if the route to it is current, else as the session says."""

    def __init__(self, tails: Tails[View], routes: Routes[Target], counts: dict[bytes, int]) -> None:
        super().__init__(counts)
        self._tails, self._routes = tails, routes

    def get(self, name: bytes, default: int | None = None) -> int | None:  # type: ignore[override]
        route = self._routes.find(name)
        count = self._tails.partition_count(route[0]) if route is not None else None
        return super().get(name, default) if count is None else count

    def __getitem__(self, name: bytes) -> int:
        count = self.get(name)
        assert count is not None
        return count


def _append_lent(
    tails: Tails[View], routes: Routes[Target], op: int, groups: list[FlyGroup], order: bytes, now: int, flags: int
) -> tuple[FlyHeld, Target | None]:
    """Append the groups of such a run that go to partitions in files, or to memory, and need no decision."""
    holding, last = Holding(), None
    placed: list[tuple[bytes, int, bytearray, bytes]] = []
    rest: list[tuple[int, int]] = []
    for number, group in enumerate(groups):
        topic, partition, batch, count = group
        route, chosen = _route_of(routes, group), None
        if route is not None:
            if tails.takes_lent(route[0], partition, len(batch)):
                chosen = holding.append(tails, route[0], partition, count, batch, now, number)
                last = route[1]
            elif tails.takes(route[0], partition):
                chosen = tails.publish_at(route[0], partition, batch, count, now)
        if chosen is None:
            rest.append((number, count))
        placed.append((topic, partition if chosen is None else chosen, batch, b""))
    answers = None if rest else _answers(op, placed, order, flags)
    return (holding.ticket, FlyAppended(placed, order, answers), rest, holding.ways, op), last


def _answers(op: int, placed: list[tuple[bytes, int, bytearray, bytes]], order: bytes, flags: int) -> bytes:
    return _set_answer(placed, order, flags) if op == PRODUCE_RECORDS else fly_produced(placed, order, flags)


def fly_append(
    tails: Tails[View],
    routes: Routes[Target],
    data: Buffer,
    start: int,
    max_frame: int,
    counts: dict[bytes, int],
    origin: bytes,
    now: int,
    flags: int,
    append_sets: bool = True,
) -> tuple[bytes | FlyHeld, list[tuple[object, ...]], int, int, bytes | None, Target | None]:
    answers = b""
    last: Target | None = None
    at = start
    counts = _Counts(tails, routes, counts)
    while True:
        items, end, fatal, unknown = fly_split(data, at, max_frame, counts, origin, now)
        kind = items[0][0] if items and isinstance(items[0][1], list) else None
        if not isinstance(kind, int) or (kind == PRODUCE_RECORDS and not append_sets):
            return answers, items, end, fatal, unknown, last
        _, groups, order = items[0]
        assert isinstance(groups, list) and isinstance(order, bytes)
        if _any_lent(tails, routes, groups):
            if at != start:  # the sets before it are answered now, and it is not: it is for the next call
                return answers, [], at, 0, None, last
            held = _append_lent(tails, routes, kind, groups, order, now, flags)
            return held[0], items[1:], end, fatal, unknown, held[1]
        done = _append_run(tails, routes, items[0], now, flags)
        if done is None:
            return answers, items, end, fatal, unknown, last
        answers, last = answers + done[0], done[1]
        view = memoryview(data).cast("B")
        # Sets often come one behind the other, as small frames.
        if kind != PRODUCE_RECORDS or end - start >= SETS_BYTES_MAX or view[end + 2 : end + 3] != SET_OP:
            return answers, items[1:], end, fatal, unknown, last
        at = end


def _append_run(
    tails: Tails[View], routes: Routes[Target], run: tuple[object, ...], now: int, flags: int
) -> tuple[bytes, Target] | None:
    """The answers to a run of PRODUCE frames or a record set, and the topic appended to last. None: Python looks at it."""
    kind, groups, order = run
    assert isinstance(groups, list) and isinstance(order, bytes)
    found = [routes.find(topic) for topic, *_ in groups]
    known = [route for route in found if route is not None and route[2]]
    if len(known) < len(groups) or not all(
        tails.takes(route[0], partition) and not _KIND.unpack_from(batch)[2]
        for route, (_, partition, batch, _) in zip(known, groups, strict=True)
    ):
        return None
    placed = []
    for route, (topic, partition, batch, count) in zip(known, groups, strict=True):
        placed.append((topic, tails.publish_at(route[0], partition, batch, count, now), batch, b""))
    assert isinstance(kind, int)
    return _answers(kind, placed, order, flags), known[-1][1]


def _set_answer(groups: list[tuple[bytes, int, bytearray, bytes]], order: bytes, flags: int) -> bytes:
    """The answer to a PRODUCE_RECORDS whose groups are placed."""
    out = struct.pack(">I", len(groups))
    for _, partition, batch, _ in groups:
        head = head_of(memoryview(batch), 0)
        out += _SET_GROUP.pack(
            partition, head.base_offset, head.records, head.timestamp // MICROSECONDS_PER_MILLISECOND
        )
    numbers = struct.unpack(f"<{len(order) // 2}H", order) if len(groups) > 1 else ()
    out += struct.pack(f">I{len(numbers)}H", 2 * len(numbers), *numbers)
    return FRAME.pack(MAGIC, VERSION, PRODUCE_RECORDS, flags, len(out)) + out
