"""Reads what one node of a cell says of all of them (its metrics), and finds what is wrong between them.

A finding says what was looked at, the value, the bound, and what to do. Nothing here changes anything.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from quintet.cli.operate.checks import Finding, Verdict
from quintet.cli.operate.scrape import Sample
from quintet.cli.terminal.common import lasting
from quintet.model.errors import QuintetError

if TYPE_CHECKING:
    from quintet.config import Settings

DAY_S: Final = 86_400
CERTIFICATE_DAYS: Final = 30  # less is a warning
CLOCK_WARN_S: Final = 1.0  # dates of messages differ by it after a take-over
CLOCK_FAIL_S: Final = 60.0
LAG_WARN_S: Final = 10.0  # a take-over by this node takes longer by as much
TRIM_LATE: Final = 1_000_000  # records of a WAL that nobody trims

PREFIX: Final = "quintet_cluster_node_"
INFO: Final = PREFIX + "info"


class NodeRow(NamedTuple):
    """One node, as another one says."""

    node: str  # empty: it never answered
    address: str
    up: bool
    role: str
    version: str
    chain: str
    error: str
    figures: dict[str, float]

    @property
    def name(self) -> str:
        return self.node or "?"


def rows(now: Sample) -> list[NodeRow]:
    """All nodes; the one that was asked first. Empty: it has no cluster listener."""
    found = []
    up = now.by(PREFIX + "up", "node", "address")
    for pairs in now.values.get(INFO, {}):
        said = dict(pairs)
        node, address = said.get("node", ""), said.get("address", "")
        figures = {
            name.removeprefix(PREFIX): value
            for name in now.values
            if name.startswith(PREFIX)
            for (each,), value in now.by(name, "node").items()
            if each == node and node
        }
        role, version, chain, error = (said.get(name, "") for name in ("role", "version", "chain", "error"))
        found.append(NodeRow(node, address, bool(up.get((node, address))), role, version, chain, error, figures))
    return found


def findings(now: Sample, nodes: Sequence[NodeRow]) -> Iterator[Finding]:
    """What is wrong between the nodes that one of them knows."""
    answer = [row for row in nodes if row.up]
    for row in nodes:
        if not row.up:
            advice = "start it, or take it out of cluster.peers if it is gone for good"
            yield Finding(
                "nodes", "fail", f"{row.name} at {row.address} does not answer: {row.error or 'silent'}", advice
            )
    if len(answer) < 2:
        advice = "name other nodes in cluster.peers, and start them: one node alone protects from nothing"
        yield Finding("nodes", "fail", f"{len(answer)} node answers; the WAL is not trimmed below two", advice)
    else:
        yield Finding("nodes", "ok", f"{len(answer)} of {len(nodes)} answer")
    yield _leader(answer)
    advice = "make it the same in the configuration of all nodes"
    yield _same("lease", answer, lambda row: f"{row.figures.get('lease_seconds', 0):g} s", "fail", advice)
    yield _same("hold", answer, lambda row: f"{row.figures.get('hold_seconds', 0):g} s", "fail", advice)
    yield _same("audit", answer, lambda row: row.chain, "fail", "[audit] and its key must be the same on all nodes")
    yield _same(
        "version", answer, lambda row: row.version, "warn", "finish the upgrade: followers first, the leader last"
    )
    yield _wal_version(answer)
    yield from (_clock(row) for row in answer)
    yield from (_certificate(row) for row in answer)
    yield from (_lag(row) for row in answer)
    yield _wal(now, answer)


def _leader(nodes: Sequence[NodeRow]) -> Finding:
    leaders = [row.name for row in nodes if row.role == "leader"]
    epochs = {int(row.figures.get("epoch", 0)) for row in nodes}
    if len(leaders) != 1:
        advice = "wait for a lease; if it stays so, look at the logs of all nodes and at Kafka"
        return Finding(
            "leader", "fail", f"{len(leaders)} nodes lead{': ' + ', '.join(leaders) if leaders else ''}", advice
        )
    if len(epochs) > 1:
        said = ", ".join(f"{row.name} {int(row.figures.get('epoch', 0))}" for row in nodes)
        return Finding(
            "leader", "warn", f"{leaders[0]} leads; epochs differ: {said}", "a take-over is under way, or a node lags"
        )
    return Finding("leader", "ok", f"{leaders[0]} leads, in epoch {epochs.pop()}")


def _same(
    subject: str, nodes: Sequence[NodeRow], value: Callable[[NodeRow], str], verdict: Verdict, advice: str
) -> Finding:
    values = {value(row) for row in nodes}
    if len(values) > 1:
        return Finding(subject, verdict, "differs: " + ", ".join(f"{row.name} {value(row)}" for row in nodes), advice)
    return Finding(subject, "ok", f"{next(iter(values), '?')} on all nodes")


def _wal_version(nodes: Sequence[NodeRow]) -> Finding:
    written = max((int(row.figures.get("wal_writes_version", 1)) for row in nodes if row.role == "leader"), default=0)
    reads = {row.name: int(row.figures.get("wal_reads_version", 1)) for row in nodes}
    late = [f"{name} reads up to {version}" for name, version in reads.items() if version < written]
    if late:
        return Finding("wal version", "fail", f"the leader writes {written}; {', '.join(late)}", "upgrade these nodes")
    if written and written < min(reads.values()):
        text = f"the leader writes {written}, and all nodes read {min(reads.values())}"
        return Finding(
            "wal version",
            "warn",
            text,
            "it is raised when every known node answers, unless cluster.wal_version_max holds it back",
        )
    return Finding("wal version", "ok", f"{written or '?'} is written, and all nodes read it")


def _clock(row: NodeRow) -> Finding:
    ahead = row.figures.get("clock_seconds", 0.0)
    text = f"{row.name} is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the node that was asked"
    verdict: Verdict = "fail" if abs(ahead) > CLOCK_FAIL_S else "warn" if abs(ahead) > CLOCK_WARN_S else "ok"
    return Finding("clock", verdict, text, "keep the clocks of all nodes by a time service (chrony)")


def _certificate(row: NodeRow) -> Finding:
    expires = row.figures.get("certificate_expires_timestamp_seconds", 0.0)
    if not expires:
        return Finding("certificate", "ok", f"{row.name} has none: its listener is on loopback")
    days = (expires - time.time()) / DAY_S
    advice = f"quintet cluster init DIR --node {row.name}=HOST --renew, and copy the files: no restart is needed"
    verdict: Verdict = "fail" if days <= 0 else "warn" if days < CERTIFICATE_DAYS else "ok"
    return Finding(
        "certificate", verdict, f"{row.name}: {days:,.0f} days left (a warning below {CERTIFICATE_DAYS})", advice
    )


def _lag(row: NodeRow) -> Finding:
    seconds, records = row.figures.get("lag_seconds", 0.0), int(row.figures.get("lag_records", 0))
    verdict: Verdict = "warn" if seconds > LAG_WARN_S else "ok"
    text = f"{row.name} lags {records:,} records, {lasting(seconds)}"
    return Finding(
        "lag", verdict, text, "its disk or its connection to Kafka is too slow: a take-over by it takes as much longer"
    )


def _wal(now: Sample, nodes: Sequence[NodeRow]) -> Finding:
    leading = [row for row in nodes if row.role == "leader"]
    records = max((row.figures.get("wal_end", 0) - row.figures.get("wal_begin", 0) for row in leading), default=0)
    failures = now.one("quintet_cell_wal_trim_failures_total")
    if failures:
        return Finding(
            "wal",
            "warn",
            f"{records:,.0f} records; Kafka did not trim it {failures:,.0f} times",
            "see wal_not_trimmed in the leader's log",
        )
    if records > TRIM_LATE:
        advice = "trimming needs cluster.trim, and two nodes that answer"
        return Finding("wal", "warn", f"{records:,.0f} records, more than {TRIM_LATE:,}: is it trimmed?", advice)
    return Finding("wal", "ok", f"{records:,.0f} records")


def kafka(settings: "Settings") -> Iterator[Finding]:
    """Is Kafka there, and is its topic what a WAL must be? Makes nothing."""
    from quintet.log.replicated.kafka import KafkaWal, WalOptions  # late: librdkafka

    cell = settings.cell
    options = WalOptions(
        ",".join(cell.servers),
        cell.topic,
        replication=cell.replicas_min,
        min_insync=cell.in_sync_replicas_min,
        flush_messages=1 if cell.flushed else 0,
        client=cell.client(),
        partitions=cell.cells,
    )
    wal = KafkaWal(options, lambda call: None)
    try:
        found = wal.examine()
    except QuintetError as error:
        yield Finding("kafka", "fail", error.message, error.hint)
        return
    if found is None:
        yield Finding("kafka", "warn", f'there is no topic "{cell.topic}" yet', "the first node that starts makes it")
        return
    yield Finding(
        "kafka", "ok", f'topic "{cell.topic}" of cluster {found.cluster} is as it must be; it begins at {wal.begin:,}'
    )
    for weakness in options.weaknesses():
        yield Finding("kafka", "warn", weakness, "acknowledged messages may be lost with a broker of Kafka")
