"""Partitions in files that are lent to the kernel: the native one and its twin say the same, and what is sealed is what Python seals.

Random histories lend, append (by FlyMQ's PRODUCE, BlipMQ's PUBLISH, record sets of both, Fast's PUBLISH, and by way of Python), seal, commit,
recall, keep and read.
"""

import random
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from quintet.kernel import pure, pure_lent
from quintet.log.embedded.partitions import commit
from quintet.log.embedded.recovery import journal
from quintet.model.batch import RecordBatch
from tests.kernel import fly_frames, generate
from tests.kernel.frames import native_twin, publish
from tests.progress import Progress
from tests.wire import blipmq, fast, flymq
from tests.wire.records import Record, pack

RUST: Final = Path(__file__).parents[2] / "kernel/src"
# Two that promise a sync, one in memory, one that is written inline.
NAMES: Final = [b"t%d" % number for number in range(4)]
HISTORIES: Final = 200
STEPS: Final = 60
FRAME_BYTES_MAX: Final = 1 << 20
LINK: Final = bytes(range(32))
KEY: Final = bytes(range(32, 64))
SEED: Final = 7
TOKEN: Final = b"good"  # of Fast


def plain(said: Any) -> Any:
    """What fly_append said, in what can be compared: a run that is held as its answers, groups and order."""
    told, *rest = said
    if not isinstance(told, bytes):
        ticket, run, *left = told
        told = (ticket, run.answers, run.groups(), run.order, *left)
    return told, *rest


