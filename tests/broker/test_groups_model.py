"""A model test: random histories of one consumer group against plain dicts.

Always: while there is a member each partition has exactly one owner; counts differ by at most one; a single join moves
at most its share; whoever is not the owner in the current generation has no commit accepted; generations only rise; what
was acknowledged is committed, also after a restart or a power cut.
"""

import os
from collections.abc import Callable
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from quintet.broker.consumers.committed_offsets import CommittedOffsets
from quintet.broker.consumers.coordinator import SESSION_TIMEOUT_US
from quintet.broker.consumers.group import Assignment
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import Fenced, Forbidden, QuintetError
from quintet.model.tasks import start
from tests.broker.group_support import Answers, GroupBroker

EXAMPLES = 400 if os.environ.get("QUINTET_TEST_LONG") else 100  # lives of a group; `make campaign` sees the more
RECORDS = 5  # in each partition
HANDLES = st.integers(0, 7)
NAMES = st.sampled_from(["", "", "", "x", "y"])


class GroupMachine(RuleBasedStateMachine):
    """The model of a member: the name it joined under, when it was heard of, what it was last told."""

    broker: GroupBroker
    topic: Topic

    @initialize(partitions=st.sampled_from([1, 2, 3, 7, 12]))
    def begin(self, partitions: int) -> None:
        self.broker = GroupBroker()
        self.partitions = partitions
        self.topic = self.broker.topic("t", partitions)
        for partition in range(partitions):
            self.broker.publish(self.topic, partition, RECORDS)
        self.broker.commit(self.topic, 0, 0)
        self.offsets = {0: 0}
        self.life = 0
        self.handles: dict[int, int] = {}  # a client's connection: a new number each time
        self.names: dict[tuple[int, int], str] = {}  # members: connection, static name
        self.away: dict[str, int] = {}  # static names whose connection is gone: when they were last heard of
        self.heard: dict[tuple[int, int], int] = {}
        self.told: dict[tuple[int, int], Assignment] = {}
        self.replaced: set[tuple[int, int]] = set()
        self.generation = 0  # the highest anybody was told

    def handle(self, client: int) -> tuple[int, int]:
        if client not in self.handles:
            self.life += 1
            self.handles[client] = self.life
        return client, self.handles[client]

    def now(self) -> int:
        return self.broker.scheduler.now()

    def owned(self) -> dict[str, tuple[int, ...]]:
        return {m.name: m.partitions for m in self.broker.groups.describe("ann", False, "t", "g").members}

    # -- what clients do -----------------------------------------------------------------------------------------------

    @rule(client=HANDLES, name=NAMES)
    def subscribe(self, client: int, name: str) -> None:
        handle = self.handle(client)
        if handle in self.names:
            name = self.names[handle]
        before = self.owned()
        fresh = handle not in self.names and (not name or name not in [*self.names.values(), *self.away])
        if handle in self.replaced:
            with pytest.raises(Fenced):
                self.broker.subscribe(self.topic, member=handle, name=name)
            return
        result = self.broker.subscribe(self.topic, member=handle, name=name)
        for other in [other for other, its in self.names.items() if name and its == name and other != handle]:
            self.forget(other)
            self.replaced.add(other)
        self.away.pop(name, None)
        self.names[handle] = name
        self.heard[handle] = self.now()
        self.told[handle] = result
        assert result.generation >= self.generation
        self.generation = result.generation
        for partition, first in result.partitions:
            assert first == self.offsets.get(partition, 0)
        if fresh:
            after = self.owned()
            moved = sum(len(set(after[who]) - set(before.get(who, ()))) for who in after) if before else 0
            assert moved <= -(-self.partitions // len(after))
        else:
            assert self.owned() == before, "a heartbeat or a takeover moves nothing"

    @rule(clients=st.lists(HANDLES, unique=True, min_size=2), leavers=st.lists(HANDLES, unique=True))
    def storm(self, clients: list[int], leavers: list[int]) -> None:
        """All in one turn: one rebalance."""
        rebalances = self.broker.groups.rebalances
        answers = {}
        for client in clients:
            handle = self.handle(client)
            if handle in self.replaced:
                continue
            answers[handle] = Answers()
            name = self.names.setdefault(handle, "")
            self.heard[handle] = self.now()
            start(self.broker.groups.subscribe("ann", False, self.topic, "g", -1, "earliest", handle, name)).then(
                answers[handle]
            )
        for client in leavers:
            self.leave(client, settle=False)
        self.broker.scheduler.run_until_idle()
        assert self.broker.groups.rebalances <= rebalances + 1
        for handle, answer in answers.items():
            ((result, error),) = answer.told
            assert (error is None) == (handle in self.names)
            if error is None:
                self.told[handle] = result
                self.generation = max(self.generation, result.generation)

    @rule(client=HANDLES)
    def leave(self, client: int, settle: bool = True) -> None:
        handle = self.handle(client)
        del self.handles[client]
        self.broker.groups.leave(handle)
        if self.names.get(handle):
            self.away[self.names[handle]] = self.heard[handle]
        self.replaced.discard(handle)
        self.forget(handle)
        if settle:
            self.broker.scheduler.run_until_idle()

    def forget(self, handle: tuple[int, int]) -> None:
        self.names.pop(handle, None)
        self.heard.pop(handle, None)

    @rule(seconds=st.sampled_from([1, 3, 6, 11]))
    def wait(self, seconds: int) -> None:
        self.broker.tick(seconds * 1_000_000)
        for handle, heard in list(self.heard.items()):
            if self.now() - heard >= SESSION_TIMEOUT_US:
                self.forget(handle)
        self.away = {name: heard for name, heard in self.away.items() if self.now() - heard < SESSION_TIMEOUT_US}

    @rule(
        client=HANDLES,
        partition=st.integers(0, 11),
        offset=st.integers(0, RECORDS),
        generation=st.sampled_from(["told", "current", "none", "old", "next"]),
        prepared=st.booleans(),
    )
    def commit(self, client: int, partition: int, offset: int, generation: str, prepared: bool) -> None:
        handle, partition = self.handle(client), partition % self.partitions
        told = self.told.get(handle)
        current = self.broker.groups.describe("ann", False, "t", "g").generation
        said = {
            "told": told.generation if told else 0,
            "current": current,
            "none": None,
            "old": current - 1,
            "next": current + 1,
        }[generation]
        members = self.names or self.away
        owner = handle in self.names and partition in self.owned_by(handle)
        allowed = (said == current and owner) if said is not None else (owner or not members)
        try:
            if prepared:
                payload = self.broker.groups.offsets.prepare_commit(
                    "ann", False, self.topic, "g", partition, offset, said, handle
                )
                self.broker.run(self.broker.groups.offsets.apply_commit(payload))
            else:
                self.broker.commit(self.topic, partition, offset, said, handle)
        except Fenced:
            assert not allowed
            return
        assert allowed
        self.offsets[partition] = offset
        if handle in self.names:
            self.heard[handle] = self.now()

    def owned_by(self, handle: tuple[int, int]) -> tuple[int, ...]:
        """As the member itself is told."""
        beat = self.broker.subscribe(self.topic, member=handle, name=self.names[handle])
        self.told[handle] = beat
        self.heard[handle] = self.now()
        self.generation = beat.generation
        return tuple(number for number, _ in beat.partitions)

    @rule(client=HANDLES, partition=st.integers(0, 11))
    def stranger(self, client: int, partition: int) -> None:
        handle = self.handle(client)
        calls: list[Callable[[], object]] = [
            lambda: self.broker.commit(self.topic, partition % self.partitions, 0, None, handle, actor="eve"),
            lambda: self.broker.subscribe(self.topic, member=handle, actor="eve"),
        ]
        for call in calls:
            with pytest.raises(Forbidden):
                call()

    @rule(seed=st.integers(0, 99), clean=st.booleans())
    def restart(self, seed: int, clean: bool) -> None:
        if clean:
            self.broker.restart()
        else:
            self.broker.cut_power(seed)
        self.topic = self.broker.topic("t")
        stale = list(self.told.items())
        for state in (self.names, self.heard, self.away, self.told, self.handles):
            state.clear()
        self.replaced.clear()
        for handle, assignment in stale:
            with pytest.raises(Fenced):
                self.broker.commit(self.topic, 0, 0, assignment.generation, handle)

    # -- what is always so ---------------------------------------------------------------------------------------------

    @invariant()
    def one_owner_per_partition(self) -> None:
        info = self.broker.groups.describe("ann", False, "t", "g")
        assert len(info.members) == len(self.names) + len(self.away)
        assert {m.name for m in info.members if m.static} == {*filter(None, self.names.values()), *self.away}
        assert {m.name for m in info.members if not m.connected} == set(self.away)
        owned = sorted(number for member in info.members for number in member.partitions)
        assert owned == (list(range(self.partitions)) if info.members else [])
        counts = [len(member.partitions) for member in info.members]
        assert not counts or max(counts) - min(counts) <= 1

    @invariant()
    def what_was_acknowledged_is_committed(self) -> None:
        for partition in range(self.partitions):
            assert self.broker.committed(self.topic, partition) == self.offsets.get(partition, 0)


TestGroupModel = GroupMachine.TestCase
TestGroupModel.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_model_catches_a_commit_that_is_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommittedOffsets, "_fence", lambda *_: None)
    chosen = settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, ExceptionGroup, pytest.fail.Exception)):
        run_state_machine_as_test(GroupMachine, settings=chosen)


