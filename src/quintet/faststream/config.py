"""Holds what the broker, its routers, subscribers and publishers share: the bus and the producer."""

from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState

from quintet.client.bus import Bus


@dataclass(kw_only=True)
class QuintetConfig(BrokerConfig):
    """Of FastStream's configuration, with the bus."""

    _bus: Bus | None = field(default=None, init=False, repr=False)

    @property
    def bus(self) -> Bus:
        if self._bus is None:
            raise IncorrectState("the broker is not connected; use `async with broker`, or start the application")
        return self._bus

    def connect(self, bus: Bus | None) -> None:
        self._bus = bus
        producer: Any = self.producer
        producer.connect(bus, self.fd_config._serializer, self.broker_codec)
