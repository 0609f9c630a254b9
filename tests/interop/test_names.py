"""Names that are not UTF-8, in every operation of every door that has a text in it: refused, and nothing is raised.

An exception that leaves a session ends the connection with "Fatal error on transport" at best. Here sessions run without a
connection around them, so whatever they raise fails the test.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from quintet import kernel
from quintet.broker.core import Broker
from quintet.model.errors import BadName
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.felix import codec as felix
from quintet.protocols.flymq import frames as fly_frames
from quintet.testing.line import Peer, SimBroker
from tests.interop.test_felix_rights import frame as felix_frame
from tests.interop.test_felix_rights import json_frame
from tests.protocols.blipmq.helpers import nacks_of
from tests.protocols.fast.helpers import FastSim, token
from tests.protocols.felix.helpers import FelixSim
from tests.protocols.flymq.helpers import Client, make_sim, request
from tests.protocols.flymq.test_rights import fields_of
from tests.protocols.peerbus.helpers import broker as peer_broker
from tests.protocols.peerbus.helpers import connect, letter, peer_of, session_of
from tests.protocols.peerbus.test_websocket import closed_with, registered
from tests.wire import blipmq as blip
from tests.wire import fast, peerbus
from tests.wire.websocket import frame as ws_frame

NAME: Final = "namehere"
# Of the same length: lengths before them stay right. A lone byte, half a letter, half a pair, an overlong NUL, above U+10FFFF.
BAD: Final = (b"\xffamehere", b"namehe\xc3", b"na\xed\xa0\x80her", b"name\xc0\x80he", b"\xf5\x80\x80\x80here")
IDS: Final = ("lone byte", "cut letter", "surrogate", "overlong", "too high")
bad_names = pytest.mark.parametrize("bad", BAD, ids=IDS)
assert all(len(bad) <= len(NAME) for bad in BAD)


def spoiled(data: bytes, bad: bytes) -> bytes:
    assert NAME.encode() in data
    return data.replace(NAME.encode(), bad.ljust(len(NAME), b"x"))


# -- BlipMQ ------------------------------------------------------------------------------------------------------------


@bad_names
@pytest.mark.parametrize("version", [1, 2])
def test_blipmq_refuses_them(bad: bytes, version: int) -> None:
    sim = SimBroker()
    name = bad.ljust(8, b"x")
    peer = Peer(sim, BlipSession)
    peer.exchange(blip.hello(1, version))
    assert peer.exchange(blip.auth(2, name)) != b"", "an unknown key"
    peer = Peer(sim, BlipSession)
    peer.exchange(blip.hello(1, version) + blip.auth(2, b"dev-key"))
    for qos in (0, 1):
        reply = peer.exchange(kernel.blip_publish(name, qos, [b"x"], 3, 0))
        assert [code for _, code, _ in nacks_of(reply + peer.exchange(blip.subscribe(4, name, qos)))] == [400, 400]
    assert peer.session.closing is None and len(sim.broker.topics) == 0


# -- FlyMQ -------------------------------------------------------------------------------------------------------------


def named(value: Any) -> Iterator[Any]:
    """The value as often as there are texts in it, each time with another one replaced by NAME."""
    if isinstance(value, str):
        yield NAME
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (value | {key: changed} for changed in named(inner))
    elif isinstance(value, list):
        yield from ([changed] for changed in named(value[0] if value else ""))


FLY: Final = {
    operation.name: list(named(fields_of(operation.name, "topic", "txn", "txn")))
    for operation in fly_frames.OPERATIONS.values()
}


@pytest.mark.parametrize("dialect", ["document", "sdk"])
def test_flymq_refuses_them_in_every_text_of_every_operation(dialect: Any) -> None:
    asked = 0
    sim = make_sim()
    client = Client(sim, "admin", dialect=dialect)
    topics = len(sim.broker.topics)
    for name, requests in FLY.items():
        for fields in requests:
            for bad in BAD:
                (reply,) = client.exchange(spoiled(request(name, **fields), bad))
                assert reply.code == fly_frames.ERROR, (name, fields)
                assert client.peer.session.closing is None, name
                asked += 1
    assert asked > 200 and len(sim.broker.topics) == topics


# -- Fast --------------------------------------------------------------------------------------------------------------


@bad_names
def test_fast_refuses_them(bad: bytes) -> None:
    sim = FastSim()
    peer = sim.peer(extended=True)
    good = token()
    for packet in (
        fast.create(good, bad.ljust(8, b"x"), 1),
        fast.create(good[:-8] + bad.ljust(8, b"x"), b"demo", 0),
        fast.rotate_key(good, 1, bad.ljust(8, b"x")),
    ):
        (reply,) = peer.ask(packet)
        assert reply.code >= 400
    assert peer.session.closing is None and len(sim.broker.topics) == 0


# -- peerbus -----------------------------------------------------------------------------------------------------------


@bad_names
def test_peerbus_refuses_them(bad: bytes) -> None:
    sim = peer_broker()
    for first in (peerbus.register("ann-token", NAME), peerbus.register(NAME, "amy")):
        peer = connect(sim)
        peer.exchange(spoiled(first, bad) + b"\n")
        assert session_of(peer).close_code == 1007
    amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
    texts = {"id": "m1", "from": "amy", "to": "bob", "ts": "t", "source": "s", "kind": "msg", "hmac": "", "body": "b"}
    for name in texts:
        one = json.dumps({"protocol_version": "v1", **texts, name: NAME}).encode()
        assert amy.exchange(spoiled(one, bad) + b"\n") == b""
    assert amy.exchange(spoiled(peerbus.ack(NAME), bad) + b"\n") == b""
    assert sim.broker.peers.dropped["bad_envelope"] == len(texts) + 1 and bob.take() == b""
    assert session_of(amy).closing is None
    web = registered(sim)
    assert closed_with(web.exchange(ws_frame(spoiled(letter("amy", NAME, "m2"), bad)))) == (1007, "text is not UTF-8")


# -- Felix -------------------------------------------------------------------------------------------------------------

FELIX_JSON: Final = (
    "publish", "publish_batch", "subscribe", "cache_put", "cache_get", "cache_delete", "cache_incr", "cache_get_many", "cache_keys",
    "cache_watch",
)  # fmt: skip


@bad_names
def test_felix_refuses_them_in_every_text_of_every_operation(bad: bytes) -> None:
    sim = FelixSim()
    for operation in FELIX_JSON:
        said = json_frame(operation, "state")
        for fields in named({key: value for key, value in said.items() if key != "type"}):
            body = json.dumps({"type": operation, **fields}).encode()
            for data in (spoiled(body, bad), body.replace(NAME.encode(), b"\\ud800here")):
                stream = sim.connect().auth()
                stream.exchange(felix.frame(data))
    for operation in ("binary batch", "acknowledged batch"):
        for space in ((NAME, "x"), ("felix", NAME), ("felix", "x")):
            whole = felix_frame(operation, NAME if NAME not in space else "s", space)
            stream = sim.connect().auth()
            stream.exchange(spoiled(whole, bad))
    for name in ("tenant_id", "token"):
        auth = json.dumps({"type": "auth", "tenant_id": "t", "token": "dev-key", name: NAME}).encode()
        sim.connect().stream().exchange(felix.frame(spoiled(auth, bad)))
    assert len(sim.broker.topics) == 0


def test_the_broker_raises_bad_name_for_them() -> None:
    """What doors rely on: no verb that takes a name as bytes raises anything else."""
    sim = SimBroker()
    broker: Broker = sim.broker
    _, principal = broker.authenticate(b"dev-key")
    sink = Peer(sim, BlipSession)
    for bad in BAD:
        for verb in (
            partial(broker.publish_target, principal, bad, True),
            partial(broker.subscribe, principal, bad, 1, sink, None, door="blipmq"),
            partial(broker.create_topic, bad, 1),
        ):
            with pytest.raises(BadName, match="a topic name is UTF-8"):
                verb()
