"""The loads of the Felix door: bytes and round trips beside bare quinn, cache gets beside Redis over TLS, idle connections.

Every comparison with quinn is made twice: with quinn as it comes on all sides, which is how the published client comes,
and with the broker's own transport settings (datagrams of 16 KiB on loopback) on all sides.
"""

import contextlib
import resource
import time
from collections.abc import Iterator, Sequence

from bench.felix import CERTIFICATE, KEY, TUNED, Place, RedisTls, bare, lasting, place, run
from bench.harness import OURS, Bench, Comparison, Figure

from bench import peers
from quintet.bench.machine import resident_bytes
from quintet.bench.wire import BenchError

KIB = 1024
MIB = 1024 * KIB
RUN_BYTES = 384 * MIB
QUICK_BYTES = 32 * MIB
FANOUT = 10
OUTSTANDING = 32  # acknowledged batches under way: 2 MiB
BYTES_TARGET = 0.5
FANOUT_TARGET = 0.8
P50_TARGET, P99_TARGET = 1.4, 3.0
CACHE_TARGET = 0.8
CACHE_INFLIGHT, CACHE_STREAMS = 64, 8
REDIS_GETS = 300_000
IDLE_CONNECTIONS = 2_000
IDLE_WARM = 100
IDLE_LIMIT_BYTES = 120 * KIB
SETTLE_S = 2.0
PLAIN = "quinn as it comes"
SAME = "the broker's settings on all sides"
SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = ((PLAIN, ()), (SAME, TUNED))


@contextlib.contextmanager
def broker(bench: Bench, name: str, durability: str) -> Iterator[Place]:
    """A fresh broker whose topics have this durability."""
    settings = {"QUINTET_TOPICS__DURABILITY": durability}
    with peers.quintet(bench.directory / name, settings, door="felix") as server:
        yield place(server)


def _take(figure: Figure, said: dict[str, float], of: str = "bytes") -> None:
    figure.values.append(said[of] / said["seconds"])
    if "busy_s" in said:
        figure.busy.append(said["busy_s"] / said["seconds"])


def _bytes(bench: Bench) -> int:
    return RUN_BYTES if bench.effort.repetitions > 2 or bench.effort.seconds > 1 else QUICK_BYTES


def felix_bytes(bench: Bench) -> None:
    """Binary batches of 64 x 1 KiB, published and delivered, beside a bare quinn transfer of the same bytes."""
    if not bench.sides({OURS: True}):
        return
    size = _bytes(bench)
    here = bench.directory / "felix-bare"
    flows: dict[str, tuple[str, Sequence[object], float | None]] = {
        "memory, publisher and subscriber on one connection": ("memory", (), BYTES_TARGET),
        "memory, the subscriber on its own connection": ("memory", ("--connections", 1), BYTES_TARGET),
        f"fsync, acknowledged, {OUTSTANDING} batches under way": ("fsync", ("--outstanding", OUTSTANDING), None),
    }
    with broker(bench, "felix-mem", "memory") as memory, broker(bench, "felix-disk", "fsync") as disk:
        for settings, tuned in SETTINGS:
            theirs = Figure("bare quinn transfer")
            ours = {flow: Figure(f"{OURS} felix") for flow in flows}
            with bare("sink", here, *tuned) as sink:
                for turn in range(-1, bench.effort.repetitions):
                    sent = run("bare-send", sink, *tuned, "--bytes", size)
                    if turn >= 0:
                        _take(theirs, sent)
                    for flow, (topic, options, _) in flows.items():
                        where = memory if topic == "memory" else disk
                        said = run("felix-flow", where, *tuned, "--bytes", size, *options)
                        if turn >= 0:
                            _take(ours[flow], said)
            for flow, (_, _, target) in flows.items():
                name = f"felix_bytes {flow}; {settings}"
                bench.add(Comparison(name, "B/s", [ours[flow], theirs], target=target))


