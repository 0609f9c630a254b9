"""An empty token behind EXTEND: it means the last that was accepted on this connection, and is judged like it every time."""

from collections.abc import Callable

import pytest

from quintet.broker.identity.access import Acl
from quintet.broker.identity.tokens import TokenOptions
from quintet.model import limits
from quintet.protocols.fast import errors, frames
from quintet.protocols.fast.frames import CREATE, EXTEND, PUBLISH, ROTATE_KEY, SUBSCRIBE, UNSUBSCRIBE
from quintet.protocols.fast.mapping import topic_id
from tests.protocols.fast.helpers import DEMO, SECOND, SECRET, FastPeer, FastSim, Reply, publish, token
from tests.protocols.fast.test_session import _Laws
from tests.wire import fast as wire

ANN, BOB = token(), token("bob", "k2")
FORGED = token(secret=b"not the secret, but as long as it is, too")
OTHER = topic_id(b"other")
QUIET = wire.extend(frames.QUIET)


@pytest.fixture
def sim() -> FastSim:
    sim = FastSim()
    sim.peer(wire.create(ANN, b"demo"), wire.create(BOB, b"other"))
    return sim


def codes(peer: FastPeer, *packets: bytes) -> list[int]:
    return [reply.code for reply in peer.ask(b"".join(packets))]


def origins(sim: FastSim, topic: bytes) -> list[bytes]:
    """Who published each record."""
    batches = sim.broker.topics.find(topic).partitions[0].read(0, 9_999) or []
    return [row[6] for batch in batches for row in batch.rows()]


# -- chunking ------------------------------------------------------------------------------------------------------------


class TestLawsOfShortTokens(_Laws):
    """Two tokens take turns, refused ones come between them, a key is rotated: one output for every chunking."""

    def script(self) -> bytes:
        return (
            wire.create(ANN, b"demo")
            + wire.extend()
            + publish(b"", b"nothing was accepted since EXTEND")
            + wire.create(ANN, b"demo")
            + publish(b"", b"a", b"b")
            + wire.create(BOB, b"other")
            + publish(b"", b"to another key")
            + publish(b"", b"c", topic=OTHER)
            + publish(FORGED, b"x", topic=OTHER)
            + publish(b"", b"d", topic=OTHER)
            + publish(ANN, b"e")
            + wire.subscribe(b"", DEMO)
            + publish(b"", b"f")
            + wire.rotate_key(b"", DEMO, b"k3")
            + publish(b"", b"the old key")
            + publish(token(key="k3"), b"g")
            + publish(b"", b"h")
            + wire.unsubscribe(b"", DEMO)
            + wire.extend()
        )


def test_the_law_of_short_tokens_is_not_empty() -> None:
    output, closing = TestLawsOfShortTokens().run([])
    assert closing is None
    assert output.count(bytes((frames.ERROR,))) >= 4
    assert [value in output for value in (b"f", b"g", b"h", b"x", b"the old key")] == [True, True, True, False, False]


# -- who may leave it out ------------------------------------------------------------------------------------------------


def test_a_strict_peer_may_not(sim: FastSim) -> None:
    peer = sim.peer(publish(ANN, b"x"))
    peer.feed(publish(b"", b"y") + wire.subscribe(b"", DEMO))
    assert sim.broker.topics.find(b"demo").published == 1
    assert peer.session.auth_failures == 2
    assert sim.broker.queues.members == 0


@pytest.mark.parametrize("before", [b"", publish(ANN, b"x"), publish(FORGED, b"x")])
def test_nothing_is_meant_before_one_was_accepted_behind_extend(sim: FastSim, before: bytes) -> None:
    peer = FastPeer(sim)
    peer.feed(before + wire.extend() + publish(FORGED, b"y") + publish(b"", b"z"))
    peer.look()
    want = [Reply(EXTEND, 0, 0), Reply(PUBLISH, DEMO, errors.TOKEN), Reply(PUBLISH, DEMO, errors.TOKEN)]
    assert peer.replies == want
    assert peer.session.auth_failures == 2 + (before == publish(FORGED, b"x"))


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (lambda jwt: wire.create(jwt, b"demo"), CREATE),
        (lambda jwt: wire.subscribe(jwt, DEMO), SUBSCRIBE),
        (lambda jwt: wire.publish(jwt, DEMO, b"x"), PUBLISH),
        (lambda jwt: wire.unsubscribe(jwt, DEMO), UNSUBSCRIBE),
        (lambda jwt: wire.rotate_key(jwt, DEMO, b"k9"), ROTATE_KEY),
    ],
)
def test_every_request_may_leave_it_out(sim: FastSim, packet: Callable[[bytes], bytes], kind: int) -> None:
    peer = sim.peer(extended=True)
    assert codes(peer, packet(b"")) == [errors.TOKEN]
    assert codes(peer, wire.unsubscribe(ANN, 77)) == [errors.NO_TOPIC], "refused, but its token is good"
    assert peer.ask(packet(b"")) == [Reply(kind, DEMO, 0)]


def test_a_listener_that_answers_everybody_takes_it_without_extend() -> None:
    sim = FastSim(mode="extended")
    peer = FastPeer(sim)
    assert codes(peer, wire.create(ANN, b"demo"), publish(b"", b"x")) == [0, 0]
    assert origins(sim, b"demo") == [b"fast:ann"]


