"""What waits for readers is bounded over all connections, and lives no longer than its reader (ADR 16)."""

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import quintet
from quintet.model import limits
from quintet.net.flow_control import PRESSED_BYTES_MIN, PRESSED_STALL_US, READS_TOO_SLOWLY
from quintet.net.listener import Listener
from quintet.net.output import OWN_BYTES_MAX, OutputBudget
from tests.net.test_session_faults import World, world
from tests.wire import blipmq as wire
from tests.wire import flymq as flymq_wire

MIB = limits.MIB
VALUE_BYTES = 12 * MIB
READERS = 12


class Holder:
    """A connection, for the budget."""


def test_claims_wait_in_order_above_the_bound() -> None:
    budget, holders, granted = OutputBudget(10 * MIB), [Holder() for _ in range(4)], []
    for number, holder in enumerate(holders):
        if budget.claim(holder, 4 * MIB, lambda number=number: granted.append(number)):  # type: ignore[misc]
            granted.append(number)
    assert granted == [0, 1]
    assert budget.used == 8 * MIB
    budget.answered(holders[1], 0)
    assert granted == [0, 1, 2]
    budget.drop(holders[0])
    assert granted == [0, 1, 2, 3]
    for holder in holders:
        budget.drop(holder)
    assert budget.used == 0 and not budget.pressed


def test_a_claim_above_the_bound_is_granted_when_nothing_else_is_held() -> None:
    budget, one = OutputBudget(MIB), Holder()
    assert budget.claim(one, 32 * MIB, lambda: None)
    assert not budget.claim(Holder(), 1, lambda: None)


def test_a_holder_with_enough_unsent_keeps_back_nobody_but_itself() -> None:
    budget, greedy, granted = OutputBudget(100 * MIB), Holder(), []
    budget.hold(greedy, OWN_BYTES_MAX)
    assert not budget.claim(greedy, 1, lambda: granted.append("greedy"))
    other = Holder()
    if budget.claim(other, 1, lambda: granted.append("other")):
        granted.append("other")
    assert granted == ["other"]
    budget.hold(greedy, OWN_BYTES_MAX - 1)
    assert granted == ["other", "greedy"]


def test_who_is_gone_waits_for_nothing() -> None:
    budget, one, two, granted = OutputBudget(MIB), Holder(), Holder(), []
    assert budget.claim(one, MIB, lambda: None)
    assert not budget.claim(two, MIB, lambda: granted.append("two"))
    budget.drop(two)
    budget.drop(one)
    assert granted == []
    assert not budget.pressed


def flymq(address: str) -> socket.socket:
    """A reader with a small receive buffer: what it does not read stays with the broker."""
    host, port = address.rsplit(":", 1)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((host, int(port)))
    peer.sendall(flymq_wire.auth("admin", "admin"))
    peer.recv(1024)
    return peer


def blipmq(address: str) -> socket.socket:
    return wire.Client(address, receive_buffer=4096).login(b"dev-key").socket


def question(peer: socket.socket, door: str, kind: str) -> bytes:
    """What asks for the large records; a subscriber of BlipMQ must be one before they are published."""
    if door == "flymq":
        consume = flymq_wire.frame(0x02, flymq_wire.text("large") + (0).to_bytes(4, "big") + (0).to_bytes(8, "big"))
        return consume if kind == "consume" else flymq_wire.fetch("large")
    peer.sendall(wire.subscribe(3, b"large"))
    subscription = int.from_bytes(peer.recv(64)[-8:], "big")
    return wire.poll(4, subscription) * 4


async def publish(broker: World, topic: str, count: int) -> None:
    async with quintet.connect(broker.url("flymq", "")) as bus:
        for _ in range(count):
            await bus.publish(topic, bytes(VALUE_BYTES))


