"""Legs and tunnels between two nodes over TLS and real sockets: what is carried, and who is refused, with a sentence on both sides."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from quintet.cli.operate.cluster_files import NodePlace, authority, issue, write_node
from quintet.net.cells.crossing import Crossings, Way
from quintet.net.cells.remote import Greeting, RemoteLegs, greeting
from quintet.net.cells.sockets import listen_between
from quintet.net.cluster.trust import Trust
from quintet.net.output import OutputBudget
from quintet.net.turns import Turns

WAIT_S = 60.0
LOG = "0123456789abcdef"
LEADER, FOLLOWER = "n1", "n2"
MUCH = bytes(range(256)) * 16_384  # 4 MiB, more than all buffers between
ANY = {"advertised_host": "", "servers": [], "topic": "", "node": "", "listen": "", "peers": []}


def trust_of(folder: Path, name: str, days: int = 30) -> Trust:
    """The files of one node as `quintet cluster init` makes them, by the authority in a folder."""
    signer, _ = authority(folder)
    files = folder / name
    write_node(files, "", ANY, issue(signer, NodePlace(name, "127.0.0.1"), days))
    return Trust(files / "node.pem", files / "node-key.pem", files / "ca.pem")


class Between(NamedTuple):
    """What goes on between two nodes."""

    path: Path  # where the follower's processes connect to
    refused: list[str]  # by the leader
    failed: list[str]  # at the follower
    open: Callable[[], int]  # connections at the leader
    port: int  # of the leader


@contextlib.asynccontextmanager
async def nodes(
    folder: Path, leader: Trust, follower: Trust, *, name: str = FOLLOWER, to: str = "echo", log: str = LOG
) -> AsyncIterator[Between]:
    """A leader with a socket that says everything back, and a follower that carries what comes to its own socket there."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    refused: list[str] = []
    failed: list[str] = []
    turns = Turns(asyncio.get_running_loop())
    legs = RemoteLegs(
        ("127.0.0.1", 0),
        LOG,
        {},
        lambda event, fields: refused.append(str(fields["reason"])) if event == "leg_refused" else None,
        leader.context(server_side=True),
        OutputBudget(),
        turns,
        {"echo": str(folder / "echo")},
    )
    far = await asyncio.start_unix_server(echo, folder / "echo")
    await legs.start()
    way = Way(
        "127.0.0.1",
        int(legs.address.rpartition(":")[2]),
        follower.context(server_side=False),
        greeting(Greeting(name, log, to)),
        LEADER,
    )
    path = folder / "near"
    crossings = Crossings(
        listen_between(str(path)), lambda: way, lambda event, fields: failed.append(str(fields["error"])), closes=True
    )
    crossings.start()
    try:
        async with asyncio.timeout(WAIT_S):
            yield Between(path, refused, failed, lambda: len(legs.connections), way.port)
    finally:
        crossings.stop()
        legs.stop_accepting()
        legs.close_all("the end")
        far.close()
        while legs.connections or crossings.open:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)


async def test_bytes_go_through_both_ways_at_the_pace_of_the_slower_side(tmp_path: Path) -> None:
    trusts = trust_of(tmp_path, LEADER), trust_of(tmp_path, FOLLOWER)
    async with nodes(tmp_path, *trusts) as between:
        reader, writer = await asyncio.open_unix_connection(between.path)
        writer.write(MUCH)
        await asyncio.sleep(0.2)  # nothing is read: all buffers on the way fill up
        assert await reader.readexactly(len(MUCH)) == MUCH
        assert between.open() == 1
        writer.close()
        while between.open():
            await asyncio.sleep(0.01)
        assert not between.refused and not between.failed


async def test_the_end_of_the_leaders_socket_is_the_end_of_the_tunnel(tmp_path: Path) -> None:
    trusts = trust_of(tmp_path, LEADER), trust_of(tmp_path, FOLLOWER)
    async with nodes(tmp_path, *trusts) as between:
        (tmp_path / "echo").unlink()  # its process is away
        reader, writer = await asyncio.open_unix_connection(between.path)
        writer.write(b"hello")
        assert await reader.read() == b""
        writer.close()