@pytest.mark.parametrize("seed", range(3))
def test_five_hundred_rebalances(seed: int) -> None:
    """Members come, go, fall silent and are replaced; each works through what it was told. Everything gets committed."""
    rng = Random(seed)
    broker = GroupBroker()
    topic = broker.topic("t", 6)
    for partition in range(6):
        broker.publish(topic, partition, 20)
    told: dict[object, Assignment] = {}
    stale: list[tuple[object, Assignment]] = []
    serial = 0
    while broker.groups.rebalances < 500:
        action = rng.random()
        if action < 0.4 or not told:
            serial += 1
            told[serial] = broker.subscribe(topic, member=serial)
        elif action < 0.6:
            gone = rng.choice(list(told))
            stale.append((gone, told.pop(gone)))
            broker.groups.leave(gone)
        elif action < 0.7:  # stopped, as by SIGSTOP: silent for longer than the session lasts, then back
            silent = rng.choice(list(told))
            for _ in range(3):
                broker.tick(SESSION_TIMEOUT_US // 3 + 1)
                for member in told:
                    if member != silent:
                        broker.subscribe(topic, member=member)
            stale.append((silent, told.pop(silent)))
        before = {member: assignment.generation for member, assignment in told.items()}
        for member in told:
            told[member] = broker.subscribe(topic, member=member)
        assert len({assignment.generation for assignment in told.values()}) <= 1
        assert all(told[member].generation >= generation for member, generation in before.items())
        for member, assignment in told.items():
            for partition, first in assignment.partitions:
                broker.commit(topic, partition, min(first + 1, 20), assignment.generation, member)
        for member, assignment in stale[-5:]:
            for partition in range(6):
                with pytest.raises(QuintetError):
                    broker.commit(topic, partition, 0, assignment.generation, member)
    assert [broker.committed(topic, partition) for partition in range(6)] == [20] * 6
