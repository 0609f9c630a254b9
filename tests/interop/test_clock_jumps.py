"""The wall clock is set while a timer runs: every timer ends at its time, and nothing is deleted by a jump alone.

TIMERS is the table of all timers: each is armed, the clock is set in one of three ways, and it must not have ended a quarter
before its time and must have ended a quarter after it. `test_every_timer_is_in_the_table` finds a module that measures time and
has no row.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import pytest

from quintet.broker.atomic.intent_rows import Effect
from quintet.broker.atomic.intents import MARK_KEEP_US, RETRY_EVERY_US
from quintet.broker.atomic.stages import STAGE_KEEP_US
from quintet.broker.consumers.coordinator import SESSION_TIMEOUT_US
from quintet.broker.core import BrokerOptions
from quintet.broker.doors.peers import TAKEOVERS_MAX, TAKEOVERS_WITHIN_US
from quintet.broker.doors.pipelines import FORGET_US, Pipelines, Report
from quintet.broker.identity.access import Principal
from quintet.broker.sections import DeliverySection, QueueSection, Tenant
from quintet.log.base import TopicSpec
from quintet.log.embedded.partitions.partition import IDLE_CLOSE_US, FilePartition
from quintet.model import limits
from quintet.model.errors import Busy
from quintet.model.tasks import completed, start
from quintet.net.listener import Failures
from quintet.net.websocket import FRAGMENTS_US, Heartbeat, WebSocketSession
from quintet.protocols.base import Session
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.doors import PROTOCOLS
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer, SimBroker
from quintet.testing.sim import START_US, SimScheduler
from tests.broker.parts import Parts
from tests.broker.test_stages import Staging
from tests.log.support import TOPIC, Harness
from tests.protocols.blipmq.helpers import publish, ready, subscribed, values_of
from tests.protocols.fast import helpers as fast_helpers
from tests.protocols.felix import helpers as felix_helpers
from tests.protocols.flymq import helpers as fly_helpers
from tests.protocols.peerbus import helpers as peer_helpers
from tests.test_tidy import ROOT, files
from tests.wire import blipmq as blip
from tests.wire import fast, peerbus

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
# How far the clock is set, and for how long it stays so (in parts of 5 s or a quarter of the timer, whichever is less).
JUMPS = {
    "back an hour": ((-HOUR, 0),),
    "a day ahead": ((DAY, 0),),
    "40 days ahead for 5 s": ((40 * DAY, 1), (-40 * DAY, 0)),
}
jumps = pytest.mark.parametrize("jump", JUMPS.values(), ids=list(JUMPS))


class World(Protocol):
    """Something that time passes in: SimBroker and Parts are."""

    scheduler: SimScheduler

    def advance(self, delta_us: int, step_us: int) -> None: ...


class Alone:
    """A scheduler, and something that is told the time."""

    def __init__(self, tick: Callable[[int], object] = lambda _: None, scheduler: SimScheduler | None = None) -> None:
        self.scheduler = scheduler or SimScheduler()
        self._tick = tick

    def advance(self, delta_us: int, step_us: int) -> None:
        for _ in range(max(1, delta_us // step_us)):
            self.scheduler.advance(step_us)
            self._tick(self.scheduler.monotonic())
            self.scheduler.run_until_idle()


Armed = tuple[World, Callable[[], bool]]  # and whether it has ended


class Timer(NamedTuple):
    """`of` are the modules whose time is measured here."""

    name: str
    of: tuple[str, ...]
    due_us: int
    arm: Callable[[], Armed]


def set_clock(world: World, jump: tuple[tuple[int, int], ...], due_us: int, step_us: int) -> int:
    """Set it, and say how much time passed meanwhile."""
    passed = 0
    for by_us, stays in jump:
        world.scheduler.jump(by_us)
        if stays:
            passed += step_us * max(1, min(5 * SECOND, due_us // 4) // step_us)
            world.advance(passed, step_us)
        else:
            world.advance(step_us, step_us)
            passed += step_us
    return passed


# -- who says nothing ---------------------------------------------------------------------------------------------------


def looked_at(world: World, session: Session) -> bool:
    """As a connection looks at its session's deadline."""
    deadline = session.deadline()
    if deadline is not None and world.scheduler.monotonic() >= deadline:
        session.tick(world.scheduler.monotonic())
    return session.closing is not None


