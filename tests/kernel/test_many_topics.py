"""Reads over more topics than the processor's cache holds: the native kernel looks ahead for their routes, the pure one does not."""

import random
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from quintet.kernel import pure
from quintet.kernel.pure_tails import ROUTES_MAX
from tests.kernel.frames import native_twin, publish
from tests.wire.blipmq import ping

TOPICS: Final = 700  # kernel/src/routes.rs looks ahead from 513 on
READS: Final = 12
FRAME_BYTES_MAX: Final = 1 << 20


def names(choice: random.Random) -> list[bytes]:
    """Of all lengths: within a route (30 bytes) and beside it, shorter than a word of the hash and longer, alike but for one byte."""
    return [b"%d" % number + b"/n" * choice.choice([0, 1, 3, 12, 13, 14, 60]) for number in range(TOPICS)]


def frames(choice: random.Random, known: list[bytes]) -> bytes:
    """Publishes to many topics, some in runs, with and without a time to live; sometimes one that is unknown, bad, or no publish."""
    found: list[bytes] = []
    for number in range(choice.randint(1, 400)):
        topic, what = choice.choice(known), choice.random()
        if what < 0.002:
            topic = choice.choice([b"unknown", b"", b"\xff", b"nul\0", b"l" * 300])
        ttl = 5 if choice.random() < 0.1 else None
        one = publish(topic, bytes(choice.choice([0, 8, 100])), qos=0, cid=number, ttl_ms=ttl)
        found += [one] * (choice.randint(2, 40) if what > 0.97 else 1)
        if 0.002 < what < 0.006:
            found.append(ping(number))
    data = b"".join(found)
    return data[: choice.randint(1, len(data))] if choice.random() < 0.3 else data


def told(kernel: Any, seed: int) -> list[object]:
    """All that one kernel says and keeps."""
    choice = random.Random(seed)
    tails, routes, known = kernel.Tails(bytes, 1 << 18, 100, 50), kernel.Routes(), names(choice)
    slots = [tails.open(1 << 16) for _ in known]
    for name, slot in zip(known, slots, strict=True):
        routes.add(name, tails.add_topic([slot]), name, choice.random() < 0.9)
    said: list[object] = []
    for turn in range(READS):
        data = frames(choice, known)
        said.append(kernel.blip_append(tails, routes, data, 0, 2, FRAME_BYTES_MAX, b"blipmq:a", 1_000 + turn))
        if choice.random() < 0.5:
            said.append(tails.seal(1_000 + turn))
    said.append(tails.seal(2_000))
    return [*said, *[(tails.state(slot), tails.read(slot, tails.state(slot)[0], 1 << 20)) for slot in slots]]


@pytest.mark.parametrize("seed", range(10))
def test_many_topics_are_found_alike_by_both_kernels(seed: int) -> None:
    assert told(native_twin(), seed) == told(pure, seed)


def test_a_kernel_that_mistakes_one_topic_of_many_is_caught() -> None:
    """Control: of all routes, one leads to another topic."""

    class Mistaken(pure.Routes[bytes]):
        def add(self, name: bytes, handle: int, topic: bytes, keeps: bool) -> None:
            super().add(name, handle + (handle & 0xFFFFFFFF == 5), topic, keeps)

    sabotaged = SimpleNamespace(**vars(pure) | {"Routes": Mistaken})
    assert any(told(sabotaged, seed) != told(pure, seed) for seed in range(5))


def test_a_name_that_is_added_again_leads_to_its_new_topic(k: ModuleType) -> None:
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    handles = [tails.add_topic([tails.open(1 << 20)]) for _ in range(2)]
    for handle in handles:
        routes.add(b"t", handle, "t", True)
    k.blip_append(tails, routes, publish(b"t", b"x", 0), 0, 2, FRAME_BYTES_MAX, b"blipmq:a", 1)
    assert [tails.published(handle) for handle in handles] == [0, 1]
    routes.clear()
    *_, held = said = k.blip_append(tails, routes, publish(b"t", b"x", 0), 0, 2, FRAME_BYTES_MAX, b"blipmq:a", 1)
    assert (len(said[1]), held) == (1, None), "what was cleared is not known"


def test_a_connection_has_so_many_routes_and_no_more(k: ModuleType) -> None:
    """By whatever door: names may have a token in them, and a hostile client can make tokens without end. Control: one fewer."""
    tails, routes = k.Tails(bytes, 1 << 20, 100, 100), k.Routes()
    handle = tails.add_topic([tails.open(1 << 20)])

    def is_known(name: bytes) -> bool:
        return not k.blip_append(tails, routes, publish(name, b"x", 0), 0, 2, FRAME_BYTES_MAX, b"blipmq:a", 1)[1]

    for number in range(ROUTES_MAX):
        routes.add(b"n%d" % number, handle, "t", True)
    routes.add(b"n7", handle, "t", True)
    assert is_known(b"n0") and is_known(b"n7")
    routes.add(b"one more", handle, "t", True)
    assert is_known(b"one more") and not is_known(b"n0") and not is_known(b"n7")
