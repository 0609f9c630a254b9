"""Answers FlyMQ's requests about messages: publish, read, delay, dead letters, transactions."""

from functools import partial
from typing import Final

from quintet import kernel
from quintet.broker.atomic.dead_letters import DeadLetter
from quintet.broker.atomic.delays import DELAY_MAX_US
from quintet.broker.topics import filters, reads
from quintet.broker.topics.catalog import ANY, Topic
from quintet.model.batch import Placed, RecordBatch, Row, placed
from quintet.model.errors import BadRequest
from quintet.model.tasks import Promise
from quintet.protocols.flymq import codec, frames, record_requests
from quintet.protocols.flymq.call import Call, Handler, Values, each, success
from quintet.protocols.flymq.errors import OTHER_DIALECT, OtherDialect

FETCH_RECORDS_DEFAULT: Final = 10  # when the request asks for none
FETCH_RECORDS_MAX: Final = 100_000
FETCH_BYTES_MAX: Final = 4 << 20  # of one reply, unless one message alone is larger
SCAN_RECORDS_MAX: Final = 1_000  # looked at by one request with a filter
EXPIRED_MAX: Final = (
    16  # passed over in search of a record that is alone in its answer; the kernel passes over any number
)
OFFSET_MAX: Final = (1 << 63) - 1  # the log counts this far; the wire could ask for more
WAIT_MS_MAX: Final = 30_000
TTL_MS_MAX: Final = 10 * 365 * 86_400_000
DLQ_RECORDS_MAX: Final = 1_000


# -- messages ---------------------------------------------------------------------------------------------------------


def _metadata(topic: Topic, partition: int, at: Placed, key: bytes | None, value: bytes) -> Values:
    sizes = {"key_size": len(key) if key else -1, "value_size": len(value)}
    return {
        "topic": topic.name,
        "partition": partition,
        "offset": at.base_offset,
        "timestamp_ms": at.timestamp // 1000,
    } | sizes


async def publish(call: Call, ask: Values, expiry: int = 0) -> Values:
    """Append the one message of a request that is not a plain PRODUCE. A thread builds the batch of a large one."""
    topic = call.target(ask)
    key, value, asked = ask.get("key") or None, ask["data"], ask.get("partition", ANY)
    place = topic.choose(None) if asked == ANY and key is None else asked

    def build() -> tuple[int, bytearray]:
        batch = kernel.build([value], [key], expiries=[expiry], origin=call.origin)
        return topic.choose(key) if place == ANY else place, batch

    if len(value) + len(key or b"") > frames.LARGE_BYTES:
        place, batch = await call.broker.elsewhere.finish(build, call.wanted)
        topic = call.target(ask)  # the right may be gone
    else:
        place, batch = build()
    appended: Promise[int] = Promise()
    topic.publish(batch, 1, True, appended.done, place)
    await appended
    return _metadata(topic, place, placed(batch), key, value)


def _consume(call: Call, ask: Values) -> None:
    partition = call.topic(ask).partition(ask["partition"])
    call.given = [(ask["offset"], ask["offset"] + 1)]

    def read() -> None:
        found = reads.consume(partition, ask["offset"], call.now)
        call.run(found, lambda record: {"key": record[0] or b"", "value": record[1] or b""})

    call.claim(partition, ask["offset"], read)


