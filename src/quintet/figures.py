"""What the running broker says of itself: metric families, health checks, the lines of `--dev`. Reads, never changes."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol
from urllib.parse import quote

from quintet import __version__, config, kernel
from quintet.admin.health import Check
from quintet.admin.metrics import Family
from quintet.admin.series import CountersByName
from quintet.broker.doors.pipelines import ENDED, Report
from quintet.model.histogram import Histogram
from quintet.net.doors import OpenDoors
from quintet.net.listener import Listener
from quintet.net.output import OutputBudget
from quintet.net.quic.listener import QuicListener
from quintet.net.turns import CELLS, Turns
from quintet.protocols.door import Development
from quintet.protocols.doors import DOORS, Doors

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.broker.identity.quotas import QuotaInfo
    from quintet.broker.topics.catalog import Topic
    from quintet.delivery.traces import Traces
    from quintet.flight.server import Door
    from quintet.log.embedded.engine import EmbeddedLog
    from quintet.log.replicated.engine import ReplicatedLog
    from quintet.otlp import SpanQueue

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
    ("auth_failures", "quintet_auth_failures_total", "Logins and tokens that were refused."),
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
    doors: OpenDoors
    output: OutputBudget
    flight: "Door | None"
    spans: "SpanQueue | None"
    draining: bool
    log: "EmbeddedLog"
    broker: "Broker"
    turns: Turns


class View:
    """Health and metrics of one server, for admin/."""

    def __init__(self, server: RunningServer, labels_max: int) -> None:
        """labels_max: topics, and groups, that get series of their own."""
        self._server = server
        self._labels_max = labels_max
        self._published: CountersByName[Topic] = CountersByName(labels_max, attrgetter("name"), attrgetter("published"))

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
        found.append(Check("draining", not server.draining, server.broker.drain_reason if server.draining else "no"))
        return found

    def _topic_families(self) -> list[Family]:
        named = self._published.named
        return [
            Family("quintet_topic_published_messages_total", "counter",
                   "Messages accepted, by topic; (other) are those past listeners.admin.labels_max.",
                   [({"topic": name}, count) for name, count in named.items()]),
            Family("quintet_topic_bytes", "gauge", "What a topic keeps on disk or in memory.",
                   [({"topic": topic.name}, sum(part.bytes_from(part.start) for part in topic.partitions)) for topic in self._published.labelled]),
        ]  # fmt: skip

    def _group_families(self) -> list[Family]:
        """Of the groups furthest behind, as they were a few seconds ago."""
        lags = [
            ({"topic": each.topic, "group": each.group}, each)
            for each in self._server.broker.lag.latest()[: self._labels_max]
        ]
        return [
            Family("quintet_group_lag_messages", "gauge", "Messages that a group has not committed.",
                   [(labels, lag.messages) for labels, lag in lags]),
            Family("quintet_group_lag_seconds", "gauge", "Age of the oldest message that a group has not committed.",
                   [(labels, lag.seconds) for labels, lag in lags]),
        ]  # fmt: skip

    def families(self) -> Sequence[Family]:
        server = self._server
        doors = list(server.listeners.items())
        topics = server.broker.topics.all()
        subscriptions = server.broker.subscriptions
        published = server.broker.topics.published
        rows_out = 0 if server.flight is None else server.flight.figures.rows_out
        self._published.update(topics, lambda topic: server.broker.topics.get(topic.raw) is topic, published)
        build = {"version": __version__, "kernel": "native" if kernel.NATIVE else "pure"}
        found = [
            Family("quintet_build_info", "gauge", "Always 1; the labels say what runs.", [(build, 1)]),
            Family("quintet_connections", "gauge", "Open connections.", _per_door(doors, lambda d: len(d.connections))),
            Family("quintet_output_bytes", "gauge", "Output that readers have not taken, over all connections (limits.output_bytes_max).",
                   [({}, server.output.used)]),
            Family("quintet_output_waits_total", "counter", "Requests that waited for room in that bound.", [({}, server.output.waited)]),
            Family("quintet_topics", "gauge", "Topics.", [({}, len(topics))]),
            Family("quintet_published_messages_total", "counter", "Messages accepted.", [({}, published)]),
            Family("quintet_subscriptions", "gauge", "Subscriptions, attached or not.", [({}, len(subscriptions))]),
            Family("quintet_delivered_messages_total", "counter", "Messages handed to subscribers, and to those who fetch (FlyMQ, Flight).",
                   [({}, subscriptions.delivered + server.broker.events.fetched + rows_out)]),
            Family("quintet_in_flight_messages", "gauge", "Messages delivered and not yet settled.",
                   [({}, sum(lane.pending for s in subscriptions.all() for lane in s.lanes))]),
            Family("quintet_redelivery_rounds_total", "counter", "Times unacknowledged messages came due again.",
                   [({}, subscriptions.redelivered)]),
            Family("quintet_dead_lettered_messages_total", "counter", "Messages moved to a dead-letter topic.",
                   [({}, server.broker.dead.buried)]),
            Family("quintet_skipped_messages", "gauge",
                   "Messages that expired or were removed by retention before a subscription got them.",
                   [({}, subscriptions.skipped)]),
        ]  # fmt: skip
        for attribute, name, text in _DOOR_COUNTERS:
            found.append(Family(name, "counter", text, _per_door(doors, attrgetter(attribute))))
        found += _latency_families(server)
        found += self._topic_families()
        found += self._group_families()
        found += _disk_families(server.log)
        found.append(
            Family("quintet_certificate_expires_timestamp_seconds", "gauge", "When the certificate of a door expires, as Unix time.",
                   [({"door": name}, at) for name, at in sorted(server.doors.expiries.items())])
        )  # fmt: skip
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
        if server.broker.quotas.in_use:
            found += _quota_families(server.broker.quotas.busiest(self._labels_max))
        if server.flight is not None:
            found += _flight_families(server.flight, server.broker.scheduler.monotonic())
        if server.broker.traces is not None and server.spans is not None:
            found += _telemetry_families(server.broker.traces, server.spans)
        if server.log.anchor_head:
            number = int(server.log.anchor_head.partition(":")[0])
            found.append(
                Family("quintet_audit_anchor", "gauge", "Number of the last anchor of the chains.", [({}, number)])
            )
        return found + _log_families(server.log.stats())


FORWARDED: Final[tuple[tuple[str, Literal["counter", "gauge"], str, str], ...]] = (
    ("quintet_forwarded_connections", "gauge", "Clients whose connection this node passes on to the leader.", "connections"),
    ("quintet_forwarded_accepted_total", "counter", "Clients that it passed on since it follows.", "accepted"),
    ("quintet_forwarded_refused_total", "counter", "Clients above a bound on forwarded connections.", "refused"),
)  # fmt: skip


class NodeView:
    """Health and metrics of a node of a cell that does not lead: its doors lead to the leader's."""

    def __init__(
        self,
        log: "ReplicatedLog",
        forwarded: Callable[[], Mapping[str, dict[str, int]]],
        flight: "Callable[[], Door | None]",
        *,
        carries: bool = False,
    ) -> None:
        """forwarded: what is counted of each door that leads to the leader's. flight: the door that answers reads here, if it is open.
        carries: this is one of several cells, and what is asked of it here is answered by its leader."""
        self._carries = carries
        self._log = log
        self._forwarded = forwarded
        self._flight = flight

    def checks(self) -> Sequence[Check]:
        failure, low = self._log.failure, self._log.low_on_space
        return [
            _node_check(self._log, serves=False, carries=self._carries),
            Check("log", failure is None, str(failure or "takes what the WAL has")),
            Check("disk", low is None, str(low or "above its floor")),
        ]

    def families(self) -> Sequence[Family]:
        build = {"version": __version__, "kernel": "native" if kernel.NATIVE else "pure"}
        info = Family("quintet_build_info", "gauge", "Always 1; the labels say what runs.", [(build, 1)])
        doors = sorted(self._forwarded().items())
        forwarded = [
            Family(metric, kind, text, [({"door": name}, found[figure]) for name, found in doors])
            for metric, kind, text, figure in FORWARDED
        ]
        own = [*_disk_families(self._log), *_log_families(self._log.stats())]
        flight = self._flight()
        if flight is not None:
            own += _flight_families(flight, 0)
        return [info, *_node_families(self._log), *forwarded, *own]


