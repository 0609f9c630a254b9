"""Tails: native and pure do the same over random histories, and no bound, slot or handle is mistaken for another's."""

import gc
import random
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from quintet.kernel import pure
from tests.kernel.frames import native_twin, publish
from tests.wire.blipmq import ping

NAMES: Final = [b"t%d" % number for number in range(6)]
HISTORIES: Final = 300
STEPS: Final = 60
FRAME_BYTES_MAX: Final = 1 << 20


class Twin:
    """One implementation under a history. Everything it says goes to `said`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.tails = kernel.Tails(bytes, 30_000, 100, 7)
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
        self.routes.add(choice.choice(NAMES), self.handles[-1], len(self.handles))
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
    Twin.open, Twin.close, Twin.topic, Twin.remove, Twin.append, Twin.append, Twin.append, Twin.read_from, Twin.read_from,
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


def test_a_handle_of_a_topic_that_is_gone_reaches_no_other(k: ModuleType) -> None:
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    first = tails.add_topic([tails.open(1_000)])
    routes.add(b"t0", first, "first")
    tails.remove_topic(first)
    second = tails.add_topic([tails.open(1_000)])
    assert first != second
    items, end, _, last = k.blip_append(tails, routes, publish(b"t0", b"x", False), 0, 1, FRAME_BYTES_MAX, b"o:o", 1)
    assert (len(items), last, tails.published(second), end) == (1, None, 0, len(publish(b"t0", b"x", False)))


def test_nothing_overtakes_what_python_must_decide(k: ModuleType) -> None:
    """Control: without the unknown topic in front all of it is appended in the call."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    routes.add(b"known", tails.add_topic([tails.open(1 << 20)]), "known")
    known = publish(b"known", b"x", False)
    for front, left, last in ((publish(b"new", b"x", False), 2, None), (ping(1), 1, "known"), (b"", 0, "known")):
        items, _, _, said = k.blip_append(tails, routes, front + known, 0, 1, FRAME_BYTES_MAX, b"o:o", 1)
        assert (len(items), said) == (left, last)


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
        self.routes.add(b"t", self.tails.add_topic([self.tails.open(1_000)]), self)

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
