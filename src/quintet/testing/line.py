"""The whole line without a socket: a broker on a simulated disk and clock, and peers that drive sessions by hand.

`SimBroker` is what server.py builds, minus net/. `Peer` is what net/connection.py is to a session: it feeds bytes in any
chunking, drains after every call, and implements Sink; its `room` is the test's to set.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from msgspec.structs import replace

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import Credential, hash_secret
from quintet.broker.identity.metering import Meter
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.batch import RecordBatch
from quintet.protocols.base import Session
from quintet.protocols.doors import origins
from quintet.testing.sim import SimDisk, SimScheduler

DATA = Path("/data")
ROOM_BYTES = 1 << 20

SessionMaker = Callable[[Broker, "Peer", int], Session]


class SimBroker:
    """A broker that can be run turn by turn, stopped, cut off and started again on the same disk."""

    def __init__(self, keys: dict[str, str] | None = None, options: BrokerOptions | None = None) -> None:
        self.keys = keys or {"dev": "dev-key"}
        self.options = replace(options or BrokerOptions(), entropy=Random(0).randbytes, doors=origins())
        self.disk = SimDisk()
        self.scheduler = SimScheduler()
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.start()

    def start(self) -> None:
        self.log = EmbeddedLog(
            DATA, self.disk, self.scheduler, lambda event, fields: self.reports.append((event, fields))
        )
        self.log.recover()
        self.broker = Broker(self.log, self.scheduler, self.options, lambda e, f: self.reports.append((e, f)))
        self.broker.set_credentials(Credential(name, hash_secret(key.encode())) for name, key in self.keys.items())
        self.scheduler.run_until_idle()

    def stop(self) -> None:
        closed: list[bool] = []
        self.broker.drain(lambda: closed.append(True))
        self.scheduler.run_until_idle()
        assert closed, "the log did not close"

    def restart(self) -> None:
        self.stop()
        self.start()

    def advance(self, delta_us: int, step_us: int = 50_000) -> None:
        """Let time pass, with the broker's tick every step."""
        for _ in range(max(1, delta_us // step_us)):
            self.scheduler.advance(step_us)
            self.broker.tick()
            self.scheduler.run_until_idle()


class Peer:
    """One client of a SimBroker, over one session."""

    turn_frames = 0  # when the session has looked so often a turn is over; 0: never
    alone = False  # every read is the only one of its pass: what it brings is ended before the next (ADR 32)

    def __init__(self, sim: SimBroker, make: SessionMaker) -> None:
        self.sim = sim
        self.output = bytearray()
        self.room_bytes = ROOM_BYTES
        self.meter: Meter | None = None
        self.parked: list[Callable[[], None]] = []
        self.evicted: str | None = None
        self.offers = 0  # how often the session was given what it had left
        self._looks = 0
        self._rest = b""
        self._receiving = False
        self._lost = False  # closed: like a connection, it hands nothing on any more
        self.session = make(sim.broker, self, sim.scheduler.monotonic())

    def feed(self, data: bytes, chunks: Iterable[int] | None = None) -> None:
        """Bytes arrive, cut at these sizes (then whole); the turn does not end in between."""
        position = 0
        for size in [*(chunks or ()), len(data)]:
            piece = data[position : position + size]
            position += len(piece)
            if piece and self.session.closing is None:
                self._rest += piece
                if not self.session.holding and not (self.session.stopped and self.room_bytes <= 0):
                    self._offer()
                    if self.session.stopped:
                        self._let_go()

    def _offer(self) -> None:
        self._looks = 0
        self._receiving = True
        self.sim.scheduler.lone_read.under_way = self.alone
        consumed = self.session.receive(memoryview(self._rest), self.sim.scheduler.now())
        self._receiving = self.sim.scheduler.lone_read.under_way = False
        self._rest = self._rest[consumed:]
        self._drain()

    def _let_go(self) -> None:
        while not (self._receiving or self.session.holding or self.session.closing is not None or self.room_bytes <= 0):
            if not self._rest and not self.session.stopped:
                return
            self.offers += 1
            self._offer()
            if not self.session.stopped:
                return

    def exchange(self, data: bytes, chunks: Iterable[int] | None = None) -> bytes:
        """Feed, let the broker come to rest, and take what came back."""
        self.feed(data, chunks)
        self.sim.scheduler.run_until_idle()
        return self.take()

    def take(self) -> bytes:
        taken = bytes(self.output)
        self.output.clear()
        return taken

    def close(self) -> None:
        self.parked.clear()
        self._lost = True
        self.session.closed()

    def unpark(self) -> None:
        parked, self.parked = self.parked, []
        for call in parked:
            call()

    def resume(self) -> None:
        """There is room again: what the session left is offered once more."""
        self._let_go()

    def _drain(self) -> None:
        for piece in self.session.take_output():
            self.output += piece

    # -- Sink ------------------------------------------------------------------------------------------------------

    def room(self) -> int:
        return self.room_bytes

    def turn_over(self) -> bool:
        self._looks += 1
        return 0 < self.turn_frames <= self._looks

    def park(self, call: Callable[[], None]) -> None:
        self.parked.append(call)

    def claim(self, size: int, token: object) -> bool:
        return True

    def unclaim(self) -> None:
        pass

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        if not self._lost:
            self.session.on_appended(token, offset, error)
            self._drain()
            self._let_go()

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        if not self._lost:
            self.session.on_completed(token, result, error)
            self._drain()
            self._let_go()

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        if not self._lost:
            self.session.on_records(subscription, partition, batch, first, last)
            self._drain()

    def evict(self, reason: str) -> None:
        self.evicted = reason