class Twin:
    """One implementation under a history. Everything it says goes to the comparison."""

    def __init__(self, kernel: Any, seed: int) -> None:
        self.kernel = kernel
        self.tails = kernel.Tails(bytes, 30_000, 100, 7)
        self.tails.set_lending(True, 8_000)
        self.routes = kernel.Routes()
        self.slots = [self.tails.open_lent() for _ in range(9)]
        self.ends = dict.fromkeys(self.slots, (512, 0, 0, LINK))  # position, end, time, link
        self.sealed = {False: False, True: False}
        self.clock = 3
        for number, name in enumerate(NAMES):
            slots = self.slots[number : number + 2] if number < 2 else [self.tails.open(5_000)]
            slots = self.slots[4:9] if number == 3 else slots
            handle, keeps = self.tails.add_topic(slots, number != 2), number != 1 or seed % 2 == 0
            self.routes.add(name, handle, number, keeps)
            self.routes.add(fast.u32(number) + TOKEN, handle, number, keeps)

    def step(self, choice: random.Random) -> object:
        act = choice.choice(ACTS)
        tails = self.tails
        return act.__name__, act(self, choice), tails.lent_unsynced, tails.lent_bytes, tails.late_bytes

    def lend(self, choice: random.Random) -> object:
        return self._lend(choice, choice.choice(self.slots))

    def lend_inline(self, choice: random.Random) -> object:
        """Many at once: of a few nothing is in a record."""
        return [self._lend(choice, slot) for slot in self.slots[4:]]

    def _lend(self, choice: random.Random, slot: int) -> object:
        position, end, time, link = self.ends[slot]
        limit = position + choice.choice([100, 2_000, 20_000, 60_000])
        terms = (16 + slot, slot % 2, 0, SEED, 100 + slot, position, limit, end, time)
        chained, keyed = choice.random() < 0.7, choice.random() < 0.5
        try:
            self.tails.lend(slot, slot >= 4, terms, link if chained else b"", KEY if keyed else b"")
        except ValueError as error:
            return str(error)
        return terms

    def append(self, choice: random.Random) -> object:
        longest = 15_000 if choice.random() < 0.1 else 300  # more than a record takes
        values = [bytes(choice.randrange(longest)) for _ in range(choice.randint(1, 4))]
        stamps = [choice.randrange(3_000) for _ in values] if choice.random() < 0.2 else None
        batch = self.kernel.build(
            values, timestamps=stamps, origin=b"o:%d" % choice.randrange(3), flags=choice.randrange(2)
        )
        given = self.tails.append_lent(
            choice.choice(self.slots), batch, choice.choice([10, 1_000, 2_000]), choice.randrange(99)
        )
        return given, bytes(batch)

    def produce(self, choice: random.Random) -> object:
        data = b"".join(
            self.kernel.fly_produce(
                choice.choice(NAMES), [choice.choice([None, b"k"])], [bytes(choice.randrange(200))],
                choice.choice([-1, -1, 0, 1, 2, 5]), 7 * (choice.random() < 0.03), 0, 1,
            )
            for _ in range(choice.randint(1, 8))
        )  # fmt: skip
        if choice.random() < 0.5:
            value = bytes(choice.randrange(200))
            data += b"".join(self.kernel.fly_produce(NAMES[3], None, [value], number, 0, 0, 1) for number in range(5))
        counts = dict.fromkeys(NAMES, 2) | {NAMES[3]: 5}
        now = choice.choice([900, 1_500])
        if choice.random() < 0.1:
            del counts[choice.choice(NAMES)]
        where = (self.tails, self.routes, data, 0, FRAME_BYTES_MAX, counts, b"flymq:a", now, 1)
        return plain(self.kernel.fly_append(*where))

    def produce_sets(self, choice: random.Random) -> object:
        """Record sets to partitions that are lent, in memory or not there, also several of one read, in as many calls as it takes."""
        data = b"".join(
            fly_frames.record_set(choice, choice.choice(NAMES), choice.choice([-1, -1, 0, 1, 5]), 1)
            for _ in range(choice.randint(1, 5))
        )
        now, whole = choice.choice([900, 1_500]), choice.random() < 0.9
        said: list[Any] = []
        while not said or said[-1][2] < len(data):
            at = said[-1][2] if said else 0
            where = (self.tails, self.routes, data, at, FRAME_BYTES_MAX, dict.fromkeys(NAMES, 2), b"flymq:a", now, 1)
            said.append(plain(self.kernel.fly_append(*where, whole)))
        return said

    def read_from(self, choice: random.Random) -> object:
        """BlipMQ publishes of both QoS, PINGs between them, record sets sound and not, a topic that is not known."""

        def one(number: int) -> bytes:
            name, kind = choice.choice([*NAMES, b"other"] if choice.random() < 0.1 else NAMES), choice.random()
            if kind < 0.15:
                return blipmq.ping(number)
            if kind < 0.4:
                return blipmq.records(number, name, choice.randrange(2), generate.record_set(choice))
            return publish(name, bytes(choice.randrange(200)), choice.random() < 0.7)

        data = b"".join(one(number) for number in range(choice.randint(1, 12)))
        sets = {bytes((qos,)) + blipmq.text(name): 2 for name in NAMES for qos in (0, 1)}
        where = (self.tails, self.routes, data, 0, 3, FRAME_BYTES_MAX, b"blipmq:a", choice.choice([900, 1_500]))
        return self.kernel.blip_append(*where, sets, choice.random() < 0.9)

    def send(self, choice: random.Random) -> object:
        """Fast packets with the token of the routes, another, one that is refused, and packets that are no PUBLISH; in few reads these."""
        odd = choice.random() < 0.3

        def one() -> bytes:
            if odd and choice.random() < 0.1:
                return choice.choice([fast.subscribe(TOKEN, 1), fast.extend(), fast.create(TOKEN, b"t", 0)])
            token = choice.choices([TOKEN, b"", b"other", b"bad", b"new"], [9, 9, 1, 1, 1])[0] if odd else TOKEN
            return fast.publish(token, choice.randrange(5 if odd else 4), bytes(choice.randrange(200)))

        data = b"".join(one() for _ in range(choice.randint(1, 12)))
        tokens: dict[bytes, bytes | None] = {TOKEN: b"fast:a", b"other": b"fast:b", b"bad": None}
        rules = {1: (1, 0), 3: (0, 5_000)}
        now, same, answered = choice.choice([900, 1_500]), choice.choice([None, b"", TOKEN]), choice.random() < 0.6
        where = (self.tails, self.routes, data, 0, FRAME_BYTES_MAX, tokens, rules)
        return self.kernel.fast_append(*where, now, same, answered)

    def seal(self, choice: random.Random) -> object:
        inline, most = choice.random() < 0.5, choice.choice([1_000, 1 << 20])
        if self.sealed[inline]:
            self.tails.commit_lent(inline, self._later())
        self.sealed[inline] = True
        alone = choice.random() < 0.2
        sealed = self.tails.seal_lent(inline, most, choice.choice([0, 500, 1 << 20]), alone)
        for slot in sealed[5]:
            self._recall(slot)
        return sealed, self.tails.dirty_lent(inline), self.tails.flying_lent(inline)

    def commit(self, choice: random.Random) -> object:
        inline = choice.random() < 0.5
        self.sealed[inline] = False
        said = self.tails.commit_lent(inline, self._later(), choice.randrange(3))
        return said, self.tails.take_counts()

    def follow(self, choice: random.Random) -> object:
        """What Python asks for when it looks at a partition, or at all of them."""
        kind, slot = choice.randrange(6), choice.choice(self.slots)
        if kind == 0:
            return self.tails.take_moved()
        if kind == 1:
            return self.tails.take_recorded()
        if kind == 2:
            return self.tails.set_watched_lent(slot, choice.random() < 0.5)
        try:
            if kind == 3:
                return self.tails.set_low_lent(slot, self.ends[slot][0] + choice.randrange(2_000))
            return self.tails.catch_up_lent(slot), self.tails.lent_visible(slot)
        except ValueError as error:
            return str(error)

    def _later(self) -> int:
        self.clock += 1
        return self.clock

    def _recall(self, slot: int, refused: bool = False) -> object:
        try:
            late = None if refused else (self.tails.take_late(slot), self.tails.catch_up_lent(slot))
            recalled = self.tails.recall(slot)
        except ValueError as error:
            return str(error)
        _, _, position, end, time, link = recalled
        self.ends[slot] = (position, end, time, link or self.ends[slot][3])
        return late, recalled

    def recall(self, choice: random.Random) -> object:
        slot, refused = choice.choice(self.slots), choice.random() < 0.3
        return self._recall(slot, refused) if choice.random() < 0.5 else None

    def settle(self, choice: random.Random) -> object:
        if choice.random() < 0.5:
            return self.tails.tardy_lent(self.clock - choice.randrange(4), choice.randint(1, 3))
        try:
            return self.tails.take_late(choice.choice(self.slots))
        except ValueError as error:
            return str(error)

    def keep(self, choice: random.Random) -> object:
        slot, base = choice.choice(self.slots), choice.randrange(20)
        batch = self.kernel.build([bytes(choice.randrange(2_000))])
        self.kernel.place(batch, base, 5)
        self.tails.keep_lent(slot, batch)
        if choice.random() < 0.1:
            self.tails.forget_lent(slot)
        return slot

    def extend(self, choice: random.Random) -> object:
        slot = choice.choice(self.slots)
        return self.tails.extend_lent(slot, self.ends[slot][0] + 30_000)

    def look(self, choice: random.Random) -> object:
        found = []
        for slot in self.slots:
            found.append(self.tails.read_lent(slot, choice.randrange(40), choice.choice([1, 500, 1 << 20])))
            try:
                found.append(self.tails.lent_end(slot))
            except ValueError as error:
                found.append(str(error))
        return found


