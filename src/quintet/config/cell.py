"""Defines the sections [cell]: where the write-ahead log of a cell is in Kafka, who this node is, how long a lease is (ADR 39); and
[cluster]: where this node listens for the other nodes of its cell, whom it asks, by which certificates (ADR 42).

[cell] is a class of config/ because it reads a file with a password, and [cluster] stands beside it. What Kafka's client gets of it is made here; what the WAL needs
beyond that is log/replicated/kafka.py's affair.
"""

import socket
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from quintet.config.fields import read_secret
from quintet.model.sections import Cells, CountMin, FractionalSeconds, Seconds, Section, Unbounded
from quintet.protocols.options import is_loopback, split_address

LEASE_SECONDS_MIN: Final = 1.0  # a loop is kept for tenths of a second now and then
HOLD_RATIO_MIN: Final = 1.1  # of a lease: two clocks drift apart by far less
REPLICAS_DEFAULT: Final = 3
IN_SYNC_DEFAULT: Final = 2


class Cell(Section):
    """A cell of nodes over one topic of Apache Kafka. Only with engine "kafka"."""

    node: str = Field(
        default="",
        description="Name of this node, another one for each node of the cell; needed with engine kafka.",
        pattern=r"^[A-Za-z0-9_.-]{0,64}$",
    )
    advertised_host: str = Field(
        default="", description="Host by which clients and other nodes reach this one. Empty: the name of the machine."
    )
    servers: tuple[str, ...] = Field(
        default=(), description="Brokers of Kafka to begin with, as HOST:PORT; needed with engine kafka."
    )
    topic: str = Field(
        default="quintet-wal",
        description="Topic of Kafka that is the write-ahead log: one partition for each cell, made if it is not there.",
        pattern=r"^[A-Za-z0-9_.-]{1,200}$",
    )
    cells: Cells = Field(
        default=1,
        description="Into how many cells topics are shared out, each with a partition of the topic, a leader and a process on every node. "
        "The same on all nodes, and for ever; more than 1 needs cluster.listen.",
    )
    places: tuple[str, ...] = Field(
        default=(),
        description="With several cells: PREFIX=CELL, topics whose names begin so belong to that cell. The same on all nodes, and for ever.",
    )
    lease_seconds: Annotated[FractionalSeconds, Field(ge=LEASE_SECONDS_MIN)] = Field(
        default=5.0,
        description="For how long a leader answers after the last write that Kafka confirmed, in seconds. The same on all nodes.",
    )
    hold_seconds: FractionalSeconds = Field(
        default=0.0,
        description="How long a new leader waits after the last record of the one before, in seconds; 0: a quarter more than a lease.",
    )
    follower_reads: bool = Field(
        default=True,
        description="Whether this node answers reads by Flight while it follows. What is read there, and who is refused, is in its own log "
        "and not in __events and __audit.",
    )
    follower_age_seconds: FractionalSeconds = Field(
        default=10.0,
        gt=0,
        description="How old the state of this node may be for a read that names no max_age_seconds, while it follows, in seconds; if it "
        "may be older, the read is refused.",
    )
    replicas_min: CountMin = Field(
        default=REPLICAS_DEFAULT, description="Replicas of the topic; with fewer this node does not start."
    )
    in_sync_replicas_min: CountMin = Field(
        default=IN_SYNC_DEFAULT, description="Replicas that must have a write before it counts (min.insync.replicas)."
    )
    flushed: bool = Field(
        default=True,
        description="Brokers of Kafka write to their disks before they confirm (flush.messages is 1); false: their memory is enough.",
    )
    weaker_allowed: bool = Field(
        default=False,
        description="Take fewer replicas, or brokers that do not flush: then acknowledged messages may be lost with a broker.",
    )
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="How Kafka is reached."
    )
    tls_ca: Path | None = Field(default=None, description="PEM file of who signed Kafka's certificates.")
    tls_cert: Path | None = Field(default=None, description="PEM file of this node's certificate for Kafka.")
    tls_key: Path | None = Field(default=None, description="PEM file of its key.")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512",
        description="How this node proves to Kafka who it is, with a security_protocol of sasl_*.",
    )
    sasl_user: str = Field(default="", description="Its name there.")
    sasl_password_file: Path | None = Field(
        default=None, description="File with its password (one line), readable by its owner only."
    )
    _password: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.hold_seconds and self.hold_seconds < self.lease_seconds * HOLD_RATIO_MIN:
            least = self.lease_seconds * HOLD_RATIO_MIN
            raise ValueError(
                f"hold_seconds is {self.hold_seconds:g}; with lease_seconds = {self.lease_seconds:g} it is {least:g} or more"
            )
        if self.in_sync_replicas_min > self.replicas_min:
            raise ValueError(
                f"in_sync_replicas_min is {self.in_sync_replicas_min}, more than replicas_min ({self.replicas_min})"
            )
        weak = self.replicas_min < REPLICAS_DEFAULT or self.in_sync_replicas_min < IN_SYNC_DEFAULT or not self.flushed
        if weak and not self.weaker_allowed:
            raise ValueError(
                f"replicas_min = {self.replicas_min}, in_sync_replicas_min = {self.in_sync_replicas_min}, flushed ="
                f" {str(self.flushed).lower()} promise less than {REPLICAS_DEFAULT}, {IN_SYNC_DEFAULT} and true: acknowledged"
                " messages may be lost with a broker of Kafka. If that is what you want, say weaker_allowed = true"
            )
        if self.places and self.cells == 1:
            raise ValueError("places are of no use with one cell: give cells too")
        sasl = self.security_protocol.startswith("sasl")
        if sasl and not (self.sasl_user and self.sasl_password_file):
            raise ValueError(f"security_protocol = {self.security_protocol} needs sasl_user and sasl_password_file")
        if self.sasl_password_file is not None:
            self._password = read_secret(self.sasl_password_file)
        return self

    @property
    def host(self) -> str:
        """What this node advertises."""
        return self.advertised_host or socket.gethostname()

    @property
    def hold(self) -> float:
        """In seconds."""
        return self.hold_seconds or self.lease_seconds * 1.25

    def client(self) -> dict[str, str]:
        """Options of Kafka's client: who this node is, and how it is encrypted."""
        found = {"security.protocol": self.security_protocol, "client.id": f"quintet-{self.node}"}
        files = {
            "ssl.ca.location": self.tls_ca,
            "ssl.certificate.location": self.tls_cert,
            "ssl.key.location": self.tls_key,
        }
        found |= {name: str(path) for name, path in files.items() if path is not None}
        if self.security_protocol.startswith("sasl"):
            found |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.sasl_user,
                "sasl.password": self._password,
            }
        return found