def stranger(sim: SimBroker, peer: Peer) -> Armed:
    return sim, partial(looked_at, sim, peer.session)


def blip_stranger() -> Armed:
    sim = SimBroker()
    return stranger(sim, Peer(sim, BlipSession))


def fly_stranger() -> Armed:
    sim = fly_helpers.make_sim()
    return stranger(sim, fly_helpers.Client(sim).peer)


def fast_stranger() -> Armed:
    sim = fast_helpers.FastSim()
    return stranger(sim, sim.peer())


def peer_stranger() -> Armed:
    sim = peer_helpers.broker()
    return stranger(sim, peer_helpers.connect(sim))


def felix_stranger() -> Armed:
    sim = felix_helpers.FelixSim()
    return stranger(sim, sim.connect().stream())


def message_in_pieces() -> Armed:
    sim = peer_helpers.broker()
    heart = Heartbeat(asyncio.new_event_loop(), 30)
    heart._loop.close()

    class FlightConnection(Peer):
        def watch(self) -> None:
            """Deadlines are looked at by whoever lets time pass."""

    def make(broker: Any, sink: Any, monotonic: int) -> Session:
        inner = PeerSession(broker, sink, monotonic, framed=False)
        return WebSocketSession(inner, sink, heart, sim.scheduler.monotonic)

    peer = FlightConnection(sim, make)
    peer.feed(
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    register = peerbus.register("ann-token", "amy")
    peer.exchange(bytes([0x81, 0x80 | len(register)]) + bytes(4) + register)
    assert peer.session.principal_name == "ann" and peer.session.deadline() is None
    peer.take()
    peer.feed(bytes([0x01, 0x81]) + bytes(4) + b"x")

    def ended() -> bool:
        looked_at(sim, peer.session)
        return b"in pieces took over" in b"".join(peer.session.take_output())

    return sim, ended


# -- deliveries and members ---------------------------------------------------------------------------------------------

ANN = fast_helpers.token()
PUSH = BrokerOptions(delivery=DeliverySection(push_timeout_seconds=8, retry_backoff_seconds=8))


def blip_push() -> Armed:
    sim = SimBroker(options=PUSH)
    peer = ready(sim, 2)
    subscribed(peer, b"t")
    assert values_of(peer.exchange(publish(b"t", b"x"))) == [b"x"]
    return sim, lambda: values_of(peer.take()) == [b"x"]


def blip_poll() -> Armed:
    sim = SimBroker(options=PUSH)
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"x"))
    assert values_of(peer.exchange(blip.poll(1, subscription))) == [b"x"]
    return sim, lambda: values_of(peer.exchange(blip.poll(1, subscription))) == [b"x"]


def felix_push() -> Armed:
    sim = felix_helpers.FelixSim(PUSH)
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(felix_helpers.batch(b"x", request_id=1))
    stream.ask(felix_helpers.subscribe(subscription_id=1, ack="explicit", start="earliest"))
    (outlet,) = connection.outlets

    def pushed() -> bool:
        return (0, [b"x"]) in outlet.take()

    assert pushed()
    return sim, pushed


def silent_member() -> Armed:
    sim = fly_helpers.make_sim()
    admin, client = fly_helpers.Client(sim, "admin"), fly_helpers.Client(sim, "admin")
    admin.ask("CREATE_TOPIC", topic="t", partitions=2)
    client.ask("SUBSCRIBE", topic="t", group="g", partition=-1, mode="latest", member="")
    return sim, lambda: admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 0


def transaction() -> Armed:
    sim = fly_helpers.make_sim()
    client = fly_helpers.Client(sim, "admin")
    client.ask("TXN_BEGIN", transactional_id="", timeout_ms=40_000)
    return sim, lambda: sim.broker.transactions.aborted == 1


def long_poll() -> Armed:
    sim = SimBroker()
    topic = sim.broker.topics.ensure(b"t", durable=True)
    sim.scheduler.run_until_idle()
    called: list[bool] = []
    sim.broker.wait_for(topic, topic.partitions[0], 8 * SECOND, lambda _: called.append(True))
    return sim, lambda: bool(called)


