"""Random lives of one mailbox: senders, takeovers, disconnects, full sockets, acknowledgements out of order, kills and
restarts. Nothing that was durable is lost, nothing comes twice over one connection, each sender's order is kept."""

from random import Random

import pytest

from quintet import kernel
from quintet.model.batch import RecordBatch
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer
from tests.protocols.peerbus.helpers import broker, letter, objects, peer_of
from tests.wire import peerbus as wire

SECOND_US = 1_000_000


class Slow(Peer):
    """A socket that is full now and then, between two runs."""

    random: Random

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        if self.random.random() < 0.3:
            self.room_bytes = 0
        super().records(subscription, partition, batch, first, last)


class Life:
    """One broker, two senders and a door beside them, one reader `bob`."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.sim = broker()
        self.senders: dict[str, Peer] = {}
        self.bob: Slow | None = None
        self.ids = 0
        self.sent: dict[str, list[str]] = {"amy": [], "cat": [], "door": []}
        self.here: list[str] = []  # delivered over this connection
        self.acked: set[str] = set()
        self.ever: set[str] = set()  # acknowledged at any time: a kill may have come before or after it was on disk
        self.saved: set[str] = set()  # acknowledged, and so long ago that it is on disk
        peer_of(self.sim, "bob").close()
        if seed % 3 == 0:
            self.sim.broker.create_topic(b"peerbus/bob", 1)
            self.sim.scheduler.run_until_idle()

    def send(self) -> None:
        name = self.random.choice(("amy", "cat"))
        if name not in self.senders:
            self.senders[name] = peer_of(self.sim, name)
        for _ in range(self.random.randrange(1, 5)):
            self.ids += 1
            id = f"{name}{self.ids}"
            to = self.random.choice(("bob", "bob", "*"))
            if to == "bob" or self.bob is not None:  # a broadcast is for who is connected
                self.sent[name].append(f"{id}|bob" if to == "*" else id)
            self.senders[name].feed(letter(name, to, id) + b"\n")
        self.sim.scheduler.run_until_idle()

    def other_door(self) -> None:
        topic = self.sim.broker.topics.get(b"peerbus/bob")
        if topic is not None:
            topic.publish(
                kernel.build([b"x"], origin=b"flymq:zed"),
                1,
                True,
                lambda offset, _: self.sent["door"].append(f"q:{topic.spec.identity}:0:{offset}"),
            )
            self.sim.scheduler.run_until_idle()

    def connect(self) -> None:
        """Also while there is one: then it is taken over."""
        self.sim.advance(11 * SECOND_US, SECOND_US)  # no loop of takeovers
        self.look()
        self.saved |= self.acked
        before, self.bob = self.bob, Slow(self.sim, PeerSession)
        self.bob.random = self.random
        self.here = []
        self.bob.room_bytes = self.random.choice((0, 1 << 20))
        self.bob.feed(wire.register("ann-token", "bob") + b"\n")
        self.sim.scheduler.run_until_idle()
        if before is not None:
            before.take()
            self.sim.advance(SECOND_US)
            assert before.session.closing is not None
            before.close()
            before.unpark()
        self.look()

    def close(self) -> None:
        if self.bob is not None:
            self.look()
            self.bob.close()
            self.bob = None

    def room(self) -> None:
        if self.bob is not None:
            self.bob.room_bytes = self.random.choice((0, 1 << 20))
            if self.bob.room_bytes:
                self.bob.unpark()
            self.sim.scheduler.run_until_idle()

    def look(self) -> None:
        if self.bob is None:
            return
        for one in objects(self.bob.take()):
            if one["type"] == "deliver":
                assert one["delivery_key"] not in self.here, "twice over one connection"
                assert one["delivery_key"] not in self.saved, "it was settled for good"
                self.here.append(one["delivery_key"])

    def ack(self) -> None:
        self.look()
        waiting = [key for key in self.here if key not in self.acked]
        if self.bob is None or not waiting:
            return
        keys = self.random.sample(waiting, self.random.randrange(1, len(waiting) + 1))
        self.bob.feed(b"".join(wire.ack(key) + b"\n" for key in keys))
        self.sim.scheduler.run_until_idle()
        self.acked |= set(keys)
        self.ever |= set(keys)

    def time(self) -> None:
        self.sim.advance(SECOND_US)
        self.look()
        self.saved |= self.acked

    def kill(self) -> None:
        """The process is gone; what was answered is on disk."""
        self.look()
        self.sim.disk.kill()
        self.sim.start()
        self.senders, self.bob = {}, None
        self.acked = set(self.saved)

    def restart(self) -> None:
        for peer in (*self.senders.values(), *([self.bob] if self.bob else [])):
            peer.close()
        self.sim.restart()
        self.senders, self.bob = {}, None
        self.acked = set(self.saved)

    def end(self) -> None:
        """Everything that was not settled for good comes over a new connection, in order."""
        self.connect()
        assert self.bob is not None
        while True:
            self.bob.room_bytes = 1 << 20
            self.bob.unpark()
            self.sim.advance(
                SECOND_US, SECOND_US // 4
            )  # what is on disk is read meanwhile, and may fill the socket again
            if not self.bob.parked:
                break
        self.look()
        for keys in self.sent.values():
            mine = set(keys)
            came = [key for key in self.here if key in mine]
            assert came == [key for key in keys if key in set(came)], "the order of one sender"
            missing = [key for key in keys if key not in self.here and key not in self.ever]
            assert missing == [], "lost"


@pytest.mark.parametrize("seed", range(60))
def test_a_random_life(seed: int) -> None:
    life = Life(seed)
    steps = [
        life.send,
        life.send,
        life.send,
        life.other_door,
        life.connect,
        life.close,
        life.room,
        life.ack,
        life.ack,
        life.time,
        life.kill,
        life.restart,
    ]
    for _ in range(40):
        life.random.choice(steps)()
    life.end()
