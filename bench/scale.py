"""Computes what a number of connections and messages takes: cells, cores, nodes, Kafka brokers, disks, network. Writes the tables of docs/SCALE.md.

    python bench/scale.py            the tables, as Markdown

One cell is one loop, so one core of its leader bounds its messages:

    seconds a message at the leader = (write / messages in one write + publish) x shipping + delivery x readers

Everything else follows from bytes: a message is stored by the leader, by its followers, and by Kafka as often as it is replicated. The
figures are extrapolated from small machines. What was measured stands in `Measured` with its source, what was not in `Assumed`.
Nothing here measures anything.
"""

import math
import sys
from dataclasses import dataclass
from typing import Final

MEGABYTE: Final = 1_000_000
GIGABIT_BYTES: Final = 125_000_000  # one gigabit, in bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of bench/README.md and of the prototype of a cell, on two cores. Rates are of one broker, whose loop is one core."""

    durable_alone_per_s: float = 48_100  # qos1_durable 64 connections x 1 in flight, 128 B
    durable_batched_per_s: float = 908_500  # qos1_durable 16 connections x 64 in flight, 128 B
    batched_messages: int = 64  # in one write of that row
    fanout_per_s: float = 13_330_000  # fanout 1 to 16, 128 B, deliveries
    idle_connection_bytes: int = 2_457  # memory per idle connection, 5,000 open
    shipping_ratio: float = 1.7  # the prototype's embedded 12 to 17 k/s beside 6.4 to 10.4 k/s through Kafka (ADR 39)

    @property
    def publish_s(self) -> float:
        """Processor time of one message that came with others: from the two durable rows, which differ in writes alone."""
        alone, batched = 1 / self.durable_alone_per_s, 1 / self.durable_batched_per_s
        return (batched * self.batched_messages - alone) / (self.batched_messages - 1)

    @property
    def write_s(self) -> float:
        """Processor time of one write of a client: its read, its turn and its answer."""
        return 1 / self.durable_alone_per_s - self.publish_s

    @property
    def delivery_s(self) -> float:
        return 1 / self.fanout_per_s