def idle_subscription() -> Armed:
    sim = SimBroker(options=BrokerOptions(delivery=DeliverySection(subscription_idle_seconds=20 * 86_400)))
    peer = ready(sim)
    subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"backlog"))
    peer.close()
    return sim, lambda: len(sim.broker.subscriptions) == 0


def rotated_key() -> Armed:
    sim = fast_helpers.FastSim(QueueSection(rotation_grace_seconds=40))
    owner = sim.peer(fast.create(ANN, b"demo"))
    sim.peer(fast.subscribe(fast_helpers.token("bob"), fast_helpers.DEMO))
    owner.exchange(fast.rotate_key(ANN, fast_helpers.DEMO, b"k2"))
    return sim, lambda: sim.broker.queues.members == 0


# -- rates --------------------------------------------------------------------------------------------------------------


def fast_rate() -> Armed:
    sim = fast_helpers.FastSim(subject_messages_per_second_max=10)
    peer = sim.peer(fast.create(ANN, b"demo"))
    peer.exchange(fast_helpers.publish(ANN, *[b"x"] * 90))
    assert peer.held()
    return sim, lambda: not peer.held()


def tenant_rate() -> Armed:
    quota = Tenant(name="t", publish_bytes_per_second_max=1_000)
    sim = felix_helpers.FelixSim(BrokerOptions(tenants={"t1": quota}))
    stream = sim.connect().auth(felix_helpers.token(sim.now_s, life_s=100 * 86_400), felix_helpers.PLAIN)
    stream.ask(felix_helpers.batch(bytes(8_500), request_id=1))
    assert stream.held()
    return sim, lambda: not stream.held()


def failed_logins() -> Armed:
    failures, world = Failures(1), Alone()
    failures.add("10.0.0.1", 0)
    return world, lambda: not failures.blocked("10.0.0.1", world.scheduler.monotonic())


def refusals_in_the_audit() -> Armed:
    sim = SimBroker()
    audit = sim.broker.audit
    for _ in range(150):
        audit.record("access.denied", "", "", "denied")
    assert audit.left_out == 50
    before = audit.recorded
    return sim, lambda: audit.recorded > before  # the summary of what was left out


def takeovers() -> Armed:
    sim = peer_helpers.broker()
    for _ in range(TAKEOVERS_MAX + 1):
        peer_helpers.peer_of(sim, "amy")

    def free() -> bool:
        try:
            sim.broker.peers.register("amy", Principal("ann"))
        except Busy:
            return False
        return True

    return sim, free


# -- what is kept for a time --------------------------------------------------------------------------------------------


def peer_name() -> Armed:
    sim = peer_helpers.broker(name_idle_seconds=20 * 86_400)
    peer_helpers.peer_of(sim, "amy").close()
    return sim, lambda: sim.broker.peers.find("amy") is None


def ids_of_messages() -> Armed:
    sim = peer_helpers.broker(replay_window_seconds=3_600)
    amy, bob = peer_helpers.peer_of(sim, "amy"), peer_helpers.peer_of(sim, "bob")
    window_us = sim.broker.peers.options.fresh_us
    ids = iter(range(1_000_000))

    def known() -> int:
        peer_helpers.send(amy, peer_helpers.letter("amy", "bob", f"n{next(ids)}"))
        return sim.broker.peers.remembered

    peer_helpers.send(amy, *[peer_helpers.letter("amy", "bob", f"m{n}") for n in range(50)])
    bob.take()
    assert window_us == 2 * HOUR
    return sim, lambda: known() < 50


class Nothing(Effect, frozen=True, array_like=True):
    kind: ClassVar[str] = "x"


def outcome_of_a_token() -> Armed:
    parts = Parts(register=lambda parts: parts.intents.on_effect(Nothing, lambda _: completed(None)))
    start(parts.intents.commit([], [Nothing()], token="t"))
    parts.scheduler.run_until_idle()
    assert parts.intents.outcome("t") is not None
    return parts, lambda: parts.intents.outcome("t") is None


def refused_effect() -> Armed:
    tries: list[int] = []

    async def refuse(_effect: Nothing) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Busy("not yet")

    parts = Parts(register=lambda parts: parts.intents.on_effect(Nothing, refuse))
    start(parts.intents.commit([], [Nothing()]))
    parts.scheduler.run_until_idle()
    assert len(tries) == 1
    return parts, lambda: len(tries) == 2