class LeaderView(View):
    """Health and metrics of a node of a cell that leads."""

    def __init__(self, server: RunningServer, log: "ReplicatedLog", labels_max: int) -> None:
        super().__init__(server, labels_max)
        self._log = log

    def checks(self) -> Sequence[Check]:
        return [_node_check(self._log, serves=True), *super().checks()]

    def families(self) -> Sequence[Family]:
        return [*super().families(), *_node_families(self._log)]


def _node_check(log: "ReplicatedLog", serves: bool, *, carries: bool = False) -> Check:
    """serves: the doors are a broker's own. A node leads before that: its broker takes seconds to start. carries: a follower is as good."""
    said = log.status()
    leader = f", {said.leader.name} at {said.leader.host or '?'} leads" if said.leader else ", no leader is known"
    text = f"{said.node} is {said.role} in epoch {said.epoch}{'' if said.role == 'leader' else leader}"
    lag = f"WAL offset {said.applied}, lag {said.lag_records} records, {said.lag_seconds:.1f} s"
    weak = f"; weaker than the default: {', '.join(said.weaknesses)}" if said.weaknesses else ""
    leads = said.role == "leader"
    closed = "; its doors lead to the leader's" if not leads else "" if serves else "; its doors are not open yet"
    if not leads and said.age_seconds is not None:
        closed += f", and reads by Flight here may be {said.age_seconds:.1f} s old"
    lapsed = leads and not log.may_answer()  # it ends before it answers a client
    over = "; its lease is over" if lapsed else ""
    good = (leads and serves and not lapsed) or (carries and not leads and said.leader is not None)
    return Check("cell", good, f"{text}; {lag}{weak}{closed}{over}")