def felix_fanout(bench: Bench) -> None:
    """The same batches to 10 subscribers: bytes delivered in all, beside the same with one subscriber."""
    if not bench.sides({OURS: True}):
        return
    size = _bytes(bench)
    with broker(bench, "felix-fan", "memory") as memory:
        for settings, tuned in SETTINGS:
            for apart, connections in ((False, "one connection"), (True, "each on its own connection")):
                one, many = Figure("one subscriber"), Figure(f"{OURS} felix")
                for turn in range(-1, bench.effort.repetitions):
                    single = run("felix-flow", memory, *tuned, "--bytes", size, "--connections", int(apart))
                    spread = ("--subscribers", FANOUT, "--connections", FANOUT * apart)
                    all_of_them = run("felix-flow", memory, *tuned, "--bytes", size // FANOUT * 2, *spread)
                    if turn >= 0:
                        _take(one, single)
                        _take(many, all_of_them)
                name = f"felix_fanout 1 to {FANOUT}, {connections}; {settings}"
                bench.add(Comparison(name, "B/s", [many, one], target=FANOUT_TARGET))


def felix_acked(bench: Bench) -> None:
    """One publish of 100 B under way, acknowledged each, beside a bare quinn round trip of as many bytes."""
    if not bench.sides({OURS: True}):
        return
    seconds = ("--seconds", bench.effort.seconds)
    asked = (("memory", "json"), ("memory", "binary"), ("fsync", "json"))
    with (
        broker(bench, "felix-ack-mem", "memory") as memory,
        broker(bench, "felix-ack-disk", "fsync") as disk,
        bare("echo", bench.directory / "felix-bare") as echo,
    ):
        trips: dict[str, list[dict[str, float]]] = {"bare": [], **{f"{topic} {form}": [] for topic, form in asked}}
        for turn in range(-1, bench.effort.repetitions):
            said = {"bare": run("bare-rtt", echo, *seconds)}
            for topic, form in asked:
                where = memory if topic == "memory" else disk
                said[f"{topic} {form}"] = run("felix-rtt", where, "--form", form, *seconds)
            if turn >= 0:
                for name, figures in said.items():
                    trips[name].append(figures)
    for topic, form in asked:
        for share, target in (("p50", P50_TARGET), ("p99", P99_TARGET)):
            ours = Figure(f"{OURS} felix", [figures[f"{share}_us"] for figures in trips[f"{topic} {form}"]])
            theirs = Figure("bare quinn round trip", [figures[f"{share}_us"] for figures in trips["bare"]])
            name = f"felix_acked {share}, {form}, {topic}"
            wanted = target if topic == "memory" else None
            bench.add(Comparison(name, "us", [ours, theirs], "lower", wanted))


def felix_cache(bench: Bench) -> None:
    """Cache gets, 64 under way on 8 streams of one connection, beside Redis GET over TLS on 8 connections with 8 in each
    write. 10,000 keys with values of 100 B; every reply of ours is checked, and no get of Redis may miss."""
    if not bench.sides({OURS: True}):
        return
    gets = max(10_000, int(REDIS_GETS * bench.effort.seconds / 1.5))
    options = ("--inflight", CACHE_INFLIGHT, "--streams", CACHE_STREAMS, "--seconds", bench.effort.seconds)
    root = bench.directory / "felix-cache"
    with (
        broker(bench, "felix-cache", "memory") as where,
        peers.redis_tls(bench.directory / "redis-tls", root / CERTIFICATE, root / KEY) as server,
    ):
        redis = RedisTls(server.address, root / CERTIFICATE)
        redis.fill()
        figures: dict[str, list[dict[str, float]]] = {OURS: [], "redis": []}
        for turn in range(-1, bench.effort.repetitions):
            ours = run("felix-cache", where, *options)
            theirs = redis.gets(gets)
            if turn >= 0:
                figures[OURS].append(ours | {"rate": ours["operations"] / ours["seconds"]})
                figures["redis"].append(theirs)
        if redis.misses():
            raise BenchError("Redis was asked for keys it does not have")
    for unit, of, better, target in (
        ("get/s", "rate", "higher", CACHE_TARGET),
        ("us", "p50_us", "lower", None),
        ("us", "p99_us", "lower", None),
    ):
        sides = [Figure(f"{OURS} felix", [said[of] for said in figures[OURS]])]
        sides.append(Figure("redis over TLS", [said[of] for said in figures["redis"]]))
        what = of.removesuffix("_us") if unit == "us" else "gets"
        name = f"felix_cache {what}, {CACHE_INFLIGHT} under way on {CACHE_STREAMS} streams"
        bench.add(Comparison(name, unit, sides, "higher" if better == "higher" else "lower", target))


def felix_idle(bench: Bench) -> None:
    """Resident memory of the broker per connection that is authenticated on one stream and silent."""
    if not bench.sides({OURS: True}):
        return
    wanted = IDLE_CONNECTIONS if bench.effort.idle_connections >= IDLE_CONNECTIONS else bench.effort.idle_connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with peers.quintet(bench.directory / "felix-idle", door="felix") as server:
        where = place(server)
        with lasting("felix-idle", *where.options, "--connections", IDLE_WARM):
            time.sleep(SETTLE_S / 2)
        time.sleep(SETTLE_S)
        before = resident_bytes(server.pid)
        with lasting("felix-idle", *where.options, "--connections", wanted) as held:
            time.sleep(SETTLE_S)
            after = resident_bytes(server.pid)
            if not server.alive() or held["connections"] != wanted:
                raise BenchError(f"the broker did not hold {wanted} connections")
    name = f"memory per idle QUIC connection, {wanted:,} open"
    figure = Figure(f"{OURS} felix", [(after - before) / wanted])
    bench.add(Comparison(name, "B", [figure], "lower", IDLE_LIMIT_BYTES, absolute=True))