def stage() -> Armed:
    parts = Staging()
    parts.stage(0, [b"never committed"])
    return parts, lambda: len(parts.stages) == 0


def report_of_a_pipeline() -> Armed:
    known, world = Pipelines(), Alone()
    known.report("ann", Report("p", "archive", "running"), 0)
    return world, lambda: not known.seen("", True, world.scheduler.monotonic())


# -- the log, and what is saved from time to time -----------------------------------------------------------------------


def logged(durability: str) -> tuple[Harness, FilePartition]:
    harness = Harness()
    partition = harness.open(TopicSpec(TOPIC, "t", durability=durability))  # type: ignore[arg-type]
    assert isinstance(partition, FilePartition)
    return harness, partition


def upkeep(harness: Harness) -> Alone:
    return Alone(lambda _: harness.log.maintain(harness.scheduler.now()), harness.scheduler)


def idle_file() -> Armed:
    harness, partition = logged("fsync")
    harness.write(partition, 1)
    return upkeep(harness), lambda: partition.segments[-1].handle < 0


def full_disk() -> Armed:
    harness, partition = logged("fsync")
    world = upkeep(harness)
    world.advance(SECOND, SECOND)
    capacity, harness.sim.capacity = harness.sim.capacity, 0
    harness.append(partition, [b"x"])
    harness.scheduler.run_until_idle()
    harness.sim.capacity = capacity
    assert partition.failure is not None
    return world, lambda: partition.failure is None


def anchors() -> Armed:
    harness = Harness(chain="durable", anchor_file="/data/anchors", anchor_us=40 * SECOND)
    partition, world = harness.open(), upkeep(harness)
    harness.write(partition, 1)
    world.advance(SECOND, SECOND)
    before = harness.log.stats()["anchors"]
    harness.write(partition, 1)
    return world, lambda: harness.log.stats()["anchors"] > before


TIMERS = (
    Timer("a stranger at the BlipMQ door", ("protocols/blipmq/session.py",), limits.HANDSHAKE_US, blip_stranger),
    Timer("a stranger at the FlyMQ door", ("protocols/flymq/session.py",), limits.HANDSHAKE_US, fly_stranger),
    Timer("a stranger at the Fast door", ("protocols/fast/session.py",), limits.HANDSHAKE_US, fast_stranger),
    Timer("a stranger at the peerbus door", ("protocols/peerbus/session.py",), limits.HANDSHAKE_US, peer_stranger),
    Timer("a stranger at the Felix door", ("protocols/felix/session.py",), limits.HANDSHAKE_US, felix_stranger),
    Timer("a message in pieces", ("net/websocket.py",), FRAGMENTS_US, message_in_pieces),
    Timer("a push of BlipMQ", ("delivery/lane.py", "delivery/consumer.py"), 8 * SECOND, blip_push),
    Timer("a poll of BlipMQ", ("delivery/subscription.py",), 8 * SECOND, blip_poll),
    Timer("a push of Felix", ("delivery/subscription.py",), 8 * SECOND, felix_push),
    Timer("a silent member", ("broker/consumers/coordinator.py", "broker/core.py"), SESSION_TIMEOUT_US, silent_member),
    Timer("a transaction", ("broker/atomic/transactions.py",), 40 * SECOND, transaction),
    Timer("a long poll", ("broker/topics/long_polls.py",), 8 * SECOND, long_poll),
    Timer("an idle subscription with backlog", ("broker/consumers/subscriptions.py",), 20 * DAY, idle_subscription),
    Timer("the old key of a queue", ("broker/doors/queues.py",), 40 * SECOND, rotated_key),
    Timer("the rate of a subject", ("protocols/fast/session.py", "model/rate.py"), 8 * SECOND, fast_rate),
    Timer("the rate of a tenant", ("protocols/felix/session.py", "broker/identity/tenants.py"), 8 * SECOND, tenant_rate),
    Timer("failed logins", ("net/listener.py",), 60 * SECOND, failed_logins),
    Timer("refusals in the audit", ("broker/audit/audit_log.py",), SECOND, refusals_in_the_audit),
    Timer("takeovers of a name", ("broker/doors/peers.py",), TAKEOVERS_WITHIN_US, takeovers),
    Timer("an idle peer name", ("broker/doors/peers.py",), 20 * DAY, peer_name),
    Timer("the outcome of a token", ("broker/atomic/intents.py", "model/clocks.py"), MARK_KEEP_US, outcome_of_a_token),
    Timer("a refused effect", ("broker/atomic/intents.py",), RETRY_EVERY_US, refused_effect),
    Timer("a stage", ("broker/atomic/stages.py",), STAGE_KEEP_US, stage),
    Timer("the report of a pipeline", ("broker/doors/pipelines.py",), FORGET_US, report_of_a_pipeline),
    Timer("an idle file", ("log/embedded/partitions/upkeep.py", "log/embedded/engine.py"), IDLE_CLOSE_US, idle_file),
    Timer("a full disk", ("log/embedded/partitions/partition.py",), SECOND, full_disk),
    Timer("anchors", ("log/embedded/anchoring.py",), 40 * SECOND, anchors),
)  # fmt: skip

