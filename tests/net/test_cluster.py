"""Nodes of a cell that talk to each other over real sockets: who is let in, what they learn, and what refuses the rest."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintet.cli.operate.cluster_files import NodePlace, authority, issue, write_node
from quintet.model.errors import ConfigError
from quintet.net.cluster import trust
from quintet.net.cluster.node import ClusterNode
from quintet.net.cluster.peers import Link
from quintet.net.cluster.trust import Trust
from quintet.net.cluster.wire import Hello, Kind, NodeSaid, PeerRefused, decode, receive, send
from quintet.protocols.options import split_address

ANSWER_S = 60.0
LOOK_S = 0.02
LOG = "0123456789abcdef"
ANY = {"advertised_host": "", "servers": [], "topic": "", "node": "", "listen": "", "peers": []}


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + ANSWER_S
    while not done():
        assert time.monotonic() < end, what
        time.sleep(LOOK_S)


def made(folder: Path, name: str, days: int = 30) -> Path:
    """The files of one node, by the authority in a folder."""
    signer, _ = authority(folder)
    write_node(folder / name, "", ANY, issue(signer, NodePlace(name, "127.0.0.1"), days))
    return folder / name


def trust_of(files: Path) -> Trust:
    return Trust(files / "node.pem", files / "node-key.pem", files / "ca.pem")


class Nodes:
    """Started nodes, and what they reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.started: list[ClusterNode] = []

    def start(self, name: str, *peers: str, files: Path | None = None, log: str = LOG) -> ClusterNode:
        files = files or made(self.folder, name)
        node = ClusterNode(
            "127.0.0.1:0", peers, trust_of(files), name, "127.0.0.1", f"{name}-{len(self.started)}", lambda: time.time_ns() // 1000,
            lambda call: call(), lambda event, fields: self.reports.append((event, fields)),
        )  # fmt: skip
        node.introduce(log)
        node.say(NodeSaid(name, role="follower", synced=len(name)))
        node.start()
        self.started.append(node)
        return node

    def said(self, event: str) -> str:
        return " ".join(str(fields) for name, fields in self.reports if name == event)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path / "cluster")
    yield found
    for node in found.started:
        node.stop()


def names(node: ClusterNode) -> set[str]:
    return {said.node for said in node.peers.lately()}


def refusals(node: ClusterNode, call: Callable[[], Any], match: str | None = None) -> None:
    """The call is refused, whatever the caller sees of it, and the node counts it.

    Every refused call of a test comes by here: one that is counted late would be taken for the next one.
    """
    before = node.listener.refused.total()
    with pytest.raises((PeerRefused, OSError), match=match):
        call()
    until(lambda: node.listener.refused.total() > before, "it was not counted")


def test_nodes_learn_of_each_other_from_one_address(nodes: Nodes) -> None:
    first = nodes.start("n1")
    second = nodes.start("n2", first.address)
    third = nodes.start("n3", first.address, "127.0.0.1:1")
    every = {"n1", "n2", "n3"}
    for node in (first, second, third):
        until(lambda node=node: names(node) == every - {node.own().node}, "nodes do not know each other")  # type: ignore[misc]
    told = {said.node: said for said in first.peers.lately()}
    assert told["n2"].role == "follower"
    assert told["n2"].certificate_expires > time.time()
    assert abs(max(peer.clock_seconds for peer in first.known())) < ANSWER_S
    [away] = [peer for peer in third.known() if peer.address == "127.0.0.1:1"]
    assert away.said is None and "refused" in away.error, "one that is away is known as such"


