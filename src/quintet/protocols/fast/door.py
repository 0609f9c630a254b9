"""The row of the Fast TCP Pub/Sub door: its options, its rights, how its sessions are made."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from quintet.model import limits
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.fast import frames
from quintet.protocols.options import BytesMax, Count, PerSecond, Port, Renamed, Seconds, TcpListener, Unbounded

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.protocols.base import Session, SessionConnection


class FastListener(TcpListener):
    """The Fast TCP Pub/Sub door. Its tokens are signed with the secrets of [tokens]."""

    renamed = (
        Renamed("max_payload_bytes", "payload_bytes_max"),
        Renamed("subject_messages_per_second", "subject_messages_per_second_max"),
        Renamed("address_messages_per_second", "address_messages_per_second_max"),
    )

    port: Port = Field(default=7400, description="TCP port; 0 picks a free one, which --print-ready reports.")
    mode: Literal["strict", "extended"] = Field(
        default="strict",
        description="strict: only packets of the document; extended: OK and ERROR answer every request. A client may ask "
        "for the latter by itself.",
    )
    payload_bytes_max: Annotated[BytesMax, Field(ge=1, le=32 * limits.MIB)] = Field(
        default=16 * limits.MIB, description="Largest payload accepted, in bytes; a larger one closes the connection."
    )
    auth_failures_max: Unbounded = Field(
        default=10, description="Refused tokens on one connection before it is closed; 0: never."
    )
    require_create: bool = Field(
        default=False, description="Whether CREATE needs the permission `create`; else any valid token may."
    )
    expire_subscriptions: bool = Field(
        default=True, description="Whether deliveries stop when the token they were subscribed with expires."
    )
    key_updates: bool = Field(
        default=True, description="Whether subscribers are told a new key when it is rotated (in clear without TLS)."
    )
    rotation_grace_seconds: Seconds = Field(
        default=60,
        description="Time for subscribers to come back with a rotated key before they are evicted, in seconds.",
    )
    ttl_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=3600, description="Time to live of messages in topics made with the TTL flag, in seconds."
    )
    subject_connections_max: Count = Field(
        default=1_000, description="Connections open at once for one subject of tokens."
    )
    subject_messages_per_second_max: PerSecond = Field(
        default=0,
        description="Messages one subject may publish per second; it is slowed down above. 0: no limit.",
    )
    address_messages_per_second_max: PerSecond = Field(
        default=0,
        description="Messages one address may publish per second; it is slowed down above. 0: no limit.",
    )


def _open(broker: "Broker", options: FastListener) -> MakeSession:
    from quintet.protocols.fast.session import FastDoor, FastOptions, FastSession

    shared = FastDoor(
        broker,
        FastOptions(
            extended=options.mode == "extended",
            payload_bytes_max=options.payload_bytes_max,
            auth_failures_max=options.auth_failures_max,
            subject_connections_max=options.subject_connections_max,
            subject_messages_per_second=options.subject_messages_per_second_max,
            address_messages_per_second=options.address_messages_per_second_max,
        ),
    )

    def make(connection: "SessionConnection", peer: str, _address: str) -> "Session":
        return FastSession(shared, connection, broker.scheduler.monotonic(), peer)

    return make


def _dev_lines(dev: Development) -> list[str]:
    url = f"fast://:$TOKEN@{dev.address}"
    return [
        f"export TOKEN=$({dev.command} token mint --dev --sub ann --queue-key k1)",
        f"{dev.command} sub --url {url} keyed",
        f"{dev.command} pub --url {url} keyed hello",
    ]


FAST: Final = Door(
    name="fast",
    protocol="fast",
    title="Fast",
    about="The Fast TCP Pub/Sub door.",
    options=FastListener,
    operations=frames.NAMES,
    rights=frames.RIGHTS,
    open=_open,
    dev_lines=_dev_lines,
)
