"""Caches on a simulated disk: what was acknowledged is there after a restart or a power cut, and nothing else."""

from random import Random

import pytest

from quintet.broker.cache import Cache, CacheOptions
from quintet.broker.core import BrokerOptions
from quintet.testing.line import SimBroker
from quintet.testing.sim import SimScheduler

SCOPE = ("t", "n", "c")


class Told:
    """What `done` heard."""

    def __init__(self) -> None:
        self.heard: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.heard.append(error)


def cache_of(sim: SimBroker) -> Cache:
    return sim.broker.caches.open(SCOPE)


def test_thin() -> None:
    sim = SimBroker()
    cache = cache_of(sim)
    told = Told()
    assert cache.put(b"k", b"v", 0, None, told) == 1
    assert cache.get(b"k", 0) == (b"v", 1)
    assert told.heard == []
    sim.scheduler.settle()
    assert told.heard == [None]
    cache.put(b"d", b"v", 0, None, told)
    assert cache.delete(b"d", None, told) == (True, 3)
    sim.restart()
    again = sim.broker.caches.get(SCOPE)
    assert again is not None
    assert again.get(b"k", 0) == (b"v", 1)
    assert again.get(b"d", 0) is None
    assert again.put(b"k", b"w", 0, 1, told) == 4
