"""A FastStream broker for Quintet: `pip install 'quintet[faststream]'`.

    from faststream import FastStream
    from quintet.faststream import QuintetBroker

    broker = QuintetBroker("flymq://admin:admin@127.0.0.1:9092")
    app = FastStream(broker)

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None: ...

The URL picks the door, as for `quintet.connect`. Everything of FastStream works as with its other brokers: dependencies,
middlewares, routers, `faststream run`, `faststream docs`, and TestQuintetBroker for tests without a broker.
"""

from quintet.faststream.broker import QuintetBroker
from quintet.faststream.messages import QuintetMessage
from quintet.faststream.publishing import QuintetPublisher
from quintet.faststream.registering import QuintetRouter
from quintet.faststream.subscribing import QuintetSubscriber
from quintet.faststream.testing import TestQuintetBroker

__all__ = [
    "QuintetBroker",
    "QuintetMessage",
    "QuintetPublisher",
    "QuintetRouter",
    "QuintetSubscriber",
    "TestQuintetBroker",
]
