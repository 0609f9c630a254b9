"""Defines `connect(url)` and Bus, with which users publish and subscribe. The same for every door.

All publishing of a bus goes over one connection, so that callers who publish in the same turn of the loop share a write
and a confirmation. Each subscription has a connection of its own, so that a slow reader stops only itself.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from importlib import import_module
from types import TracebackType
from typing import Final, cast

from quintet.client.core import url as urls
from quintet.client.core.base import (
    Channel,
    Connector,
    FetchConnection,
    Fields,
    RequestConnection,
    Setup,
    Silent,
    Start,
    Wanted,
    deadline,
)
from quintet.client.core.errors import BadName, BadUrl, Closed, ConnectionLost, DeliveryError, Unsupported, too_large
from quintet.client.core.message import Ack, Message, MessageBatch, key_bytes, to_bytes
from quintet.client.core.publishing import ANY, Load, Outcome
from quintet.client.core.subscription import PREFETCH_DEFAULT, Subscription
from quintet.client.core.url import COMPRESSIONS
from quintet.client.kv import Cache, CacheStreams
from quintet.client.producer import Producer
from quintet.client.sources.reading import Moment, batch_of, replay
from quintet.client.transaction import Transaction
from quintet.model.errors import QuintetError
from quintet.model.extras import load

TIMEOUT_S: Final = 10.0
LINGER_S: Final = 0.005
PRODUCER_BYTES_MAX: Final = 16 * 1024 * 1024
PUBLISH_CHUNK_BYTES: Final = 8 * 1024 * 1024  # of one publish_batch: encoded and written at once

COMPRESSORS: Final = {"lz4": "cramjam", "snappy": "cramjam", "zstd": "quintet.model.zstd"}  # gzip is Python's own
DOORS: Final = {
    "blipmq": "quintet.client.links.blipmq",
    "flymq": "quintet.client.links.flymq",
    "fast": "quintet.client.links.fast",
    "peerbus": "quintet.client.links.peerbus",
    "felix": "quintet.client.links.felix",
}


def connect(
    url: str,
    *,
    name: str | None = None,
    timeout: float = TIMEOUT_S,
    reconnect: bool = True,
    tls: ssl.SSLContext | None = None,
    on_event: Callable[[object], None] | None = None,
) -> "Bus":
    """`async with connect("blipmq://:key@host:port") as bus`. The URL's scheme picks the door, see url.py.

    timeout    seconds that connecting, and every call without its own `timeout=`, may take
    reconnect  come back by itself after the connection is lost, and resume subscriptions
    tls        the context to use in place of the system's authorities (or `?ca=FILE` in the URL)
    on_event   called with what the server says by itself and is no message: `fast.KeyUpdate`, `felix_source.Lagged`
    """
    endpoint = urls.parse(url)
    if endpoint.door not in DOORS:
        raise BadUrl(
            f"{endpoint.door}:// is the door of Spark and the pipelines, not of messages",
            hint="use flymq:// or blipmq://",
        )
    check_compression(endpoint.compression)
    connector = cast(Connector, import_module(DOORS[endpoint.door]).CONNECTOR).for_bus(endpoint, name or "")
    return Bus(Setup(endpoint, connector, name or "", timeout, reconnect, tls, on_event))


def check_compression(name: str) -> None:
    """PackageMissing if this client cannot do what it is asked for."""
    if name in COMPRESSORS:
        load(COMPRESSORS[name], f"compression {name}", "compression")


class Bus:
    """A connection to a broker. Made by `connect`, open inside its `async with` block."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._channel: Channel | None = None
        self._reader: Channel | None = None
        self._subscriptions: set[Subscription] = set()
        self._streams: CacheStreams | None = None

    async def __aenter__(self) -> "Bus":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect and authenticate. `async with` does it."""
        if self._channel is not None:
            raise Closed("the bus was opened already", hint="connect() makes a new one")
        self._channel = Channel(self._setup, Silent())
        await self._channel.open()

    async def close(self) -> None:
        """Close the subscriptions and the connection."""
        await asyncio.gather(*(subscription.close() for subscription in self._subscriptions))
        self._subscriptions.clear()
        if self._streams is not None:
            await self._streams.close()
        if self._reader is not None:
            await self._reader.close()
        if self._channel is not None:
            await self._channel.close()

    @property
    def name(self) -> str:
        """The name given to connect: for the caller's own logs where, as in BlipMQ, the wire has no place for it."""
        return self._setup.name

    @property
    def door(self) -> Connector:
        """The door of its URL."""
        return self._setup.connector

    @property
    def connected(self) -> bool:
        """Whether there is a connection for publishing right now."""
        return self._channel is not None and self._channel.current is not None

    @property
    def reconnects(self) -> int:
        """How often the publishing connection was replaced."""
        return self._channel.reconnects if self._channel is not None else 0

    async def ping(self, *, timeout: float | None = None) -> None:
        """Ask the server for an answer. All QoS 1 messages published before are durable when it returns."""
        async with deadline(self._limit(timeout), "the server's answer"):
            connection = await self._open().connection()
            await connection.barrier()

    async def request(self, operation: str, *, timeout: float | None = None, **fields: object) -> Fields:
        """Any operation of a door that works by request and answer, by its name in the protocol's table, with its fields
        by theirs: `await bus.request("METADATA", topic="orders")`. The answer's fields, or the error it was refused with.
        """
        self._carries(request=operation)
        async with deadline(self._limit(timeout), operation):
            connection = await self._open().connection()
            assert isinstance(connection, RequestConnection), "a door without requests says so in `lacks`"
            await connection.writable()
            return await connection.request(operation, fields)

    # -- publishing ------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        qos: int = 1,
        ttl: float | None = None,
        key: str | bytes | None = None,
        partition: int | None = None,
        delay: float | None = None,
        schema: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        timeout: float | None = None,
        retry: bool = False,
    ) -> Ack:
        """Publish one message. With QoS 1 it returns when the message is durable.

        value      bytes as they are, str as UTF-8, anything else as JSON
        ttl        seconds after which nobody wants it any more
        key        messages of one key are in one partition, in order
        partition  the one to use; None lets the broker choose, by the key if there is one
        delay      seconds before anybody sees it; `ack.handle` takes it back until then
        schema     the registered schema that it must fit; SchemaRejected says why it does not
        timeout    seconds; None is the timeout of the bus
        retry      after a lost connection publish again, until the timeout: it may then be stored twice. Without it
                   ConnectionLost is raised, and the message may or may not be stored.
        """
        self._carries(key=key, headers=headers, partition=partition, delay=delay, schema=schema, ttl=ttl)
        ttl_ms = self._check(topic, qos, ttl)
        data = to_bytes(value)
        if len(data) > (most := self._value_bytes_max(topic, key)):
            raise too_large(len(data), most)
        if delay is not None or schema is not None:
            return await self._publish_special(topic, data, key, partition, ttl, delay, schema, timeout)
        keys = None if key is None else [key_bytes(key)]
        load = Load(topic, [data], qos, ttl_ms, keys, ANY if partition is None else partition)
        outcome = await self._publish(load, timeout, retry)
        if outcome.failures:
            raise outcome.failures[0][1]
        return _acknowledged(load, outcome)

    async def _publish_special(
        self,
        topic: str,
        data: bytes,
        key: str | bytes | None,
        partition: int | None,
        ttl: float | None,
        delay: float | None,
        schema: str | None,
        timeout: float | None,
    ) -> Ack:
        """What has an operation of its own: later, or with a schema."""
        if sum(option is not None for option in (ttl, delay, schema)) > 1:
            raise Unsupported(
                "ttl=, delay= and schema= cannot be combined", hint="FlyMQ has a separate operation for each"
            )
        fields: Fields = {"topic": topic, "data": data, "key": key_bytes(key) or b""}
        fields["partition"] = ANY if partition is None else partition
        if schema is not None:
            answer = await self.request("PRODUCE_WITH_SCHEMA", timeout=timeout, schema=schema, **fields)
            return Ack(topic, 1, True, answer["partition"], answer["offset"], answer["timestamp_ms"])
        assert delay is not None
        answer = await self.request("PRODUCE_DELAYED", timeout=timeout, delay_ms=round(delay * 1000), **fields)
        return Ack(topic, 1, True, timestamp=answer["timestamp_ms"], handle=answer["offset"])

    async def cancel(self, ack: Ack, *, timeout: float | None = None) -> None:
        """Take a delayed message back, before anybody saw it."""
        if ack.handle is None:
            raise ValueError("only a message published with delay= can be cancelled")
        await self.request("CANCEL_DELAYED", timeout=timeout, topic=ack.topic, handle=ack.handle)

    async def publish_batch(
        self,
        topic: str,
        values: Iterable[object],
        *,
        qos: int = 1,
        ttl: float | None = None,
        key: str | bytes | None = None,
        keys: Iterable[str | bytes | None] | None = None,
        partition: int | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        timeout: float | None = None,
        retry: bool = False,
    ) -> Ack:
        """Publish many messages with one write; `keys` has one for each, `key` is for all. DeliveryError if the server
        refuses some; the others are stored."""
        self._carries(key=key if keys is None else keys, headers=headers, partition=partition, ttl=ttl)
        ttl_ms = self._check(topic, qos, ttl)
        data = [value if type(value) is bytes else to_bytes(value) for value in values]
        encoded = None if keys is None else [key_bytes(one) for one in keys]
        if encoded is None and key is not None:
            encoded = [key_bytes(key)] * len(data)
        if encoded is not None and len(encoded) != len(data):
            raise ValueError(f"{len(data)} messages and {len(encoded)} keys: give one key for each message")
        if not data:
            return Ack(topic, 0, qos == 1)
        longest = max(map(len, filter(None, encoded)), default=0) if encoded else 0
        sizes = list(map(len, data))
        if max(sizes) > (most := self._value_bytes_max(topic) - longest):
            raise too_large(max(sizes), most)
        load = Load(topic, data, qos, ttl_ms, encoded, ANY if partition is None else partition)
        if sum(sizes) <= PUBLISH_CHUNK_BYTES:
            outcome = await self._publish(load, timeout, retry)
        else:
            outcome = await self._publish_chunks(load, sizes, timeout, retry)
        if outcome.refused:
            first = outcome.failures[0][1]
            many = f"{outcome.refused} of {len(data)} messages to {topic!r} were refused, the first because: {first}"
            raise DeliveryError(
                many if len(data) > 1 else f"the message to {topic!r} was refused: {first}",
                topic=topic,
                failures=outcome.failures,
                hint=first.hint,
            ) from first
        return _acknowledged(load, outcome)

    def producer(
        self,
        topic: str,
        *,
        qos: int = 1,
        ttl: float | None = None,
        linger: float = LINGER_S,
        max_bytes: int = PRODUCER_BYTES_MAX,
        idempotent: bool = False,
        compression: str | None = None,
        retry: bool = False,
        timeout: float | None = None,
    ) -> Producer:
        """`async with bus.producer(topic) as p` for many sends that need not be awaited one by one.

        linger       seconds that a message may wait for others to share a write with
        idempotent   each message is stored exactly once, in order per partition, however often the connection is lost
        compression  of messages from 1 KiB on: gzip, lz4, zstd or snappy; None is what the URL says
        retry        as for publish, for producers that are not idempotent
        """
        self._carries(idempotent=idempotent or None, compression=compression, ttl=ttl)
        if compression is not None and compression not in COMPRESSIONS:
            raise ValueError(f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}")
        check_compression(compression or "none")
        if idempotent and (ttl is not None or retry):
            raise Unsupported("an idempotent producer does not support ttl= and retry=", hint="it retries by itself")
        load = Load(topic, (), qos, self._check(topic, qos, ttl), compression=compression)
        return Producer(
            self._open(),
            load,
            value_bytes_max=self._value_bytes_max(topic),
            lacks=self._setup.connector.lacks,
            linger=linger,
            max_bytes=max_bytes,
            idempotent=idempotent,
            retry=retry,
            timeout=self._limit(timeout),
        )

    async def _publish(self, load: Load, timeout: float | None, retry: bool) -> Outcome:
        channel = self._open()
        connection = channel.current
        if connection is not None and not connection.full and not retry:
            return await connection.publish(load, self._limit(timeout))
        async with deadline(self._limit(timeout), f"publishing to {load.topic!r}"):
            while True:
                try:
                    connection = await channel.connection()
                    await connection.writable()
                    return await connection.publish(load)
                except ConnectionLost:
                    if not retry or channel.failed is not None:
                        raise

    async def _publish_chunks(self, load: Load, sizes: list[int], timeout: float | None, retry: bool) -> Outcome:
        """A batch too large to encode at once: chunk after chunk, each confirmed before the next is encoded."""
        refused = 0
        failures: list[tuple[int, QuintetError]] = []
        places: list[tuple[int, int, int] | None] = []
        values, keys = load.values, load.keys
        async with deadline(self._limit(timeout), f"publishing {len(values)} messages to {load.topic!r}"):
            start = 0
            while start < len(values):
                end, size = start + 1, sizes[start]
                while end < len(values) and size + sizes[end] <= PUBLISH_CHUNK_BYTES:
                    size += sizes[end]
                    end += 1
                chunk = load._replace(values=values[start:end], keys=None if keys is None else keys[start:end])
                outcome = await self._publish(chunk, timeout, retry)
                refused += outcome.refused
                failures += [(start + at, error) for at, error in outcome.failures]
                places += outcome.places
                start = end
        return Outcome(refused, tuple(failures), places, outcome.durable)

    # -- subscribing -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        *,
        qos: int = 1,
        resume: int | None = None,
        group: str | None = None,
        start: Start | None = None,
        member: str | None = None,
        durable: str | None = None,
        filter: str | None = None,
        prefetch: int = PREFETCH_DEFAULT,
        timeout: float | None = None,
    ) -> Subscription:
        """`async with bus.subscribe(topic) as sub`, then `async for msg in sub`.

        qos       1: what is not acknowledged is delivered again; 0: at most once
        resume    the id of an earlier subscription (`sub.id`) to go on with; the same credentials must have made it
        group     the consumer group to join: its members share the partitions, and where they were is kept. Without one
                  all partitions are read, and nothing is kept.
        start     where a group begins in a partition that it has committed nothing of: "earliest", "latest" or "commit"
                  (as earliest). Without a group: the first two, and with Felix an offset or a datetime
        member    a name of one's own, under which a member that comes back soon has its partitions again
        durable   a name under which the server keeps where this subscription is (Felix): go on with the same name
        filter    only messages that pass, in the server's language of filters
        prefetch  messages that are sent before one of them is acknowledged (BlipMQ, Felix), or fetched ahead (FlyMQ)
        """
        self._open()
        self._check(topic, qos, None)
        self._carries(resume=resume, group=group, start=start, member=member, filter=filter, durable=durable)
        if not isinstance(start, str | None) and "durable" in self._setup.connector.lacks:
            raise Unsupported("this protocol cannot start at an offset or a time", hint="Felix can")
        if prefetch < 1:
            raise ValueError("prefetch is a number of messages from 1 up")
        door = self._setup.connector
        wanted = Wanted(topic, qos, resume, group or "", start, member or "", filter or "", durable or "", prefetch)
        subscription = Subscription(
            door.source(self._setup, wanted), topic, prefetch=prefetch, timeout=self._limit(timeout)
        )
        self._subscriptions = {other for other in self._subscriptions if not other.closed}
        self._subscriptions.add(subscription)
        return subscription

    # -- reading without a subscription ----------------------------------------------------------------------------

    async def fetch(
        self,
        topic: str,
        *,
        partition: int = 0,
        offset: int = 0,
        max: int = 100,
        filter: str | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> MessageBatch:
        """Up to `max` messages of a partition, from an offset on; `batch.next_offset` is where to go on. An empty batch
        comes at once, or after `wait` seconds if nothing was published meanwhile."""
        self._carries(fetch=topic)
        fields: Fields = {"topic": topic, "partition": partition, "offset": offset, "max": max}
        if filter is not None:
            fields["filter"] = filter
        if wait:
            fields["wait_ms"] = round(wait * 1000)
        async with deadline(self._limit(timeout) + wait, f"fetching from {topic!r}"):
            connection = await (await self._reading()).connection()
            assert isinstance(connection, FetchConnection)
            return batch_of(topic, partition, await connection.fetch(fields))

    async def replay(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        partition: int | None = None,
        filter: str | None = None,
    ) -> AsyncIterator[Message]:
        """Messages that are there already, without a group and without side effects: one partition after the other, each
        in its order. since and until are a datetime, or how long ago ("90s", "10m", "1h", "2d", a timedelta)."""
        self._carries(replay=topic)
        async for msg in replay(await self._reading(), topic, since, until, partition, filter or ""):
            yield msg

    async def _reading(self) -> Channel:
        """A connection of its own: a question that waits would hold up what is published."""
        self._open()
        if self._reader is None:
            self._reader = Channel(self._setup, Silent())
            try:
                await self._reader.open()
            except BaseException:
                self._reader = None
                raise
        return self._reader

    # -- values by key ---------------------------------------------------------------------------------------------

    def kv(self, name: str) -> Cache:
        """A cache of the broker as a mapping (Felix): `cache = bus.kv("sessions")`, or "tenant/namespace/sessions"."""
        self._carries(kv=name)
        self._open()
        if self._streams is None:
            self._streams = CacheStreams(self._setup)
        return Cache(self._streams, name)

    # -- transactions ----------------------------------------------------------------------------------------------

    def transaction(self, name: str | None = None, *, timeout: float | None = None) -> Transaction:
        """`async with bus.transaction() as txn`: what is published with it appears when the block ends, all at once, or
        not at all when it raises.

        name     of a producer of which there is one at a time: what an earlier one left open is rolled back
        timeout  seconds after which the server rolls it back by itself; None: as it is configured
        """
        self._carries(transaction=True)
        lasts_ms = 0 if timeout is None else round(timeout * 1000)
        return Transaction(self._open(), name=name or "", lasts_ms=lasts_ms, timeout=self._setup.timeout)

    # -- checks before anything is sent ----------------------------------------------------------------------------

    def _open(self) -> Channel:
        if self._channel is None:
            raise Closed("the bus is not open", hint="use `async with quintet.connect(url) as bus`")
        if self._channel.failed is not None:
            raise self._channel.failed
        return self._channel

    def _limit(self, timeout: float | None) -> float:
        return self._setup.timeout if timeout is None else timeout

    def _carries(self, **options: object) -> None:
        for option, value in options.items():
            if value is not None and option in self._setup.connector.lacks:
                door = self._setup.connector
                raise Unsupported(f"{door.name} does not support {option}=", hint=door.lacks[option])

    def _check(self, topic: str, qos: int, ttl: float | None) -> int:
        """The TTL in milliseconds, 0 for none, if all three can be sent."""
        limits = self._setup.connector.limits
        size = len(topic.encode())
        if not 0 < size <= limits.topic_bytes_max or "\0" in topic:
            raise BadName(
                f"the topic name has {size} bytes" if "\0" not in topic else "the topic name contains a NUL",
                hint=f"a topic has 1 to {limits.topic_bytes_max} bytes of UTF-8 without NUL",
            )
        if qos == 0 and "qos=0" in self._setup.connector.lacks:
            raise Unsupported(f"{self._setup.connector.name} has no qos=0", hint=self._setup.connector.lacks["qos=0"])
        if qos not in (0, 1):
            raise ValueError(f"qos is 0 (at most once) or 1 (durable, at least once), not {qos!r}")
        if ttl is None:
            return 0
        ttl_ms = round(ttl * 1000)
        if not 0 < ttl_ms <= limits.ttl_ms_max:
            raise ValueError(f"ttl is a number of seconds from 0.001 to {limits.ttl_ms_max / 1000:.0f}, not {ttl!r}")
        return ttl_ms

    def _value_bytes_max(self, topic: str, key: str | bytes | None = None) -> int:
        limits = self._setup.connector.limits
        return limits.frame_bytes_max - limits.frame_overhead_bytes - len(topic.encode()) - len(key_bytes(key) or b"")


def _acknowledged(load: Load, outcome: Outcome) -> Ack:
    count, durable = len(load.values), load.qos == 1 and outcome.durable
    last = outcome.places[-1] if outcome.places else None
    return Ack(load.topic, count, durable) if last is None else Ack(load.topic, count, durable, *last)
