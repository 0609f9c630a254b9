"""The blocking twin of the client: `quintet.sync.connect`. Same names, same arguments, same errors.

Written by generate.py from the asynchronous classes; do not edit. `python -m quintet.client.blocking.generate` writes it again.
"""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import quintet.client.bus as _bus
import quintet.client.core.message as _message
import quintet.client.core.subscription as _subscription
import quintet.client.producer as _producer
import quintet.client.transaction as _transaction
from quintet.client.blocking.portal import Portal, inner_of
from quintet.client.blocking.sync_kv import Cache, Watch
from quintet.client.blocking.sync_peer import Peer, PeerMessage, peer
from quintet.client.bus import LINGER_S, PRODUCER_BYTES_MAX, TIMEOUT_S
from quintet.client.core.base import Connector, Fields, Start
from quintet.client.core.message import Ack, Rows, T
from quintet.client.core.subscription import PREFETCH_DEFAULT
from quintet.client.sources.reading import Moment

__all__ = [
    "Bus",
    "Cache",
    "Message",
    "MessageBatch",
    "Peer",
    "PeerMessage",
    "Processing",
    "Producer",
    "Subscription",
    "Transaction",
    "Watch",
    "connect",
    "peer",
]


class Processing:
    """`with`: acknowledges when the block succeeds; when it raises, lets it be delivered again, or gives it up.

    The exception is logged and ends here, so that one bad message does not end the loop over the others; with
    `reraise=True` it goes on. A cancellation always goes on.
    """

    def __init__(self, portal: Portal, inner: _message.Processing) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> None:
        return self._portal.run(self._inner.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._portal.run(self._inner.__aexit__(kind, error, trace))


class Message:
    """One delivery. `tag` is what the server knows it by; 0 when it needs no acknowledgement (QoS 0).

    `key`, `headers`, `partition`, `offset` and `redelivered` are None where the protocol does not tell, as with BlipMQ.
    """

    def __init__(self, portal: Portal, inner: _message.Message) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def tag(self) -> int:
        return self._inner.tag

    @property
    def qos(self) -> int:
        return self._inner.qos

    @property
    def value(self) -> bytes:
        return self._inner.value

    @property
    def key(self) -> bytes | None:
        return self._inner.key

    @property
    def headers(self) -> dict[str, bytes] | None:
        return self._inner.headers

    @property
    def partition(self) -> int | None:
        """The partition it is in."""
        return self._inner.partition

    @property
    def offset(self) -> int | None:
        """Its number in the partition."""
        return self._inner.offset

    @property
    def redelivered(self) -> bool | None:
        """Whether it was handed out before, by this subscription."""
        return self._inner.redelivered

    def text(self) -> str:
        """The value as UTF-8 text."""
        return self._inner.text()

    def json(self) -> Any:
        """The value as JSON."""
        return self._inner.json()

    def decode(self, type: type[T]) -> T:
        """The value as JSON of this type (a msgspec Struct, a dataclass, list[int], ...), checked."""
        return self._inner.decode(type)

    def ack(self, *, timeout: float | None = None) -> None:
        """It is dealt with: the server may forget it. Does nothing for QoS 0."""
        return self._portal.run(self._inner.ack(timeout=timeout))

    def nack(self, *, delay: float | None = None) -> None:
        """It failed: it comes again after `delay` seconds (None: longer with each attempt), or is a dead letter."""
        return self._portal.run(self._inner.nack(delay=delay))

    def working(self) -> None:
        """It takes longer: the time after which it is delivered again starts anew. `process()` says so by itself."""
        return self._portal.run(self._inner.working())

    def process(
        self, *, retry: int | None = None, dead_letter: bool = True, reraise: bool = False, timeout: float | None = None
    ) -> Processing:
        """`with msg.process():` acknowledges when the block succeeds, see Processing.

        retry        how often it is handed out again before it is given up; None: three times, or, with a server that
                     delivers again by itself (BlipMQ), as that is configured
        dead_letter  given up means put among the dead letters; False: acknowledged all the same
        """
        return Processing(
            self._portal, self._inner.process(retry=retry, dead_letter=dead_letter, reraise=reraise, timeout=timeout)
        )

    def __repr__(self) -> str:
        return self._inner.__repr__()


class MessageBatch:
    """Deliveries of one topic, in order. `values` are theirs, `tags` only those that want an acknowledgement;
    `next_offset` is where to go on, for what came from `bus.fetch`."""

    def __init__(self, portal: Portal, inner: _message.MessageBatch) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def next_offset(self) -> int | None:
        return self._inner.next_offset

    @property
    def values(self) -> list[bytes]:
        return self._inner.values

    @property
    def tags(self) -> list[int]:
        return self._inner.tags

    @property
    def keys(self) -> list[bytes | None]:
        """Theirs; None for those without."""
        return self._inner.keys

    def __len__(self) -> int:
        return self._inner.__len__()

    def __iter__(self) -> Iterator[Message]:
        """The messages one by one, each of which can be acknowledged alone."""
        return map(lambda item: Message(self._portal, item), iter(self._inner))

    def ack(self, *, timeout: float | None = None) -> None:
        """All of them are dealt with: one write."""
        return self._portal.run(self._inner.ack(timeout=timeout))

    def nack(self, *, delay: float | None = None) -> None:
        """All of them failed, see Message.nack."""
        return self._portal.run(self._inner.nack(delay=delay))

    def working(self) -> None:
        """All of them take longer, see Message.working."""
        return self._portal.run(self._inner.working())

    def process(
        self, *, retry: int | None = None, dead_letter: bool = True, reraise: bool = False, timeout: float | None = None
    ) -> Processing:
        """`with batch.process():` acknowledges all when the block succeeds, see Message.process."""
        return Processing(
            self._portal, self._inner.process(retry=retry, dead_letter=dead_letter, reraise=reraise, timeout=timeout)
        )

    def __repr__(self) -> str:
        return self._inner.__repr__()


class Producer:
    """`with bus.producer(topic) as p`: `p.send(value)` without awaiting; leaving the block flushes."""

    def __init__(self, portal: Portal, inner: _producer.Producer) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Producer":
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return self._portal.run(self._inner.__aexit__(kind, error, trace))

    @property
    def waiting(self) -> int:
        """Messages sent and not yet confirmed."""
        return self._inner.waiting

    @property
    def confirmed(self) -> int:
        """Messages the server has confirmed (QoS 1) or the socket has taken (QoS 0)."""
        return self._inner.confirmed

    def send(self, value: object, *, key: str | bytes | None = None, partition: int | None = None) -> None:
        """Buffer one message. Backpressure, with nothing buffered, when a bound is reached."""
        return self._portal.call(self._inner.send, value, key=key, partition=partition)

    def ready(self, *, timeout: float | None = None) -> None:
        """Wait until `send` has room again."""
        return self._portal.run(self._inner.ready(timeout=timeout))

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything sent is confirmed. ExceptionGroup of DeliveryError for what was not."""
        return self._portal.run(self._inner.flush(timeout=timeout))


class Subscription:
    """`with bus.subscribe(topic) as sub`, then `for msg in sub` or `for batch in sub.batches()`.

    Several tasks may iterate over one subscription: each message goes to one of them.
    """

    def __init__(self, portal: Portal, inner: _subscription.Subscription) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Subscription":
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return self._portal.run(self._inner.__aexit__(kind, error, trace))

    def open(self) -> None:
        """Subscribe, join the group, or take up the one given as `resume`. Iterating does it too, also after it failed."""
        return self._portal.run(self._inner.open())

    def close(self) -> None:
        """Stop, after the server has taken the acknowledgements. Where it was is kept: resume it by id, or by group."""
        return self._portal.run(self._inner.close())

    @property
    def id(self) -> int:
        """What to give as `resume=` to go on later, from any connection with the same credentials (BlipMQ)."""
        return self._inner.id

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._inner.connected

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def assigned(self) -> tuple[int, ...]:
        """The partitions that are read here now (FlyMQ)."""
        return self._inner.assigned

    @property
    def queued(self) -> int:
        """Messages received and not yet taken."""
        return self._inner.queued

    @property
    def refused(self) -> int:
        """Acknowledgements the server did not take: too late, or another consumer has the message now."""
        return self._inner.refused

    @property
    def missed(self) -> int:
        """Messages that were gone before they were read here, as far as the server tells (Felix)."""
        return self._inner.missed

    @property
    def reconnects(self) -> int:
        return self._inner.reconnects

    def __iter__(self) -> "Subscription":
        return self

    def __next__(self) -> Message:
        return Message(self._portal, self._portal.next(self._inner.__anext__))

    def get(self, *, timeout: float | None = None) -> Message:
        """The next message; Timeout if none comes in time."""
        return Message(self._portal, self._portal.run(self._inner.get(timeout=timeout)))

    def batches(self, *, max: int = 5000, wait: float = 0.2) -> Iterator[MessageBatch]:
        """Batches of up to `max` messages, without end: see get_batch for when one is handed out."""
        return self._portal.iterate(
            self._inner.batches(max=max, wait=wait), lambda item: MessageBatch(self._portal, item)
        )

    def get_batch(self, *, max: int = 5000, wait: float = 0.2, timeout: float | None = None) -> MessageBatch:
        """The next batch of up to `max` messages. It is handed out when it is full, when `wait` seconds have passed since
        its first message, or when the server will send no more before some are acknowledged. Timeout if none comes."""
        return MessageBatch(self._portal, self._portal.run(self._inner.get_batch(max=max, wait=wait, timeout=timeout)))

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until the server has taken every acknowledgement made so far."""
        return self._portal.run(self._inner.flush(timeout=timeout))

    def release(self, rows: Rows) -> None:
        return self._portal.call(self._inner.release, rows)

    def nack(self, rows: Rows, delay: float | None) -> None:
        return self._portal.run(self._inner.nack(rows, delay))

    def working(self, tags: Sequence[int]) -> None:
        return self._portal.run(self._inner.working(tags))


class Transaction:
    """`with bus.transaction() as txn`: commits when the block ends, rolls back when it raises."""

    def __init__(self, portal: Portal, inner: _transaction.Transaction) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Transaction":
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return self._portal.run(self._inner.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        """What the server calls it; empty before it is begun."""
        return self._inner.id

    def publish(
        self, topic: str, value: object, *, key: str | bytes | None = None, partition: int | None = None
    ) -> Ack:
        """Publish one message when the transaction commits. It has a partition, and no offset yet."""
        return self._portal.run(self._inner.publish(topic, value, key=key, partition=partition))

    def commit_offsets(
        self,
        message: Message | MessageBatch | None = None,
        *,
        topic: str = "",
        group: str = "",
        partition: int = 0,
        offset: int = 0,
    ) -> None:
        """Acknowledge a message, or a batch, when the transaction commits, with all before it in its partition; or name
        topic, group, partition and the offset to go on from."""
        return self._portal.run(
            self._inner.commit_offsets(inner_of(message), topic=topic, group=group, partition=partition, offset=offset)
        )

    def commit(self) -> None:
        """Make all of it visible at once. The end of the block does it."""
        return self._portal.run(self._inner.commit())

    def rollback(self) -> None:
        """Forget all of it. An exception in the block does it."""
        return self._portal.run(self._inner.rollback())


class Bus:
    """A connection to a broker. Made by `connect`, open inside its `with` block."""

    def __init__(self, portal: Portal, inner: _bus.Bus) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Bus":
        try:
            self._portal.run(self._inner.__aenter__())
        except BaseException:
            self._portal.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._portal.run(self._inner.__aexit__(kind, error, trace))
        finally:
            self._portal.stop()

    def open(self) -> None:
        """Connect and authenticate. `with` does it."""
        try:
            self._portal.run(self._inner.open())
        except BaseException:
            self._portal.stop()
            raise

    def close(self) -> None:
        """Close the subscriptions and the connection."""
        try:
            self._portal.run(self._inner.close())
        finally:
            self._portal.stop()

    @property
    def name(self) -> str:
        """The name given to connect: for the caller's own logs where, as in BlipMQ, the wire has no place for it."""
        return self._inner.name

    @property
    def door(self) -> Connector:
        """The door of its URL."""
        return self._inner.door

    @property
    def connected(self) -> bool:
        """Whether there is a connection for publishing right now."""
        return self._inner.connected

    @property
    def reconnects(self) -> int:
        """How often the publishing connection was replaced."""
        return self._inner.reconnects

    def ping(self, *, timeout: float | None = None) -> None:
        """Ask the server for an answer. All QoS 1 messages published before are durable when it returns."""
        return self._portal.run(self._inner.ping(timeout=timeout))

    def request(self, operation: str, *, timeout: float | None = None, **fields: object) -> Fields:
        """Any operation of a door that works by request and answer, by its name in the protocol's table, with its fields
        by theirs: `bus.request("METADATA", topic="orders")`. The answer's fields, or the error it was refused with.
        """
        return self._portal.run(self._inner.request(operation, timeout=timeout, **fields))

    def publish(
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
        return self._portal.run(
            self._inner.publish(
                topic,
                value,
                qos=qos,
                ttl=ttl,
                key=key,
                partition=partition,
                delay=delay,
                schema=schema,
                headers=headers,
                timeout=timeout,
                retry=retry,
            )
        )

    def cancel(self, ack: Ack, *, timeout: float | None = None) -> None:
        """Take a delayed message back, before anybody saw it."""
        return self._portal.run(self._inner.cancel(ack, timeout=timeout))

    def publish_batch(
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
        return self._portal.run(
            self._inner.publish_batch(
                topic,
                values,
                qos=qos,
                ttl=ttl,
                key=key,
                keys=keys,
                partition=partition,
                headers=headers,
                timeout=timeout,
                retry=retry,
            )
        )

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
        """`with bus.producer(topic) as p` for many sends that need not be awaited one by one.

        linger       seconds that a message may wait for others to share a write with
        idempotent   each message is stored exactly once, in order per partition, however often the connection is lost
        compression  of messages from 1 KiB on: gzip, lz4, zstd or snappy; None is what the URL says
        retry        as for publish, for producers that are not idempotent
        """
        return Producer(
            self._portal,
            self._portal.call(
                self._inner.producer,
                topic,
                qos=qos,
                ttl=ttl,
                linger=linger,
                max_bytes=max_bytes,
                idempotent=idempotent,
                compression=compression,
                retry=retry,
                timeout=timeout,
            ),
        )

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
        """`with bus.subscribe(topic) as sub`, then `for msg in sub`.

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
        return Subscription(
            self._portal,
            self._portal.call(
                self._inner.subscribe,
                topic,
                qos=qos,
                resume=resume,
                group=group,
                start=start,
                member=member,
                durable=durable,
                filter=filter,
                prefetch=prefetch,
                timeout=timeout,
            ),
        )

    def fetch(
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
        return MessageBatch(
            self._portal,
            self._portal.run(
                self._inner.fetch(
                    topic, partition=partition, offset=offset, max=max, filter=filter, wait=wait, timeout=timeout
                )
            ),
        )

    def replay(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        partition: int | None = None,
        filter: str | None = None,
    ) -> Iterator[Message]:
        """Messages that are there already, without a group and without side effects: one partition after the other, each
        in its order. since and until are a datetime, or how long ago ("90s", "10m", "1h", "2d", a timedelta)."""
        return self._portal.iterate(
            self._inner.replay(topic, since=since, until=until, partition=partition, filter=filter),
            lambda item: Message(self._portal, item),
        )

    def kv(self, name: str) -> Cache:
        """A cache of the broker as a mapping (Felix): `cache = bus.kv("sessions")`, or "tenant/namespace/sessions"."""
        return Cache(self._portal, self._portal.call(self._inner.kv, name))

    def transaction(self, name: str | None = None, *, timeout: float | None = None) -> Transaction:
        """`with bus.transaction() as txn`: what is published with it appears when the block ends, all at once, or
        not at all when it raises.

        name     of a producer of which there is one at a time: what an earlier one left open is rolled back
        timeout  seconds after which the server rolls it back by itself; None: as it is configured
        """
        return Transaction(self._portal, self._portal.call(self._inner.transaction, name, timeout=timeout))


def connect(
    url: str,
    *,
    name: str | None = None,
    timeout: float = TIMEOUT_S,
    reconnect: bool = True,
    tls: ssl.SSLContext | None = None,
    on_event: Callable[[object], None] | None = None,
) -> Bus:
    """`with connect("blipmq://:key@host:port") as bus`. The URL's scheme picks the door, see url.py.

    timeout    seconds that connecting, and every call without its own `timeout=`, may take
    reconnect  come back by itself after the connection is lost, and resume subscriptions
    tls        the context to use in place of the system's authorities (or `?ca=FILE` in the URL)
    on_event   called with what the server says by itself and is no message: `fast.KeyUpdate`, `felix_source.Lagged`
    """
    return Bus(Portal(), _bus.connect(url, name=name, timeout=timeout, reconnect=reconnect, tls=tls, on_event=on_event))
