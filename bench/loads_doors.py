"""The loads of the Fast and the peerbus door: publishes with a token beside publishes without, fan-out beside nats-server,
peers that acknowledge beside a WebSocket server that only echoes, and what an idle peer costs."""

import resource
import time
from dataclasses import replace

from bench.harness import OURS, Bench, Comparison, Counts, Figure, Side
from bench.peerbus import Ring, register, run_ring

from bench import peers
from quintet.bench import run
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.fast import FastWire, token
from quintet.bench.generators import Load
from quintet.bench.machine import resident_bytes
from quintet.bench.processes import Crew
from quintet.bench.wire import Address, BenchError

KIB = 1024
SIZE = 128
PROBE_MESSAGES = 100_000
FANOUT = 64
FAST = f"{OURS} fast"
BLIP = "blipmq door of the same broker"
PEERS = 100
WINDOW = 64  # envelopes under way per peer
PEER_RATE = 50_000.0
ECHO_SHARE = 0.7
IDLE_PEERS = 10_000
IDLE_PEER_LIMIT_BYTES = 24 * KIB
IDLE_WARM = 200
SETTLE_S = 1.0
RUN_S_MAX = 300.0
TOKEN = "dev-token"


def address_of(server: peers.Server, listener: str) -> Address:
    host, _, port = server.listeners[listener].rpartition(":")
    return host, int(port)


def fast_publish(bench: Bench) -> None:
    """Publishes of 128 B, pipelined on one connection, beside the BlipMQ door of the same broker. Three times: with a token in
    each as long as the document's example, with the shortest that says the same, and with the long one shown once."""
    if not bench.sides({OURS: True}):
        return
    with bench.fresh("fast") as blip:
        server = replace(blip.server, address=address_of(blip.server, "fast"))
        for short, bare in ((False, False), (True, False), (False, True)):
            wire = FastWire(topics=("fastpub",), short=short, bare=bare)
            what = "token shown once" if bare else f"token of {len(token(wire.secret, short))} B"
            sides = [Side(FAST, wire, server, True), Side(BLIP, BlipmqWire(), blip.server, True)]
            _publish(bench, f"fast_publish {SIZE} B, {what}", sides)


def _publish(bench: Bench, name: str, sides: list[Side]) -> None:
    counts = Counts(bench.effort.seconds)

    def measured(side: Side, count: int) -> run.Outcome:
        return run.pipelined(Load(side.wire, side.address, "fastpub" if side.name == FAST else "blippub", SIZE), count)

    def warm(side: Side) -> None:
        counts.probed(side, measured(side, PROBE_MESSAGES))

    figures = bench.in_turn(name, sides, warm, lambda side, turn: measured(side, counts.of(side, sides)))
    bench.add(Comparison(name, "msg/s", figures, target=0.7))


def fast_fanout(bench: Bench) -> None:
    """One publisher to 64 subscribers of the Fast door, beside nats-server core."""
    if not bench.sides({OURS: True}):
        return
    name = f"fast_fanout 1 to {FANOUT}, {SIZE} B"
    counts = Counts(bench.effort.seconds)
    with bench.fresh("fast-fanout") as ours:
        server = replace(ours.server, address=address_of(ours.server, "fast"))
        sides = [Side(FAST, FastWire(), server, True), *bench.sides({"nats core": True})]

        def measured(side: Side, turn: int, count: int) -> run.Outcome:
            topic = f"fan.{turn:02d}"
            wire = replace(side.wire, topics=(topic,)) if isinstance(side.wire, FastWire) else side.wire
            return run.flow(Load(wire, side.address, topic, SIZE), count, FANOUT)

        def warm(side: Side) -> None:
            counts.probed(side, measured(side, 99, PROBE_MESSAGES // FANOUT), FANOUT)

        figures = bench.in_turn(name, sides, warm, lambda side, turn: measured(side, turn, counts.of(side, sides)).rate)
    bench.add(Comparison(name, "delivered/s", figures, target=1.0))


def _ring(address: Address, count: int, echo: bool) -> Ring:
    with Crew() as crew:
        crew.add("peers", run_ring, address, TOKEN, PEERS, WINDOW, count, echo)
        crew.line_up()
        crew.go()
        ring: Ring = crew.results(RUN_S_MAX)[0]
    return ring


def peerbus_acked(bench: Bench) -> None:
    """100 peers in a ring: durable direct messages with 256 B of body, delivered and acknowledged; beside picows alone."""
    if not bench.sides({OURS: True}):
        return
    name = f"peerbus_acked {PEERS} peers x {WINDOW} under way, 256 B of body"
    count = int(PEER_RATE * bench.effort.seconds)
    with bench.fresh("peerbus") as ours, peers.picows(bench.directory / "picows") as echo:
        figures = {OURS: Figure(OURS), "picows echo": Figure("picows echo")}
        for turn in range(-1, bench.effort.repetitions):
            for side, address in ((OURS, address_of(ours.server, "peerbus")), ("picows echo", echo.address)):
                ring = _ring(address, count, side != OURS)
                if turn >= 0:
                    figures[side].values.append(ring.messages / ring.seconds)
                    figures[side].busy.append(ring.busy_s / ring.seconds)
        target = min(PEER_RATE, ECHO_SHARE * figures["picows echo"].median)
    bench.add(Comparison(name, "msg/s", list(figures.values()), target=target, absolute=True))


def peerbus_idle(bench: Bench) -> None:
    """Resident memory of the broker per peer that is registered and silent."""
    if not bench.sides({OURS: True}):
        return
    wanted = IDLE_PEERS if bench.effort.idle_connections >= 5_000 else bench.effort.idle_connections
    # The sockets of both sides: this process has one each, the broker another.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    limits = {"QUINTET_LIMITS__CONNECTIONS_MAX": "20000", "QUINTET_LISTENERS__PEERBUS__CONNECTIONS_MAX": "20000"}
    with bench.fresh("peerbus-idle", limits) as ours:
        address = address_of(ours.server, "peerbus")
        for number in range(IDLE_WARM):
            register(address, TOKEN, f"warm{number:05d}").close()
        time.sleep(SETTLE_S)
        before = resident_bytes(ours.server.pid)
        opened = [register(address, TOKEN, f"idle{number:05d}") for number in range(wanted)]
        time.sleep(SETTLE_S)
        after = resident_bytes(ours.server.pid)
        if not ours.server.alive():
            raise BenchError("the broker did not survive its peers")
        for sock in opened:
            sock.close()
    name = f"memory per idle peer, {wanted:,} registered"
    bench.add(Comparison(name, "B", [Figure(OURS, [(after - before) / wanted])], "lower", IDLE_PEER_LIMIT_BYTES, True))
