"""A model test: random histories of one partition against a plain list. The seed of a failure is printed by hypothesis.

Always: what was acknowledged is readable after every kill, and after every power cut for fsync topics; what is readable
was sent, at the offset it was given; offsets rise and are never given to two records that were both acknowledged.
"""

import errno
import os
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quintet import kernel
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.errors import PartitionFailed, StorageError
from quintet.testing.sim import SimDisk
from tests.log.support import TOPIC, Harness

EXAMPLES = 400 if os.environ.get("QUINTET_TEST_LONG") else 100  # lives of a log; `make campaign` sees the more


class LogMachine(RuleBasedStateMachine):
    """`sent` has every value that may be at an offset: several only if none of them was acknowledged."""

    harness: Harness
    partition: Partition
    spec: TopicSpec

    @staticmethod
    def disk() -> SimDisk:
        return SimDisk()

    @initialize(
        durability=st.sampled_from(["fsync", "fsync", "interval", "os"]),
        segment_bytes=st.sampled_from([2048, 16_384, 65_536]),
        retention_bytes=st.sampled_from([0, 0, 20_000]),
        journal=st.sampled_from([0, 8_192, 65_536]),
        packs=st.booleans(),
    )
    def begin(self, durability: str, segment_bytes: int, retention_bytes: int, journal: int, packs: bool) -> None:
        self.harness = Harness(self.disk(), journal=journal, packs=packs)
        self.spec = TopicSpec(
            TOPIC,
            "t",
            durability=durability,  # type: ignore[arg-type]
            segment_bytes=segment_bytes,
            retention_bytes=retention_bytes,
        )
        self.partition = self.harness.open(self.spec)
        self.sent: dict[int, list[bytes]] = {}
        self.acked: dict[int, bytes] = {}
        self.counter = 0

    @rule(sizes=st.lists(st.sampled_from([1, 40, 700, 3000]), min_size=1, max_size=8), settle=st.booleans())
    def append(self, sizes: list[int], settle: bool) -> None:
        for size in sizes:
            self.counter += 1
            value = b"%08d" % self.counter + bytes([self.counter % 256]) * size
            given: list[int] = []

            def done(base: int, error: Exception | None, value: bytes = value, given: list[int] = given) -> None:
                if error is None:
                    assert base == given[0]
                    assert base not in self.acked
                    self.acked[base] = value

            try:
                given.append(self.partition.append(kernel.build([value], origin=b"m:1"), done))
            except StorageError:
                assert self.partition.failure is not None
                return
            self.sent.setdefault(given[0], []).append(value)
        if settle:
            self.harness.scheduler.run_until_idle()

    @rule()
    def settle(self) -> None:
        self.harness.scheduler.run_until_idle()

    @rule(delta=st.sampled_from([100_000, 1_000_000, 20_000_000]))
    def maintain(self, delta: int) -> None:
        self.harness.tick(delta)

    @rule(
        operation=st.sampled_from(
            ["pwritev", "zero", "fdatasync", "truncate", "open", "fsync_dir", "rename", "unlink"]
        ),
        nth=st.integers(1, 4),
        code=st.sampled_from([errno.EIO, errno.ENOSPC]),
    )
    def inject(self, operation: str, nth: int, code: int) -> None:
        self.harness.sim.fail(operation, nth, code)

    @rule(spare=st.integers(0, 100_000))
    def fill_the_disk(self, spare: int) -> None:
        self.harness.sim.capacity = self.harness.sim.used() + spare

    @rule()
    def free_the_disk(self) -> None:
        self.harness.sim.capacity = 1 << 40
        self.harness.sim.heal()
        self.harness.tick(2_000_000)
        self.harness.tick(2_000_000)
        assert self.partition.failure is None or isinstance(self.partition.failure, PartitionFailed)

    @rule()
    def seal(self) -> None:
        assert isinstance(self.partition, FilePartition)
        self.partition.seal_active()

    @rule()
    def kill(self) -> None:
        self.harness.sim.kill()
        self.restart()

    @rule(seed=st.integers(0, 1 << 30))
    def cut_the_power(self, seed: int) -> None:
        kept = self.acked
        self.harness.sim.crash(Random(seed))
        if self.spec.durability != "fsync":
            self.acked = {}
        self.restart()
        if self.spec.durability != "fsync":
            readable = {offset for offset, _, _ in self.harness.read_all(self.partition)}
            self.acked = {offset: value for offset, value in kept.items() if offset in readable}
            self.sent = {offset: values for offset, values in self.sent.items() if offset in readable}

    @precondition(lambda self: self.partition.failure is None)
    @rule()
    def stop_and_start(self) -> None:
        self.harness.sim.heal()
        self.harness.sim.capacity = 1 << 40
        self.harness.close()
        self.restart()

    def restart(self) -> None:
        self.harness.sim.heal()
        self.harness.sim.capacity = 1 << 40
        self.harness.start()
        self.partition = self.harness.open(self.spec)

    @invariant()
    def readable_is_what_was_sent_and_acked_is_readable(self) -> None:
        self.harness.sim.heal()
        rows = self.harness.read_all(self.partition)
        offsets = [offset for offset, _, _ in rows]
        assert offsets == sorted(set(offsets))
        for offset, _, value in rows:
            if offset in self.acked:
                assert value == self.acked[offset]
            else:
                assert value in self.sent[offset]
        lost = {offset for offset in self.acked if offset >= self.partition.start} - set(offsets)
        assert not lost
        assert self.partition.end >= self.partition.visible
        if self.spec.retention_bytes == 0:
            assert self.partition.start == 0 or not self.acked


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class LyingDisk(SimDisk):
    """Says that the data of a segment is durable when it is not."""

    def fdatasync(self, handle: int) -> None:
        if self.pread(handle, 7, 0) != b"QNTSEG1":
            super().fdatasync(handle)


class Sabotaged(LogMachine):
    @staticmethod
    def disk() -> SimDisk:
        return LyingDisk()


def test_the_model_catches_an_acknowledgement_before_the_sync() -> None:
    chosen = settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(Sabotaged, settings=chosen)
