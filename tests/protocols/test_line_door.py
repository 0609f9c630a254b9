"""A door that is no part of Quintet (examples/line_door.py): it keeps the laws of sessions, is loaded by configuration, and stands
beside the others."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from examples.line_door import LINE, LineListener
from msgspec.structs import replace

import quintet
from quintet.broker.core import Broker
from quintet.broker.identity.access import Credential, hash_secret
from quintet.config import Settings
from quintet.config.reloading import Reloads
from quintet.figures import development_lines
from quintet.model.errors import ConfigError
from quintet.protocols.base import Session
from quintet.protocols.doors import DOORS, origins
from quintet.server import check_doors
from quintet.testing.line import Peer, SimBroker
from tests.client.server import Server
from tests.protocols.cases import DoorLaws

ROOT = Path(__file__).parents[2]
PLUGIN = "examples.line_door:LINE"
FLAGS = {"plugins.doors": [PLUGIN]}
MISNAMED = replace(LINE, name="Line 2")


def make(broker: Broker, peer: Peer, _monotonic: int) -> Session:
    made: Session = LINE.open(broker, LineListener())(peer, "1.2.3.4:5", "")
    return made


def peer_of(sim: SimBroker) -> Peer:
    return Peer(sim, make)


class TestLaws(DoorLaws):
    make_session = staticmethod(make)

    def script(self) -> bytes:
        return (
            b"PUB orders early\nAUTH wrong\nAUTH dev-key\nAUTH dev-key\r\nNOISE\nSUB orders\nSUB \nSUB a b\n"
            b"PUB orders one\nPUB orders two and three\nPUB \xff x\nPUB other\n"
        )


def test_each_request_is_answered() -> None:
    sim = SimBroker()
    peer = peer_of(sim)
    assert peer.exchange(b"PUB orders x\n") == b"ERR AUTH first\n"
    assert peer.exchange(b"AUTH wrong\n").startswith(b"ERR ")
    assert peer.exchange(b"AUTH dev-key\n") == b"OK dev\n"
    assert peer.exchange(b"SUB orders\n") == b"OK\n"
    said = peer.exchange(b"PUB orders a\r\nPUB orders b c\n")
    assert sorted(said.splitlines()) == sorted(b"OK 0\nOK 1\nMSG orders 1\na\nMSG orders 3\nb c".splitlines())
    peer.close()
    assert len(sim.broker.subscriptions) == 0, "a subscription lives as long as its connection"


def test_a_line_that_is_too_long_ends_the_connection() -> None:
    peer = peer_of(SimBroker())
    peer.exchange(b"AUTH dev-key\n")
    peer.feed(b"PUB orders " + bytes(70_000))
    assert peer.session.closing == "a line of more than 65536 bytes"


def test_rights_are_asked_and_looked_at_again() -> None:
    """What a key may do is asked at each request; what is taken away ends a subscription, and a lost key the connection."""
    sim = SimBroker()
    digest = hash_secret(b"k")
    sim.broker.set_credentials([Credential("ann", digest, ("a*",), ("a*",))])
    peer, other = peer_of(sim), peer_of(sim)
    assert peer.exchange(b"AUTH k\nSUB a1\n") == b"OK ann\nOK\n"
    other.exchange(b"AUTH k\n")
    assert peer.exchange(b"PUB b1 x\n").startswith(b"ERR ")
    assert peer.exchange(b"SUB b1\n").startswith(b"ERR ")
    sim.broker.set_credentials([Credential("ann", digest, ("a*",), ("b*",))])
    peer.exchange(b"")
    peer.session.receive(memoryview(b""), 0)  # as net/connection.py::Connection.recheck does
    assert other.exchange(b"PUB a1 x\n") == b"OK 0\n"
    assert peer.take() == b"", "it may not read that any more"
    sim.broker.set_credentials([])
    peer.session.receive(memoryview(b""), 0)
    assert peer.session.closing == "the API key was revoked"


def test_the_row_is_enough_for_configuration_rights_reload_and_dev() -> None:
    settings = Settings.load(None, {"QUINTET_LISTENERS__LINE__PORT": "0"}, {**FLAGS, "dev": True})
    assert settings.listeners.doors == (*DOORS, LINE)
    assert (LINE.port, settings.listeners.of(LINE).port) == (7007, 0)
    check_doors(settings.listeners.doors)
    reloads = Reloads(settings.listeners.doors)
    assert reloads.is_taken("listeners.line.tls_cert", "one", "two")
    other = Settings.load(None, {}, {"dev": True})
    assert reloads.split(settings, other)[1] == ["plugins.doors"], "a plugin that is taken out waits, with its section"
    assert reloads.merged(settings, other).listeners.of(LINE) == settings.listeners.of(LINE)
    assert "\n  line     printf 'AUTH dev-key" in development_lines({"line": "127.0.0.1:7007"}, {}, (*DOORS, LINE))
    assert "line" in origins(settings.listeners.doors)


@pytest.mark.parametrize(
    ("doors", "said"),
    [
        (["examples.nowhere:LINE"], "cannot be loaded"),
        (["examples.line_door:NOTHING"], "cannot be loaded"),
        (["examples.line_door"], "is no door"),
        (["examples.line_door:LineSession"], "is no door"),
        ([PLUGIN, PLUGIN], "there is a listener 'line' already"),
        (["quintet.protocols.doors:FELIX"], "there is a listener 'felix' already"),
        (["tests.protocols.test_line_door:MISNAMED"], "is no name of a door"),
    ],
)
def test_a_plugin_that_cannot_be_used_stops_the_start(doors: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings.load(None, {}, {"plugins.doors": doors})


def test_its_section_is_checked_like_every_other() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"listeners.line.prot": 1}, "did you mean listeners.line.port"),
        ({"listeners.line.host": "0.0.0.0"}, "plaintext on '0.0.0.0'"),
        ({"listeners.line.line_bytes_max": 1}, "greater than or equal to 64"),
    ]
    for flags, said in wrong:
        with pytest.raises(ConfigError, match=said):
            Settings.load(None, {}, FLAGS | flags)


async def test_a_broker_loads_it_beside_the_others(tmp_path: Path) -> None:
    """Published by it and read by another door, and the other way round; counted under its name."""
    settings = {"QUINTET_PLUGINS__DOORS": f'["{PLUGIN}"]', "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    server = Server(tmp_path, settings)
    server.ports |= {"line": 0, "admin": 0}
    server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["line"])
        writer.write(b"AUTH dev-key\nSUB answers\n")
        assert [await reader.readline(), await reader.readline()] == [b"OK dev\n", b"OK\n"]
        async with quintet.connect(server.url) as bus, bus.subscribe("orders") as orders:
            writer.write(b"PUB orders hello\n")
            assert await reader.readline() == b"OK 0\n"
            got = await anext(aiter(orders))
            assert got.value == b"hello"
        async with quintet.connect(server.fly) as bus:
            await bus.publish("answers", b"two\nlines")
        assert await reader.readline() == b"MSG answers 9\n"
        assert await reader.readexactly(10) == b"two\nlines\n"
        url = f"http://127.0.0.1:{server.ports['admin']}/metrics"
        metrics = (await asyncio.to_thread(lambda: urlopen(url).read())).decode()
        assert 'quintet_connections{door="line"} 1' in metrics
        writer.close()
        await writer.wait_closed()
    finally:
        assert server.stop() == 0