@dataclass(frozen=True, slots=True)
class Assumed:
    """What was not measured. Each of these is the reader's to change."""

    busy_max: float = 0.6  # of a core, a disk or a network: the rest is for take-overs and peaks
    replicas: int = 3  # of a cell: a leader and two followers
    kafka_replicas: int = 3
    follower_ratio: float = (
        0.3  # processor time of a follower beside its leader's: it applies batches, and answers nobody
    )
    record_overhead_bytes: int = 30  # of a message on disk and on wires, beside its value
    socket_bytes: int = 8_192  # of the system, for an idle connection with small buffers
    cores_per_node: int = 16
    memory_per_node_bytes: int = 64_000_000_000
    connections_per_cell: int = (
        25_000  # of one loop, which looks after all of them; a forwarded one is the leader's, too
    )
    connections_per_node: int = 100_000  # open files of one machine
    network_bytes_per_s: float = 25 * GIGABIT_BYTES  # of a node and of a Kafka broker
    disk_bytes_per_s: float = 1_000 * MEGABYTE  # written and synced, of a disk of a node or of a broker
    syncs_per_s: float = 5_000  # of such a disk, with a cache that survives a power cut
    disks_per_machine: int = 4
    wal_records_per_s: float = 200  # of a cell that is busy: turns share a record while one is under way
    syncs_per_record: int = 1  # flush.messages=1 in Kafka, and the same for the files of a node
    forwarded_ratio: float = 0.0  # of the clients' bytes, that come by a node which does not lead


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted."""

    name: str
    connections: int
    messages_per_s: float
    value_bytes: int = 128
    messages_per_write: int = 1
    readers: float = 1.0  # who get each message


@dataclass(frozen=True, slots=True)
class Need:
    """What it takes, and which of the bounds decided."""

    cell_messages_per_s: float
    cells: int
    cores: float
    nodes: int
    nodes_because: str
    brokers: int
    brokers_because: str
    disks: int
    client_bytes_per_s: float
    wal_bytes_per_s: float
    cluster_bytes_per_s: float


def need(target: Target, measured: Measured | None = None, assumed: Assumed | None = None) -> Need:
    """What a target takes."""
    known, given = measured or Measured(), assumed or Assumed()
    _check(target, given)
    stored = target.value_bytes + given.record_overhead_bytes
    leader_s = (known.write_s / target.messages_per_write + known.publish_s) * known.shipping_ratio
    leader_s += known.delivery_s * target.readers
    # A cell is one loop and one partition of the WAL: its processor bounds it, and one disk of each broker that has the partition.
    per_cell = min(given.busy_max / leader_s, given.disk_bytes_per_s * given.busy_max / stored)
    cells = max(
        math.ceil(target.messages_per_s / per_cell), math.ceil(target.connections / given.connections_per_cell), 1
    )
    cores = target.messages_per_s * leader_s * (1 + given.follower_ratio * (given.replicas - 1)) / given.busy_max

    wal = target.messages_per_s * stored
    client = wal * (1 + target.readers)
    shipped = wal * given.replicas  # the leader's produce, and what each follower reads
    node_disks = _disks(wal * given.replicas, cells * given.replicas, given)
    kafka_disks = _disks(wal * given.kafka_replicas, cells * given.kafka_replicas, given)
    nodes, nodes_because = _most(
        {
            "cores": cores / given.cores_per_node,
            "connections": target.connections / given.connections_per_node,
            "memory": target.connections
            * (known.idle_connection_bytes + given.socket_bytes)
            / (given.memory_per_node_bytes * given.busy_max),
            "network": (client * (1 + 2 * given.forwarded_ratio) + shipped)
            / (given.network_bytes_per_s * given.busy_max),
            "disks": node_disks / given.disks_per_machine,
            "replicas": given.replicas,
        }
    )
    # Each broker takes its share of the leader's produce, sends it to its peers, and serves the followers.
    kafka_network = wal * (1 + 2 * (given.kafka_replicas - 1) + given.replicas - 1)
    brokers, brokers_because = _most(
        {
            "disks": kafka_disks / given.disks_per_machine,
            "network": kafka_network / (given.network_bytes_per_s * given.busy_max),
            "replicas": given.kafka_replicas,
        }
    )
    return Need(
        cell_messages_per_s=per_cell,
        cells=cells,
        cores=cores,
        nodes=nodes,
        nodes_because=nodes_because,
        brokers=brokers,
        brokers_because=brokers_because,
        disks=max(math.ceil(node_disks), nodes) + max(math.ceil(kafka_disks), brokers),
        client_bytes_per_s=client,
        wal_bytes_per_s=wal,
        cluster_bytes_per_s=client * (1 + given.forwarded_ratio) + shipped + wal * (given.kafka_replicas - 1),
    )


def _disks(bytes_per_s: float, partitions: int, given: Assumed) -> float:
    """Of all machines of a kind: by what is written, or by how often it is synced."""
    syncs = partitions * given.wal_records_per_s * given.syncs_per_record
    return max(bytes_per_s / given.disk_bytes_per_s, syncs / given.syncs_per_s) / given.busy_max


def _check(target: Target, given: Assumed) -> None:
    for what, value in (
        ("connections", target.connections),
        ("messages a second", target.messages_per_s),
        ("readers", target.readers),
    ):
        if value < 0:
            raise ValueError(f"{what} is {value}; it is 0 or more")
    if target.messages_per_write < 1 or target.value_bytes < 0:
        raise ValueError(f"a write has 1 message or more of 0 bytes or more, not {target.messages_per_write}")
    if not 0 < given.busy_max <= 1:
        raise ValueError(f"busy_max is a share above 0 and up to 1, not {given.busy_max}")


def _most(bounds: dict[str, float]) -> tuple[int, str]:
    name = max(bounds, key=lambda each: bounds[each])
    return max(math.ceil(bounds[name]), 1), name


MILLION: Final = 1_000_000
TARGETS: Final = (
    Target("10^6 connections that send once in a minute", MILLION, MILLION / 60),
    Target("10^6 connections, one message a second each", MILLION, MILLION),
    Target("10^6 connections, 100 a second each, one in a write", MILLION, 100 * MILLION),
    Target("the same, 10 in a write (linger 100 ms)", MILLION, 100 * MILLION, messages_per_write=10),
    Target("the same, 64 in a write", MILLION, 100 * MILLION, messages_per_write=64),
    Target("10^8 of 1 KiB, 64 in a write", MILLION, 100 * MILLION, 1_024, 64),
)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.1f} GB/s" if bytes_per_s >= 1e8 else f"{bytes_per_s / 1e6:,.1f} MB/s"


def tables() -> str:
    """Both tables of docs/SCALE.md."""
    known, given = Measured(), Assumed()
    lines = [
        "| cost of a message at the leader | computed | from |",
        "|---|---|---|",
        f"| a write of a client | {known.write_s * 1e6:.1f} us | the two durable rows |",
        f"| a message in it | {known.publish_s * 1e6:.2f} us | the two durable rows |",
        f"| shipped to the WAL | x {known.shipping_ratio} | the prototype |",
        f"| a delivery | {known.delivery_s * 1e6:.3f} us | fan-out 1 to 16 |",
        f"| an idle connection | {known.idle_connection_bytes + given.socket_bytes:,} B | measured {known.idle_connection_bytes:,} B, and the system's part |",
        "",
        "| wanted | messages/s of a cell | cells | cores | nodes, bounded by | Kafka brokers, bounded by | disks | clients | WAL | all of the network |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for target in TARGETS:
        found = need(target)
        lines.append(
            f"| {target.name}, {target.value_bytes:,} B | {found.cell_messages_per_s:,.0f} | {found.cells:,} | {found.cores:,.0f} "
            f"| {found.nodes:,}, {found.nodes_because} | {found.brokers:,}, {found.brokers_because} | {found.disks:,} "
            f"| {_rate(found.client_bytes_per_s)} | {_rate(found.wal_bytes_per_s)} | {_rate(found.cluster_bytes_per_s)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(tables())
