"""What the running broker says of itself: metric families, health checks, the lines of `--dev`. Reads, never changes."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import quote

from quintet import __version__, config, kernel
from quintet.admin.health import Check
from quintet.admin.metrics import Family
from quintet.broker.doors.pipelines import ENDED, Report
from quintet.net.listener import Listener
from quintet.net.output import OutputBudget
from quintet.net.quic.listener import QuicListener
from quintet.net.turns import BOUNDS_S, Turns
from quintet.protocols.door import Development
from quintet.protocols.doors import DOORS, Doors

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.flight.server import Door
    from quintet.log.embedded.engine import EmbeddedLog

_LOG_GAUGES = (
    "cache_bytes",
    "damaged_ranges",
    "partitions",
    "unsynced_bytes",
)  # of the log's figures; the others only rise
# Counters of a listener: (attribute, metric, help)
_DOOR_COUNTERS = (
    ("accepted", "quintet_connections_accepted_total", "Connections accepted."),
    ("refused", "quintet_connections_refused_total", "Connections refused by a limit."),
    ("cut", "quintet_connections_cut_total", "Connections the broker closed, for a reason it logged."),
    ("bytes_in", "quintet_received_bytes_total", "Bytes read from clients."),
    ("bytes_out", "quintet_sent_bytes_total", "Bytes handed to client sockets."),
    (
        "faults",
        "quintet_session_faults_total",
        "Connections that ended because of an exception in the broker's own code.",
    ),
    ("stalls", "quintet_publisher_stalls_total", "Times a publisher was not read from because of back-pressure."),
)


# Figures of the broker's parts: (path from the broker, kind, metric, help)
_BROKER_FIGURES: Final[tuple[tuple[str, Literal["counter", "gauge"], str, str], ...]] = (
    ("groups.__len__", "gauge", "quintet_groups", "Consumer groups."),
    ("groups.rebalances", "counter", "quintet_group_rebalances_total", "Times partitions were assigned anew."),
    ("groups.offsets.commits", "counter", "quintet_group_commits_total", "Offsets committed."),
    (
        "groups.offsets.fenced",
        "counter",
        "quintet_group_fenced_total",
        "Commits refused because the member had lost the partition.",
    ),
    ("transactions.__len__", "gauge", "quintet_transactions_open", "Transactions begun and not ended."),
    ("transactions.committed", "counter", "quintet_transactions_committed_total", "Transactions committed."),
    (
        "transactions.aborted",
        "counter",
        "quintet_transactions_aborted_total",
        "Transactions rolled back, timed out or fenced.",
    ),
    (
        "intents.unfinished",
        "gauge",
        "quintet_intents_unfinished",
        "Commits written and not yet carried out everywhere.",
    ),
    (
        "publishes_dropped",
        "counter",
        "quintet_dropped_publishes_total",
        "Publishes that were refused without an answer, because none was asked for.",
    ),
    ("delays.heap_size", "gauge", "quintet_delayed_messages", "Messages that wait for their time."),
    ("delays.delivered", "counter", "quintet_delayed_delivered_total", "Delayed messages that came into their topic."),
    (
        "producers.duplicates",
        "counter",
        "quintet_duplicates_avoided_total",
        "Retries answered without storing them again.",
    ),
    ("dead.replayed", "counter", "quintet_dead_letters_replayed_total", "Dead letters published again."),
    ("schemas.__len__", "gauge", "quintet_schemas", "Versions of schemas."),
    ("queues.__len__", "gauge", "quintet_queues", "Topics with a number and a key."),
    ("queues.members", "gauge", "quintet_queue_members", "Subscribers of queues."),
    ("queues.rotations", "counter", "quintet_queue_rotations_total", "Keys of queues changed."),
    ("queues.evicted", "counter", "quintet_queue_evicted_total", "Subscribers of queues the broker ended."),
    ("queues.refused", "counter", "quintet_queue_refused_total", "Requests to queues that were refused."),
    ("peers.__len__", "gauge", "quintet_peers", "Peer names, connected or not."),
    ("peers.connected", "gauge", "quintet_peers_connected", "Peers connected now."),
    ("peers.remembered", "gauge", "quintet_peer_ids_remembered", "Ids of messages that are known, so not taken twice."),
    ("peers.sent", "counter", "quintet_peer_messages_total", "Messages put into mailboxes, each copy of a broadcast."),
    ("peers.broadcasts", "counter", "quintet_peer_broadcasts_total", "Broadcasts taken."),
    (
        "peers.takeovers",
        "counter",
        "quintet_peer_takeovers_total",
        "Connections dropped because another took the name.",
    ),
    ("caches.__len__", "gauge", "quintet_caches", "Caches."),
    ("caches.keys", "gauge", "quintet_cache_keys", "Keys in all caches."),
    ("caches.bytes", "gauge", "quintet_cache_bytes", "What caches count against cache.memory_bytes."),
    ("caches.hits", "counter", "quintet_cache_hits_total", "Keys asked for that were there."),
    ("caches.misses", "counter", "quintet_cache_misses_total", "Keys asked for that were not there."),
    ("caches.evicted", "counter", "quintet_cache_evictions_total", "Keys that went to make room."),
    ("caches.expired", "counter", "quintet_cache_expired_total", "Keys whose time had come."),
    ("audit.recorded", "counter", "quintet_audit_events_total", "Events written to the audit."),
    ("audit.left_out", "counter", "quintet_audit_left_out_total", "Events over the audit's rate, counted only."),
    ("events.recorded", "counter", "quintet_audit_moves_total", "Rows of the audit: deliveries, acknowledgements."),
    ("events.lost", "counter", "quintet_audit_moves_lost_total", "Such rows that the disk would not take."),
)


# Figures of each tenant of the configuration: (metric, kind, help, value)
_TENANT_FIGURES: Final[tuple[tuple[str, Literal["counter", "gauge"], str, Callable[["Broker", str], int]], ...]] = (
    ("quintet_tenant_connections", "gauge", "Connections open.", lambda b, t: b.tenants.connections[t]),
    ("quintet_tenant_subscriptions", "gauge", "Subscriptions open.", lambda b, t: b.tenants.subscriptions[t]),
    ("quintet_tenant_streams", "gauge", "Topics it has.", lambda b, t: b.tenants.streams(t)),
    ("quintet_tenant_caches", "gauge", "Caches it has.", lambda b, t: b.caches.kept_by(t)[0]),
    ("quintet_tenant_cache_bytes", "gauge", "What its caches keep.", lambda b, t: b.caches.kept_by(t)[1]),
    ("quintet_tenant_published_bytes_total", "counter", "Published.", lambda b, t: b.tenants.published_bytes[t]),
    ("quintet_tenant_refused_total", "counter", "Refused by its quotas.", lambda b, t: b.tenants.refused[t]),
)


# Figures of a QUIC endpoint: (name of the figure, kind, metric, help)
_QUIC_FIGURES: Final[tuple[tuple[str, Literal["counter", "gauge"], str, str], ...]] = (
    ("accepted", "counter", "quintet_quic_handshakes_total", "Handshakes finished."),
    ("refused", "counter", "quintet_quic_handshakes_refused_total", "Handshakes refused by a limit before they began."),
    ("retries", "counter", "quintet_quic_retries_total", "Times a client had to prove its address first."),
    ("half_open", "gauge", "quintet_quic_handshakes_open", "Handshakes begun and not finished."),
    ("datagrams_in", "counter", "quintet_quic_received_datagrams_total", "Datagrams received."),
    ("datagrams_out", "counter", "quintet_quic_sent_datagrams_total", "Datagrams sent."),
)


# Counters of the Flight door: (attribute of its figures, metric, help)
_FLIGHT_COUNTERS: Final = (
    ("calls", "quintet_flight_calls_total", "Flight calls, the refused ones among them."),
    ("refused", "quintet_flight_refused_total", "Flight calls refused because too many were under way."),
    ("reads", "quintet_flight_reads_total", "Flight streams of records begun."),
    ("rows_out", "quintet_flight_read_rows_total", "Records handed to Flight clients."),
    ("bytes_out", "quintet_flight_read_bytes_total", "Bytes of columns handed to Flight clients."),
    ("cut", "quintet_flight_cut_total", "Flight connections shut because a reader took nothing of its stream."),
    ("puts", "quintet_flight_puts_total", "Flight streams of rows taken."),
    ("rows_in", "quintet_flight_put_rows_total", "Rows taken from Flight clients, published or not."),
    ("bytes_in", "quintet_flight_put_bytes_total", "Bytes of columns taken from Flight clients."),
)

# Figures of each pipeline, as it last reported: (metric, kind, help, value)
_PIPELINE_FIGURES: Final[tuple[tuple[str, Literal["counter", "gauge"], str, Callable[[Report], float]], ...]] = (
    ("quintet_pipeline_up", "gauge", "1 while a pipeline runs, by its last report.", lambda r: r.state not in ENDED),
    ("quintet_pipeline_rows_per_second", "gauge", "Records read per second.", lambda r: r.rows_per_second),
    ("quintet_pipeline_rows_total", "counter", "Records read since it began.", lambda r: r.rows_in),
    ("quintet_pipeline_written_rows_total", "counter", "Rows written since it began.", lambda r: r.rows_out),
    ("quintet_pipeline_batches_total", "counter", "Batches finished since it began.", lambda r: r.batches),
    ("quintet_pipeline_batch_seconds", "gauge", "Duration of its last batch.", lambda r: r.batch_ms / 1000),
    ("quintet_pipeline_lag", "gauge", "Records it has not read yet.", lambda r: r.lag),
    ("quintet_pipeline_state_rows", "gauge", "Rows of state it keeps.", lambda r: r.state_rows),
    ("quintet_pipeline_state_bytes", "gauge", "Bytes of state it keeps.", lambda r: r.state_bytes),
    ("quintet_pipeline_restarts_total", "counter", "Times it was started again after a failure.", lambda r: r.restarts),
)


class RunningServer(Protocol):
    """The parts of server.Server that are read here."""

    listeners: dict[str, Listener | QuicListener]
    output: OutputBudget
    flight: "Door | None"
    draining: bool
    log: "EmbeddedLog"
    broker: "Broker"
    turns: Turns


class View:
    """Health and metrics of one server, for admin/."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def checks(self) -> Sequence[Check]:
        server = self._server
        failure = server.log.failure
        found = [
            Check(f"listener:{name}", not server.draining, listener.address)
            for name, listener in server.listeners.items()
        ]
        if server.flight is not None:
            found.append(Check("listener:flight", not server.draining, server.flight.address))
        found.append(Check("log", failure is None, str(failure or "takes writes")))
        low = server.log.low_on_space
        found.append(Check("disk", low is None, str(low or "above its floor")))
        found.append(Check("draining", not server.draining, "shutting down" if server.draining else "no"))
        return found

    def families(self) -> Sequence[Family]:
        server = self._server
        doors = list(server.listeners.items())
        topics = server.broker.topics.all()
        subscriptions = server.broker.subscriptions
        build = {"version": __version__, "kernel": "native" if kernel.NATIVE else "pure"}
        found = [
            Family("quintet_build_info", "gauge", "Always 1; the labels say what runs.", [(build, 1)]),
            Family("quintet_connections", "gauge", "Open connections.", _per_door(doors, lambda d: len(d.connections))),
            Family("quintet_output_bytes", "gauge", "Output that readers have not taken, over all connections (limits.output_bytes_max).",
                   [({}, server.output.used)]),
            Family("quintet_output_waits_total", "counter", "Requests that waited for room in that bound.", [({}, server.output.waited)]),
            Family("quintet_topics", "gauge", "Topics.", [({}, len(topics))]),
            Family("quintet_published_messages_total", "counter", "Messages accepted.", [({}, sum(t.published for t in topics))]),
            Family("quintet_subscriptions", "gauge", "Subscriptions, attached or not.", [({}, len(subscriptions))]),
            Family("quintet_delivered_messages_total", "counter", "Messages handed to subscribers.",
                   [({}, subscriptions.delivered)]),
            Family("quintet_in_flight_messages", "gauge", "Messages delivered and not yet settled.",
                   [({}, sum(lane.pending for s in subscriptions.all() for lane in s.lanes))]),
            Family("quintet_redelivery_rounds_total", "counter", "Times unacknowledged messages came due again.",
                   [({}, subscriptions.redelivered)]),
            Family("quintet_dead_lettered_messages_total", "counter", "Messages moved to a dead-letter topic.",
                   [({}, subscriptions.dead_lettered)]),
            Family("quintet_skipped_messages", "gauge",
                   "Messages that expired or were removed by retention before a subscription got them.",
                   [({}, subscriptions.skipped)]),
        ]  # fmt: skip
        for attribute, name, text in _DOOR_COUNTERS:
            found.append(Family(name, "counter", text, _per_door(doors, attrgetter(attribute))))
        found.append(_turns_family(server.turns))
        found += _quic_families(doors)
        for path, kind, name, text in _BROKER_FIGURES:
            value = attrgetter(path)(server.broker)
            found.append(Family(name, kind, text, [({}, value() if callable(value) else value)]))
        drops = [({"reason": reason}, count) for reason, count in server.broker.peers.dropped.items()]
        found.append(
            Family("quintet_peer_messages_dropped_total", "counter", "Messages of peers that went nowhere.", drops)
        )
        tenants = server.broker.tenants.names
        for name, kind, text, figure in _TENANT_FIGURES if tenants else ():
            found.append(
                Family(name, kind, text, [({"tenant": each}, figure(server.broker, each)) for each in tenants])
            )
        if server.flight is not None:
            found += _flight_families(server.flight, server.broker.scheduler.monotonic())
        if server.log.anchor_head:
            number = int(server.log.anchor_head.partition(":")[0])
            found.append(
                Family("quintet_audit_anchor", "gauge", "Number of the last anchor of the chains.", [({}, number)])
            )
        return found + _log_families(server.log.stats())