def test_a_wrong_or_missing_certificate_is_refused_and_counted(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start("n1")
    hello = Hello("n2", "x", LOG, "127.0.0.1:1")
    stranger = trust_of(made(tmp_path / "other", "n2"))
    mixed = Trust(stranger.certificate, stranger.key, nodes.folder / "n1" / "ca.pem")
    refusals(node, lambda: Link(node.address, mixed, hello))
    assert "its certificate is not of this cluster" in nodes.said("cluster_refused")
    # The stranger does not trust the node either.
    refusals(node, lambda: Link(node.address, stranger, hello), match="its certificate is not of this cluster")
    refusals(node, lambda: without_certificate(node, nodes.folder / "ca.pem"))
    assert "it showed no certificate" in nodes.said("cluster_refused")
    refusals(node, lambda: Link(node.address, Trust(), hello))
    assert "it does not speak TLS" in nodes.said("cluster_refused")
    other = made(nodes.folder, "n9")
    said = "says that it is n2, and its certificate is of n9"
    refusals(node, lambda: Link(node.address, trust_of(other), hello), match=said)
    assert node.listener.refused["name"] == 1
    assert node.listener.refused["certificate"] >= 3
    assert node.known() == [], "nobody was let in"


def without_certificate(node: ClusterNode, ca: Path) -> None:
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    with socket.create_connection(split_address(node.address), ANSWER_S) as plain, context.wrap_socket(plain) as link:
        send(link, Kind.WHO)
        receive(link)


def test_a_node_that_checks_no_certificate_is_caught(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: what the test above relies on is seen when it is not so."""

    def lax(self: Trust, plain: socket.socket) -> tuple[socket.socket, str]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        assert self.certificate is not None
        context.load_cert_chain(self.certificate, self.key)
        return context.wrap_socket(plain, server_side=True), ""

    monkeypatch.setattr(trust.Trust, "accept", lax)
    node = nodes.start("n1")
    stranger = trust_of(made(tmp_path / "other", "n2"))
    mixed = Trust(stranger.certificate, stranger.key, nodes.folder / "n1" / "ca.pem")
    link = Link(node.address, mixed, Hello("n2", "x", LOG, "127.0.0.1:1"))
    assert link.ask().node == "n1", "the sabotaged node answers a stranger"
    link.close()


def test_a_certificate_that_names_no_node_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes.start("n1")
    monkeypatch.setattr("quintet.cli.operate.cluster_files.URI", "somebody:else:")
    plain = made(nodes.folder, "n2")
    refusals(node, lambda: Link(node.address, trust_of(plain), Hello("n2", "x", LOG, "127.0.0.1:1")))
    assert "names 0 nodes" in nodes.said("cluster_refused")


def test_a_node_does_not_start_with_the_certificate_of_another(nodes: Nodes, tmp_path: Path) -> None:
    files = made(nodes.folder, "n2")
    with pytest.raises(ConfigError, match="is a certificate of n2; this node is n1"):
        nodes.start("n1", files=files)
    with pytest.raises(ConfigError, match="cannot be used"):
        nodes.start("n1", files=tmp_path)


def test_a_node_of_another_log_is_refused(nodes: Nodes) -> None:
    node = nodes.start("n1")
    other = nodes.start("n2", node.address, log="another")
    until(lambda: any("n2 has the log another" in peer.error for peer in other.known()), "it was not told why")
    until(lambda: node.listener.refused["log"] >= 1, "it was not counted")
    assert names(node) == set()


def test_a_name_that_no_node_can_have_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    node = nodes.start("n1")
    with pytest.raises(PeerRefused, match="is no name of a node"):
        Link(node.address, trust_of(made(nodes.folder, "n2")), Hello('n2"} 1\n', "x", LOG, "127.0.0.1:1"))


def test_a_node_knows_itself_and_a_namesake(nodes: Nodes) -> None:
    first = nodes.start("n1")
    port = first.listener.port
    again = Nodes(nodes.folder)
    again.started = nodes.started
    twin = again.start("n1", first.address, f"127.0.0.1:{port}")
    until(lambda: any("is called n1 as this one is" in peer.error for peer in twin.known()), "a namesake is not named")
    twin.peers._add(twin.address, "")
    until(lambda: any(peer.is_self for peer in twin.peers._peers.values()), "it does not know itself")
    assert twin.address not in {peer.address for peer in twin.known()}


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x05\0\0\0\x63", b""])
def test_bytes_that_are_no_frame_end_the_connection(nodes: Nodes, junk: bytes) -> None:
    node = nodes.start("n1")
    files = trust_of(made(nodes.folder, "n2"))
    with socket.create_connection(split_address(node.address), ANSWER_S) as plain:
        link, _ = files.dial(plain)
        link.sendall(junk + b"\0" * 8)
        link.settimeout(ANSWER_S)
        with pytest.raises((OSError, PeerRefused)):
            receive(link)
            receive(link)
        link.close()
    until(lambda: not node.listener.connections, "its thread did not end")
    again = Link(node.address, files, Hello("n2", "x", LOG, "127.0.0.1:1"))
    assert again.ask().node == "n1"
    again.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"node":1}', b'{"node":"n2","synced":-1}', b'{"node":"n2","synced":1' + b"0" * 400 + b"}", b'{"node":"n2","lag_seconds":1e400}'],
)  # fmt: skip
def test_what_a_node_says_is_bounded_before_it_counts(body: bytes) -> None:
    with pytest.raises(PeerRefused, match="no NodeSaid"):
        decode(body, NodeSaid)


def test_a_renewed_certificate_is_taken_without_a_restart(nodes: Nodes) -> None:
    node = nodes.start("n1")
    before = node.own().certificate_expires
    made(nodes.folder, "n1", days=60)
    assert node.own().certificate_expires > before
    other = nodes.start("n2", node.address)
    until(lambda: names(other) == {"n1"}, "they do not talk")
