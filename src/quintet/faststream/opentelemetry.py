"""Defines the telemetry middleware of FastStream for Quintet: `QuintetBroker(middlewares=[QuintetTelemetryMiddleware()])`.

The spans and metrics are FastStream's own, named as for its other brokers. `quintet.instrument()` makes the client's beside them: use
one or the other. The context is the same W3C header, so the broker's spans belong to either.
"""

from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.trace import TracerProvider

from quintet.client.core.message import Message
from quintet.faststream.publishing import QuintetPublishCommand


class _Settings(TelemetrySettingsProvider[Message, QuintetPublishCommand]):
    """What spans say of messages."""

    messaging_system = "quintet"

    def get_consume_attrs_from_message(self, msg: "StreamMessage[Message]") -> dict[str, Any]:
        found = {
            "messaging.system": self.messaging_system,
            "messaging.message.id": msg.message_id,
            "messaging.message.conversation_id": msg.correlation_id,
            "messaging.message.body.size": len(msg.body),
            MESSAGING_DESTINATION_PUBLISH_NAME: msg.raw_message.topic,
        }
        if msg.raw_message.partition is not None:
            found["messaging.destination.partition.id"] = str(msg.raw_message.partition)
        return found

    def get_consume_destination_name(self, msg: "StreamMessage[Message]") -> str:
        return msg.raw_message.topic

    def get_publish_attrs_from_cmd(self, cmd: QuintetPublishCommand) -> dict[str, Any]:
        return {
            "messaging.system": self.messaging_system,
            "messaging.destination.name": cmd.destination,
            "messaging.message.conversation_id": cmd.correlation_id,
        }

    def get_publish_destination_name(self, cmd: QuintetPublishCommand) -> str:
        return cmd.destination


class QuintetTelemetryMiddleware(TelemetryMiddleware[QuintetPublishCommand]):
    """Spans and metrics of handlers and publishers; without providers, the global ones of the process."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: _Settings(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
        )
