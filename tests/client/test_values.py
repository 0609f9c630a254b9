"""Values of every kind: published as they are, decoded as the type that is asked for, refused with the field's name."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pydantic
import pytest

import quintet
from quintet.client.core.errors import BadValue
from quintet.client.core.values import decode, encode
from tests.client.server import Server


class Line(msgspec.Struct):
    sku: str
    count: int = 1


@dataclass
class Customer:
    name: str
    since: datetime


class Order(pydantic.BaseModel):
    id: int
    total: Decimal = Decimal(0)
    tags: list[str] = []


@dataclass
class Basket:
    owner: str
    orders: list[Order]


VALUES = [
    Line("a", 2),
    Customer("ann", datetime(2026, 11, 17, tzinfo=UTC)),
    Order(id=7, total=Decimal("9.90"), tags=["new"]),
    Basket("bob", [Order(id=1), Order(id=2)]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_published_comes_back(server: Server, topic: str, value: object) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish(topic, value)
            await bus.publish_batch(topic, [value])
            async with bus.producer(topic) as producer:
                producer.send(value)
            async with bus.transaction() as txn:
                await txn.publish(topic, value)
            assert [msg.decode(type(value)) async for msg in bus.replay(topic)] == [value] * 4

    asyncio.run(scenario())


def test_models_inside_lists_and_dicts() -> None:
    orders = [Order(id=1), Order(id=2)]
    assert decode(encode(orders), list[Order]) == orders
    assert decode(encode({"a": orders[0]}), dict[str, Order]) == {"a": orders[0]}
    assert encode(Order(id=7, total=Decimal("9.90"))) == b'{"id":7,"total":"9.90","tags":[]}'


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b'{"sku":"a","count":"many"}', Line, r"'orders' is no Line: Expected `int`, got `str` - at `\$.count`"),
        (b'{"name":"ann"}', Customer, "'orders' is no Customer: .*missing required field `since`"),
        (b'{"id":"x","tags":5}', Order, "'orders' is no Order: id: Input should be a valid integer.*; tags: "),
        (b"{", Order, "'orders' is no Order: it: Invalid JSON"),
        (b"\xff", Line, "'orders' is no Line"),
        (b'{"owner":"bob","orders":[{"id":"x"}]}', Basket, r"'orders' is no Basket: id: .*\$.orders"),
        (b"[" * 100_000, list, "'orders' is no list"),
    ],
)
def test_a_message_of_another_shape_names_field_and_topic(data: bytes, kind: type, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        decode(data, kind, "orders")


def test_a_value_that_json_cannot_say_names_its_type_and_topic(url: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(url) as bus:
            with pytest.raises(BadValue, match=r"a object cannot be published to 'orders'.*pydantic model") as caught:
                await bus.publish("orders", object())
            assert isinstance(caught.value, TypeError)
            with pytest.raises(BadValue, match="a dict cannot be published"):
                await bus.publish_batch("orders", [{"a": object()}])

    asyncio.run(scenario())


def test_neither_msgspec_nor_pydantic_is_loaded_for_bytes() -> None:
    code = (
        "import sys; from quintet.client.core.values import encode, decode; encode(b'x'); encode('x'); "
        "assert not {'msgspec', 'pydantic'} & sys.modules.keys(); encode({}); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