ACTS: Final = (
    Twin.lend, Twin.lend, Twin.append, Twin.append, Twin.produce, Twin.produce, Twin.produce_sets, Twin.produce_sets, Twin.read_from, Twin.read_from,
    Twin.read_from, Twin.send, Twin.send, Twin.seal, Twin.seal, Twin.commit,
    Twin.commit, Twin.recall, Twin.settle, Twin.follow, Twin.follow, Twin.keep, Twin.extend, Twin.look, Twin.lend_inline,
)  # fmt: skip


def history(kernel: Any, seed: int) -> Iterator[object]:
    twin, choice = Twin(kernel, seed), random.Random(seed)
    for _ in range(STEPS):
        yield twin.step(choice)


def test_native_and_pure_lend_the_same_over_random_histories() -> None:
    native = native_twin()
    for seed in range(HISTORIES):
        for number, (ours, theirs) in enumerate(zip(history(native, seed), history(pure, seed), strict=True)):
            assert ours == theirs, f"seed {seed}, step {number}"


class _Unlinked(pure.Tails[bytes]):
    """The control: it links every batch to the first one."""

    def seal_lent(self, inline: bool, bytes_max: int, later: int, alone: bool = False) -> Any:
        links = {number: slot.loan.link for number, slot in enumerate(self.lents.slots) if slot.loan is not None}
        sealed = super().seal_lent(inline, bytes_max, later, alone)
        for number, link in links.items():
            self.lents.loan(number).link = link
        return sealed