def _per_door(
    doors: Sequence[tuple[str, Listener | QuicListener]], value: Callable[[Listener | QuicListener], int]
) -> list[tuple[dict[str, str], int]]:
    return [({"door": name}, value(listener)) for name, listener in doors]


def _turns_family(turns: Turns) -> Family:
    bounds = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
    samples = [({"le": bound}, count) for bound, count in zip(bounds, accumulate(turns.counts), strict=True)]
    text = "Processor time of the loop thread in one of its turns: nobody else is served meanwhile."
    return Family("quintet_loop_turn_seconds", "histogram", text, samples, turns.seconds)


def _quic_families(doors: Sequence[tuple[str, Listener | QuicListener]]) -> list[Family]:
    said = [(name, listener.figures()) for name, listener in doors if isinstance(listener, QuicListener)]
    return [
        Family(metric, kind, text, [({"door": name}, figures[figure]) for name, figures in said])
        for figure, kind, metric, text in (_QUIC_FIGURES if said else ())
    ]


def _flight_families(door: "Door", monotonic: int) -> list[Family]:
    found = [Family("quintet_flight_streams", "gauge", "Flight streams under way.", [({}, door.streams)])]
    for attribute, name, text in _FLIGHT_COUNTERS:
        found.append(Family(name, "counter", text, [({}, getattr(door.figures, attribute))]))
    pipelines = door.pipelines.seen("", True, monotonic)
    found.append(Family("quintet_pipelines", "gauge", "Pipelines that reported within a day.", [({}, len(pipelines))]))
    for name, kind, text, value in _PIPELINE_FIGURES:
        samples = [
            ({"owner": s.owner, "name": s.report.name, "kind": s.report.kind}, value(s.report)) for s in pipelines
        ]
        found.append(Family(name, kind, text, samples))
    return found


