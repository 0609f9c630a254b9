"""Share: whoever comes, goes, fills up and drains, each record is handed to exactly one member, and none waits for ever.

The control is a share that hands every run to its first member: the same storm must find it out.
"""

from collections.abc import Callable
from random import Random

import pytest

from quintet import kernel
from quintet.delivery.lane import Lane
from quintet.delivery.share import Share
from quintet.delivery.subscription import Policy, Subscription
from quintet.model.batch import RecordBatch
from tests.delivery.test_lane import ListPartition

STEPS = 400


class Member:
    """A peer whose socket takes `space` records."""

    def __init__(self, space: int) -> None:
        self.space = space
        self.got: list[int] = []
        self.parked: list[Callable[[], None]] = []

    def room(self) -> int:
        return self.space

    def park(self, call: Callable[[], None]) -> None:
        self.parked.append(call)

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        assert self.space > 0, "records for a member without room"
        self.space -= last - first
        self.got += [batch.offset(index) for index in range(first, last)]

    def drain(self, space: int) -> None:
        self.space = space
        parked, self.parked = self.parked, []
        for call in parked:
            call()

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError

    def evict(self, reason: str) -> None:
        raise AssertionError


class Partition(ListPartition):
    """Tells its watchers, as the log does."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Callable[[], None]] = []

    def watch(self, call: Callable[[], None]) -> None:
        self.watchers.append(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        self.watchers.remove(call)

    def publish(self, count: int) -> None:
        self.add(count)
        for call in list(self.watchers):
            call()


def storm(share: Share, seed: int) -> tuple[list[Member], int]:
    """Members come, go, fill up and drain while records come; at the end all that are left have room."""
    rng = Random(seed)
    partition = Partition()
    lane = Lane(partition, 0)  # type: ignore[arg-type]
    subscription = Subscription(-1, "x", b"t", 0, [lane], Policy(), lambda: 0, lambda: 0, lambda _: None, door="blipmq")
    members: list[Member] = []
    everyone: list[Member] = []
    for _ in range(STEPS):
        chosen = rng.random()
        if chosen < 0.1 or not members:
            member = Member(rng.choice((0, 3, 50)))
            members.append(member)
            everyone.append(member)
            share.add(member)
            if subscription.sink is None:
                subscription.attach(share)
        elif chosen < 0.15 and len(members) > 1:
            share.remove(members.pop(rng.randrange(len(members))))
        elif chosen < 0.5:
            rng.choice(members).drain(rng.choice((0, 2, 20)))
        else:
            partition.publish(rng.randint(1, 9))
        assert all(len(member.parked) <= 1 for member in members), "one call back for each member is enough"
    for member in members:
        member.drain(1 << 30)
    return everyone, partition.visible


def check(everyone: list[Member], visible: int) -> None:
    handed = [offset for member in everyone for offset in member.got]
    assert sorted(handed) == list(range(visible)), "each record to exactly one member"
    for member in everyone:
        assert member.got == sorted(member.got), "in order for each"


@pytest.mark.parametrize("seed", range(30))
def test_each_record_goes_to_one_member(seed: int) -> None:
    check(*storm(Share(), seed))


class Greedy(Share):
    """The sabotaged one: it does not look for room."""

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        self._members[0].records(subscription, partition, batch, first, last)


class Doubled(Share):
    """The sabotaged one: competing turned into fan-out."""

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        for member in self._takers():
            member.records(subscription, partition, batch, first, last)


@pytest.mark.parametrize("broken", [Greedy, Doubled])
def test_the_storm_finds_a_broken_share(broken: type[Share]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(5):
            check(*storm(broken(), seed))


def test_runs_are_dealt_evenly() -> None:
    share = Share()
    members = [Member(1000) for _ in range(3)]
    for member in members:
        share.add(member)
    batch = RecordBatch(kernel.build([b"x"] * 4))
    for _ in range(3):
        share.records(None, 0, batch, 0, 4)
    for _ in range(3):
        share.records(None, 0, batch, 0, 1)
    assert [len(member.got) for member in members] == [5, 5, 5]