def test_a_twin_that_breaks_the_chain_is_caught() -> None:
    sabotaged = SimpleNamespace(**vars(pure) | {"Tails": _Unlinked})
    assert any(list(history(sabotaged, seed)) != list(history(pure, seed)) for seed in range(HISTORIES))


def _leaves_sets_to_python(*args: Any) -> Any:
    """The control: it appends no record set."""
    append: Any = pure.fly_append
    return append(*args[:9], False)  # behind tails, routes, data, start, max_frame, counts, origin, now, flags


def test_a_twin_that_appends_no_record_sets_is_caught() -> None:
    sabotaged = SimpleNamespace(**vars(pure) | {"fly_append": _leaves_sets_to_python})
    assert any(list(history(sabotaged, seed)) != list(history(pure, seed)) for seed in range(HISTORIES))


def _answers_pings_at_once(*args: Any) -> Any:
    """The control: a PONG does not wait for the publish before it."""
    append: Any = pure.blip_append
    pongs, items, end, fatal, last, held = append(*args)
    if held is not None:
        pongs += b"".join(behind for _, behind in held[1])
        held = (held[0], [(ids, b"") for ids, _ in held[1]], held[2])
    return pongs, items, end, fatal, last, held


def test_a_twin_that_answers_pings_too_early_is_caught() -> None:
    sabotaged = SimpleNamespace(**vars(pure) | {"blip_append": _answers_pings_at_once})
    assert any(list(history(sabotaged, seed)) != list(history(pure, seed)) for seed in range(HISTORIES))


