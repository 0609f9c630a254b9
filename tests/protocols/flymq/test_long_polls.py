"""FETCH with wait_ms: who goes away leaves nothing behind, and who waits for a topic that is deleted is told."""

import pytest

from quintet.protocols.flymq import frames
from tests.protocols.flymq.helpers import DIALECTS, SECOND, Client, error_of, make_sim, request

WAIT_MS = 30_000


def poll(topic: str = "t", partition: int = 0, offset: int = 1, filter: str = "") -> bytes:
    return request("FETCH", topic=topic, partition=partition, offset=offset, max=10, filter=filter, wait_ms=WAIT_MS)


def test_a_client_that_goes_leaves_no_wait() -> None:
    sim = make_sim()
    staying, going = Client(sim, "admin"), Client(sim, "admin")
    staying.produce("t", b"x")
    for client in (staying, going):
        assert client.exchange(poll()) == []
    assert len(sim.broker._long_polls) == 2
    partition = sim.broker.topics.find(b"t").partitions[0]
    going.close()
    assert len(sim.broker._long_polls) == 1
    assert len(partition._watchers) == 1  # type: ignore[attr-defined]
    Client(sim, "admin").produce("t", b"y")
    [reply] = staying.exchange(b"")
    assert [row["value"] for row in staying.read("FETCH", reply)["messages"]] == [b"y"]
    assert len(sim.broker._long_polls) == 0
    sim.advance(WAIT_MS * 1000 + SECOND, SECOND)
    assert going.peer.take() == b""


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("filter", ["", "$.a == 1"])
def test_who_waits_for_a_deleted_topic_is_told(dialect: frames.Dialect, filter: str) -> None:
    sim = make_sim()
    admin = Client(sim, "admin")
    admin.ask("CREATE_TOPIC", topic="t", partitions=3)
    admin.produce("other", b"x")
    waiting = [Client(sim, "admin", dialect) for _ in range(4)]
    for number, client in enumerate(waiting[:3]):
        assert client.exchange(poll(partition=number, offset=0, filter=filter)) == []
    assert waiting[3].exchange(poll("other", filter=filter)) == []
    admin.ask("DELETE_TOPIC", topic="t")
    for client in waiting[:3]:
        [reply] = client.exchange(b"")
        refused = error_of(reply, dialect)
        assert (refused.code, "deleted" in refused.text) == ("E1301", True)
    assert waiting[3].exchange(b"") == [], "its topic is there"
    admin.produce("t", b"new")
    assert waiting[0].values("t") == [b"new"], "the connection goes on, with the topic made in its place"