def _node_families(log: "ReplicatedLog") -> list[Family]:
    said = log.status()
    leader = said.leader
    names = {"node": said.node, "role": said.role.value}
    trims, failures = (log.trimming.trims, log.trimming.failures) if log.trimming is not None else (0, 0)
    names |= {"leader": leader.name if leader else "", "leader_host": leader.host if leader else ""}
    return [
        Family("quintet_cell_info", "gauge", "Always 1; the labels say what this node does and who leads.", [(names, 1)]),
        Family("quintet_cell_epoch", "gauge", "Epoch in force, as far as this node has read.", [({}, said.epoch)]),
        Family("quintet_cell_wal_offset", "gauge", "Offset of the WAL that this node applies next.", [({}, said.applied)]),
        Family("quintet_cell_synced_offset", "gauge", "Everything below this offset of the WAL is in this node's files for good.",
               [({}, said.synced)]),
        Family("quintet_cell_wal_begin", "gauge", "Offset at which the WAL begins, as far as this node knows: what is below was trimmed.",
               [({}, said.wal_begin)]),
        Family("quintet_cell_wal_records", "gauge", "Records that the WAL has, as far as this node knows.",
               [({}, said.wal_end - said.wal_begin)]),
        Family("quintet_cell_wal_trims_total", "counter", "Times this node trimmed the WAL.", [({}, trims)]),
        Family("quintet_cell_wal_trim_failures_total", "counter", "Times Kafka did not trim the WAL when it was asked to.", [({}, failures)]),
        Family("quintet_cell_lag_records", "gauge", "Records of the WAL that this node has not applied; of a leader: under way.",
               [({}, said.lag_records)]),
        Family("quintet_cell_age_seconds", "gauge", "How old the state may be that readers of this node see; none while it is not known.",
               [] if said.age_seconds is None else [({}, said.age_seconds)]),
        Family("quintet_cell_lag_seconds", "gauge", "Since when this node has not applied all of the WAL.", [({}, said.lag_seconds)]),
        Family("quintet_cell_take_over_seconds", "gauge",
               "How long the last take-over took that this node made: from the last record of the leader before to its own open doors.",
               [({}, log.take_over.seconds)] if log.take_over is not None else []),
        Family("quintet_cell_take_over_timestamp_seconds", "gauge", "When that was, as Unix time.",
               [({}, log.take_over.at)] if log.take_over is not None else []),
        Family("quintet_cell_weaker", "gauge", "1 for each thing that the WAL promises less than by default.",
               [({"what": what}, 1) for what in said.weaknesses]),
    ]  # fmt: skip


def _per_door(
    doors: Sequence[tuple[str, Listener | QuicListener]], value: Callable[[Listener | QuicListener], int]
) -> list[tuple[dict[str, str], int]]:
    return [({"door": name}, value(listener)) for name, listener in doors]


def _latency_families(server: RunningServer) -> list[Family]:
    turns = server.turns
    loop = Histogram(CELLS)
    loop.counts, loop.seconds = turns.counts, turns.seconds
    requests = [
        ({"door": door, "operation": operation}, found)
        for (door, operation), found in turns.latencies.requests.by_labels.items()
    ]
    return [
        Family("quintet_loop_turn_seconds", "histogram",
               "Processor time of the loop thread in one of its turns: nobody else is served meanwhile.", histograms=[({}, loop)]),
        Family("quintet_request_seconds", "histogram",
               "From the read of a request to its answer, without the network; one read in 16.", histograms=requests),
        Family("quintet_append_durable_seconds", "histogram",
               "From append to durable, of every publish that waits for a sync.", histograms=[({}, server.log.durable)]),
        Family("quintet_disk_sync_seconds", "histogram",
               "A write and its sync, as the loop waits for it.", histograms=[({}, turns.latencies.written)]),
        Family("quintet_delivery_age_seconds", "histogram",
               "Age of a batch, by the date of its append, when it is pushed to a consumer; one in 16.",
               histograms=[({}, server.broker.subscriptions.ages)]),
    ]  # fmt: skip