def reasons(broker: World) -> list[object]:
    return [fields["reason"] for event, fields in broker.reports if event == "connection_closed"]


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("door", "kind"), [("flymq", "fetch"), ("flymq", "consume"), ("blipmq", "poll")])
async def test_readers_that_take_nothing_hold_no_more_than_the_bound(
    door: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve readers of one record of 12 MiB, with room for three: the others wait until those are cut."""
    async with world(tmp_path / "data", monkeypatch) as broker:
        address, make = broker.server.listeners[door].address, flymq if door == "flymq" else blipmq
        budget = broker.server.output
        budget.bytes_max = 3 * VALUE_BYTES + 3 * MIB
        peers = [await asyncio.to_thread(make, address) for _ in range(READERS)]
        try:
            questions = [await asyncio.to_thread(question, peer, door, kind) for peer in peers]
            await publish(broker, "large", 2)
            tracemalloc.start()
            for peer, asked in zip(peers, questions, strict=True):
                peer.sendall(asked)
            await until(lambda: budget.waited)
            assert budget.used <= budget.bytes_max + VALUE_BYTES
            await asyncio.sleep(0.2)
            held = tracemalloc.get_traced_memory()[0]
            assert held < 2 * budget.bytes_max, f"{held // MIB} MiB"
            await until(lambda: READS_TOO_SLOWLY in reasons(broker))
        finally:
            tracemalloc.stop()
            for peer in peers:
                peer.close()
        await until(lambda: budget.used == 0)


async def test_a_slow_reader_that_reads_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others wait it takes a little more than it must, out of the socket's own buffer: the transport sees none of it."""
    async with world(tmp_path / "data", monkeypatch) as broker:
        listener, budget = broker.server.listeners["flymq"], broker.server.output
        assert isinstance(listener, Listener) and listener._sweeper is not None
        listener._sweeper.cancel()  # the test looks, at times of its own
        await publish(broker, "large", 1)
        reader, waiting = [await asyncio.to_thread(flymq, listener.address) for _ in range(2)]
        try:
            budget.bytes_max = 1
            reader.sendall(flymq_wire.fetch("large"))
            await until(lambda: budget.used)
            waiting.sendall(flymq_wire.fetch("large"))
            await until(lambda: budget.pressed)
            (held,) = [each for each in listener.connections if each.peer == "{}:{}".format(*reader.getsockname())]
            now = listener.monotonic()
            held.check(now)
            for step in range(1, 9):
                await asyncio.to_thread(reader.recv, PRESSED_BYTES_MIN + 64 * limits.KIB, socket.MSG_WAITALL)
                held.check(now + step * (PRESSED_STALL_US - 1))
            assert not reasons(broker)
            for step in range(9, 11):  # and now it takes nothing
                held.check(now + step * (PRESSED_STALL_US - 1))
            assert reasons(broker) == [READS_TOO_SLOWLY]
        finally:
            reader.close()
            waiting.close()


async def test_answers_are_gone_with_their_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the collector off: no cycle of slot, call and session keeps the bytes of an answer."""
    async with world(tmp_path / "data", monkeypatch) as broker:
        await publish(broker, "large", 1)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(6):
                await asyncio.to_thread(read_whole, broker.server.listeners["flymq"].address)
            await until(lambda: not broker.server.listeners["flymq"].connections)
            left = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
            gc.enable()
    assert left < VALUE_BYTES, f"{left // MIB} MiB are left of 6 answers of {VALUE_BYTES // MIB} MiB"


def read_whole(address: str) -> None:
    with flymq(address) as peer:
        peer.sendall(flymq_wire.fetch("large"))
        taken = 0
        while taken < VALUE_BYTES:
            taken += len(peer.recv(1 << 20))


async def test_pipelined_polls_are_all_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second claim waits while the answer to the first is made: neither keeps its bytes when both are sent."""
    async with world(tmp_path / "data", monkeypatch) as broker:
        peer = await asyncio.to_thread(wire.Client(broker.server.listeners["blipmq"].address).login, b"dev-key")
        with peer:
            made = [await asyncio.to_thread(peer.ask, wire.subscribe(number, b"jobs")) for number in (3, 4, 5)]
            async with quintet.connect(broker.url("blipmq", "")) as bus:
                for _ in range(4):
                    await bus.publish("jobs", bytes(200_000))
            for _ in range(4):  # of three subscriptions in one write: three requests of one read
                peer.send(b"".join(wire.poll(9, subscription.number) for subscription in made))
                for _ in made:
                    await asyncio.to_thread(peer.read)
        await until(lambda: broker.server.output.used == 0)


async def test_polls_that_are_answered_in_parts_do_not_wait_for_those_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the first answer is claimed behind the second, whose bytes cannot go out before it."""
    count = 24
    async with world(tmp_path / "data", monkeypatch) as broker:
        peer = await asyncio.to_thread(wire.Client(broker.server.listeners["blipmq"].address).login, b"dev-key")
        with peer:
            made = [await asyncio.to_thread(peer.ask, wire.subscribe(number, b"jobs")) for number in (3, 4, 5)]
            async with quintet.connect(broker.url("blipmq", "")) as bus:
                for _ in range(count):
                    await bus.publish("jobs", bytes(200_000))
            polls = [wire.poll(9, subscription.number) * count for subscription in made]
            peer.send(b"".join(polls) + wire.frame(wire.PING, 10))
            kinds = [(await asyncio.to_thread(peer.read)).kind for _ in range(len(made) * count + 1)]
            assert kinds == [wire.PUBLISH] * (len(made) * count) + [wire.PONG]
        await until(lambda: broker.server.output.used == 0)
