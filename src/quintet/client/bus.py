"""Defines `connect(url)` and Bus, with which users publish and subscribe. The same for every door.

All publishing of a bus goes over one connection, so that callers who publish in the same turn of the loop share a write
and a confirmation. Each subscription has a connection of its own, so that a slow reader stops only itself.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Final, Unpack, cast

from quintet import kernel
from quintet.client.asking import ACKS_MAX, ACKS_S, Answer, Asker, Responder, check_door
from quintet.client.consuming import (
    GRACE_S,
    PREFETCH_PER_WORKER,
    WORKERS_DEFAULT,
    Consumer,
    ConsumerOptions,
    Handler,
    split_options,
)
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
from quintet.client.core.headers import Encoded, HeadersGiven, check_record_ttl, encode_headers
from quintet.client.core.hosts import Hosts
from quintet.client.core.message import Ack, Message, MessageBatch, key_bytes
from quintet.client.core.publishing import ANY, Load, Outcome, part_of
from quintet.client.core.subscription import PREFETCH_DEFAULT, Subscription
from quintet.client.core.telemetry import Telemetry, chosen
from quintet.client.core.url import COMPRESSIONS
from quintet.client.core.values import encode
from quintet.client.kv import Cache, CacheStreams
from quintet.client.producer import Producer
from quintet.client.sources.many import ManySource, is_pattern, wants_many
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
    wait: float | None = None,
    tls: ssl.SSLContext | None = None,
    on_event: Callable[[object], None] | None = None,
    telemetry: Telemetry | bool | None = None,
) -> "Bus":
    """`async with connect("blipmq://:key@host:port") as bus`. The URL's scheme picks the door, see url.py.

    timeout    seconds that connecting, and every call without its own `timeout=`, may take
    reconnect  come back by itself after the connection is lost, and resume subscriptions
    wait       seconds to try again for while the broker is not up yet; None: the first failure is raised
    tls        the context to use in place of the system's authorities (or `?ca=FILE` in the URL)
    on_event   called with what the server says by itself and is no message: `fast.KeyUpdate`, `felix_source.Lagged`
    telemetry  True, or a Telemetry with providers: spans and metrics of OpenTelemetry; None: as `quintet.instrument` said
    """
    endpoint = urls.parse(url)
    if endpoint.door not in DOORS:
        raise BadUrl(
            f"{endpoint.door}:// is the door of Spark and the pipelines, not of messages",
            hint="use flymq:// or blipmq://",
        )
    check_compression(endpoint.compression)
    connector = cast(Connector, import_module(DOORS[endpoint.door]).CONNECTOR).for_bus(endpoint, name or "")
    setup = Setup(endpoint, connector, name or "", timeout, reconnect, tls, on_event, Hosts(endpoint))
    telemetry = chosen(telemetry)
    if telemetry is None:
        return Bus(setup, wait)
    return cast(Bus, load("quintet.client.traced", "telemetry=", "otel").TracedBus(setup, wait, telemetry))


def check_compression(name: str) -> None:
    """PackageMissing if this client cannot do what it is asked for."""
    if name in COMPRESSORS:
        load(COMPRESSORS[name], f"compression {name}", "compression")


class Bus:
    """A connection to a broker. Made by `connect`, open inside its `async with` block."""

    def __init__(self, setup: Setup, wait: float | None = None) -> None:
        self._setup = setup
        self._wait = wait
        self._channel: Channel | None = None
        self._reader: Channel | None = None
        self._subscriptions: set[Subscription] = set()
        self._streams: CacheStreams | None = None
        self._asker: Asker | None = None
        self._responders: dict[Consumer, asyncio.Task[None]] = {}
        self._new_producer: Callable[..., Producer] = Producer  # traced.py has others
        self._new_subscription: Callable[..., Subscription] = Subscription
        self._new_consumer: Callable[..., Consumer] = Consumer
        self._new_transaction: Callable[..., Transaction] = Transaction

    async def __aenter__(self) -> "Bus":
        if self._channel is None:  # wait_ready may have opened it
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
        channel = Channel(self._setup, Silent())
        await (channel.open() if self._wait is None else channel.open_within(self._wait))
        self._channel = channel

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Return when the broker answers: opens the bus if it is not open, tries again while nobody listens, and waits for a
        connection that was lost to come back. Timeout, with the last reason, after so many seconds."""
        limit = self._limit(timeout)
        until = asyncio.get_running_loop().time() + limit
        if self._channel is None:
            channel = Channel(self._setup, Silent())
            await channel.open_within(limit)
            self._channel = channel
        async with deadline(max(until - asyncio.get_running_loop().time(), 0.001), "the broker's answer"):
            while True:
                try:
                    await (await self._open().connection()).barrier()
                    return
                except ConnectionLost:
                    if self._channel.failed is not None:
                        raise

    async def close(self) -> None:
        """Close the subscriptions and the connection."""
        for task in self._responders.values():
            task.cancel()
        await asyncio.gather(*self._responders.values(), return_exceptions=True)
        await asyncio.gather(*(consumer.close() for consumer in self._responders))
        self._responders.clear()
        if self._asker is not None:
            await self._asker.close()
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
        headers: HeadersGiven | None = None,
        timeout: float | None = None,
        retry: bool = False,
    ) -> Ack:
        """Publish one message. With QoS 1 it returns when the message is durable. All options may be given together.

        value      bytes as they are, str as UTF-8, anything else as JSON
        ttl        seconds after which nobody wants it any more
        key        messages of one key are in one partition, in order
        partition  the one to use; None lets the broker choose, by the key if there is one
        delay      seconds before anybody sees it; `ack.handle` takes it back until then
        schema     the registered schema that it must fit; SchemaRejected says why it does not
        headers    names with values of str, bytes or None; pairs, where a name comes several times
        timeout    seconds; None is the timeout of the bus
        retry      after a lost connection publish again, until the timeout: it may then be stored twice. Without it
                   ConnectionLost is raised, and the message may or may not be stored.
        """
        self._carries(key=key, headers=headers, partition=partition, delay=delay, schema=schema, ttl=ttl)
        ttl_ms = self._check(topic, qos, ttl)
        data = encode(value, topic)
        encoded = encode_headers(headers)
        most = self._value_bytes_max(topic, key) - len(encoded)
        if len(data) > most:
            raise too_large(len(data), most)
        keys = None if key is None else [key_bytes(key)]
        where = ANY if partition is None else partition
        load = Load(topic, [data], qos, ttl_ms, keys, where, headers=[encoded] if encoded else None)
        if delay is not None or schema is not None:
            return await self._publish_special(load, delay, schema or "", timeout)
        outcome = await self._publish(load, timeout, retry)
        if outcome.failures:
            raise outcome.failures[0][1]
        return _acknowledged(load, outcome)

    async def _publish_special(self, load: Load, delay: float | None, schema: str, timeout: float | None) -> Ack:
        """What FlyMQ asks one by one: later, with a schema, or both."""
        delay_ms = 0 if delay is None else round(delay * 1000)
        fields: Fields = {"topic": load.topic, "partition": load.partition, "schema": schema, "delay_ms": delay_ms}
        if load.headers is None and not load.ttl_ms and not (schema and delay is not None):  # any broker knows these
            plain: Fields = {"topic": load.topic, "data": load.values[0], "partition": load.partition}
            plain["key"] = (load.keys[0] if load.keys else None) or b""
            which = {"schema": schema} if schema else {"delay_ms": delay_ms}
            name = "PRODUCE_WITH_SCHEMA" if schema else "PRODUCE_DELAYED"
            answer = await self.request(name, timeout=timeout, **plain, **which)
        else:
            ttl_ms = check_record_ttl(load.ttl_ms)
            fields["records"] = kernel.records_pack(load.values, load.keys, load.headers, ttl_ms)
            answer = (await self.request("PRODUCE_RECORDS", timeout=timeout, **fields))["groups"][0]
        if delay is not None:
            return Ack(load.topic, 1, True, timestamp=answer["timestamp_ms"], handle=answer["offset"])
        return Ack(load.topic, 1, True, answer["partition"], answer["offset"], answer["timestamp_ms"])

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
        headers: HeadersGiven | Sequence[HeadersGiven | None] | None = None,
        timeout: float | None = None,
        retry: bool = False,
    ) -> Ack:
        """Publish many messages with one write; `keys` has one for each, `key` is for all; `headers` are for all, or a list
        with those of each. DeliveryError if the server
        refuses some; the others are stored."""
        self._carries(key=key if keys is None else keys, headers=headers, partition=partition, ttl=ttl)
        ttl_ms = self._check(topic, qos, ttl)
        data = [value if type(value) is bytes else encode(value, topic) for value in values]
        encoded = None if keys is None else [key_bytes(one) for one in keys]
        if encoded is None and key is not None:
            encoded = [key_bytes(key)] * len(data)
        if encoded is not None and len(encoded) != len(data):
            raise ValueError(f"{len(data)} messages and {len(encoded)} keys: give one key for each message")
        if not data:
            return Ack(topic, 0, qos == 1)
        lists = _headers_of(headers, len(data))
        longest = max(map(len, filter(None, encoded)), default=0) if encoded else 0
        sizes = list(map(len, data))
        if lists is not None:
            sizes = [size + len(own) for size, own in zip(sizes, lists, strict=True)]
        if max(sizes) > (most := self._value_bytes_max(topic) - longest):
            raise too_large(max(sizes), most)
        load = Load(topic, data, qos, ttl_ms, encoded, ANY if partition is None else partition, headers=lists)
        if sum(sizes) <= PUBLISH_CHUNK_BYTES:
            outcome = await self._publish(load, timeout, retry)
        else:
            outcome = await self._publish_chunks(load, sizes, timeout, retry)
        if outcome.refused:
            first = outcome.failures[0][1]
            many = f"{outcome.refused} of {len(data)} messages to {topic!r} were refused, the first because: {first.message}"
            raise DeliveryError(
                many if len(data) > 1 else f"the message to {topic!r} was refused: {first.message}",
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
        return self._new_producer(
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
        values = load.values
        async with deadline(self._limit(timeout), f"publishing {len(values)} messages to {load.topic!r}"):
            start = 0
            while start < len(values):
                end, size = start + 1, sizes[start]
                while end < len(values) and size + sizes[end] <= PUBLISH_CHUNK_BYTES:
                    size += sizes[end]
                    end += 1
                outcome = await self._publish(part_of(load, start, end), timeout, retry)
                refused += outcome.refused
                failures += [(start + at, error) for at, error in outcome.failures]
                places += outcome.places
                start = end
        return Outcome(refused, tuple(failures), places, outcome.durable)

    # -- subscribing -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str | Sequence[str],
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

        topic     a name; a pattern: "shop.*", or "regex:" and an expression of RE2 (FlyMQ), whose topics made later join; or a
                  list of both. A topic that is not there is made, but for a queue of Fast
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
        topics = [topic] if isinstance(topic, str) else list(topic)
        if not topics:
            raise BadName("the list of topics is empty", hint="give one name or more, or a pattern such as shop.*")
        for each in topics:
            self._check(each, qos, None)
            self._carries(pattern=each if is_pattern(each) else None)
        self._carries(resume=resume, group=group, start=start, member=member, filter=filter, durable=durable)
        if not isinstance(start, str | None) and "durable" in self._setup.connector.lacks:
            raise Unsupported("this protocol cannot start at an offset or a time", hint="Felix can")
        if prefetch < 1:
            raise ValueError("prefetch is a number of messages from 1 up")
        door = self._setup.connector
        wanted = Wanted(topics[0], qos, resume, group or "", start, member or "", filter or "", durable or "", prefetch)
        many = wants_many(topic)
        if many and resume is not None:
            raise Unsupported(
                "resume= is for a subscription to one topic", hint="group= and durable= keep where it was"
            )
        source = ManySource(self._setup, topics, wanted) if many else door.source(self._setup, wanted)
        timeout = self._limit(timeout)
        subscription = self._new_subscription(source, ", ".join(topics), prefetch=prefetch, timeout=timeout)
        self._subscriptions = {other for other in self._subscriptions if not other.closed}
        self._subscriptions.add(subscription)
        return subscription

    def consumer(self, topic: str | Sequence[str], handler: Handler, **options: Unpack[ConsumerOptions]) -> Consumer:
        """`async with bus.consumer("orders", handle, workers=8)`: calls `handle(message)` for every message until the block
        ends, acknowledges when it returns, and lets the message come again when it raises. Options, beside those of subscribe:

        handler      a coroutine function, or a plain one, which runs in a thread
        workers      handlers that run at the same time
        retry        how often a message that failed comes again, or a Retry with the delays; BadValue (of `message.decode`) is
                     not tried again. A broker that redelivers by itself also counts: delivery.attempts_max
        dead_letter  what is given up is put among the dead letters; None: where there are some; False: acknowledged
        ordered      messages of one key one after the other: the next waits for the attempts of the one before
        grace        seconds for handlers that run when it ends; then they are cancelled, and their messages come again
        """
        own, rest = split_options(options)
        subscription = self.subscribe(topic, prefetch=own["workers"] * PREFETCH_PER_WORKER, **rest)
        return self._new_consumer(subscription, handler, **own)

    async def consume(self, topic: str | Sequence[str], handler: Handler, **options: Unpack[ConsumerOptions]) -> None:
        """As `consumer`, until it is cancelled or the subscription ends: `await bus.consume("orders", handle, workers=8)`."""
        async with self.consumer(topic, handler, **options) as consumer:
            await consumer.wait()

    # -- requests and replies --------------------------------------------------------------------------------------

    async def ask(
        self,
        topic: str,
        value: object,
        *,
        key: str | bytes | None = None,
        headers: HeadersGiven | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Publish a request and wait for its answer: `(await bus.ask("quotes", {"sku": 7}, timeout=2)).json()`. Timeout if none
        comes; RequestFailed if the responder raised. It may be asked twice if a responder dies; the first answer counts."""
        check_door(self)
        self._open()
        if self._asker is None:
            self._asker = Asker(self)
        return await self._asker.ask(topic, value, key, headers, self._limit(timeout))

    def responder(
        self,
        topic: str | Sequence[str],
        handler: Answer,
        *,
        workers: int = WORKERS_DEFAULT,
        group: str | None = None,
        durable: str | None = None,
        grace: float = GRACE_S,
    ) -> Consumer:
        """`async with bus.responder("quotes", answer)`: what `answer(message)` returns is the reply; what it raises is told to
        the asker. Responders of one group share the requests; without one, each answers all, and the first answer counts."""
        check_door(self)
        found = self.consumer(
            topic,
            Responder(self, handler, workers),
            workers=workers,
            retry=0,
            dead_letter=False,
            grace=grace,
            **({"group": group, "start": "earliest"} if group is not None else {"durable": durable}),
        )
        found.gather_acks(ACKS_S, min(2 * workers, ACKS_MAX))
        return found

    def respond(
        self, topic: str | Sequence[str], *, workers: int = WORKERS_DEFAULT, group: str | None = None
    ) -> Callable[[Answer], Answer]:
        """`@bus.respond("quotes")` above a function: a responder that runs until the bus is closed. It listens soon after;
        `await bus.responding()` waits for that."""
        self._open()

        def decorate(function: Answer) -> Answer:
            consumer = self.responder(topic, function, workers=workers, group=group)
            self._responders[consumer] = asyncio.get_running_loop().create_task(consumer.open())
            return function

        return decorate

    async def responding(self) -> None:
        """Return when all responders of `respond` listen; raise what kept one from it."""
        await asyncio.gather(*self._responders.values())

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
            return batch_of(topic, await connection.fetch(fields))

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
        return self._new_transaction(self._open(), name=name or "", lasts_ms=lasts_ms, timeout=self._setup.timeout)

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


def _headers_of(given: HeadersGiven | Sequence[HeadersGiven | None] | None, count: int) -> Sequence[Encoded] | None:
    """Of each of `count` messages its headers; None if none has any."""
    if not given:
        return None
    if isinstance(given, Mapping):
        return [encode_headers(given)] * count
    if isinstance(given, Sequence) and all(one is None or isinstance(one, Mapping) for one in given):
        if len(given) != count:
            raise ValueError(
                f"{count} messages and {len(given)} headers: give those of each message, or a mapping for all"
            )
        return [encode_headers(one) for one in given]
    return [encode_headers(cast(HeadersGiven, given))] * count


def _acknowledged(load: Load, outcome: Outcome) -> Ack:
    count, durable = len(load.values), load.qos == 1 and outcome.durable
    last = outcome.places[-1] if outcome.places else None
    return Ack(load.topic, count, durable) if last is None else Ack(load.topic, count, durable, *last)
