"""Idempotent producers: a retry is answered with the offset it has, whatever happened in between, and never stored twice.

Overlapping runs, retries while the first attempt is still on its way, restarts, power lost at every disk call, and the
bounds of what is remembered. A producer here sends as a client does: it repeats what was not answered, from the first.
"""

import contextlib
import errno
import os
from collections import Counter
from random import Random

import pytest

from quintet.broker.atomic import producers
from quintet.broker.atomic.producers import Producers
from quintet.model.errors import QuintetError
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import (
    SECOND,
    Client,
    Refused,
    abandon,
    configure,
    make_sim,
    parse,
    power_cut,
    request,
)

SEEDS = 20 if os.environ.get("QUINTET_TEST_LONG") else 2  # of what a crash keeps, for every disk call


def numbered(sequence: int, id: int = 77, topic: str = "t", partition: int = 0) -> bytes:
    value = b"%d/%d" % (id, sequence)
    return request("PRODUCE", topic=topic, key=b"", value=value, partition=partition, producer_id=id, sequence=sequence)


def run_of(first: int, count: int, id: int = 77) -> bytes:
    return b"".join(numbered(first + n, id) for n in range(count))


def offsets(client: Client, data: bytes) -> list[int | str]:
    """The offset of each, or the code of its refusal."""
    found: list[int | str] = []
    for reply in client.exchange(data):
        try:
            found.append(client.read("PRODUCE", reply)["offset"])
        except Refused as refused:
            found.append(refused.code)
    return found


@pytest.fixture
def sim() -> SimBroker:
    return make_sim()