def _fetch(call: Call, ask: Values) -> Values | None:
    topic = call.topic(ask)
    partition = topic.partition(ask["partition"])
    most = min(ask["max"], FETCH_RECORDS_MAX) if ask["max"] > 0 else FETCH_RECORDS_DEFAULT
    offset, sdk = ask["offset"], call.options.dialect == "sdk"
    if not sdk and ask.get("filter") == "" and "wait_ms" not in ask:
        raise OtherDialect(OTHER_DIALECT)
    size = min(codec.COMPRESS_BYTES_MAX if call.accept else FETCH_BYTES_MAX, call.answer_bytes_max)
    whole = call.code == frames.FETCH_RECORDS
    if offset > OFFSET_MAX:
        return {"records" if whole else "messages": b"" if whole else [], "next_offset": offset}
    now = call.broker.scheduler.now  # of the answer: the request may have waited

    def encode(batches: list[RecordBatch]) -> Values | bytes:
        buffers = [batch.buffer for batch in batches]
        start = max(offset, partition.start) if buffers else offset
        if whole:
            return record_requests.fetched(call, partition.number, batches, start, most, size, now())
        if buffers and batches[0].length > size and (alone := _alone(batches[0], start, size, now())) is not None:
            row, following = alone
            at, _, key, value, _, _, _ = row
            call.given = [(at, at + 1)]
            return {"messages": [{"offset": at, "key": key or b"", "value": value or b""}], "next_offset": following}
        reply, count, last = kernel.fly_fetch(buffers, start, most, size, now(), call.code, frames.BINARY, sdk)
        call.given = [(start, last)] if count else []
        return codec.frame(call.code, reply[frames.HEADER_BYTES :], call.accept) if call.accept else reply

    chosen = filters.compile(ask["filter"].encode()) if ask.get("filter") else None

    def scan() -> None:
        if chosen is None:
            call.run(reads.fetch(partition, offset, most, size), encode)
        elif whole:
            rows = reads.peek(partition, offset, 0, most, chosen, now(), call.patience)
            call.run(rows, lambda found: _filtered_records(call, partition.number, *found))
        else:
            found = reads.fetch_filtered(partition, offset, most, SCAN_RECORDS_MAX, chosen, now(), call.patience)
            call.run(found, lambda matches: _filtered(call, *matches))

    def read(gone: Exception | None = None) -> None:
        if gone is None:
            call.claim(partition, offset, scan)
        else:
            call.answer(None, gone)

    wait_us = min(ask.get("wait_ms", 0), WAIT_MS_MAX) * 1000
    if wait_us and offset >= partition.visible:
        call.waiting = call.broker.wait_for(topic, partition, wait_us, read)
    else:
        read()
    return None


def _filtered(call: Call, matches: list[reads.Match], following: int) -> Values:
    messages = ({"offset": offset, "key": key or b"", "value": value or b""} for offset, key, value in matches)
    call.given = reads.ranges([offset for offset, _, _ in matches])
    return {"messages": messages, "next_offset": following}


def _filtered_records(call: Call, number: int, rows: list[Row], following: int) -> Values:
    call.given = reads.ranges([offset for offset, *_ in rows])
    return record_requests.filtered(number, rows, following)


def _alone(batch: RecordBatch, start: int, size: int, now: int) -> tuple[Row, int] | None:
    """The first record from `start` on and where to go on behind it, if it fills an answer of `size` bytes alone. Its value
    is sent from where it is: a copy of 31 MiB takes 60 ms."""
    first = batch.index_of(start)
    for index in range(first, min(first + EXPIRED_MAX, batch.count)):
        row = batch.row(index)
        offset, _, key, value, _, expiry, _ = row
        if not (expiry and expiry <= now):
            following = offset + 1 if index + 1 < batch.count else batch.next_offset
            return (row, following) if len(key or b"") + len(value or b"") >= size else None
    return None


def _peek(call: Call, ask: Values) -> None:
    partition = call.topic(ask).partition(ask["partition"])
    most = ask["max"] if ask["max"] > 0 else FETCH_RECORDS_DEFAULT
    chosen = filters.compile(ask["filter"].encode())
    what = (partition, ask["offset"], ask["since_ms"] * 1000, most, chosen, call.now, call.patience)
    call.claim(partition, ask["offset"], lambda: call.run(reads.peek(*what), lambda found: _peeked(call, *found)))


