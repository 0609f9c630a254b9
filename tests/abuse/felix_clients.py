"""Felix clients of a broker under test, and a probe that it serves others on."""

from typing import Any

from tests.abuse.process import Broker
from tests.wire import felix
from tests.wire.felix import batch, message


class Client(felix.Client):
    """One connection to this broker."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        super().__init__(broker.listeners["felix"], **options)


def probe(broker: Broker) -> None:
    """Somebody else connects, publishes and reads."""
    scope = {"tenant_id": "probe", "namespace": "n", "stream": "s"}
    with Client(broker) as client:
        stream = client.login(tenant="probe", flags=0x3F)
        said = client.ask(stream, message("subscribe", **scope, subscription_id=1))
        assert said == {"type": "subscribed", "subscription_id": 1}, said
        client.send(stream, batch(("probe", "n", "s"), b"here", request=1))
        assert client.acked(stream) == (0, 1, "")
        events = client.event_stream()
        assert client.read(events) == {"type": "event_stream_hello", "subscription_id": 1}
        assert client.events(events, 1) == [b"here"]