ELSEWHERE = {
    "bench/generators.py": "measures, and ends nothing",
    "bench/subscribers.py": "measures, and ends nothing",
    "broker/bearer.py": "tests/interop/test_clock_dates.py::test_a_token_ends_with_its_date_whatever_the_clock_does",
    "broker/consumers/polled_members.py": "waits by Scheduler.later",
    "broker/identity/logins.py": "remembers a password that was right; tests/abuse/test_login_storm.py",
    "broker/audit/delivery_events.py": "tests/broker/test_events.py: rows are written within EVERY_US",
    "broker/atomic/producers.py": "tests/protocols/flymq/test_producers.py: snapshots; the log itself has the rest",
    "broker/doors/seen_ids.py": "tests/protocols/peerbus/test_mailboxes.py: ids are remembered for a window",
    "broker/slices.py": "ends a slice within milliseconds",
    "broker/consumers/lag_samples.py": "tests/broker/test_lag_samples.py: a sample is kept for SAMPLE_US",
    "broker/topics/replies.py": "tests/broker/test_replies.py",
    "broker/follower.py": "tests/broker/test_follower.py: how old a state may be, by simulated time",
    "cell_cluster.py": "hands the time to what nodes say of themselves",
    "cell_server.py": "measures a take-over, and ends nothing",
    "cells/figures.py": "how old figures of other cells are; tests/cells/test_refusals.py",
    "cells/node.py": "since when another node should lead, when certificates were read; tests/crash/test_kafka_cells.py",
    "cells/supervisor.py": "counts restarts within a window; a process without a simulated clock",
    "cli/folder/repair.py": "is a scheduler without time",
    "cli/operate/scrape.py": "measures rates between two looks",
    "cli/folder/backup.py": "hands both clocks to a backup",
    "log/embedded/backup/cut.py": "tests/cli/test_backup.py: the clock is set back and ahead while a backup is made",
    "kernel/pure_lent.py": "is handed the time by lending.py",
    "kernel/pure_tails.py": "hands the time to pure_lent.py",
    "log/embedded/partitions/lone.py": "measures, and ends nothing",
    "log/embedded/partitions/unsynced.py": "a journal that was not made is tried again; tests/log/test_unsynced.py, by simulated time",
    "log/embedded/partitions/lending.py": "since when a segment lacks something; tests/log/test_lending.py, by simulated time",
    "log/embedded/partitions/lendable.py": "says when a chunk was staged",
    "log/replicated/trimming.py": "tests/log/test_cell_trimming.py, by simulated time",
    "net/cells/back.py": "hands the time to sessions",
    "net/cells/front.py": "hands the time to sessions",
    "net/cluster/peers.py": "who answered lately; tests/net/test_cluster.py",
    "spark/source/nodes.py": "tests/spark/test_nodes.py, with a clock of its own",
    "log/replicated/engine.py": "tests/log/test_cell_log.py and test_cells.py, by simulated time",
    "log/replicated/pauses.py": "tests/log/test_cell_pauses.py, by simulated time",
    "log/replicated/partition.py": "says when a turn was shipped",
    "log/replicated/replica.py": "tests/log/test_cells.py, by simulated time",
    "logs.py": "tests/test_logs.py: the window in which a flood is summed up",
    "console/app.py": "hands the time to sessions and rates",
    "console/pages/dead.py": "a frozen selection; tests/console/test_api.py",
    "console/pages/holdings.py": "shows how old a transaction is",
    "console/pages/schemas.py": "shows pipelines",
    "console/sessions.py": "tests/console/test_sessions.py, by simulated time",
    "console/pages/topics.py": "shows since when a group waits",
    "delivery/traces.py": "tests/telemetry/test_traces.py: a bound on the rate of spans",
    "figures.py": "shows pipelines",
    "flight/login.py": "tests/flight/test_put.py::test_a_login_lasts_its_time_whatever_the_clock_does",
    "flight/streams.py": "shows since when a stream is open",
    "flight/outgoing.py": "cuts who takes nothing; tests/flight/test_stalls.py",
    "flight/verbs.py": "hands the time to broker/doors/pipelines.py",
    "log/embedded/partitions/commit.py": "tests/log/test_journal.py: a journal that could not be made is tried again",
    "log/embedded/partitions/roles.py": "says what partitions are asked",
    "log/embedded/partitions/shared.py": "hands the time to upkeep",
    "log/embedded/partitions/syncing.py": "syncs and idle files of upkeep; tests/log/test_upkeep.py",
    "broker/identity/metering.py": "is given the time; tests/broker/test_quotas.py",
    "broker/identity/quotas.py": "counts storage by the time of ticks; tests/broker/test_quotas.py",
    "flight/pacing.py": "hands the time to meters",
    "protocols/felix/mapping.py": "hands the time to meters",
    "net/connection.py": "tests/net/test_clocks.py",
    "net/flow_control.py": "tests/net/test_clocks.py",
    "net/doors.py": "hands the time to listeners and sessions",
    "net/loop.py": "is the clock",
    "net/quic/listener.py": "tests/net/test_quic_streams.py: ClockedListener",
    "net/quic/streams.py": "tests/net/test_quic_streams.py: ClockedListener",
    "net/quic/writers.py": "tests/net/test_quic_streams.py: ClockedListener",
    "protocols/base.py": "the contract",
    **{f"protocols/{name}/door.py": "hands the time to sessions" for name in PROTOCOLS},
    "server.py": "hands the time to sessions; collects garbage",
    "spark/sessions/launch.py": "waits for a process",
    "spark/source/connection.py": "tries again",
    "spark/pipelines/lag.py": "waits between two samples",
    "spark/pipelines/restore.py": "tests/spark/test_archive.py, by a clock of its own",
    "spark/pipelines/running/runner.py": "tests/spark/test_runner.py, by a clock of its own",
    "testing/line.py": "is the simulator",
}


