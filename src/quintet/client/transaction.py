"""Publishes messages and commits consumed offsets together or not at all: `bus.transaction()`.

    begun --publish, commit_offsets--> begun --block ends well--> committing --> done
                                         |                            |  ^
                                         +--block raises--> rolled back  +-- reply lost: asked again, same answer

Everything is kept by the server until the commit. A publish whose answer was lost may or may not be part of it, so the
transaction is rolled back; a commit whose answer was lost is asked for again, because that answer is always the same.
"""

import asyncio
from types import TracebackType
from typing import Final

from quintet import kernel
from quintet.client.core.base import Channel, FetchConnection, Fields, deadline
from quintet.client.core.errors import Closed, ConnectionLost, StorageFull, TransactionNotFound
from quintet.client.core.headers import HeadersGiven, check_record_ttl, encode_headers
from quintet.client.core.message import Ack, Message, MessageBatch, Settler, key_bytes, log, settling
from quintet.client.core.publishing import ANY
from quintet.client.core.values import encode
from quintet.model.errors import QuintetError

RETRY_S: Final = 0.1


class Transaction:
    """`async with bus.transaction() as txn`: commits when the block ends, rolls back when it raises."""

    def __init__(self, channel: Channel, *, name: str, lasts_ms: int, timeout: float) -> None:
        self._channel = channel
        self._name = name
        self._lasts_ms = lasts_ms
        self._timeout = timeout
        self._id = ""
        self._over = False
        self._offsets: list[tuple[Settler, int]] = []  # of messages, settled here when the commit is done

    async def __aenter__(self) -> "Transaction":
        if self._id:
            raise Closed("the transaction was begun already", hint="bus.transaction() makes a new one")
        answer = await self._ask("TXN_BEGIN", {"transactional_id": self._name, "timeout_ms": self._lasts_ms})
        self._id = answer["txn_id"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except QuintetError as problem:
            log.warning("transaction %s was not rolled back and will time out: %s", self._id, problem)

    @property
    def id(self) -> str:
        """What the server calls it; empty before it is begun."""
        return self._id

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: HeadersGiven | None = None,
        ttl: float | None = None,
        schema: str | None = None,
    ) -> Ack:
        """Publish one message when the transaction commits. It has a partition, and no offset yet. Options as for publish."""
        data, own = encode(value, topic), key_bytes(key)
        fields: Fields = {"topic": topic, "partition": ANY if partition is None else partition}
        if headers or ttl is not None or schema is not None:
            ttl_ms = 0 if ttl is None else round(ttl * 1000)
            fields["records"] = kernel.records_pack([data], [own], [encode_headers(headers)], check_record_ttl(ttl_ms))
            fields["schema"] = schema or ""
            answer = (await self._ask("PRODUCE_RECORDS", self._begun() | fields))["groups"][0]
        else:
            answer = await self._ask("TXN_PRODUCE", self._begun() | fields | {"data": data, "key": own or b""})
        return Ack(topic, 1, False, partition=answer["partition"])

    async def commit_offsets(
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
        begun = self._begun()
        if message is None:
            fields = {"topic": topic, "group": group, "partition": partition, "offset": offset, "generation": 0}
            await self._ask("COMMIT", begun | fields)
            return
        settler, tags = settling(message)
        last: dict[int, int] = {}
        for tag in tags:
            place = settler.position_of(tag)
            number = ANY if place is None else place.partition
            last[number] = max(last.get(number, 0), tag)
        async with deadline(self._timeout, "committing offsets"):
            for tag in last.values():
                await settler.commit_in(self._id, tag)
                self._offsets.append((settler, tag))

    async def commit(self) -> None:
        """Make all of it visible at once. The end of the block does it."""
        begun = self._begun()
        self._over = True
        async with deadline(self._timeout, "committing the transaction"):
            while True:
                try:
                    await self._request("TXN_COMMIT", begun)
                    break
                except ConnectionLost:
                    if self._channel.failed is not None:
                        raise
                except StorageFull as error:
                    log.warning("the commit of transaction %s is tried again: %s", self._id, error)
                await asyncio.sleep(RETRY_S)
        for settler, tag in self._offsets:
            settler.committed(tag)

    async def rollback(self) -> None:
        """Forget all of it. An exception in the block does it."""
        begun = self._begun()
        self._over = True
        try:
            await self._ask("TXN_ROLLBACK", begun)
        except TransactionNotFound as error:
            log.info("transaction %s was over already: %s", self._id, error)

    def _begun(self) -> Fields:
        if not self._id or self._over:
            raise Closed("the transaction is not open", hint="use `async with bus.transaction() as txn`")
        return {"txn_id": self._id}

    async def _ask(self, name: str, fields: Fields) -> Fields:
        async with deadline(self._timeout, name):
            return await self._request(name, fields)

    async def _request(self, name: str, fields: Fields) -> Fields:
        connection = await self._channel.connection()
        assert isinstance(connection, FetchConnection), "a door without transactions says so in `lacks`"
        await connection.writable()
        return await connection.request(name, fields)
