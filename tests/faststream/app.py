"""The application that the tests of the FastStream broker run and document."""

from pydantic import BaseModel

from faststream import FastStream
from quintet.faststream import QuintetBroker, QuintetRouter


class Order(BaseModel):
    id: int
    customer: str = "ann"


broker = QuintetBroker("flymq://admin:never-shown@127.0.0.1:9092", description="The order service")
app = FastStream(broker)
router = QuintetRouter("shop.")


@broker.subscriber("fs.orders", group="billing", start="earliest")
@broker.publisher("fs.bills")
async def bill(order: Order) -> str:
    """Bills an order."""
    return f"bill {order.id}"


@router.subscriber("*", max_workers=4)
async def watch(body: str) -> None:
    """Sees all of the shop."""


broker.include_router(router)
