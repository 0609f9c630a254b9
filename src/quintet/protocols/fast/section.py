"""Defines the section of the Fast TCP Pub/Sub door: what an operator may choose of its listener."""

from typing import Annotated, Literal

from pydantic import Field

from quintet.broker.sections import QueueSection
from quintet.model import limits
from quintet.protocols.options import BytesMax, Count, PerSecond, Port, Renamed, TcpListener, Unbounded


class FastListener(QueueSection, TcpListener):
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

    @property
    def extended(self) -> bool:
        return self.mode == "extended"
