"""What FlyMQ's clients are told of the cluster: one node by itself, or the nodes of a view, with the leader's real address."""

from collections.abc import Sequence

import pytest

from quintet.broker.cluster import Node, Standalone, leader_of
from quintet.protocols.flymq import frames
from tests.protocols.flymq.helpers import DIALECTS, Client, Refused, make_sim

NODES = (
    Node("n1", "10.0.0.1", "follower"),
    Node("n2", "2001:db8::2", "leader"),
    Node("n3", "10.0.0.3", "follower", "away", in_sync=False),
)


class Cell:
    """A view that changes under the broker, as a take-over does."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.cluster_id = "cell-7"
        self.node_id = "n2"
        self.epoch = 4
        self.nodes = nodes


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broker_by_itself_is_one_node_that_leads(dialect: frames.Dialect) -> None:
    client = Client(make_sim(), "admin", dialect)
    client.ask("CREATE_TOPIC", topic="x", partitions=2)
    status = client.ask("CLUSTER_STATUS")
    assert (status["cluster_id"], status["node_id"]) == ("standalone", "quintet")
    address = status["nodes"][0]["address"]
    assert status["nodes"] == [{"id": "quintet", "address": address, "role": "leader", "state": "online"}]
    [row] = client.ask("CLUSTER_METADATA", topic="x")["topics"]
    assert {(place["leader_id"], place["leader_address"]) for place in row["partitions"]} == {("quintet", address)}
    assert [place["leader"] for place in client.ask("METADATA", topic="x")["partitions"]] == [0, 0]
    with pytest.raises(Refused, match="one node"):
        client.ask("CLUSTER_JOIN", peer="10.0.0.1:9093")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_nodes_of_a_cell_and_its_leader_are_told(dialect: frames.Dialect) -> None:
    sim = make_sim()
    client = Client(sim, "admin", dialect)
    client.ask("CREATE_TOPIC", topic="x", partitions=1)
    port = client.ask("CLUSTER_STATUS")["nodes"][0]["address"].rpartition(":")[2]
    view = sim.broker.cluster = Cell(NODES)
    status = client.ask("CLUSTER_STATUS")
    assert (status["cluster_id"], status["node_id"]) == ("cell-7", "n2")
    assert status["nodes"] == [
        {"id": "n1", "address": f"10.0.0.1:{port}", "role": "follower", "state": "online"},
        {"id": "n2", "address": f"[2001:db8::2]:{port}", "role": "leader", "state": "online"},
        {"id": "n3", "address": f"10.0.0.3:{port}", "role": "follower", "state": "away"},
    ]
    found = client.ask("CLUSTER_METADATA", topic="x")
    assert found == {
        "cluster_id": "cell-7",
        "topics": [{"topic": "x", "partitions": [{
            "partition": 0, "leader_id": "n2", "leader_address": f"[2001:db8::2]:{port}", "epoch": 4, "state": "online",
            "replicas": ["n1", "n2", "n3"], "isr": ["n1", "n2"],
        }]}],
    }  # fmt: skip
    assert client.ask("METADATA", topic="x")["partitions"][0]["leader"] == 1
    view.epoch, view.nodes = 5, (NODES[0]._replace(role="leader"), NODES[1]._replace(role="follower"))
    [place] = client.ask("CLUSTER_METADATA", topic="x")["topics"][0]["partitions"]
    assert (place["leader_id"], place["leader_address"], place["epoch"]) == ("n1", f"10.0.0.1:{port}", 5)


def test_without_a_leader_none_is_named() -> None:
    sim = make_sim()
    client = Client(sim, "admin")
    client.ask("CREATE_TOPIC", topic="x", partitions=1)
    sim.broker.cluster = Cell([node._replace(role="follower") for node in NODES])
    [place] = client.ask("CLUSTER_METADATA", topic="x")["topics"][0]["partitions"]
    assert (place["leader_id"], place["leader_address"]) == ("", "")
    assert client.ask("METADATA", topic="x")["partitions"][0]["leader"] == -1


@pytest.mark.parametrize("operation", ["CLUSTER_JOIN", "CLUSTER_LEAVE"])
def test_nodes_do_not_join_or_leave_by_a_request(operation: str) -> None:
    sim = make_sim()
    client = Client(sim, "admin")
    sim.broker.cluster = Cell(NODES)
    fields = {"peer": "10.0.0.9:9093"} if operation == "CLUSTER_JOIN" else {}
    with pytest.raises(Refused, match=r"cluster 'cell-7'.*by a request; start a node with the configuration"):
        client.ask(operation, **fields)


def test_an_embedded_broker_leads() -> None:
    place, node = leader_of(Standalone())
    assert (place, node) == (0, Node("quintet", "", "leader"))
    assert node is not None
    assert node.address("127.0.0.1:9092") == "127.0.0.1:9092"
