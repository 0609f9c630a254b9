"""Names for the parameters of handlers: `async def bill(order: Order, message: QuintetMessage)`."""

from typing import Annotated

from faststream.annotations import ContextRepo, Logger

from faststream import Context
from quintet.client.bus import Bus as _Bus
from quintet.faststream.broker import QuintetBroker as _Broker
from quintet.faststream.messages import QuintetMessage as _Message

QuintetMessage = Annotated[_Message, Context("message")]
QuintetBroker = Annotated[_Broker, Context("broker")]
Bus = Annotated[_Bus, Context("broker._connection")]

__all__ = ("Bus", "ContextRepo", "Logger", "QuintetBroker", "QuintetMessage")
