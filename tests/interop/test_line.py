"""One topic, five doors, one process: in any order of writers and across a restart, all readers see the same log.

Seeded. Each step one door publishes a few messages, its bytes cut anywhere; sometimes the broker is stopped and started
again, and every reader comes back. In the end each reader has seen every message once, in the order of the log, and the
door a message came in by has given its very bytes back.
"""

import json
from random import Random
from typing import cast

import pytest

from quintet import kernel
from quintet.model import envelope
from quintet.protocols.doors import PROTOCOLS as DOORS
from quintet.protocols.fast import frames as fast_frames
from quintet.protocols.fast.mapping import topic_id
from quintet.protocols.felix import codec as felix
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer
from tests.protocols.blipmq import helpers as blip_helpers
from tests.protocols.fast.helpers import ALL, FastSim, token
from tests.protocols.felix import helpers as felix_helpers
from tests.protocols.flymq.helpers import Client, configure
from tests.wire import blipmq as blip
from tests.wire import fast

TOPIC = "peerbus/bob"
RAW = TOPIC.encode()
NUMBER = topic_id(RAW)
STEPS = 40
RESTART_SHARE = 0.1
BARE = ("", "", TOPIC)  # a topic's name that is not tenant, namespace and stream


class Sim(FastSim):
    """A broker with the doors of both test kits."""

    felix = FelixListener()


class World:
    """A broker, its writers and its readers; readers are made again after a restart."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.sim = Sim()
        self.seen: dict[str, list[bytes]] = {door: [] for door in DOORS}
        self.sent: list[tuple[str, bytes]] = []  # door and what it published, in order
        self.subscription = 0
        self.count = 0
        self.connect()

    def connect(self) -> None:
        sim = self.sim
        configure(sim)
        self.token = token("dev", "k1", ALL)
        self.fast = sim.peer(fast.create(self.token, RAW, fast_frames.DURABLE), extended=True)
        self.fast.ask(fast.subscribe(self.token, NUMBER))
        self.blip = blip_helpers.ready(sim, 2)
        if self.subscription:
            self.blip.feed(blip.poll(1, self.subscription))
        else:
            self.subscription = blip_helpers.subscribed(self.blip, RAW)
        self.fly = Client(sim, "admin")
        self.alice, self.bob = (self._register(name) for name in ("alice", "bob"))
        self.quic = felix_helpers.Connection(cast(felix_helpers.FelixSim, sim), "10.0.0.1:9")
        self.felix = self.quic.auth()
        start = felix.Start(offset=len(self.seen["felix"]))
        (answer,) = self.felix.ask(felix_helpers.subscribe(BARE, start=start))
        assert isinstance(answer, felix.Subscribed)

    def _register(self, name: str) -> Peer:
        peer = Peer(self.sim, PeerSession)
        hello = {"protocol_version": "v1", "type": "register", "token": "dev-key", "name": name}
        answer = peer.exchange(json.dumps(hello).encode() + b"\n")
        assert json.loads(answer.split(b"\n")[0])["type"] == "peers"
        self._take_bob(answer, peer)
        return peer

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, door: str) -> None:
        values = []
        for _ in range(self.random.randint(1, 5)):
            self.count += 1
            values.append(json.dumps({"by": door, "n": self.count, "pad": "x" * self.random.randint(0, 300)}).encode())
        if door == "peerbus":
            values = [
                envelope.sign(b"", id=f"m{self.count}.{n}", sender="alice", to="bob", ts="now", body=value)
                for n, value in enumerate(values)
            ]
            self._feed(self.alice, b"".join(value + b"\n" for value in values))
        elif door == "fast":
            self._feed(self.fast, kernel.fast_publish(self.token, NUMBER, values))
        elif door == "felix":
            acked = felix_helpers.batch(*values, request_id=self.count, scope=BARE)
            self._feed(self.felix, acked)
        elif door == "blipmq":
            self._feed(self.blip, kernel.blip_publish(RAW, 1, values, 1_000, 0))
        else:
            self.fly.produce(TOPIC, *values, key=b"k")
        self.sim.scheduler.run_until_idle()
        self.sent += [(door, value) for value in values]

    def _feed(self, peer: Peer, data: bytes) -> None:
        cuts = [self.random.randint(1, len(data)) for _ in range(self.random.randint(0, 4))]
        peer.feed(data, cuts)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Take what came, and acknowledge it where the door has a word for that."""
        self.sim.scheduler.run_until_idle()
        self.seen["fast"] += self.fast.got(NUMBER)
        data = self.blip.take()
        self.seen["blipmq"] += blip_helpers.values_of(data)
        self.blip.feed(b"".join(blip.ack(tag, self.subscription) for tag in blip_helpers.tags_of(data)))
        self._take_bob(self.bob.take(), self.bob)
        for found in self.quic.outlets[0].take():
            if not isinstance(found, felix.Hello):
                base, values, *_ = found  # keys follow where they are asked for
                assert base == len(self.seen["felix"])
                self.seen["felix"] += values
        self.sim.scheduler.run_until_idle()

    def _take_bob(self, data: bytes, peer: Peer) -> None:
        for line in data.splitlines():
            found = json.loads(line)
            if found["type"] == "deliver":
                self.seen["peerbus"].append(line)
                ack = {"protocol_version": "v1", "type": "ack", "id": found["delivery_key"]}
                peer.feed(json.dumps(ack).encode() + b"\n")

    def restart(self) -> None:
        self.read()
        for peer in (self.fast, self.blip, self.fly, self.alice, self.bob):
            peer.close()
        self.quic.close()
        self.sim.advance(500_000)
        self.sim.restart()
        self.connect()


def body_of(line: bytes) -> object:
    return json.loads(line)["envelope"]["body"]


@pytest.mark.parametrize("seed", range(12))
def test_every_reader_sees_the_one_log(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    for _ in range(STEPS):
        if random.random() < RESTART_SHARE:
            world.restart()
        else:
            world.write(random.choice(DOORS))
            if random.random() < 0.5:
                world.read()
    world.read()
    sent = [value for _, value in world.sent]
    assert len({door for door, _ in world.sent}) == len(DOORS)
    assert world.fly.values(TOPIC) == sent
    assert world.seen["blipmq"] == sent
    assert world.seen["fast"] == sent
    assert world.seen["felix"] == sent
    assert len(world.seen["peerbus"]) == len(sent)
    for (door, value), line in zip(world.sent, world.seen["peerbus"], strict=True):
        if door == "peerbus":
            assert value in line, "the envelope comes back byte for byte"
        else:
            assert body_of(line) == json.loads(value)