class Cluster(Section):
    """How nodes of a cell reach each other. Only with engine "kafka"."""

    listen: str = Field(
        default="",
        description="HOST:PORT where this node listens for the other nodes; empty: it talks to none of them. Port 0 picks a free one. "
        "Beyond loopback it needs tls_cert, tls_key and tls_ca.",
    )
    peers: tuple[str, ...] = Field(
        default=(),
        description="HOST:PORT of other nodes to begin with; this node's own may be among them, so the list may be the same on all. "
        "Others are learned from these.",
    )
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file of this node's certificate for the other nodes. It names the node: URI quintet:node:NAME.",
    )
    tls_key: Path | None = Field(default=None, description="PEM file of its key.")
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the authority whose certificates make a node of this cluster."
    )
    trim: bool = Field(
        default=True,
        description="Remove from Kafka what two nodes have synced; needs listen. False: the write-ahead log grows for ever.",
    )
    wal_kept_seconds: Seconds = Field(
        default=3600,
        description="For how long the write-ahead log is kept after two nodes have synced it, in seconds: a node that was away for less "
        "goes on by itself, one that was away for longer copies from another node.",
    )
    wal_version_max: Unbounded = Field(
        default=0,
        description="Newest version of records of the write-ahead log that this node begins to write; 0: the newest that all nodes can "
        "read. With the version of before an upgrade, going back stays possible until it is removed.",
    )

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(files) and not all(files):
            raise ValueError("tls_cert, tls_key and tls_ca belong together: give all three of them")
        if self.peers and not self.listen:
            raise ValueError("peers are asked by a node that listens itself: give listen too")
        for name, text in (*(("listen", self.listen),) * bool(self.listen), *(("peers", peer) for peer in self.peers)):
            host, port = split_address(text)
            if not host or (not port and name == "peers"):
                raise ValueError(f"{name}: {text!r} is no address: write HOST:PORT")
            if not is_loopback(host) and not all(files):
                raise ValueError(
                    f"{name}: {text} is reached by other machines, so nodes prove who they are: give tls_cert, tls_key and"
                    " tls_ca (`quintet cluster init` makes them)"
                )
        return self