# What of a quota is used: (quota, attribute of its QuotaInfo)
_QUOTA_USED: Final = (
    ("connections_max", "connections"),
    ("topics_max", "topics"),
    ("storage_bytes_max", "storage_bytes"),
)
# Of each user or tenant that has a quota: (metric, kind, help, value)
_QUOTA_FIGURES: Final[tuple[tuple[str, Literal["counter", "gauge"], str, Callable[["QuotaInfo"], float]], ...]] = (
    ("quintet_quota_held", "gauge", "1 while one of its connections waits for its rate.", lambda q: q.held),
    (
        "quintet_quota_received_bytes_total",
        "counter",
        "Bytes its connections sent, where that has a rate.",
        lambda q: q.received_bytes,
    ),
    (
        "quintet_quota_sent_bytes_total",
        "counter",
        "Bytes its connections were sent, where that has a rate.",
        lambda q: q.sent_bytes,
    ),
    ("quintet_quota_pauses_total", "counter", "Waits of its connections for a rate.", lambda q: q.pauses),
    (
        "quintet_quota_paused_seconds_total",
        "counter",
        "Time in which at least one of them waited.",
        lambda q: q.paused_us / 1e6,
    ),
    (
        "quintet_quota_refused_total",
        "counter",
        "Connections, topics and publishes refused by its quotas.",
        lambda q: q.refused,
    ),
)


def _quota_families(found: Sequence["QuotaInfo"]) -> list[Family]:
    """Of those that wait or use most, at most listeners.admin.labels_max."""
    whose = [({"kind": each.kind, "name": each.name}, each) for each in found]
    bounds = [
        (labels | {"quota": quota}, bound)
        for labels, each in whose
        for quota, bound in each.bounds._asdict().items()
        if bound
    ]
    used = [
        (labels | {"quota": quota}, getattr(each, attribute))
        for labels, each in whose
        for quota, attribute in _QUOTA_USED
        if getattr(each.bounds, quota)
    ]
    return [
        Family("quintet_quota_bound", "gauge", "What a user or a tenant may have; none: no limit.", bounds),
        Family("quintet_quota_used", "gauge", "What it has of that; storage as it was up to 5 s ago.", used),
        *(
            Family(name, kind, text, [(labels, value(each)) for labels, each in whose])
            for name, kind, text, value in _QUOTA_FIGURES
        ),
    ]


def _quic_families(doors: Sequence[tuple[str, Listener | QuicListener]]) -> list[Family]:
    said = [(name, listener.figures()) for name, listener in doors if isinstance(listener, QuicListener)]
    return [
        Family(metric, kind, text, [({"door": name}, figures[figure]) for name, figures in said])
        for figure, kind, metric, text in (_QUIC_FIGURES if said else ())
    ]


def _telemetry_families(traces: "Traces", spans: "SpanQueue") -> list[Family]:
    return [
        Family("quintet_telemetry_followed_messages", "gauge", "Sampled messages that are followed.", [({}, traces.followed)]),
        Family("quintet_telemetry_left_out_total", "counter", "Spans that the rate had no room for.", [({}, traces.left_out)]),
        Family("quintet_telemetry_spans_total", "counter", "Spans that the collector took.", [({}, spans.exported)]),
        Family("quintet_telemetry_spans_dropped_total", "counter", "Spans that it did not take, or that found the queue full.",
               [({}, spans.dropped)]),
    ]  # fmt: skip


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


def _disk_families(log: "EmbeddedLog") -> list[Family]:
    free, total = log.disk_space()
    return [
        Family("quintet_disk_free_bytes", "gauge", "Free on the file system of the data folder.", [({}, free)]),
        Family("quintet_disk_size_bytes", "gauge", "Size of that file system.", [({}, total)]),
    ]


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
    if "console" in addresses:
        lines.append(f"  console  http://{addresses['console']}   # {config.DEV_USER}, {config.DEV_PASSWORD}")
    if "admin" in addresses:
        lines.append(f"  admin    curl 'http://{addresses['admin']}/readyz?verbose'")
    return "\n".join([*lines, ""])