@jumps
@pytest.mark.parametrize("timer", TIMERS, ids=[timer.name for timer in TIMERS])
def test_a_timer_ends_at_its_time(timer: Timer, jump: tuple[tuple[int, int], ...]) -> None:
    world, ended = timer.arm()
    step_us = max(timer.due_us // 16, 50_000)
    passed = set_clock(world, jump, timer.due_us, step_us)
    assert not ended(), "at the jump"
    world.advance(timer.due_us * 3 // 4 - passed, step_us)
    assert not ended(), "before its time"
    world.advance(timer.due_us // 2, step_us)
    assert ended(), "after its time"


@pytest.mark.parametrize(
    "timer", [timer for timer in TIMERS if timer.arm is not long_poll], ids=lambda timer: timer.name
)
def test_a_timer_that_follows_the_wall_clock_is_caught(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for long polls, which end by Scheduler.later."""
    monkeypatch.setattr(SimScheduler, "monotonic", lambda self: self.now() - START_US)
    caught = 0
    for jump in JUMPS.values():
        try:
            test_a_timer_ends_at_its_time(timer, jump)
        except AssertionError:
            caught += 1
    assert caught


def test_every_timer_is_in_the_table() -> None:
    """Modules that read the monotonic clock or are given its time. One that is listed and does neither is a finding, too."""
    measures = re.compile(r"\.monotonic(?:_ns)?\b|\bmonotonic: (?:int|Callable)")
    found = {
        name.removeprefix("src/quintet/")
        for name, path in files(ROOT)
        if name.startswith("src/quintet/") and name.endswith(".py") and measures.search(path.read_text())
    }
    assert found == {place for timer in TIMERS for place in timer.of} | set(ELSEWHERE)
