"""Tails: native and pure do the same over random histories, and no bound, slot or handle is mistaken for another's."""

import gc
import random
import re
import struct
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from quintet.kernel import pure, pure_lent
from quintet.log.embedded.partitions import merging
from quintet.model import clocks
from quintet.model.batch import RecordBatch
from tests.kernel import fly_frames, generate
from tests.kernel.frames import native_twin, publish
from tests.progress import Progress
from tests.wire import flymq
from tests.wire.blipmq import ping, pong, records, text
from tests.wire.fast import subscribe
from tests.wire.records import Record, pack

RUST: Final = [Path(__file__).parents[2] / "kernel/src" / name for name in ("tail.rs", "merging.rs")]
NAMES: Final = [b"t%d" % number for number in range(6)]
FAST_NAMES: Final = [struct.pack(">I", number) + b"good" for number in range(4)]
HISTORIES: Final = 300
STEPS: Final = 60
FRAME_BYTES_MAX: Final = 1 << 20


class Twin:
    """One implementation under a history. Everything it says goes to `said`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.tails = kernel.Tails(bytes, 3_000, 100, 7)
        self.routes = kernel.Routes()
        self.slots: list[int] = []
        self.handles: list[int] = []
        self.waiting: list[bytearray] = []

    def step(self, choice: random.Random) -> object:
        act = choice.choice(ACTS)
        return act.__name__, act(self, choice)

    def open(self, choice: random.Random) -> object:
        self.slots.append(self.tails.open(choice.choice([1_000, 5_000, 100_000])))
        if choice.random() < 0.5:
            self.tails.set_watched(self.slots[-1], True)
        return self.slots[-1]

    def close(self, choice: random.Random) -> object:
        if self.slots and choice.random() < 0.2:
            self.tails.close(self.slots.pop(choice.randrange(len(self.slots))))
        return self.tails.bytes

    def topic(self, choice: random.Random) -> object:
        if not self.slots:
            return None
        slots = choice.sample(self.slots, choice.randint(1, min(3, len(self.slots))))
        self.handles.append(self.tails.add_topic(slots))
        name = choice.choice([*NAMES, *FAST_NAMES])
        self.routes.add(name, self.handles[-1], len(self.handles), choice.random() < 0.7)
        return self.handles[-1]

    def remove(self, choice: random.Random) -> object:
        if self.handles and choice.random() < 0.3:
            self.tails.remove_topic(choice.choice(self.handles))
        if choice.random() < 0.1:
            self.routes.clear()
        return None

    def append(self, choice: random.Random) -> object:
        if not self.slots:
            return None
        values = [bytes(choice.randrange(300)) for _ in range(choice.randint(1, 4))]
        batch = self.kernel.build(values, origin=b"o:%d" % choice.randrange(3), flags=choice.randrange(2))
        waits = choice.random() < 0.5
        if waits:
            self.waiting.append(batch)
        return self.tails.append(choice.choice(self.slots), batch, waits)

    def read_from(self, choice: random.Random) -> object:
        data = b"".join(
            ping(number) if choice.random() < 0.1 else publish(choice.choice(NAMES), bytes(choice.randrange(200)), choice.random() < 0.05)
            for number in range(choice.randint(1, 20))
        )  # fmt: skip
        return self.kernel.blip_append(self.tails, self.routes, data, 0, 1, FRAME_BYTES_MAX, b"blipmq:a", 1_000)

    def read_sets(self, choice: random.Random) -> object:
        """Record sets of known targets and of others, sound and not, between publishes."""
        data = b"".join(
            records(number, choice.choice(NAMES), choice.randrange(2), generate.record_set(choice)) if choice.random() < 0.7
            else publish(choice.choice(NAMES), bytes(choice.randrange(200)), choice.random() < 0.05)
            for number in range(choice.randint(1, 8))
        )  # fmt: skip
        sets = {bytes((qos,)) + text(name): 2 for name in choice.sample(NAMES, 5) for qos in (0, 1)}
        where = (self.tails, self.routes, data, 0, 3, FRAME_BYTES_MAX, b"blipmq:a", choice.choice([900, 1_500]))
        return self.kernel.blip_append(*where, sets, choice.random() < 0.9)

    def produce_sets(self, choice: random.Random) -> object:
        """The same of FlyMQ."""
        data = b"".join(
            fly_frames.record_set(choice, choice.choice(NAMES[:3]), choice.choice([-1, -1, 0, 1, 5]), 1)
            for _ in range(choice.randint(1, 8))
        )
        counts = dict.fromkeys(NAMES[:3], 2)
        where = (self.tails, self.routes, data, 0, FRAME_BYTES_MAX, counts, b"flymq:a", choice.choice([900, 1_500]), 1)
        return self.kernel.fly_append(*where, choice.random() < 0.9)

    def produce(self, choice: random.Random) -> object:
        """Some partitions are there and some are not, some producers are idempotent."""
        data = b"".join(
            self.kernel.fly_produce(
                choice.choice(NAMES[:3]), [choice.choice([None, b"k", b"key"])], [bytes(choice.randrange(200))],
                choice.choice([-1, -1, 0, 1, 5]), 7 * (choice.random() < 0.03), 0, 1,
            )
            for _ in range(choice.randint(1, 8))
        )  # fmt: skip
        counts = dict.fromkeys(NAMES[:3], 2)
        return self.kernel.fly_append(
            self.tails, self.routes, data, 0, FRAME_BYTES_MAX, counts, b"flymq:a", choice.choice([900, 1_500]), 1
        )

    def send(self, choice: random.Random) -> object:
        """Fast packets with an accepted token, a refused one, one that nobody knows, and packets that are no PUBLISH."""
        tokens: dict[bytes, bytes | None] = {b"good": b"fast:a", b"bad": None}
        data = b"".join(
            self.kernel.fast_publish(
                choice.choices([b"good", b"bad", b"new"], [30, 1, 1])[0], choice.randrange(4), [bytes(choice.randrange(200))]
            )
            if choice.random() < 0.95 else subscribe(b"good", 1)
            for _ in range(choice.randint(1, 8))
        )  # fmt: skip
        answered = choice.random() < 0.5
        return self.kernel.fast_append(
            self.tails, self.routes, data, 0, 1 << 20, tokens, {1: (1, 0)}, 1_000, None, answered
        )

    def seal(self, choice: random.Random) -> object:
        moved = self.tails.seal(choice.choice([10, 1_000, 2_000_000_000, 100]))
        placed = [bytes(batch[:64]) for batch in self.waiting]
        self.waiting = []
        return moved, placed, self.tails.take_counts(), self.tails.bytes, self.tails.dirty

    def trim(self, choice: random.Random) -> object:
        return self.tails.trim(), self.tails.bytes

    def age(self, choice: random.Random) -> object:
        return [self.tails.drop_older(slot, choice.choice([0, 500, 1_500])) for slot in self.slots]

    def look(self, choice: random.Random) -> object:
        found = []
        for slot in self.slots:
            start, visible, end, size = self.tails.state(slot)
            offset = choice.randint(0, end + 1)
            found.append((start, visible, end, size, self.tails.read(slot, offset, choice.choice([1, 500, 1 << 20]))))
            found.append(self.tails.offset_at(slot, choice.choice([0, 100, 1_500])))
        return found, [self.tails.published(handle) for handle in self.handles]


ACTS: Final = (
    Twin.open, Twin.close, Twin.topic, Twin.remove, Twin.append, Twin.append, Twin.append, Twin.read_from, Twin.read_from, Twin.produce, Twin.produce,
    Twin.send, Twin.send, Twin.read_sets, Twin.produce_sets,
    Twin.seal, Twin.seal, Twin.trim, Twin.age, Twin.look,
)  # fmt: skip


def history(kernel: Any, seed: int) -> Iterator[object]:
    twin, choice = Twin(kernel), random.Random(seed)
    for _ in range(STEPS):
        yield twin.step(choice)


@pytest.mark.parametrize("part", range(10))
def test_native_and_pure_say_the_same_over_random_histories(part: int) -> None:
    native = native_twin()
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        for number, (ours, theirs) in enumerate(zip(history(native, seed), history(pure, seed), strict=True)):
            assert ours == theirs, f"seed {seed}, step {number}"


class _Forgetful(pure.Tails[bytes]):
    """The control: it never evicts for the bound of all."""

    def trim(self) -> bool:
        return False


def test_a_twin_that_never_evicts_is_caught() -> None:
    sabotaged = SimpleNamespace(**vars(pure) | {"Tails": _Forgetful})
    assert any(list(history(sabotaged, seed)) != list(history(pure, seed)) for seed in range(HISTORIES))


def _tells_another_time(*args: Any) -> Any:
    """The control: the answers to PRODUCE say another time than the records get."""
    append: Any = pure.fly_append
    now_at = 7  # behind tails, routes, data, start, max_frame, counts, origin
    return append(*args[:now_at], args[now_at] + 1_000, *args[now_at + 1 :])


def test_a_twin_that_tells_another_time_is_caught() -> None:
    sabotaged = SimpleNamespace(**vars(pure) | {"fly_append": _tells_another_time})
    assert any(list(history(sabotaged, seed)) != list(history(pure, seed)) for seed in range(HISTORIES))


def test_produce_is_answered_by_what_a_reader_finds(k: ModuleType) -> None:
    """Offset and time of the answers, although the turn is sealed at another time and with other batches."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    slot = tails.open(1 << 20)
    routes.add(b"t", tails.add_topic([slot]), "t", True)
    tails.append(slot, k.build([b"before"]), False)
    data = k.fly_produce(b"t", None, [b"one", b"two"], -1, 0, 0, 1)
    said = k.fly_append(tails, routes, data, 0, FRAME_BYTES_MAX, {b"t": 1}, b"o:o", 5_000_000, 1)
    answers, items, end, fatal, unknown, last = said
    assert (items, end, fatal, unknown, last) == ([], len(data), 0, None, "t")
    ((_, told),), _, _ = k.fly_received(answers, 0, FRAME_BYTES_MAX, False)
    tails.seal(9_000_000)
    (batch,) = tails.read(slot, 0, 1 << 20)
    rows = k.rows(batch, 0, 3)
    assert [(offset, time // 1_000) for offset, time, *_ in rows[1:]] == [(offset, time) for _, _, offset, time in told]
    assert [time for *_, time in told] == [5_000, 5_000]


@pytest.mark.parametrize(
    ("keeps", "partition", "producer"), [(False, -1, 0), (True, 1, 0), (True, -1, 7), (True, -1, 0)]
)
def test_a_produce_that_python_must_decide_is_not_appended(
    k: ModuleType, keeps: bool, partition: int, producer: int
) -> None:
    """Control: the last one needs no decision."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    handle = tails.add_topic([tails.open(1 << 20)])
    routes.add(b"t", handle, "t", keeps)
    data = k.fly_produce(b"t", [b"k"], [b"x"], partition, producer, 0, 1)
    answers, items, *_ = k.fly_append(tails, routes, data, 0, FRAME_BYTES_MAX, {b"t": 1}, b"o:o", 1, 1)
    direct = keeps and partition < 0 and not producer
    assert (bool(answers), len(items), tails.published(handle), tails.dirty) == (direct, not direct, direct, direct)


def test_a_record_set_is_answered_by_what_a_reader_finds(k: ModuleType) -> None:
    """Two sets of one read, by key in two partitions: offsets and times of the answers, and the order of the records."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    slots = [tails.open(1 << 20), tails.open(1 << 20)]
    routes.add(b"t", tails.add_topic(slots), "t", True)
    keys = [b"a", b"b", b"c", b"d"]
    sets = [pack(*[Record(key, key, ((b"h", key),)) for key in keys]), pack(Record(b"one"))]
    data = b"".join(flymq.frame(0x16, flymq.text(b"t") + struct.pack(">iI", -1, len(one)) + one, 1) for one in sets)
    said = k.fly_append(tails, routes, data, 0, FRAME_BYTES_MAX, {b"t": 2}, b"o:o", 5_000_000, 1)
    answers, items, end, fatal, unknown, last = said
    assert (items, end, fatal, unknown, last) == ([], len(data), 0, None, "t")
    tails.seal(9_000_000)
    kept = [
        [row for batch in tails.read(slot, 0, 1 << 20) for row in k.rows(batch, 0, RecordBatch(batch).count)]
        for slot in slots
    ]
    first, second = (one.payload for one in flymq.frames_of(answers))
    groups = [struct.unpack_from(">iQIq", first, 4 + 24 * number) for number in range(2)]
    order = struct.unpack_from(">4H", first, 4 + 2 * 24 + 4)
    found = [iter(kept[partition][offset : offset + count]) for partition, offset, count, _ in groups]
    assert [next(found[number])[2] for number in order] == keys
    assert {time for *_, time in groups} == {5_000}
    _, partition, offset, count, _, left = struct.unpack(">IiQIqI", second)
    assert (kept[partition][offset][3], count, left) == (b"one", 1, 0)
    assert all(time == 5_000_000 for rows in kept for _, time, *_ in rows)


@pytest.mark.parametrize(
    ("keeps", "partition", "tail", "whole"),
    [
        (False, -1, b"", True),
        (True, 1, b"", True),
        (True, -1, flymq.producer(7, 0), True),
        (True, -1, flymq.producer(0, 0) + bytes(10), True),
        (True, -1, b"", False),
        (True, -1, b"", True),
    ],
)
def test_a_set_that_python_must_decide_is_not_appended(
    k: ModuleType, keeps: bool, partition: int, tail: bytes, whole: bool
) -> None:
    """Nor the PRODUCE behind it. Control: the last one needs no decision."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    handle = tails.add_topic([tails.open(1 << 20)])
    routes.add(b"t", handle, "t", keeps)
    one = pack(Record(b"v"))
    data = flymq.frame(0x16, flymq.text(b"t") + struct.pack(">iI", partition, len(one)) + one + tail, 1)
    data += k.fly_produce(b"t", None, [b"behind"], -1, 0, 0, 1)
    answers, items, end, *_ = k.fly_append(tails, routes, data, 0, FRAME_BYTES_MAX, {b"t": 1}, b"o:o", 1, 1, whole)
    direct = keeps and whole and partition < 0 and not tail
    assert (bool(answers), len(items), tails.published(handle), tails.dirty) == (direct, not direct, direct, direct)
    assert 0 < end < len(data)


@pytest.mark.parametrize("token", [b"good", b"other"])
def test_a_fast_publish_goes_by_its_own_token_only(k: ModuleType, token: bytes) -> None:
    """Control: the token that the route was learnt with."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    handle = tails.add_topic([tails.open(1 << 20)])
    routes.add(FAST_NAMES[1], handle, "t", True)
    data = k.fast_publish(token, 1, [b"x", b"y"])
    said = k.fast_append(tails, routes, data, 0, 1 << 20, {token: b"fast:a"}, {}, 1, None, True)
    direct = token == b"good"
    assert (len(said[1]), said[6], tails.published(handle)) == (not direct, "t" if direct else None, 2 * direct)
    assert k.fast_received(said[0], 0, 1 << 20)[0] == ([(0x7E, 3, 1, 2)] if direct else [])


def test_a_handle_of_a_topic_that_is_gone_reaches_no_other(k: ModuleType) -> None:
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    first = tails.add_topic([tails.open(1_000)])
    routes.add(b"t0", first, "first", True)
    tails.remove_topic(first)
    second = tails.add_topic([tails.open(1_000)])
    assert first != second
    said = k.blip_append(tails, routes, publish(b"t0", b"x", False), 0, 1, FRAME_BYTES_MAX, b"o:o", 1)
    _, items, end, _, last, held = said
    assert (len(items), last, held, tails.published(second)) == (1, None, None, 0)
    assert end == len(publish(b"t0", b"x", False))


def test_nothing_overtakes_what_python_must_decide(k: ModuleType) -> None:
    """Control: without the unknown topic in front all of it is appended in the call."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    routes.add(b"known", tails.add_topic([tails.open(1 << 20)]), "known", False)
    known = publish(b"known", b"x", False)
    new, kept = publish(b"new", b"x", False), publish(b"known", b"x", True)
    for front, left, last in (
        (new, 2, None),
        (kept, 2, None),
        (new + ping(1), 3, None),
        (records(2, b"known", 1, pack(Record(b"x"))), 2, None),
        (records(2, b"known", 0, b"\xff"), 2, None),
        (records(2, b"known", 0, pack(Record(b"x"))), 0, "known"),
        (ping(1), 0, "known"),
        (b"", 0, "known"),
    ):
        sets = {b"\0" + text(b"known"): 1, b"\1" + text(b"known"): 1}
        said = k.blip_append(tails, routes, front + known, 0, 3, FRAME_BYTES_MAX, b"o:o", 1, sets)
        pongs, items, _, _, topic, held = said
        assert (len(items), topic, held, pongs) == (left, last, None, pong(1) if front == ping(1) else b"")


def test_an_unsound_batch_or_slot_is_refused(k: ModuleType) -> None:
    tails = k.Tails(bytes, 1 << 20, 100, 100)
    slot = tails.open(1_000)
    with pytest.raises(ValueError, match="no such tail"):
        tails.append(slot + 1, k.build([b"x"]), False)
    for unsound in (bytearray(10), k.build([b"x"])[:-8], k.build([b"x"]) + bytes(8)):
        with pytest.raises(ValueError, match=r"no batch here|cut short|exactly one batch"):
            tails.append(slot, unsound, False)
    assert (tails.dirty, tails.state(slot)) == (False, (0, 0, 0, 0))
    with pytest.raises(ValueError, match="no such tail"):
        tails.add_topic([])


class _Owner:
    """Holds its tails, as the engine does, and is held by them."""

    def __init__(self, k: ModuleType) -> None:
        self.tails = k.Tails(self.view, 1 << 20, 100, 100)
        self.routes = k.Routes()
        self.routes.add(b"t", self.tails.add_topic([self.tails.open(1_000)]), self, False)

    def view(self, batch: bytearray) -> bytes:
        return bytes(batch)


def test_what_holds_its_tails_is_collected_with_them(k: ModuleType) -> None:
    owner = _Owner(k)
    owner.tails.append(0, k.build([b"x"]), False)
    owner.tails.seal(1)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def rust_text() -> str:
    return "".join(path.read_text() for path in RUST)


def other_bounds(rust: str) -> dict[str, list[int | None]]:
    """The bounds of the log that this Rust source or the twin has with another value, or not at all: [log, twin, Rust]."""
    found = dict(re.findall(r"^const (\w+): \w+ = ([\d_* ]+);", rust, re.MULTILINE))
    log = {
        "IN_ORDER_US": clocks.IN_ORDER_US,
        "MERGE_INPUT_BYTES_MAX": merging.MERGE_INPUT_BYTES_MAX,
        "MERGE_OUTPUT_BYTES_MAX": merging.MERGE_OUTPUT_BYTES_MAX,
    }
    values = {name: [value, getattr(pure_lent, name), eval(found.get(name, "None"))] for name, value in log.items()}
    return {name: each for name, each in values.items() if len(set(each)) > 1}


def test_bounds_are_the_same_in_rust_in_the_twin_and_in_the_log() -> None:
    """They are written three times, because neither the kernel nor its twin imports anything of the broker."""
    assert other_bounds(rust_text()) == {}


def test_another_bound_in_rust_is_found() -> None:
    changed = rust_text().replace("IN_ORDER_US: i64 = 60_000_000", "IN_ORDER_US: i64 = 61_000_000")
    assert other_bounds(changed) == {"IN_ORDER_US": [60_000_000, 60_000_000, 61_000_000]}
    assert list(other_bounds("")) == ["IN_ORDER_US", "MERGE_INPUT_BYTES_MAX", "MERGE_OUTPUT_BYTES_MAX"]


def campaign(count: int, first: int = 1_000_000) -> None:
    """`python -m tests.kernel.test_tails 1000000`: as many histories as asked, with seeds that the test does not have."""
    native = native_twin()
    progress = Progress("histories", count)
    for seed in range(first, first + count):
        for number, (ours, theirs) in enumerate(zip(history(native, seed), history(pure, seed), strict=True)):
            if ours != theirs:
                sys.exit(f"FAILED: seed {seed}, step {number}: native {ours}, pure {theirs}")
        progress.at(seed - first + 1)
    sys.stdout.write(f"seeds {first} to {first + count - 1}: {count:,} histories of {STEPS} steps, 0 differences\n")


if __name__ == "__main__":
    campaign(*map(int, sys.argv[1:]))