def test_a_retry_is_answered_with_the_offset_it_has(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    first = client.exchange(run_of(0, 3))
    assert client.exchange(run_of(0, 3)) == first, "the very same replies, their time among it"
    sim.advance(SECOND)
    assert client.exchange(run_of(0, 3)) == first
    assert Client(sim, "bruno").exchange(numbered(1)) == first[1:2], "from any connection"
    assert client.values("t") == [b"77/0", b"77/1", b"77/2"]
    assert sim.broker.producers.duplicates == 7


@pytest.mark.parametrize(("first", "count"), [(0, 8), (2, 6), (3, 2), (4, 4), (5, 1), (1, 3)])
def test_runs_that_overlap_what_is_there(sim: SimBroker, first: int, count: int) -> None:
    client = Client(sim, "admin")
    offsets(client, run_of(0, 2))
    client.produce("t", b"of another")
    offsets(client, run_of(2, 3))
    places = {0: 0, 1: 1, 2: 3, 3: 4, 4: 5} | {n: n + 1 for n in range(5, 9)}
    assert offsets(client, run_of(first, count)) == [places[n] for n in range(first, first + count)]
    expected = max(5, first + count)
    values = client.values("t")
    assert values == [b"77/0", b"77/1", b"of another", *[b"77/%d" % n for n in range(2, expected)]]


def test_mixed_with_others_in_one_read(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    plain = request("PRODUCE", topic="t", key=b"", value=b"plain", partition=0)
    offsets(client, run_of(0, 2))
    mixed = numbered(0) + plain + numbered(1) + numbered(0, 5) + numbered(2) + plain + numbered(3) + numbered(1, 5)
    found = offsets(client, mixed)
    assert found[0] == 0 and found[2] == 1
    assert sorted(str(n) for n in found) == sorted(str(n) for n in range(8))
    counted = Counter(client.values("t"))
    assert counted[b"plain"] == 2 and all(n == 1 for value, n in counted.items() if value != b"plain")
    ours = [value for value in client.values("t") if value.startswith(b"77/")]
    assert ours == [b"77/0", b"77/1", b"77/2", b"77/3"]


def test_gaps_strangers_and_wrong_numbers_are_refused(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    assert offsets(client, numbered(1)) == ["E1331"]
    assert offsets(client, numbered(0) + numbered(2)) == [0, "E1331"]
    assert offsets(client, numbered(0, 1 << 63)) == ["E1101"]
    assert offsets(client, numbered(0, partition=-1)) == ["E1101"], "a retry could not find where the first went"
    assert offsets(client, numbered(0, partition=9)) == ["E1303"]
    assert offsets(client, numbered(1)) == [1]


def test_a_retry_while_the_first_attempt_is_on_its_way(sim: SimBroker) -> None:
    first, second, third = (Client(sim, "admin") for _ in range(3))
    offsets(first, numbered(0))
    sim.scheduler.held = True
    first.peer.feed(run_of(1, 3))
    sim.scheduler.turn()
    second.peer.feed(run_of(1, 5))
    third.peer.feed(run_of(0, 3))
    sim.scheduler.turn()
    assert second.peer.take() == b"" and third.peer.take() == b""
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    told = [[c.read("PRODUCE", r)["offset"] for r in parse(c.peer.take())] for c in (first, second, third)]
    assert told == [[1, 2, 3], [1, 2, 3, 4, 5], [0, 1, 2]]
    assert first.values("t") == [b"77/%d" % n for n in range(6)]


def test_whoever_waited_and_went_away_hurts_nobody(sim: SimBroker) -> None:
    """Regression: the wait called a session that had no connection any more, in the middle of another's answer."""
    first, gone = Client(sim, "admin"), Client(sim, "admin")
    offsets(first, numbered(0))
    sim.scheduler.held = True
    first.peer.feed(numbered(1))
    sim.scheduler.turn()
    gone.peer.feed(numbered(1))
    sim.scheduler.turn()
    gone.close()
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [first.read("PRODUCE", r)["offset"] for r in parse(first.peer.take())] == [1]
    assert offsets(first, numbered(2)) == [2]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_retries_after_the_disk_refused(operation: str, code: int) -> None:
    """Some of several runs in flight fail; the client repeats all; nothing is missing, nothing is there twice."""
    for nth in range(1, 7):
        sim = make_sim()
        client = Client(sim, "admin")
        offsets(client, numbered(0))
        sim.disk.fail(operation, nth, code)
        for first in (1, 4, 7):
            client.peer.feed(run_of(first, 3))
            sim.scheduler.turn()
        sim.scheduler.run_until_idle()
        client.peer.take()
        sim.disk.heal()
        for _ in range(3):
            sim.advance(2 * SECOND)
            if "E" not in str(offsets(client, run_of(1, 9))):
                break
        else:  # a disk that failed a sync is not trusted again before a restart
            abandon(sim)
            sim.disk.kill()
            sim.start()
            configure(sim)
            client = Client(sim, "admin")
            assert "E" not in str(offsets(client, run_of(1, 9))), nth
        assert client.values("t") == [b"77/%d" % n for n in range(10)], f"{operation} {nth}"


@pytest.mark.parametrize("last_first", [True, False])
def test_an_answered_message_is_known_after_a_crash(last_first: bool) -> None:
    """Regression: the first message of a partition was answered before it was durable where producers are looked for."""
    for finished in range(1, 6):
        sim = make_sim()
        client = Client(sim, "admin")
        client.produce("t", b"the topic is there")
        sim.scheduler.held = True
        client.peer.feed(run_of(0, 2))
        for _ in range(finished):
            sim.scheduler.turn()
            if sim.scheduler.jobs:
                sim.scheduler.finish(len(sim.scheduler.jobs) - 1 if last_first else 0)
        sim.scheduler.turn()
        answered = [client.read("PRODUCE", reply)["offset"] for reply in parse(client.peer.take())]
        sim.scheduler.held = False
        power_cut(sim, finished)
        client = Client(sim, "admin")
        found = offsets(client, run_of(0, 2))
        assert found == [1, 2] and answered in ([], [1, 2])
        assert client.values("t") == [b"the topic is there", b"77/0", b"77/1"]


def test_several_producers_may_be_the_first(sim: SimBroker) -> None:
    clients = [Client(sim, "admin") for _ in range(3)]
    clients[0].produce("t", b"x")
    sim.scheduler.held = True
    for number, client in enumerate(clients):
        client.peer.feed(run_of(0, 2, 10 + number) + run_of(2, 2, 10 + number))
        sim.scheduler.turn()
    clients[2].peer.feed(run_of(0, 1, 10))
    clients[1].close()
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert len(parse(clients[0].peer.take())) == 4 and len(parse(clients[2].peer.take())) == 5
    counted = Counter(clients[0].values("t"))
    assert set(counted.values()) == {1} and len(counted) == 13


def test_a_first_producer_whose_row_the_disk_refuses(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    client.produce("t", b"x")
    sim.disk.fail("pwritev", 1, errno.ENOSPC)
    first = offsets(client, run_of(0, 3))
    assert first in (["E1501"] * 3, [1, 2, 3])
    sim.advance(3 * SECOND)
    assert offsets(client, run_of(0, 3)) == [1, 2, 3]
    assert client.values("t") == [b"x", b"77/0", b"77/1", b"77/2"]


# -- restarts and power --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_us", [0, 2 * SECOND])
def test_a_restart_forgets_nothing(sim: SimBroker, wait_us: int) -> None:
    client = Client(sim, "admin")
    assert offsets(client, run_of(0, 3) + run_of(0, 2, 5)) == [0, 1, 2, 3, 4]
    if wait_us:
        sim.advance(wait_us)
    offsets(client, run_of(3, 2))
    for _ in range(2):
        sim.restart()
        configure(sim)
        client = Client(sim, "admin")
        assert offsets(client, run_of(0, 5)) == [0, 1, 2, 5, 6]
        assert offsets(client, run_of(0, 2, 5)) == [3, 4]
        assert offsets(client, numbered(7)) == ["E1331"]
    assert offsets(client, numbered(5)) == [7]


class Producer:
    """Sends numbers, repeats what was not answered, believes nothing."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.acked: dict[int, int] = {}

    def send(self, client: Client, count: int, rng: Random) -> list[str]:
        """Everything up to `count`, from a little before what is unanswered on; what the broker said wrong."""
        wrong: list[str] = []
        while len(self.acked) < count:
            first = max(0, len(self.acked) - rng.randrange(3))
            size = min(rng.randrange(1, 5), count - first)
            before = len(self.acked)
            for number, found in enumerate(offsets(client, run_of(first, size, self.id)), first):
                if isinstance(found, str):
                    return [*wrong, f"refused: {found}"]
                if self.acked.setdefault(number, found) != found:
                    wrong.append(f"{number} was at {self.acked[number]} and is at {found}")
            if len(self.acked) == before and size > 2:
                break
        return wrong


def story(client: Client, people: list[Producer], steps: int, rng: Random) -> None:
    for step in range(1, steps + 1):
        for producer in people:
            producer.send(client, 3 * step, rng)
        if step == 2:
            client.sim.advance(2 * SECOND)  # a snapshot is written


def prepared(first_step_done: bool) -> tuple[SimBroker, Client, list[Producer]]:
    sim = make_sim()
    client = Client(sim, "admin")
    people = [Producer(1), Producer(2)]
    client.produce("t", b"the topic is there")
    if first_step_done:
        for producer in people:
            producer.send(client, 2, Random(0))
    return sim, client, people


@pytest.mark.parametrize("first_step_done", [True, False], ids=["known before", "first message lost"])
def test_power_lost_at_every_disk_call(first_step_done: bool) -> None:
    sim, client, people = prepared(first_step_done)
    before = sim.disk.total_calls
    story(client, people, 4, Random(9))
    total = sim.disk.total_calls - before
    assert total > 10 and [len(p.acked) for p in people] == [12, 12]
    for at in range(1, total + 1):
        for seed in range(SEEDS):
            sim, client, people = prepared(first_step_done)
            sim.disk.stop_at = sim.disk.total_calls + at
            with contextlib.suppress(QuintetError, OSError, AssertionError):
                story(client, people, 4, Random(9))
            power_cut(sim, at * SEEDS + seed)
            client = Client(sim, "admin")
            for producer in people:
                assert producer.send(client, 14, Random(at)) == [], f"cut at {at} of {total}, seed {seed}"
            counted = Counter(value for value in client.values("t") if b"/" in value)
            expected = {b"%d/%d" % (p.id, n): 1 for p in people for n in range(14)}
            assert counted == expected, f"cut at {at} of {total}, seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_disk_work_in_any_order_and_power_lost_between(seed: int) -> None:
    """Two connections send the same numbers of two producers; what was answered stays where it was said to be."""
    rng = Random(seed)
    sim = make_sim()
    clients = [Client(sim, "admin"), Client(sim, "admin")]
    if rng.random() < 0.5:
        clients[0].produce("t", b"the topic is there")
    sim.scheduler.held = True
    acked: dict[bytes, int] = {}
    asked: list[list[bytes]] = [[], []]
    for _ in range(rng.randrange(1, 9)):
        at, id, first = rng.randrange(2), rng.choice((1, 2)), rng.randrange(4)
        count = rng.randrange(1, 5)
        clients[at].peer.feed(run_of(first, count, id))
        asked[at] += [b"%d/%d" % (id, first + n) for n in range(count)]
        for _ in range(rng.randrange(5)):
            sim.scheduler.turn()
            if sim.scheduler.jobs:
                sim.scheduler.finish(rng.randrange(len(sim.scheduler.jobs)))
    for client, names in zip(clients, asked, strict=True):
        for name, reply in zip(names, parse(client.peer.take()), strict=False):
            if reply.code == 1:
                offset = client.read("PRODUCE", reply)["offset"]
                assert acked.setdefault(name, offset) == offset
    sim.scheduler.held = False
    power_cut(sim, seed)
    client = Client(sim, "admin")
    for id in (1, 2):
        found = offsets(client, run_of(0, 8, id))
        for number, offset in enumerate(found):
            assert isinstance(offset, int)
            assert acked.get(b"%d/%d" % (id, number), offset) == offset
    values = [value for value in client.values("t") if b"/" in value]
    assert sorted(values) == sorted(b"%d/%d" % (id, n) for id in (1, 2) for n in range(8))


def test_a_memory_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: a start that does not read what was appended since the snapshot."""
    monkeypatch.setattr(Producers, "_read_since", lambda *_: None)
    sim, client, people = prepared(True)
    story(client, people, 4, Random(9))
    power_cut(sim, 1)
    client = Client(sim, "admin")
    wrong = [word for producer in people for word in producer.send(client, 14, Random(1))]
    assert wrong


# -- bounds --------------------------------------------------------------------------------------------------------------


def test_what_is_remembered_is_bounded(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    monkeypatch.setattr(producers, "RANGES_MAX", 4)
    client = Client(sim, "admin")
    for n in range(10):
        client.produce("t", b"x")
        offsets(client, numbered(n))
    assert offsets(client, numbered(9)) == [19]
    assert offsets(client, numbered(2)) == ["E1331"], "too old to be told where it is; never stored again"
    for id in range(100, 110):
        offsets(client, numbered(0, id))
    assert offsets(client, numbered(10)) == ["E1331"], "forgotten: it begins again under another id"
    known = sim.broker.producers._known
    assert [len(found) for found in known.values()] == [10]
    values = client.values("t")
    assert len(values) == len([v for v in values if v == b"x"]) + len({v for v in values if v != b"x"})


def test_a_deleted_topic_is_another_one(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    offsets(client, run_of(0, 3))
    client.ask("DELETE_TOPIC", topic="t")
    sim.advance(2 * SECOND)
    assert offsets(client, run_of(0, 2)) == [0, 1]
    sim.advance(2 * SECOND)
    sim.restart()
    configure(sim)
    assert offsets(Client(sim, "admin"), run_of(0, 3)) == [0, 1, 2]
    assert len(sim.broker.producers._known) == 1


def test_many_small_runs_are_still_known() -> None:
    sim = make_sim()
    client = Client(sim, "admin")
    for sequence in range(producers.RANGES_MAX * 3):
        sim.scheduler.advance(1_000)  # another time each: they are not one run
        client.ask("PRODUCE", topic="t", key=b"", value=b"v", partition=0, producer_id=7, sequence=sequence)
    again = client.ask("PRODUCE", topic="t", key=b"", value=b"v", partition=0, producer_id=7, sequence=1)
    assert again["offset"] == 1
