"""No operation without a right, on any door: every operation of BlipMQ, Fast and peerbus, asked by every kind of principal,
of topics in every state, against the oracle of rights_world.py. What it refuses must be refused, have no effect at all
(every partition of the log but the audit's ends where it ended before) and be written down. FlyMQ has its matrix in
tests/protocols/flymq/test_rights.py, Felix in test_felix_rights.py.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quintet import kernel, server
from quintet.broker.core import Broker
from quintet.broker.identity.access import Access
from quintet.config import Settings
from quintet.flight import wire
from quintet.model.errors import ConfigError
from quintet.model.rights import Right, check_rights
from quintet.protocols.blipmq import frames as blip_frames
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.fast import errors as fast_errors
from quintet.protocols.fast import frames as fast_frames
from quintet.protocols.fast.mapping import topic_id
from quintet.protocols.fast.section import FastListener
from quintet.protocols.fast.session import FastDoor, FastSession
from quintet.protocols.felix import frames as felix_frames
from quintet.protocols.flymq import frames as fly_frames
from quintet.protocols.peerbus import codec as peerbus
from quintet.protocols.peerbus import frames as peer_frames
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer
from tests.interop.rights_world import MADE, WHO, Door, World, disagreements
from tests.wire import blipmq as blip
from tests.wire import fast, records

SET = records.pack(records.Record(b"2", b"k", ((b"h", None),)))

# -- BlipMQ ------------------------------------------------------------------------------------------------------------


class BlipWorld(World):
    def __init__(self) -> None:
        super().__init__()
        bruno = self.ready("bruno")
        self.foreign = int.from_bytes(bruno.exchange(blip.subscribe(7, b"there", 1))[-8:], "big")
        for state in MADE:
            bruno.exchange(kernel.blip_publish(self.topic(state).encode(), 1, [b"1"], 8, 0))
        self.peers = {who: self.ready(who) for who in WHO if who not in ("worker", "stranger")}
        self.revoke()

    def ready(self, who: str) -> Peer:
        peer = Peer(self.sim, lambda b, s, n: BlipSession(b, s, n, peer="10.0.0.9:1"))
        peer.exchange(blip.hello(1, blip_frames.WHOLE))  # the version that has a word for everything
        if who != "stranger":
            assert peer.exchange(blip.auth(2, self.keys[who]))[4] == blip_frames.ACK
        return peer


class BlipDoor(Door):
    operations: ClassVar = {
        "HELLO": "h", "AUTH": "h", "PUBLISH": "w", "SUBSCRIBE": "r", "ACK": "o", "NACK": "o", "PING": "k", "PONG": "k",
        "POLL": "o", "DELIVER": "k", "RECORDS": "w", "MATCH": "k",
    }  # fmt: skip
    skip = frozenset({"worker"})

    def make(self) -> BlipWorld:
        return BlipWorld()

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        name, kind = world.topic(state).encode(), getattr(blip_frames, operation)
        frame = {
            "HELLO": lambda: blip.hello(3, 2), "AUTH": lambda: blip.auth(3, world.keys["bruno"][:-1]),
            "PUBLISH": lambda: kernel.blip_publish(name, 1, [b"2"], 3, 0),
            "RECORDS": lambda: blip.records(3, name, 1, SET), "MATCH": lambda: blip.match(3, 0, name),
            "SUBSCRIBE": lambda: blip.subscribe(3, name, 1), "ACK": lambda: blip.ack(0, world.foreign),
            "NACK": lambda: blip.word(3, blip_frames.CREDIT, world.foreign, 1),
            "POLL": lambda: blip.poll(3, world.foreign),
        }.get(operation, lambda: blip.frame(kind, 3))()  # fmt: skip
        peer = world.ready(who) if who == "stranger" else world.peers[who]
        reply = peer.exchange(frame)
        if peer.session.closing is not None:
            return "closed"
        if operation == "POLL" and who != "stranger":
            return "refused" if not reply else ""
        codes = [one.refusal[0] for one in blip.frames_of(reply) if one.kind == blip.NACK]
        return "refused" if any(code in (401, 404) for code in codes) and operation != "AUTH" else ""

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        return answer == "closed" or operation in ("ACK", "NACK", "POLL")


# -- Fast --------------------------------------------------------------------------------------------------------------


class FastWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.door = FastDoor(self.broker, FastListener(mode="extended", auth_failures_max=0))
        self.tokens = {who: self.token(who) for who in WHO if who != "stranger"}
        self.tokens["stranger"] = self.token("admin", secret=b"another secret of more than 32 bytes")
        admin = self.peer()
        for state in MADE:
            reply = admin.exchange(fast.create(self.tokens["admin"], self.topic(state).encode(), fast_frames.DURABLE))
            assert reply[0] == fast_frames.OK, reply
        self.revoke()

    def peer(self) -> Peer:
        return Peer(self.sim, lambda b, s, n: FastSession(self.door, s, n, "10.0.0.9:1"))


class FastDoorRights(Door):
    operations: ClassVar = {
        "CREATE": "e", "SUBSCRIBE": "r", "PUBLISH": "w", "MESSAGE": "s", "UNSUBSCRIBE": "r", "KEY_UPDATE": "s",
        "ROTATE_KEY": "e", "EXTEND": "a", "OK": "s", "ERROR": "s", "RECORDS": "w", "MESSAGES": "s",
    }  # fmt: skip

    def make(self) -> FastWorld:
        return FastWorld()

    def packet(self, world: Any, operation: str, token: bytes, state: str) -> bytes:
        name = world.topic(state).encode()
        id = topic_id(name)
        packets: dict[str, Callable[[], bytes]] = {
            "CREATE": lambda: fast.create(token, name, fast_frames.DURABLE),
            "SUBSCRIBE": lambda: fast.subscribe(token, id), "PUBLISH": lambda: fast.publish(token, id, b"2"),
            "UNSUBSCRIBE": lambda: fast.unsubscribe(token, id), "EXTEND": fast.extend,
            "ROTATE_KEY": lambda: fast.rotate_key(token, id, b"k2"), "MESSAGE": lambda: fast.message(id, b"2"),
            "KEY_UPDATE": lambda: fast.key_update(id, b"k2"), "OK": lambda: fast.ok(fast_frames.PUBLISH, id),
            "ERROR": lambda: fast.error(fast_frames.PUBLISH, id, 400, "x"),
            "RECORDS": lambda: fast.records(token, id, SET), "MESSAGES": lambda: fast.messages(id, SET),
        }  # fmt: skip
        return packets[operation]()

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        return self.answer(world, self.packet(world, operation, world.tokens[who], state))

    def answer(self, world: Any, packet: bytes) -> str:
        peer = world.peer()
        reply = peer.exchange(packet)
        closed = peer.session.closing is not None
        peer.close()
        if closed:
            return "closed"
        answer = fast.packets_of(reply)[0]
        assert isinstance(answer, fast.Answer), "an extended session answers every request"
        words = {fast_errors.TOKEN: "refused", fast_errors.FORBIDDEN: "refused", fast_errors.KEY: "refused"}
        return "" if answer.code == 0 else words.get(answer.code, f"error {answer.code}")

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        return answer in ("closed", "error 404")


class FastThere(FastDoorRights):
    """A topic that has no key is not there for anything but CREATE."""

    skip = frozenset({"missing", "__users"})


class FastCreate(FastDoorRights):
    operations: ClassVar = {"CREATE": "e"}


# -- peerbus -----------------------------------------------------------------------------------------------------------


class PeerWorld(World):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__("peerbus/")
        for name in names:
            self.register("bruno", name)
        self.register("bruno", "me.bruno")
        self.peers = {who: self.register(who, f"me.{who}") for who in WHO if who not in ("worker", "stranger")}
        self.peers["consumer"].exchange(_envelope("me.consumer", "me.bruno", "first"))
        self.number = 0
        self.revoke()

    def peer(self) -> Peer:
        return Peer(self.sim, lambda b, s, n: PeerSession(b, s, n, peer="10.0.0.9:1"))

    def register(self, who: str, name: str) -> Peer:
        peer = self.peer()
        reply = peer.exchange(peerbus.register(self.keys[who].decode(), name) + b"\n")
        assert b'"peers"' in reply, peer.session.closing
        return peer


def _envelope(sender: str, to: str, id: str) -> bytes:
    said = {
        "protocol_version": "v1", "id": id, "from": sender, "to": to, "ts": "2026-11-15T12:00:00Z", "source": "test",
        "kind": "msg", "body": 1, "hmac": "",
    }  # fmt: skip
    return json.dumps(said).encode() + b"\n"


class PeerDoor(Door):
    """Registered peers, and a stranger that has not."""

    operations: ClassVar = {"": "w", "ack": "o", "peers": "k", "deliver": "k"}
    skip = frozenset({"worker", "__users", "missing"})

    def make(self) -> PeerWorld:
        return PeerWorld(MADE)

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        world.number += 1
        peer = world.peer() if who == "stranger" else world.peers[who]
        dropped = dict(world.broker.peers.dropped)
        frame = {
            "": _envelope(f"me.{who}", state, f"{who}-{world.number}"), "ack": peerbus.ack("first") + b"\n",
            "peers": peerbus.ask_peers() + b"\n", "deliver": peerbus.deliver("first", b"{}") + b"\n",
        }[operation]  # fmt: skip
        peer.exchange(frame)
        if peer.session.closing is not None:
            return "closed"
        if operation == "ack":
            return "refused"  # the wire has no answer: the state of the broker says whether it was one
        now = world.broker.peers.dropped
        return ", ".join(word for word in now if now[word] > dropped[word])

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        return operation == "ack" or answer == "closed"


class PeerRegister(Door):
    """Names that nobody has registered."""

    operations: ClassVar = {"register": "r"}
    skip = frozenset({"worker", "__users"})

    def make(self) -> PeerWorld:
        return PeerWorld(())

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        peer = world.peer()
        peer.exchange(peerbus.register(world.keys[who].decode(), state) + b"\n")
        return peer.session.closing or ""


# -- the matrices ------------------------------------------------------------------------------------------------------


def test_the_matrix_of_blipmq() -> None:
    wrong, count = disagreements(BlipDoor())
    assert wrong == []
    assert count == len(blip_frames.NAMES) * 7 * 10


def test_the_matrix_of_fast() -> None:
    wrong, count = disagreements(FastThere())
    more, others = disagreements(FastCreate())
    assert wrong + more == []
    assert count + others == len(fast_frames.NAMES) * 8 * 8 + 8 * 10


def test_the_matrix_of_peerbus() -> None:
    wrong, count = disagreements(PeerDoor())
    more, others = disagreements(PeerRegister())
    assert wrong + more == []
    assert count + others == (len(peer_frames.RIGHTS) - 1) * 7 * 8 + 7 * 9


def test_the_tables_say_what_the_oracle_says() -> None:
    words = {"a": {"open"}, "h": {"open"}, "k": {"known", "server"}, "r": {"read"}, "w": {"write"}, "o": {"owner"},
             "e": {"read or write"}, "s": {"server"}}  # fmt: skip
    tables: list[tuple[Door, dict[str, Any], dict[Any, Right]]] = [
        (BlipDoor(), {name: code for code, name in blip_frames.NAMES.items()}, blip_frames.RIGHTS),
        (FastDoorRights(), {name: code for code, name in fast_frames.NAMES.items()}, fast_frames.RIGHTS),
        (PeerDoor(), {name: name for name in peer_frames.RIGHTS if name != "register"}, peer_frames.RIGHTS),
        (PeerRegister(), {"register": "register"}, peer_frames.RIGHTS),
    ]
    for door, names, rights in tables:
        assert set(door.operations) == set(names)
        for name, need in door.operations.items():
            assert rights[names[name]] in words[need], name


# -- controls: a gate that was left open is seen -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("door", "operation"),
    [(BlipDoor(), "PUBLISH"), (BlipDoor(), "RECORDS"), (BlipDoor(), "SUBSCRIBE"), (FastThere(), "PUBLISH"), (FastCreate(), "CREATE"),
     (PeerDoor(), ""), (PeerRegister(), "register")],
)  # fmt: skip
def test_an_open_gate_is_caught(door: Door, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Access, "allowed", lambda *_: True)
    wrong, _ = disagreements(door, [operation])
    assert any("let through" in line for line in wrong) and any("had an effect" in line for line in wrong)


def test_a_refusal_that_is_not_written_down_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_refused", lambda *_: None)
    wrong, _ = disagreements(BlipDoor(), ["SUBSCRIBE"])
    assert any("not written down" in line for line in wrong)


# -- tokens and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flaw", ["another key", "no permissions", "expired", "not yet", "forged", "disabled"])
def test_a_token_with_a_flaw_opens_nothing(flaw: str) -> None:
    door, world = FastThere(), FastWorld()
    now = world.sim.scheduler.now() // 1_000_000
    token = {
        "another key": lambda: world.token("worker", key="k2"),
        "no permissions": lambda: world.token("worker", permissions=[]),
        "expired": lambda: world.token("worker", exp=now - 3600),
        "not yet": lambda: world.token("worker", nbf=now + 3600),
        "forged": lambda: world.token("worker", secret=b"x" * 40),
        "disabled": lambda: world.token("revoked"),
    }[flaw]()  # fmt: skip
    for operation in ("SUBSCRIBE", "PUBLISH", "RECORDS", "UNSUBSCRIBE", "ROTATE_KEY", "CREATE"):
        for state in MADE:
            world.tick()
            before, recorded = world.state(), world.broker.audit.recorded
            answer = door.answer(world, door.packet(world, operation, token, state))
            if flaw == "no permissions" and operation == "CREATE" and not state.startswith("denied"):
                assert answer == "", "without require_create a valid token with the topic's key may say what is so"
            else:
                assert answer == "refused", (operation, state)
                assert world.noted(recorded, "worker"), (operation, state)
            assert world.state() == before, (operation, state)


def test_a_peer_name_of_another_owner_is_refused_and_written_down() -> None:
    world = PeerWorld(("there",))
    before, recorded = world.state(), world.broker.audit.recorded
    peer = world.peer()
    peer.exchange(peerbus.register(world.keys["admin"].decode(), "there") + b"\n")
    assert peer.session.closing == "name claimed under a different token"
    assert world.state() == before and world.noted(recorded, "admin")


# -- the tables, at start ----------------------------------------------------------------------------------------------


@contextmanager
def without(table: dict[Any, Any], row: Any) -> Iterator[None]:
    """Afterwards the row is in its old place: monkeypatch would put it at the end, and a page lists the rows in their order."""
    rows = dict(table)
    del table[row]
    try:
        yield
    finally:
        table.clear()
        table.update(rows)


@pytest.mark.parametrize(
    ("table", "row"),
    [(blip_frames.RIGHTS, blip_frames.POLL), (fast_frames.RIGHTS, fast_frames.ROTATE_KEY), (wire.RIGHTS, "redrive"),
     (peer_frames.RIGHTS, peer_frames.ACK), (felix_frames.RIGHTS, "cache_incr"), (fly_frames.OPERATIONS, fly_frames.PURGE_DLQ)],
)  # fmt: skip
def test_a_broker_without_a_row_does_not_start(
    table: dict[Any, Any], row: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings.load(None, {}, {"dev": True, "data": tmp_path / "data"})
    with without(table, row):
        assert server.serve(settings, print_ready=True, reload=lambda: settings) == 1
    said = capsys.readouterr()
    assert "without a row" in said.err and not said.out
    assert not (tmp_path / "data").exists(), "nothing was opened"


def test_a_row_too_many_or_a_word_that_means_nothing_is_refused() -> None:
    server.check_doors()
    with pytest.raises(ConfigError, match="rows of nothing: b"):
        check_rights("x", ["a"], {"a": "read", "b": "read"})
    with pytest.raises(ConfigError, match="mean nothing: a"):
        check_rights("x", ["a"], {"a": "anything"})


def test_every_call_of_flight_has_a_row() -> None:
    pytest.importorskip("pyarrow")
    from quintet.flight.server import Door as FlightDoor

    answered = {name for name in vars(FlightDoor) if name.startswith(("do_", "get_", "list_"))}
    assert answered == set(wire.CALLS)
