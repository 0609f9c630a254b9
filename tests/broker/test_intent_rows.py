"""Rows of `__intents`: what earlier versions wrote is read and recovered; a large one is encoded by a thread, in order."""

from typing import Any

import msgspec
import pytest

from quintet import kernel
from quintet.broker.atomic.dead_letters import DeadResolved, Failure
from quintet.broker.atomic.delays import DelayedSent
from quintet.broker.atomic.intent_rows import Append, Effect, IntentRow, Records, encode_unlocked, stored
from quintet.broker.atomic.stages import FencePut
from quintet.broker.consumers.group import CommitPayload
from quintet.broker.consumers.subscriptions import Settled
from quintet.model import limits
from quintet.model.errors import StorageFull
from quintet.model.tasks import start
from tests.broker.parts import SECOND, Parts, Told, tell

# As msgspec wrote them when an effect was a tuple of a name and packed values.
PAYLOADS: list[tuple[Effect, str]] = [
    (DeadResolved(21, 0, [0, 2]), "931500920002"),
    (DelayedSent([7, 8]), "920708"),
    (FencePut("spark", "q", 3, 10), "94a5737061726ba171030a"),
    (Settled(1, 0, 5), "93010005"),
    (CommitPayload("t", 16, "g", "ann", 0, 3, 1), "97a17410a167a3616e6e000301"),
]
ROW = (
    "9801a3746f6ba3616e6e05c29298a174100000c4054241544348a0000098a173110102c400a5737461676540cc809592ad646561642d7265736f6c"
    "766564c40693150092000292ac64656c617965642d73656e74c40392070892a566656e6365c40b94a5737061726ba171030a92a7736574746c6564"
    "c4049301000592a66f6666736574c40d97a17410a167a3616e6e00030191a57374616765"
)


def append(batch: bytes, **more: Any) -> Append:
    return Append("t", 16, 0, 0, memoryview(batch), **more)


# -- the bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "payload"), PAYLOADS)
def test_a_payload_is_as_it_always_was(effect: Effect, payload: str) -> None:
    assert effect.payload().hex() == payload
    assert type(effect).from_payload(bytes.fromhex(payload)) == effect


def test_a_row_is_as_it_always_was() -> None:
    appends = (append(b"BATCH"), Append("s", 17, 1, 2, memoryview(b""), "stage", 64, 128))
    effects = stored([effect for effect, _ in PAYLOADS])
    row = IntentRow(1, "tok", "ann", 5, False, appends, effects, ("stage",))
    assert msgspec.msgpack.encode(row).hex() == ROW
    assert msgspec.msgpack.decode(bytes.fromhex(ROW), type=IntentRow) == row


@pytest.mark.parametrize("sizes", [(), (0,), (255, 256), (65_535, 65_536), (3 << 20, 0, 17), (1,) * 16, (2,) * 65_536])
def test_a_thread_encodes_the_same_bytes(sizes: tuple[int, ...]) -> None:
    appends = tuple(append(bytes(size), position=number) for number, size in enumerate(sizes))
    row = IntentRow(7, "token", "owner", 1 << 60, False, appends, (("kind", b"payload"),), ("stage",))
    encoded, kept = encode_unlocked(row)
    assert encoded == msgspec.msgpack.encode(row)
    assert kept == row


# -- rows of earlier versions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [5, 8])  # of an append: the first versions had no stages
def test_a_row_of_an_earlier_version_is_recovered(fields: int) -> None:
    parts = Parts()
    row = (0, 1, b"k", b"v", (), 0, b"test:1")
    tell(parts.dead.bury(b"t", 0, 0, row, Failure("tested"), ()), buried := Told())
    parts.scheduler.run_until_idle()
    topic, letters = parts.topic(b"t"), parts.topic(b"t-dlq")
    batch = bytes(kernel.build([b"again"], origin=b"test:1"))
    fields_of_row: list[Any] = [9, "token", "ann", parts.scheduler.now(), False]
    fields_of_row += [[["t", topic.spec.id, 0, 0, batch, "", 0, 0][:fields]]]
    fields_of_row += [[["dead-resolved", msgspec.msgpack.encode((letters.spec.id, 0, [0]))]]]
    record = kernel.build([msgspec.msgpack.encode(fields_of_row)], [b"9"], origin=b"quintet:broker")
    parts.intent_rows.partition.append(record, None)
    parts.scheduler.run_until_idle()
    parts.cut(1)
    parts = Parts(parts.disk)
    assert buried == [None]
    assert parts.values(b"t") == [b"again"]
    assert parts.dead.counts(b"t") == 0
    outcome = parts.intents.outcome("token")
    assert outcome is not None and outcome.done and parts.intents.unfinished == 0


