"""The memory of a cache in both twins: random histories of rows and gets leave the same rows, also past the sizes where it changes shape."""

import random
from types import ModuleType
from typing import Any

import pytest

from quintet.kernel import pure
from tests.kernel.felix_frames import FRAME_MAX, NOW, frame, memory
from tests.kernel.frames import native_twin

HISTORIES = 60
STEPS = 200
LONG = 5_000  # bytes of a value that the native twin keeps by itself
MANY = 4_200  # keys: the native twin has split its table


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


class TestRows:
    def test_rows_come_back_as_they_were_put(self, k: ModuleType) -> None:
        cache = k.CacheMemory()
        for value in (b"", b"v", bytes(LONG)):
            cache[b"k"] = (value, 5, False, 2**64 - 1)
            assert cache.get(b"k") == cache[b"k"] == (value, 5, False, 2**64 - 1)
            assert (len(cache), list(cache), b"k" in cache) == (1, [b"k"], True)
        assert cache.set_used(b"k", True) is False and cache.set_used(b"k", True) is True
        assert cache.pop(b"k")[2] is True
        assert (cache.get(b"k"), len(cache), list(cache), b"k" in cache) == (None, 0, [], False)

    def test_a_key_that_is_not_there_is_an_error(self, k: ModuleType) -> None:
        cache = k.CacheMemory()
        for name, more in (("__getitem__", ()), ("pop", ()), ("set_used", (True,))):
            with pytest.raises(KeyError) as caught:
                getattr(cache, name)(b"k", *more)
            assert caught.value.args == (b"k",)

    def test_iterating_gives_the_keys_of_that_moment(self, k: ModuleType) -> None:
        cache = memory(k, {b"%d" % number: (b"v", 0, False, number) for number in range(10)})
        seen = []
        for key in cache:
            cache.pop(key)
            cache[key + b"+"] = (b"v", 0, False, 1)
            seen.append(key)
        assert sorted(seen) == [b"%d" % number for number in range(10)] and len(cache) == 10


def step(r: random.Random, cache: Any, k: Any) -> Any:
    """One random act, and what it gives."""
    key = b"key%d" % r.randrange(40)
    act = r.randrange(8)
    if act < 3:
        value = r.choice((b"", b"short", bytes(LONG)))
        cache[key] = (value, r.choice((0, NOW - 1, NOW, NOW + 1)), r.random() < 0.5, r.randrange(2**64))
        return None
    if act == 3:
        return cache.pop(key) if key in cache else None
    if act == 4:
        return cache.set_used(key, r.random() < 0.5) if key in cache else None
    if act == 5:
        return cache.get(key), len(cache)
    if act == 6 and r.random() < 0.05:
        return cache.clear()
    text = b'{"type":"cache_get","key":"%b","request_id":%d}' % (key, r.randrange(100))
    data = b"".join(frame(0, text) for _ in range(r.randrange(1, 4)))
    return k.felix_gets(data, 0, FRAME_MAX, {b"": cache}, NOW, 1 << 20, r.random() < 0.5)


def differ(native: Any, seed: int) -> bool:
    """Whether a history gives two things, or leaves two things, in the twins."""
    caches = [(k.CacheMemory(), k, random.Random(seed)) for k in (native, pure)]
    for _ in range(STEPS):
        ours, theirs = (step(r, cache, k) for cache, k, r in caches)
        if ours != theirs:
            return True
    return sorted(caches[0][0].items()) != sorted(caches[1][0].items())


def test_twins_agree_on_random_histories(native: ModuleType) -> None:
    for seed in range(HISTORIES):
        assert not differ(native, seed), f"seed {seed}"


def test_a_twin_that_forgets_what_was_used_is_found() -> None:
    """The control of the test above."""

    class Forgetful(pure.CacheMemory):
        def set_used(self, key: bytes, used: bool) -> bool:
            return super().set_used(key, False)

    class Sabotaged:
        CacheMemory = Forgetful
        felix_gets = staticmethod(pure.felix_gets)

    assert any(differ(Sabotaged, seed) for seed in range(HISTORIES))


def test_a_large_cache_keeps_every_row(native: ModuleType) -> None:
    rows = {b"%d" % number: (b"%d" % -number, number, False, number) for number in range(MANY)}
    cache = memory(native, rows)
    assert len(cache) == MANY and dict(cache.items()) == rows and sorted(cache) == sorted(rows)
    for key in list(rows)[::2]:
        assert cache.pop(key) == rows.pop(key)
    assert len(cache) == len(rows) and dict(cache.items()) == rows
    cache.clear()
    assert len(cache) == 0 and cache.items() == []
