"""An order service over any door: workers with retries and dead letters, a price asked for, a cache, a transaction, a schema, a delay.

    python examples/order_service.py [URL]

Every part runs over every URL whose protocol has it. A part that the protocol has no place for prints what the client's error says to
use in its place.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import quintet
from quintet.client.core.errors import BadName, TopicNotFound, Unsupported
from quintet.client.links.fast import Queues
from quintet.client.manage import Manage

WAIT_S = 30
SCHEMA = b'{"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}}'


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not done():
            await asyncio.sleep(0.01)


async def work(bus: quintet.Bus, orders: str) -> str:
    """Orders are published with headers, four workers bill them; one order never works."""
    topic, tries = orders, 0
    billed: list[tuple[int, str]] = []
    if bus.door.name == "fast":
        await Queues(bus).create(topic)

    async def bill(msg: quintet.Message) -> None:
        nonlocal tries
        order = msg.json()["order"]
        if order == 3:
            tries += 1
            raise ValueError("there is no order 3")
        billed.append((order, msg.headers.text("tenant")))

    group = {} if "group" in bus.door.lacks else {"group": f"billing by {bus.door.name}", "start": "earliest"}
    retry = quintet.Retry(times=1, delay=0.05)
    async with bus.consumer(topic, bill, workers=4, retry=retry, **group) as consumer:  # type: ignore[arg-type]
        for order in range(5):
            await bus.publish(topic, {"order": order}, headers={"tenant": "acme"})
        await until(lambda: len(billed) == 4 and consumer.given_up == 1)
    return f"billed {sorted(order for order, tenant in billed if tenant == 'acme')}, gave up 1 after {tries} attempts"


async def ask(bus: quintet.Bus, _orders: str) -> str:
    async def price(msg: quintet.Message) -> dict[str, int]:
        return {"price": 2 * int(msg.json()["sku"])}

    async with bus.responder("shop.prices", price):
        return f"price {(await bus.ask('shop.prices', {'sku': 21}, timeout=WAIT_S)).json()['price']}"


async def cache(bus: quintet.Bus, _orders: str) -> str:
    stock = bus.kv("stock")
    await stock.put("sku-21", b"7")
    return f"stock {(await stock.get('sku-21') or b'').decode()}"


async def transaction(bus: quintet.Bus, _orders: str) -> str:
    async with bus.transaction() as txn:
        await txn.publish("shop.invoices", {"for": 1})
        await txn.publish("shop.shipments", {"for": 1})
    return "invoice and shipment together"


async def schema(bus: quintet.Bus, _orders: str) -> str:
    if "schema" not in bus.door.lacks:
        await Manage(bus).register_schema("shop.checked", "json", SCHEMA)
    await bus.publish("shop.checked", {"order": 1}, schema="shop.checked")
    try:
        await bus.publish("shop.checked", {"order": "one"}, schema="shop.checked")
    except quintet.errors.QuintetError:
        return "a bad order was refused"
    return "a bad order was taken"


async def delay(bus: quintet.Bus, _orders: str) -> str:
    async with bus.subscribe("shop.reminders") as reminders:
        await bus.publish("shop.reminders", "pay", delay=0.2)
        return f"reminded to {(await reminders.get(timeout=WAIT_S)).text()}"


PARTS: dict[str, Callable[[quintet.Bus, str], Awaitable[str]]] = {
    "work": work, "ask": ask, "cache": cache, "transaction": transaction, "schema": schema, "delay": delay,
}  # fmt: skip


async def main(url: str) -> None:
    name = url.partition("name=")[2]
    orders = f"peerbus/{name}" if name else f"shop.orders.{url.partition(':')[0]}"  # a peer reads one mailbox, its own
    async with quintet.connect(url) as bus:
        for name, part in PARTS.items():
            try:
                print(f"{name}: {await part(bus, orders)}", flush=True)
            except (Unsupported, BadName, TopicNotFound) as error:  # Fast and peerbus have no topic for a reply
                print(f"{name}: not here, {error.hint}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "flymq://admin:admin@127.0.0.1:9092"))
