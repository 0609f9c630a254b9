"""Answers FlyMQ's requests that carry record sets: FETCH_RECORDS, and PRODUCE_RECORDS with a schema, a delay or a transaction.

A PRODUCE_RECORDS without those is the session's own, as PRODUCE is: it runs on together with others (producing.py).
"""

from typing import Final

from quintet import kernel
from quintet.broker.atomic.delays import DELAY_MAX_US
from quintet.broker.schemas.registry import Schema
from quintet.broker.topics.catalog import ANY, Topic
from quintet.model.batch import Placed, RecordBatch, Row, placed
from quintet.model.errors import BadRequest
from quintet.model.tasks import Promise
from quintet.protocols import records
from quintet.protocols.flymq.call import Call, Values

PARTITION_SHIFT: Final = 48  # of the numbers of a record set: partition << 48 | offset


def is_plain(ask: Values) -> bool:
    """Has it neither a schema, nor a delay, nor a transaction?"""
    return not (ask.get("schema") or ask.get("delay_ms") or ask.get("txn_id"))


async def produce_one(call: Call, ask: Values, schema: Schema | None) -> Values:
    """One record that is checked, held back, or part of a transaction: any two of these, or all."""
    if not 0 <= ask["delay_ms"] * 1000 <= DELAY_MAX_US:
        raise BadRequest(f"delay_ms is 0 to {DELAY_MAX_US // 1000} (365 days), not {ask['delay_ms']}")
    if ask.get("txn_id"):
        if ask["delay_ms"]:
            raise BadRequest(
                "delay_ms and txn_id do not go together", hint="what a transaction holds appears at its commit"
            )
        call.broker.transactions.check_open(call.owner, ask["txn_id"])
    if ask.get("producer_id"):
        raise BadRequest("an idempotent producer has no schema, delay_ms or txn_id")
    topic, row, partition, batch = _only_record(call, ask)
    _, _, key, value, headers, expiry, _ = row
    if schema is not None:
        reasons = await call.broker.schemas.judge(schema.name, schema.version, value or b"", call.wanted)
        topic = call.target(ask)  # the right may be gone
        if reasons:
            await call.broker.reject(topic, schema, reasons, key, value or b"", call.origin, headers)
    if ask.get("txn_id"):
        where = (call.owner, ask["txn_id"], topic, ask["partition"])
        chosen = call.broker.transactions.produce(*where, key, value, call.origin, headers, expiry)
        return _metadata(chosen, Placed(0, call.now))
    if ask["delay_ms"]:
        due = call.now + ask["delay_ms"] * 1000
        what = (key, value, headers, due, call.origin, expiry - call.now if expiry else 0)
        handle = await call.broker.delays.produce(call.owner, topic, ask["partition"], *what)
        return _metadata(max(ask["partition"], 0), Placed(handle, due))
    appended: Promise[int] = Promise()
    partition = topic.publish(batch, 1, True, appended.done, partition)
    await appended
    return _metadata(partition, placed(batch))


def _only_record(call: Call, ask: Values) -> tuple[Topic, Row, int, bytearray]:
    topic = call.target(ask)
    if ask["partition"] != ANY:
        topic.partition(ask["partition"], writing=True)
    found = records.split(ask["records"], len(topic.partitions), call.origin, call.now, ask["partition"])
    if len(found.order) != 2:
        raise BadRequest(f"with schema, delay_ms or txn_id a set has one record, this one has {len(found.order) // 2}")
    partition, batch, _ = found.groups[0]
    return topic, RecordBatch(batch).row(0), partition, batch


def _metadata(partition: int, at: Placed) -> Values:
    where = {"partition": partition, "offset": at.base_offset, "count": 1, "timestamp_ms": at.timestamp // 1000}
    return {"groups": [where], "order": b""}


def fetched(call: Call, number: int, batches: list[RecordBatch], start: int, most: int, size: int, now: int) -> Values:
    """The answer to a FETCH_RECORDS without a filter."""
    parts: list[bytes] = []
    following, used, left = start, 0, most
    for batch in batches:
        first = batch.index_of(following)
        last = min(batch.count, first + left)
        room = max(size - used, 1)
        data, count, after = kernel.records_deliver(batch.buffer, first, last, now, number << PARTITION_SHIFT, room)
        if parts and len(data) > room:  # its first record begins the next answer
            break
        following = batch.offset(after) if after < batch.count else batch.next_offset
        if count:
            parts.append(data)
            used += len(data)
            left -= count
        if left <= 0 or after < batch.count:
            break
    call.given = [(start, following)] if parts else []
    return {"records": parts[0] if len(parts) == 1 else b"".join(parts), "next_offset": following}


def filtered(number: int, rows: list[Row], following: int) -> Values:
    """The answer to one with a filter: these rows passed."""
    parts = []
    for offset, time, key, value, headers, _, origin in rows:
        batch = kernel.build([value], [key], [headers], origin=origin)
        kernel.place(batch, offset, time)
        parts.append(kernel.records_deliver(batch, 0, 1, 0, number << PARTITION_SHIFT, 1)[0])
    return {"records": b"".join(parts), "next_offset": following}