def test_publishes_to_files_are_held_with_the_pings_behind_them(k: ModuleType) -> None:
    """QoS 0 has nobody to refuse; what is not lent comes out, and so does all that is behind it."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    tails.set_lending(True, 1 << 20)
    slots = [tails.open_lent(), tails.open_lent()]
    tails.lend(slots[0], True, (16, 0, 0, SEED, 9, 512, 65_536, 40, 0), b"", b"")
    for name, slot in zip((b"lent", b"back"), slots, strict=True):
        routes.add(name, tails.add_topic([slot], True), name, True)
    made = blipmq.records(7, b"lent", 1, pack(Record(b"set", None, ((b"h", b"v"),))))
    front = blipmq.ping(1) + publish(b"lent", b"one", True) + publish(b"lent", b"none", False)
    data = front + blipmq.ping(2) + made + blipmq.ping(3)
    sets = {b"\1" + blipmq.text(b"lent"): 1}
    for behind, left in ((b"", 0), (publish(b"back", b"x", True) + blipmq.ping(4) + publish(b"lent", b"y", True), 3)):
        said = k.blip_append(tails, routes, data + behind, 0, 3, FRAME_BYTES_MAX, b"o:o", 1, sets)
        pongs, items, end, fatal, last, (ticket, groups, ways) = said
        assert (pongs, len(items), end, fatal, last, ways) == (blipmq.pong(1), left, len(data + behind), 0, b"lent", 2)
        assert [behind for _, behind in groups] == [b"", blipmq.pong(2), blipmq.pong(3)]
        assert [len(ids) for ids, _ in groups] == [8, 0, 8] and groups[2][0] == struct.pack("<Q", 7)
        waiting = tails.recall(slots[0])[0]
        assert [(each[1], each[2]) for each in waiting] == [(ticket, 0), (ticket, 1), (ticket, 2)]
        tails.lend(slots[0], True, (16, 0, 0, SEED, 9, 512, 65_536, 40, 0), b"", b"")


def _answers_publishes_at_once(*args: Any) -> Any:
    """The control: an OK of Fast does not wait for the disk."""
    append: Any = pure.fast_append
    answers, *said, held = append(*args)
    if held is not None:
        answers, held = answers + held[1], (held[0], b"", *held[2:])
    return answers, *said, held


def test_a_twin_that_answers_publishes_too_early_is_caught() -> None:
    sabotaged = SimpleNamespace(**vars(pure) | {"fast_append": _answers_publishes_at_once})
    assert any(list(history(sabotaged, seed)) != list(history(pure, seed)) for seed in range(HISTORIES))


KEPT, LOOSE, BACK, MEMORY = range(4)  # topics of Fast: the third is not lent, of the second nothing must be kept


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(
    ("sent", "at_once", "held", "left"),
    [
        ((MEMORY,), (MEMORY,), (), 0),
        ((MEMORY, KEPT, LOOSE), (MEMORY,), (KEPT, LOOSE), 0),
        ((LOOSE, MEMORY), (), (LOOSE, MEMORY), 0),
        ((KEPT, BACK, LOOSE, MEMORY), (), (KEPT,), 3),
        ((BACK, KEPT), (), (), 2),
    ],
)
def test_fast_publishes_to_files_are_held_with_the_answers_behind(
    k: ModuleType, sent: tuple[int, ...], at_once: tuple[int, ...], held: tuple[int, ...], left: int, answered: bool
) -> None:
    """Memory is answered at once only in front of them; what is not lent comes out, and so does all that is behind it. Of what is neither
    answered nor to be kept nobody waits to hear: it counts 0."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    tails.set_lending(True, 1 << 20)
    slots = [tails.open_lent(), tails.open_lent(), tails.open_lent()]
    for slot in slots[:2]:
        tails.lend(slot, True, (16, slot, 0, SEED, 9, 512, 65_536, 40, 0), b"", b"")
    handles = [tails.add_topic([slot], True) for slot in slots] + [tails.add_topic([tails.open(1 << 20)])]
    for topic, handle in enumerate(handles):
        routes.add(fast.u32(topic) + TOKEN, handle, topic, topic in (KEPT, BACK))

    def oks(topics: tuple[int, ...]) -> bytes:
        return b"".join(fast.ok(fast.PUBLISH, topic) * 2 for topic in topics) if answered else b""

    data = b"".join(fast.publish(TOKEN, topic, b"x") * 2 for topic in sent)
    said = k.fast_append(tails, routes, data, 0, FRAME_BYTES_MAX, {TOKEN: b"fast:a"}, {}, 1, None, answered)
    answers, items, end, fatal, unknown, same, last, waits = said
    assert (answers, [item[2] for item in items]) == (oks(at_once), list(sent[len(sent) - left :]))
    assert (end, fatal, unknown, same, last) == (len(data), 0, None, None, (None, *at_once, *held)[-1])
    if not held:
        assert waits is None and not tails.dirty_lent(True)
        return
    ticket, later, groups, ways = waits
    assert (later, ways) == (oks(held), 2)
    assert groups == [(topic, 2 if answered or topic == KEPT else 0) for topic in held]
    told = {topic: (ticket, number) for number, topic in enumerate(held) if topic != MEMORY}
    for topic in (KEPT, LOOSE):
        found = [(by, number) for _, by, number, _ in tails.recall(slots[topic])[0]]
        assert found == ([told[topic]] if topic in told else [])