def _peeked(call: Call, rows: list[Row], following: int) -> Values:
    call.given = reads.ranges([offset for offset, *_ in rows])
    messages = (
        {"offset": offset, "timestamp_ms": time // 1000, "expiry_ms": expiry // 1000}
        | {"key": key or b"", "value": value or b"", "origin": origin.decode(errors="replace")}
        | {"headers": [{"name": name, "value": text or b""} for name, text in headers]}
        for offset, time, key, value, headers, expiry, origin in rows
    )
    return {"messages": messages, "next_offset": following}


def _produce_with_ttl(call: Call, ask: Values) -> None:
    if not 0 < ask["ttl_ms"] <= TTL_MS_MAX:
        raise BadRequest(f"ttl_ms is 1 to {TTL_MS_MAX}, not {ask['ttl_ms']}")
    call.run(publish(call, ask, call.now + ask["ttl_ms"] * 1000), lambda made: made)


def _produce_delayed(call: Call, ask: Values) -> None:
    if not 0 <= ask["delay_ms"] * 1000 <= DELAY_MAX_US:
        raise BadRequest(f"delay_ms is 0 to {DELAY_MAX_US // 1000} (365 days), not {ask['delay_ms']}")
    topic = call.target(ask)
    key, value, asked = ask.get("key") or None, ask["data"], ask.get("partition", ANY)
    due = call.now + ask["delay_ms"] * 1000
    kept = call.broker.delays.produce(call.owner, topic, asked, key, value, (), due, call.origin)
    call.run(kept, lambda handle: _metadata(topic, max(asked, 0), Placed(handle, due), key, value))


def _cancel_delayed(call: Call, ask: Values) -> None:
    who = (call.owner, call.broker.access.may_administer(call.principal))
    call.run(call.broker.delays.cancel(*who, ask["topic"], ask["handle"]), lambda _: success("cancelled"))


# -- dead letters -----------------------------------------------------------------------------------------------------


def _fetch_dlq(call: Call, ask: Values) -> None:
    most = min(ask["max"], DLQ_RECORDS_MAX) if ask["max"] > 0 else FETCH_RECORDS_DEFAULT

    def made(letters: list[DeadLetter]) -> Values:
        details = {"details": each(DeadLetter.details, iter(letters))} if "after" in ask else {}
        return {"messages": each(DeadLetter.fields, iter(letters))} | details

    source = call.broker.dead_letters_of(call.principal, ask["topic"], call.peer)
    call.run(call.broker.dead.browse(source, most, ask.get("after", ""), call.patience), made)


def _list_dlq(call: Call, _ask: Values) -> Values:
    return {"topics": [{"topic": t, "letters": n} for t, n in call.broker.dead_letter_counts(call.principal)]}


def _replay_dlq(call: Call, ask: Values) -> None:
    source = call.broker.dead_letters_of(call.principal, ask["topic"], call.peer)
    if "ids" in ask:
        sent = call.broker.dead.replay_many(source, ask["ids"])
        call.run(sent, lambda found: success("OK") | {"replayed": found[0], "missing": found[1]})
        return
    id = ask["message_id"] if "message_id" in ask else f"0-{ask['offset']}"
    call.run(call.broker.dead.replay(source, id, ask.get("value")), lambda _: success("OK"))


def _purge_dlq(call: Call, ask: Values) -> None:
    call.run(call.broker.dead.purge(ask["topic"].encode()), lambda count: success(f"{count} forgotten"))


def _dead_letter(call: Call, ask: Values) -> None:
    where, tries = (call.topic(ask), ask["partition"], ask["offset"]), ask.get("attempts", 1)
    kept = call.broker.dead.reject(*where, ask["error"], tries)
    call.run(kept, lambda new: success("OK" if new else "it is there already"))


# -- transactions -----------------------------------------------------------------------------------------------------


def _txn_begin(call: Call, ask: Values) -> Values:
    timeout_us = ask.get("timeout_ms", 0) * 1000
    id = call.broker.transactions.begin(call.owner, ask.get("transactional_id", ""), timeout_us)
    return {"txn_id": id, "success": True}


def _txn_produce(call: Call, ask: Values) -> Values:
    call.broker.transactions.check_open(call.owner, ask["txn_id"])
    topic = call.target(ask)
    where, what = (topic, ask.get("partition", ANY)), (ask.get("key") or None, ask["data"])
    chosen = call.broker.transactions.produce(call.owner, ask["txn_id"], *where, *what, call.origin)
    return _metadata(topic, chosen, Placed(0, call.now), *what)


def _txn_commit(call: Call, ask: Values) -> None:
    may = partial(call.broker.access.require, call.principal, "publish")
    committed = call.broker.transactions.commit(call.owner, ask["txn_id"], may)
    call.run(committed, lambda _: {"txn_id": ask["txn_id"], "success": True})


def _txn_rollback(call: Call, ask: Values) -> Values:
    call.broker.transactions.abort(call.owner, ask["txn_id"])
    return {"txn_id": ask["txn_id"], "success": True}


HANDLERS: Final[dict[int, Handler]] = {
    frames.CONSUME: _consume, frames.FETCH: _fetch, frames.CONSUME_ZERO_COPY: _consume, frames.FETCH_BINARY: _fetch,
    frames.FETCH_RECORDS: _fetch,
    frames.PEEK: _peek, frames.FETCH_DLQ: _fetch_dlq, frames.REPLAY_DLQ: _replay_dlq, frames.PURGE_DLQ: _purge_dlq,
    frames.LIST_DLQ: _list_dlq, frames.DEAD_LETTER: _dead_letter, frames.PRODUCE_DELAYED: _produce_delayed,
    frames.CANCEL_DELAYED: _cancel_delayed, frames.PRODUCE_WITH_TTL: _produce_with_ttl, frames.TXN_BEGIN: _txn_begin,
    frames.TXN_COMMIT: _txn_commit, frames.TXN_ROLLBACK: _txn_rollback, frames.TXN_PRODUCE: _txn_produce,
}  # fmt: skip