async def refusals(between: Between) -> tuple[str, str]:
    """What the leader says of a connection, and what the follower does. The client's own connection ends."""
    reader, writer = await asyncio.open_unix_connection(between.path)
    writer.write(b"hello")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    while not (between.refused and between.failed):
        await asyncio.sleep(0.01)
    return between.refused[0], between.failed[0]


async def test_a_node_of_another_authority_is_refused(tmp_path: Path) -> None:
    leader, stranger = trust_of(tmp_path, LEADER), trust_of(tmp_path / "other", FOLLOWER)
    trusting = Trust(stranger.certificate, stranger.key, leader.authority)  # it would believe the leader
    async with nodes(tmp_path, leader, trusting) as between:
        there, here = await refusals(between)
    assert there.startswith("its certificate is not of this cluster: ")
    assert here.startswith(
        "it ended the connection before it said anything (if it does not take this node's certificate"
    )


async def test_a_leader_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    follower, stranger = trust_of(tmp_path, FOLLOWER), trust_of(tmp_path / "other", LEADER)
    async with nodes(tmp_path, stranger, follower) as between:
        there, here = await refusals(between)
    assert there.startswith("it ended in the TLS handshake: if it does not take this node's certificate")
    assert here.startswith("its certificate is not of this cluster: ")


async def test_an_expired_certificate_is_refused_by_either_side(tmp_path: Path) -> None:
    async with nodes(tmp_path, trust_of(tmp_path, LEADER), trust_of(tmp_path, FOLLOWER, days=-1)) as between:
        there, here = await refusals(between)
    assert there == "its certificate is not of this cluster: certificate has expired"
    assert here.startswith("it ended the connection before it said anything")
    other = tmp_path / "again"
    async with nodes(tmp_path, trust_of(other, LEADER, days=-1), trust_of(other, FOLLOWER)) as between:
        there, here = await refusals(between)
    assert there.startswith("it ended in the TLS handshake")
    assert here == "its certificate is not of this cluster: certificate has expired"


async def test_a_certificate_of_another_node_is_refused_by_either_side(tmp_path: Path) -> None:
    async with nodes(tmp_path, trust_of(tmp_path, LEADER), trust_of(tmp_path, "n3")) as between:
        there, here = await refusals(between)
    assert there == here == "a node says that it is n2, and its certificate is of n3"
    async with nodes(tmp_path, trust_of(tmp_path, "n3"), trust_of(tmp_path, FOLLOWER)) as between:
        _, writer = await asyncio.open_unix_connection(between.path)
        while not between.failed:
            await asyncio.sleep(0.01)
        writer.close()
    assert between.failed == ["n1 should be there, and the certificate is of n3"]


async def test_a_node_of_another_log_or_for_an_unknown_socket_is_refused(tmp_path: Path) -> None:
    trusts = trust_of(tmp_path, LEADER), trust_of(tmp_path, FOLLOWER)
    async with nodes(tmp_path, *trusts, log="4567") as between:
        there, here = await refusals(between)
        assert there == here == f"n2 has the log 4567, this node {LOG}"
    async with nodes(tmp_path, *trusts, to="nothing") as between:
        there, here = await refusals(between)
        assert there == here == "n2 asks for 'nothing', which this node has not"


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b""])
async def test_what_does_not_speak_tls_is_refused(tmp_path: Path, said: bytes) -> None:
    trusts = trust_of(tmp_path, LEADER), trust_of(tmp_path, FOLLOWER)
    async with nodes(tmp_path, *trusts) as between:
        _, writer = await asyncio.open_connection("127.0.0.1", between.port)
        writer.write(said)
        writer.close()
        while not between.refused:
            await asyncio.sleep(0.01)
    assert "TLS" in between.refused[0]