# -- large ones --------------------------------------------------------------------------------------------------------


def records(size: int, text: bytes) -> Records:
    return Records([text * size], [b"k"], origin=b"test:1")


def firsts(parts: Parts, name: bytes) -> list[bytes]:
    return [bytes((value or b"")[:1]) for value in parts.values(name)]


def test_who_comes_behind_a_large_one_stays_behind_it() -> None:
    parts = Parts()
    same, other = parts.topic(b"same"), parts.topic(b"other")
    size, order = limits.LARGE_BYTES, list[str]()
    for name, topic, number in (("large", same, size), ("next", same, 1), ("last", same, 1), ("elsewhere", other, 1)):
        verb = parts.intents.commit([(topic, 0, records(number, name[:1].encode()))], ())
        start(verb).then(lambda _, error, name=name: order.append(name if error is None else repr(error)))  # type: ignore[misc]
    parts.scheduler.run_until_idle()
    assert firsts(parts, b"same") == [b"l", b"n", b"l"]
    assert len(parts.values(b"same")[0] or b"") == size
    assert [name for name in order if name != "elsewhere"] == ["large", "next", "last"]
    assert order[0] == "elsewhere", "what goes to other partitions does not wait for the thread"
    assert not parts.intents._unwritten


def test_hundreds_behind_a_large_one_are_no_deep_stack() -> None:
    parts = Parts()
    topic = parts.topic(b"t")
    told = Told()
    for number in range(400):
        tell(parts.intents.commit([(topic, 0, records(1 if number else limits.LARGE_BYTES, b"x"))], ()), told)
    parts.scheduler.run_until_idle()
    assert told == [None] * 400
    assert len(parts.values(b"t")) == 400


def test_a_large_one_that_is_refused_lets_the_next_one_go() -> None:
    parts = Parts()
    topic = parts.topic(b"t")
    large = parts.intents.commit([(topic, 0, Records([object()], [b""] * (limits.LARGE_BYTES // 64)))], ())  # type: ignore[list-item]
    tell(large, refused := Told())
    tell(parts.intents.commit([(topic, 0, records(1, b"x"))], ()), told := Told())
    parts.scheduler.run_until_idle()
    assert len(refused) == 1 and refused[0] is not None
    assert told == [None] and firsts(parts, b"t") == [b"x"]
    assert parts.intents.unfinished == 0


def test_a_large_batch_refused_after_it_was_sealed_is_appended_again() -> None:
    parts = Parts()
    topic = parts.topic(b"t")
    real, tries = topic.partitions[0], list[bytearray]()

    class Refusing:
        """A log that chains a batch and then has no room for it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def append(self, batch: bytearray, done: Any) -> int:
            tries.append(batch)
            if len(tries) > 1:
                return real.append(batch, done)
            kernel.chain(batch, 5, 6, 7, bytes(32), b"")
            parts.scheduler.soon(lambda: done(-1, StorageFull("planted")))
            return 0

    topic.partitions[0] = Refusing()
    tell(parts.intents.commit([(topic, 0, records(limits.LARGE_BYTES, b"x"))], ()), told := Told())
    parts.scheduler.run_until_idle()
    assert [type(error).__name__ for error in told] == ["NotYetVisible"]
    parts.advance(2 * SECOND)
    assert parts.intents.unfinished == 0
    topic.partitions[0] = real
    assert tries[0] is tries[1], "it is not copied"
    assert parts.values(b"t") == [b"x" * limits.LARGE_BYTES]
    parts.cut(1)
    assert Parts(parts.disk).values(b"t") == [b"x" * limits.LARGE_BYTES]