def _log_families(stats: Mapping[str, int]) -> list[Family]:
    found = []
    for name, value in sorted(stats.items()):
        text = f"Of the log: {name.replace('_', ' ')}."
        if name in _LOG_GAUGES:
            found.append(Family(f"quintet_log_{name}", "gauge", text, [({}, value)]))
        else:
            found.append(Family(f"quintet_log_{name}_total", "counter", text, [({}, value)]))
    return found


def development_lines(
    addresses: Mapping[str, str], certificates: Mapping[str, Path] | None = None, doors: Doors = DOORS
) -> str:
    """Lines to copy, by door. `certificates` are those that doors made themselves."""
    command = "quintet" if shutil.which("quintet") else os.path.relpath(sys.argv[0])
    if command.endswith("__main__.py"):
        command = "python -m quintet"
    lines = ["", "  Quintet for development: loopback only, fixed credentials. Copy a line:", ""]
    last = ""
    for door in doors:
        if door.name not in addresses:
            continue
        made = (certificates or {}).get(door.name)
        trust = "" if made is None else f"?ca={quote(os.path.relpath(made))}"
        address = addresses[door.name]
        keys = (config.DEV_BLIPMQ_KEY, config.DEV_USER, config.DEV_PASSWORD, config.DEV_PEERBUS_TOKEN)
        dev = Development(command, address, *keys, config.DEV_PEERBUS_SECRET, trust)
        for line in door.dev_lines(dev):
            lines.append(f"  {'' if door.title == last else door.title:<9}{line}")
            last = door.title
    if "flight" in addresses:
        url = f"flight://{config.DEV_USER}:{config.DEV_PASSWORD}@{addresses['flight']}"
        lines.append(f"  Flight   {url}   # Arrow: Spark, DuckDB, Polars, pandas")
    if "admin" in addresses:
        lines.append(f"  admin    curl 'http://{addresses['admin']}/readyz?verbose'")
    return "\n".join([*lines, ""])
