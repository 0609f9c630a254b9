"""Answers are bounded: a peer that asks for much and takes nothing gets no more than it has room for."""

import pytest

from quintet import kernel
from quintet.model.batch import RecordBatch
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.message_requests import EXPIRED_MAX, FETCH_BYTES_MAX, _alone
from quintet.protocols.flymq.session import OUTPUT_BYTES_MAX
from tests.protocols.flymq.helpers import DIALECTS, Client, make_sim, request

VALUE = bytes(300_000)
FETCHES = 50


def test_a_flood_of_fetches_is_answered_as_the_peer_takes_them() -> None:
    sim = make_sim()
    client = Client(sim, "admin")
    for _ in range(4):
        client.ask("PRODUCE", topic="big", key=b"", value=VALUE, partition=0)
    peer = client.peer
    flood = request("FETCH", topic="big", partition=0, offset=0, max=4) * FETCHES
    peer.room_bytes = 0
    peer.feed(flood)
    sim.scheduler.run_until_idle()
    assert len(peer.output) <= OUTPUT_BYTES_MAX + 2 * 4 * len(VALUE)
    peer.room_bytes = 1
    peer.resume()
    sim.scheduler.run_until_idle()
    assert len(peer.take()) > FETCHES * 4 * len(VALUE)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_message_that_fills_its_answer_alone_is_fetched_as_it_is(dialect: frames.Dialect) -> None:
    client = Client(make_sim(), "admin", dialect)
    values = [b"before", bytes(range(256)) * (FETCH_BYTES_MAX // 256), b"behind"]
    for value in values:
        client.ask("PRODUCE", topic="big", key=b"k", value=value, partition=0)
    found, offset = [], 0
    for expected in (1, 2, 3):
        answer = client.ask("FETCH", topic="big", partition=0, offset=offset, max=10)
        assert [row["key"] for row in answer["messages"]] == [b"k"]
        found += [(row["offset"], bytes(row["value"])) for row in answer["messages"]]
        offset = answer["next_offset"]
        assert offset == expected
    assert found == list(enumerate(values))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_alone_in_its_answer_goes_on_where_the_kernel_would(dialect: frames.Dialect) -> None:
    """For every place in a batch, and for records that have expired before it."""
    size, now = 1_000, 50
    values = [b"a", b"L" * size, b"x" * (size - 1), b"M" * size, b"z", b"N" * 2 * size]
    buffer = kernel.build(values, [None] * 6, expiries=[0, 0, now, now, now + 1, 0])
    kernel.place(buffer, 10, 1)
    batch = RecordBatch(buffer)
    for start in range(9, 16):
        row = _alone(batch, start, size, now)
        reply, count, following = kernel.fly_fetch([buffer], start, 10, size, now, 7, 1, dialect == "sdk")
        if row is None:
            assert count != 1 or len(reply) < size
        else:
            (offset, _, _, value, *_), behind = row
            assert (count, behind <= following, values[offset - 10]) == (1, True, value)
            assert all(batch.row(number - 10)[5] for number in range(behind, following)), "those between have expired"
    assert [start for start in range(9, 16) if _alone(batch, start, size, now)] == [11, 15]


def test_only_so_many_expired_records_are_passed_over() -> None:
    values = [b"x"] * EXPIRED_MAX + [b"L" * 100]
    buffer = kernel.build(values, [None] * len(values), expiries=[1] * EXPIRED_MAX + [0])
    kernel.place(buffer, 0, 1)
    assert _alone(RecordBatch(buffer), 0, 100, 2) is None
    assert _alone(RecordBatch(buffer), 1, 100, 2) is not None
