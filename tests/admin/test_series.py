"""Series by name: at most so many labels, and no counter ever falls, whatever comes and goes."""

from random import Random

from quintet.admin.series import CountersByName
from quintet.model.histogram import OTHER


class Things:
    """What is counted: names with their counts, and what those had that are gone."""

    def __init__(self, labels_max: int) -> None:
        self.counts: dict[str, int] = {}
        self.looked = 0
        self._final: dict[str, int] = {}
        self.counters = CountersByName[str](labels_max, lambda name: name, self._count)

    def _count(self, name: str) -> int:
        self.looked += 1
        return self.counts[name] if name in self.counts else self._final[name]

    def end(self, name: str) -> None:
        self._final[name] = self.counts.pop(name)

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + sum(self._final.values())

    def scrape(self) -> dict[str, int]:
        self.counters.update(self.counts, self.counts.__contains__, self.total)
        return self.counters.named


def test_the_busiest_get_a_label_and_the_others_share_one() -> None:
    things = Things(2)
    things.counts = {"a": 5, "b": 9, "c": 1, "d": 2}
    assert things.scrape() == {"b": 9, "a": 5, OTHER: 3}


def test_a_label_is_kept_although_others_become_busier() -> None:
    things = Things(1)
    things.counts = {"a": 5, "b": 0}
    things.scrape()
    things.counts["b"] = 100
    assert things.scrape() == {"a": 5, OTHER: 100}


def test_only_things_with_a_label_are_looked_at() -> None:
    things = Things(3)
    things.counts = {f"t{number}": 1 for number in range(1_000)}
    things.scrape()
    things.looked = 0
    things.scrape()
    assert things.looked == 3


def test_no_counter_falls_when_things_go() -> None:
    rng = Random(5)
    things = Things(4)
    born, others, before = 0, 0, dict[str, int]()
    for _ in range(2_000):
        for name in list(things.counts):
            things.counts[name] += rng.randrange(3)
            if rng.random() < 0.05:
                things.end(name)
        while rng.random() < 0.3:
            born += 1
            things.counts[f"t{born}"] = rng.randrange(5)
        named = dict(things.scrape())
        assert len(named) <= 5
        assert named.get(OTHER, 0) >= others
        assert all(count >= before.get(name, 0) for name, count in named.items())
        before, others = named, named.get(OTHER, 0)
