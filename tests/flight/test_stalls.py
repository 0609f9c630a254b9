"""Readers of the Flight door that take nothing: what they hold is bounded, and they are ended."""

import threading
from pathlib import Path

import pytest

from quintet.flight import outgoing
from quintet.flight.outgoing import COST_PER_BYTE, Outgoing
from quintet.model import limits
from quintet.model.errors import ShuttingDown
from tests.abuse.process import Broker
from tests.flight.client import Client, rows
from tests.flight.test_limits import config, port_of

MIB = limits.MIB
READERS = 6
BOUND = 80 * MIB


def test_a_batch_waits_for_room_and_a_closing_door_lets_nobody_wait() -> None:
    budget = Outgoing(10 * COST_PER_BYTE, lambda _peer: None)
    first = budget.hold("a", 8)
    got: list[object] = []

    def second() -> None:
        got.append(budget.hold("b", 8))

    waiting = threading.Thread(target=second)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and not got
    budget.release(first)
    waiting.join(60)
    assert len(got) == 1

    def third() -> None:
        with pytest.raises(ShuttingDown) as refused:
            budget.hold("c", 8)
        got.append(refused)

    blocked = threading.Thread(target=third)
    blocked.start()
    budget.close("the broker is shutting down")
    blocked.join(60)
    assert len(got) == 2


def test_a_reader_is_not_ended_while_the_broker_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "STALL_S", -1.0)  # whoever has something to take is late
    monkeypatch.setattr(outgoing, "shut", lambda _peer: True)
    ended: list[str] = []
    budget = Outgoing(10 * COST_PER_BYTE, ended.append)
    try:
        held = budget.hold("a", 8)
        budget._end_stalled()
        assert ended == []
        budget.made(held, 8)
        budget._end_stalled()
        assert "a" in ended
    finally:
        budget.close("the broker is shutting down")


def test_readers_that_take_nothing_are_bounded_and_ended(tmp_path: Path) -> None:
    """Six streams of which nothing is read, then one that reads: it gets all of it while the others are still open."""
    text = config() + f"[limits]\noutput_bytes_max = {BOUND}\n"
    with Broker(tmp_path, text) as broker, Client(port_of(broker), "ann", "a password") as writer:
        for _ in range(3):  # 60 MB
            writer.put("large", rows(*[b"x" * 100_000] * 200))
        before = broker.resident_bytes()
        idle = [Client(port_of(broker), "ann", "a password") for _ in range(READERS)]
        streams = [client.open("large") for client in idle]
        for stream in streams:
            stream.schema  # noqa: B018 (the call has begun)
        assert len(writer.values("large")) == 600
        grown = broker.resident_bytes() - before
        assert grown < 3 * BOUND, f"{grown // MIB} MiB more"
        assert "took nothing" in broker.await_said('"door": "flight"')
        for client in idle:
            client.__exit__()
