"""Bytes of peerbus objects against vectors written by hand from the document; a conversation made of nothing else.

The digests in tests/vectors/peerbus are those of Python's own hmac over texts that stand beside them.
"""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from quintet.model import envelope
from quintet.protocols.peerbus import codec, frames
from tests.protocols.peerbus.helpers import SECRET, broker, connect
from tests.wire import peerbus as wire

FOLDER = Path(__file__).parents[2] / "vectors" / "peerbus"
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads((FOLDER / "document.json").read_text())}
ENVELOPES = [name for name, row in ROWS.items() if row["meaning"]["type"] == ""]


def data(name: str) -> bytes:
    return bytes.fromhex(ROWS[name]["hex"])


def made(meaning: dict[str, Any]) -> bytes:
    """The same object by the codec."""
    kind = meaning["type"]
    if kind == frames.REGISTER:
        return wire.register(meaning["token"], meaning["name"])
    if kind == frames.ACK:
        return wire.ack(meaning["id"])
    if kind == frames.PEERS:
        return wire.peers(meaning["names"]) if "names" in meaning else wire.ask_peers()
    if kind == frames.DELIVER:
        return wire.deliver(meaning["delivery_key"], data(meaning["envelope"]))
    parts = json.loads(meaning["canonical"])
    return envelope.sign(
        SECRET, id=parts["id"], sender=parts["from"], to=parts["to"], ts=parts["ts"], source=parts["source"],
        body=meaning["body"].encode(),
    )  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_objects_are_those_of_the_vectors(name: str) -> None:
    meaning = ROWS[name]["meaning"]
    assert made(meaning) == data(name)
    if ROWS[name]["direction"] == "client":
        frame = codec.decode(data(name))
        for member in ("type", "token", "name", "id", "sender", "to", "kind"):
            if meaning.get(member):
                assert getattr(frame, member) == meaning[member]


def test_every_type_of_object_has_a_vector() -> None:
    assert {row["meaning"]["type"] for row in ROWS.values()} == {*frames.CONTROL, frames.ENVELOPE}


@pytest.mark.parametrize("name", ENVELOPES)
def test_signatures_are_those_of_the_vectors(name: str) -> None:
    meaning = ROWS[name]["meaning"]
    parsed = envelope.parse(data(name))
    assert (SECRET.decode(), envelope.canonical(parsed).decode()) == (meaning["secret"], meaning["canonical"])
    digest = hmac.new(SECRET, meaning["canonical"].encode(), hashlib.sha256).hexdigest()
    assert json.loads(data(name))["hmac"] == digest
    assert envelope.verify(data(name), SECRET)
    assert not envelope.verify(data(name).replace(b"alice", b"mallo"), SECRET), "a changed byte is seen"
    assert not envelope.verify(data(name), SECRET[::-1]), "and another secret"


def test_a_conversation_made_of_the_vectors() -> None:
    sim = broker(secret=SECRET)
    bob, alice = connect(sim), connect(sim)
    alice.exchange(data("register").replace(b'"bob"', b'"alice"') + b"\n")
    assert bob.exchange(data("register") + b"\n") == data("peers reply") + b"\n"
    alice.exchange(data("envelope direct") + b"\n")
    assert bob.take() == data("deliver direct") + b"\n"
    alice.exchange(data("envelope broadcast") + b"\n")
    assert bob.take() == data("deliver broadcast") + b"\n"
    bob.exchange(data("ack direct") + b"\n" + data("ack broadcast") + b"\n")
    bob.close()
    again = connect(sim)
    assert again.exchange(data("register") + b"\n") == data("peers reply") + b"\n", "both were acknowledged"
    assert again.exchange(data("peers request") + b"\n") == data("peers reply") + b"\n"
