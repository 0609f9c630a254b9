"""Read orders, write invoices, each order billed exactly once: a consumer group and transactions.

    python examples/exactly_once.py [COUNT [URL]]

Start it, stop it, kill it, start several: the invoice and the progress in the orders are committed together.
"""

import asyncio
import sys

import quintet


async def main(count: int, url: str) -> None:
    async with quintet.connect(url) as bus:
        async with bus.producer(
            "shop.orders", idempotent=True
        ) as producer:  # stored once, however often it must be sent
            for number in range(count):
                producer.send({"order": number, "total": 10 * number}, key=f"customer-{number % 2}")
        async with bus.subscribe("shop.orders", group="billing", start="earliest") as orders:
            for _ in range(count):
                msg = await orders.get()
                order = msg.json()
                async with bus.transaction() as txn:
                    await txn.publish("shop.invoices", {"for": order["order"], "pay": order["total"]}, key=msg.key)
                    await txn.commit_offsets(msg)
        async for invoice in bus.replay("shop.invoices"):
            print(invoice.text())


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    url = sys.argv[2] if len(sys.argv) > 2 else "flymq://admin:admin@127.0.0.1:9092"
    asyncio.run(main(count, url))