def produce_records(topic: bytes, made: bytes) -> bytes:
    return flymq.frame(0x16, flymq.text(topic) + struct.pack(">iI", -1, len(made)) + made, 1)


def test_a_record_set_is_held_and_then_told_where_it_is(k: ModuleType) -> None:
    """By key in two partitions that are lent. A set to memory in front of it is answered first, by a call of its own."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    tails.set_lending(True, 1 << 20)
    slots = [tails.open_lent(), tails.open_lent()]
    for slot in slots:
        tails.lend(slot, False, (16, slot, 0, SEED, 9, 512, 65_536, 40, 0), LINK, KEY)
    routes.add(b"t", tails.add_topic(slots, True), "t", True)
    routes.add(b"m", tails.add_topic([tails.open(1 << 20)]), "m", True)
    keys = [b"a", b"b", b"c", b"d"]
    memory = produce_records(b"m", pack(Record(b"x")))
    data = memory + produce_records(b"t", pack(*[Record(key, key, ((b"h", key),)) for key in keys]))
    where = (FRAME_BYTES_MAX, {b"t": 2, b"m": 1}, b"o:o", 5_000_000, 1)
    answers, items, end, *_, last = k.fly_append(tails, routes, data, 0, *where)
    assert (answers[:1], items, end, last) == (b"\xaf", [], len(memory), "m")
    held, items, end, fatal, unknown, last = k.fly_append(tails, routes, data, end, *where)
    assert (items, end, fatal, unknown, last) == ([], len(data), 0, None, "t")
    ticket, run, rest, ways, op = held
    assert (rest, ways, op) == ([], 1, 0x16)
    groups, order = run.groups(), run.order
    rows = [iter(k.rows(batch, 0, RecordBatch(batch).count)) for _, _, batch, _ in groups]
    found = [next(rows[number]) for number in struct.unpack("<4H", order)]
    assert [(key, dict(headers)) for _, _, key, _, headers, *_ in found] == [(key, {b"h": key}) for key in keys]
    assert sorted(partition for _, partition, _, _ in groups) == [0, 1]
    assert all(RecordBatch(batch).base_offset == 40 for _, _, batch, _ in groups)
    assert tails.seal_lent(False, 1 << 20, 0)[0] == 2 and sorted(tails.flying_lent(False)) == slots
    assert {waiting[1] for slot in slots for waiting in tails.recall(slot)[1][2]} == {ticket}


def test_what_is_sealed_are_the_bytes_that_python_seals(k: ModuleType) -> None:
    """Merged, placed, linked and checksummed as by merge and chain, and entered as by journal.pack_record."""
    tails = k.Tails(bytes, 1 << 20, 100, 100)
    tails.set_lending(True, 1 << 20)
    slot = tails.open_lent()
    tails.lend(slot, False, (16, 3, 40, SEED, 9, 512, 65_536, 40, 0), LINK, KEY)
    parts = [k.build([b"one", b"two"], origin=b"o:1"), k.build([b"three"], origin=b"o:2")]
    expected = k.merge(parts, 5_000)
    link = k.chain(expected, 40, 5_000, SEED, LINK, KEY)
    assert [tails.append_lent(slot, part, 5_000, 1) for part in parts] == [40, 42]
    count, places, placed, table, body, unfit, appends = tails.seal_lent(False, 1 << 20, 0)
    assert (count, tails.flying_lent(False)) == (1, [slot])
    assert (places, placed) == ([(9, [expected], 512)], [slot]) and body == expected and (unfit, appends) == ([], 2)
    record = journal.pack_record(journal.Life(1, 2), 0, [(16, 3, 40, SEED, len(expected), 512)], [expected])
    also = journal.pack_record(journal.Life(1, 2), 0, [], [], table, 1, body)
    assert b"".join(record) == b"".join(also)
    assert tails.read_lent(slot, 40, 1) is None, "nobody sees it before it is committed"
    assert (tails.catch_up_lent(slot), tails.lent_visible(slot)) == (None, 40)
    tails.commit_lent(False, 1)
    assert tails.read_lent(slot, 41, 1) == [bytes(expected)]
    assert tails.lent_visible(slot) == 43
    assert tails.catch_up_lent(slot) == (512, 40, 5_000, 512 + len(expected), 43, link, False)


def test_what_is_late_goes_to_its_segment_with_what_follows_it(k: ModuleType) -> None:
    tails = k.Tails(bytes, 1 << 20, 100, 100)
    tails.set_lending(True, 1 << 20)
    slot = tails.open_lent()
    tails.lend(slot, False, (16, 0, 0, SEED, 9, 512, 65_536, 0, 0), b"", b"")

    def sealed(later: int) -> tuple[bytes, Any, Any]:
        tails.append_lent(slot, k.build([b"one"]), 7, 1)
        count, places, placed, _, body, *_ = tails.seal_lent(False, 1 << 20, later)
        assert count == 1
        return body, places, placed

    first, places, placed = sealed(1 << 20)
    assert (places, placed) == ([], []), "the journal alone has it"
    assert tails.take_late(slot) == (512, []), "nothing is late before it is committed"
    tails.commit_lent(False, 1)
    second, places, placed = sealed(len(first))
    assert (places, placed) == ([(9, [first, second], 512)], [slot])
    assert tails.take_late(slot) == (512, [first]), "who looks at the file meanwhile writes it, too"
    tails.commit_lent(False, 2)
    assert (tails.late_bytes, tails.tardy_lent(9, 9)) == (0, [])
    third, _, _ = sealed(1 << 20)
    tails.commit_lent(False, 3)
    assert tails.late_bytes == len(third)
    try:
        tails.recall(slot)
    except ValueError as error:
        assert str(error) == "what is late is taken before it is recalled"
    else:
        raise AssertionError("what is late would be lost")
    assert (tails.tardy_lent(2, 9), tails.tardy_lent(3, 9), tails.tardy_lent(3, 9)) == ([], [slot], [])
    assert tails.take_late(slot) == (512 + len(first) + len(second), [third])
    with pytest.raises(ValueError, match="caught up with"):
        tails.recall(slot)
    assert tails.catch_up_lent(slot) is not None
    assert tails.recall(slot)[1] is None


def test_a_commit_names_who_watches_and_who_is_low(k: ModuleType) -> None:
    """And nobody else: of the others nothing is said until somebody asks."""
    tails = k.Tails(bytes, 1 << 20, 100, 100)
    tails.set_lending(True, 1 << 20)
    slots = [tails.open_lent() for _ in range(4)]
    for slot in slots:
        tails.lend(slot, False, (16, slot, 0, SEED, 9, 512, 65_536, 0, 0), LINK, b"")
    tails.set_watched_lent(slots[1], True)
    tails.set_low_lent(slots[2], 512)
    said = []
    for how in (1, 1, 2):
        for slot in slots[:3]:
            tails.append_lent(slot, k.build([b"one"]), 7, 1)
        tails.seal_lent(False, 1 << 20, 1 << 20)
        said.append(tails.commit_lent(False, 1, how))
    assert said == [([slots[2]], [slots[1]])] * 3
    assert [tails.lent_visible(slot) for slot in slots] == [3, 3, 3, 0]
    assert (tails.take_recorded(), tails.take_recorded()) == (slots[:3], [])
    assert tails.catch_up_lent(slots[0])[-1], "the last one synced all of it"
    assert (tails.take_moved(), tails.take_moved()) == (slots[1:3], []), "the first was caught up with"
    tails.append_lent(slots[0], k.build([b"one"]), 7, 1)
    tails.seal_lent(False, 1 << 20, 1 << 20)
    tails.commit_lent(False, 1, 1)
    assert not tails.catch_up_lent(slots[0])[-1]
    tails.take_late(slots[0])
    tails.recall(slots[0])
    with pytest.raises(ValueError, match="in a record"):
        tails.close_lent(slots[0])
    assert tails.take_recorded() == [slots[0]]
    tails.close_lent(slots[0])


def test_what_has_no_room_comes_back_to_python_in_its_order(k: ModuleType) -> None:
    """Control: with more room it is sealed."""
    for room in (10_000, 400):
        tails = k.Tails(bytes, 1 << 20, 100, 100)
        tails.set_lending(True, 1 << 20)
        slot = tails.open_lent()
        tails.lend(slot, False, (16, 0, 0, SEED, 9, 512, 512 + room, 5, 0), LINK, b"")
        # A column of times for all: the merged batch is longer than its parts.
        batches = [k.build([b""] * 30), k.build([b""], timestamps=[1])]
        taken = [tails.append_lent(slot, batch, 7, number) for number, batch in enumerate(batches)]
        _, _, _, _, _, unfit, _ = tails.seal_lent(False, 1 << 20, 0)
        waiting, flight, position, _, _, _ = tails.recall(slot)
        if room == 10_000:
            assert (taken, unfit, waiting) == ([5, 35], [], []) and flight is not None
        else:
            assert unfit == [slot] or None in taken
            assert flight is None and position == 512
            assert [base for _, _, _, base in waiting] == [base for base in taken if base is not None]


def other_bounds(rust: str) -> dict[str, list[int | None]]:
    """The bounds of the log that this Rust source or the twin has with another value, or not at all: [log, twin, Rust]."""
    found = dict(re.findall(r"^const (\w+): \w+ = ([\d_* ]+);", rust, re.MULTILINE))
    log = {"JOURNALED_BYTES_MAX": commit.CHUNK_BYTES_MAX, "ENTRY_BYTES": journal.ENTRY_BYTES}
    twin = {"JOURNALED_BYTES_MAX": pure_lent.JOURNALED_BYTES_MAX, "ENTRY_BYTES": pure_lent.ENTRY.size}
    for name in ("PENDING_BYTES_MAX", "LOAN_BYTES_MAX", "INLINE_FEW", "LARGE_SHARE"):
        log[name] = twin[name] = getattr(pure_lent, name)
    values = {name: [value, twin[name], eval(found.get(name, "None"))] for name, value in log.items()}
    return {name: each for name, each in values.items() if len(set(each)) > 1}


def test_bounds_of_loans_are_the_same_in_rust_and_in_the_log() -> None:
    rust = "".join((RUST / name).read_text() for name in ("lent.rs", "loan.rs"))
    assert other_bounds(rust) == {}
    assert commit.LENT_BYTES_MAX == pure_lent.PENDING_BYTES_MAX
    changed = rust.replace("JOURNALED_BYTES_MAX: usize = 32", "JOURNALED_BYTES_MAX: usize = 64")
    assert other_bounds(changed) == {"JOURNALED_BYTES_MAX": [32_768, 32_768, 65_536]}


def campaign(count: int, first: int = 1_000_000) -> None:
    """`python -m tests.kernel.test_lent 1000000`: as many histories as asked, with seeds that the test does not have."""
    native = native_twin()
    progress = Progress("histories", count)
    for seed in range(first, first + count):
        if list(history(native, seed)) != list(history(pure, seed)):
            sys.exit(f"FAILED: seed {seed}")
        progress.at(seed - first + 1)
    sys.stdout.write(f"seeds {first} to {first + count - 1}: {count:,} histories of {STEPS} steps, 0 differences\n")


if __name__ == "__main__":
    campaign(*map(int, sys.argv[1:]))