def test_the_quiet_version_answers_extend_only(sim: FastSim) -> None:
    peer = sim.peer()
    assert peer.ask(QUIET + publish(ANN, b"a") + publish(b"", b"b", b"c") + QUIET) == [Reply(EXTEND, 0, 0)] * 2
    assert origins(sim, b"demo") == [b"fast:ann"] * 3
    assert peer.ask(publish(FORGED, b"x") + publish(b"", b"d", topic=OTHER)) == [], "refusals are not told either"
    assert peer.ask(wire.extend() + publish(b"", b"e")) == [Reply(EXTEND, 0, 0), Reply(PUBLISH, DEMO, 0)]
    assert peer.ask(QUIET + publish(b"", b"f")) == [Reply(EXTEND, 0, 0), Reply(PUBLISH, DEMO, 0)], (
        "nothing is taken away"
    )


def test_another_connection_begins_with_none(sim: FastSim) -> None:
    peer = sim.peer(publish(ANN, b"x"), extended=True)
    assert codes(peer, publish(b"", b"y")) == [0]
    neighbour = sim.peer(extended=True)
    assert codes(neighbour, publish(b"", b"z")) == [errors.TOKEN]
    peer.close()
    again = sim.peer(extended=True)
    assert codes(again, publish(b"", b"z")) == [errors.TOKEN]


# -- which one is meant --------------------------------------------------------------------------------------------------


def test_the_last_that_was_accepted(sim: FastSim) -> None:
    peer = sim.peer(publish(ANN, b"1"), extended=True)
    for cuts in (False, True):
        packets = [
            publish(b"", b"2"),
            publish(BOB, b"3", topic=OTHER),
            publish(b"", b"4", topic=OTHER),
            publish(FORGED, b"5", topic=OTHER),
            publish(b"", b"6", topic=OTHER),
            publish(ANN, b"7"),
            publish(b"", b"8"),
        ]
        got = [codes(peer, packet)[0] for packet in packets] if cuts else codes(peer, *packets)
        assert sorted(got) == [0] * 6 + [errors.TOKEN]
    assert origins(sim, b"demo") == [b"fast:ann"] * 7
    assert origins(sim, b"other") == [b"fast:bob"] * 6


def test_a_large_payload_behind_an_empty_token(sim: FastSim) -> None:
    large = bytes(limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1)
    peer = sim.peer(extended=True)
    assert codes(peer, publish(ANN, b"x"), publish(b"", large)) == [0, 0]
    stranger = sim.peer(extended=True)
    stranger.feed(publish(b"", large))
    assert stranger.session.closing == errors.FATAL[2]
    assert stranger.session.auth_failures == 1


# -- it is judged every time ---------------------------------------------------------------------------------------------


def test_it_expires(sim: FastSim) -> None:
    jwt = token(exp=sim.now_s() + 10)
    peer = sim.peer(extended=True)
    assert codes(peer, publish(jwt, b"x"), publish(b"", b"y")) == [0, 0]
    sim.advance(71 * SECOND, step_us=SECOND)
    assert codes(peer, publish(b"", b"z")) == [errors.TOKEN]
    assert peer.session.auth_failures == 1
    assert codes(peer, publish(token(exp=sim.now_s() + 10), b"x"), publish(b"", b"y")) == [0, 0], (
        "a fresh one takes over"
    )


def test_it_is_good_for_nothing_when_the_key_was_rotated(sim: FastSim) -> None:
    peer = sim.peer(publish(ANN, b"x"), extended=True)
    sim.peer(wire.rotate_key(ANN, DEMO, b"k9"))
    assert codes(peer, publish(b"", b"y")) == [errors.KEY]
    assert codes(peer, publish(token(key="k9"), b"x"), publish(b"", b"y")) == [0, 0]


def test_rights_secrets_and_permissions_are_looked_at(sim: FastSim) -> None:
    peer = sim.peer(publish(ANN, b"x"), extended=True)
    sim.broker.access.set_acl(Acl("demo", users=("bob",)))
    assert codes(peer, publish(b"", b"y")) == [errors.FORBIDDEN]
    sim.broker.access.drop_acl("demo")
    assert codes(peer, publish(b"", b"y")) == [0]
    sim.broker.set_tokens(TokenOptions(secrets=(b"another secret, long enough for HS256",)))
    assert codes(peer, publish(b"", b"y")) == [errors.TOKEN]
    sim.broker.set_tokens(TokenOptions(secrets=(SECRET,)))
    assert codes(peer, publish(b"", b"y")) == [0], "it is still the one that is meant"
    reader = token("joe", permissions=["subscribe"])
    assert codes(peer, wire.subscribe(reader, DEMO), publish(b"", b"z")) == [0, errors.FORBIDDEN]


def test_it_is_verified_again_when_the_listener_forgot_it(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.protocols.fast.session.TOKENS_MAX", 3)
    peer = sim.peer(publish(ANN, b"x"), extended=True)
    sim.peer(*[publish(token(f"u{number}"), b"x") for number in range(5)])
    assert ANN not in sim.door.bearers
    assert codes(peer, publish(b"", b"y")) == [0]
    assert ANN in sim.door.bearers


def test_refusals_of_empty_tokens_end_it_like_others() -> None:
    sim = FastSim(auth_failures_max=3)
    peer = sim.peer(extended=True)
    assert codes(peer, publish(b"", *[b"x"] * 5)) == [errors.TOKEN] * 3
    assert peer.session.closing == "too many refused requests"
