"""Counts deliveries: subscribers that know exactly how many bytes they must receive.

All deliveries of a run have one length, so messages are bytes divided by it, and the remainder must be nothing (or the
server's own keep-alives, if its protocol has them). Latency is read from the payload's stamp.
"""

import contextlib
import select
import socket
import time

from quintet.bench.clock import Nanoseconds, nanoseconds
from quintet.bench.generators import QUIET_S, READ_BYTES, STAMP, SURPLUS_NOISE_MAX, Load, Received, payload_of
from quintet.bench.processes import ControlPipe, Counters
from quintet.bench.wire import STALL_S, BenchError


class _Reader:
    """One subscribed connection: bytes so far, and the piece of a frame that is not whole yet (only where needed)."""

    __slots__ = ("bytes", "rest", "sock", "subscription")

    def __init__(self, sock: socket.socket, subscription: int) -> None:
        self.sock = sock
        self.subscription = subscription
        self.bytes = 0
        self.rest = b""


def _subscribe(load: Load, connections: int, stack: contextlib.ExitStack) -> dict[int, _Reader]:
    readers = {}
    for number in range(connections):
        sock = stack.enter_context(load.wire.connect(load.address, number))
        reader = _Reader(sock, load.wire.subscribe(sock, load.topic, load.qos))
        readers[sock.fileno()] = reader
    return readers


def _stalled(load: Load, readers: dict[int, _Reader], owed: int) -> BenchError:
    least = min(reader.bytes for reader in readers.values())
    return BenchError(
        f"{load.wire.name}: messages were lost: nothing for {STALL_S} s, and the slowest has {least} of {owed} bytes."
    )


def _closed(load: Load, reader: _Reader, owed: int) -> BenchError:
    return BenchError(
        f"{load.wire.name}: the server cut a subscriber at {reader.bytes} of {owed} bytes (too slow?). See its log."
    )


def receive(
    control: ControlPipe, load: Load, connections: int, count: int, sample: bool, seen: Counters, slot: int
) -> Received:
    """Count `count` deliveries on each of the connections. With `sample`, one stamp per read becomes a latency."""
    with contextlib.ExitStack() as stack:
        readers = _subscribe(load, connections, stack)
        epoll = stack.enter_context(select.epoll())
        for fd in readers:
            epoll.register(fd, select.EPOLLIN)
        control.ready()
        return _count(load, readers, epoll, count, sample, seen, slot)


def _count(
    load: Load, readers: dict[int, _Reader], epoll: select.epoll, count: int, sample: bool, seen: Counters, slot: int
) -> Received:
    template = load.wire.delivered(load.topic, payload_of(load.size), load.qos)
    frame = len(template)
    head = template[: template.rindex(payload_of(load.size))]
    owed = count * frame
    # A read must be split into frames only to be acknowledged or sampled; otherwise bytes are only counted.
    split = sample or load.qos > 0
    latencies = nanoseconds()
    view = memoryview(bytearray(READ_BYTES))
    waiting = len(readers)
    total = first = 0
    while waiting:
        events = epoll.poll(STALL_S)
        if not events:
            raise _stalled(load, readers, owed)
        for fd, _ in events:
            reader = readers[fd]
            got = reader.sock.recv_into(view)
            if not got:
                raise _closed(load, reader, owed)
            if reader.bytes == 0:
                first = first or time.monotonic_ns()
                _check_head(load, bytes(view[:got]), head)
            before, reader.bytes = reader.bytes, reader.bytes + got
            if split:
                _take(load, reader, bytes(view[:got]), frame, len(head), latencies if sample else None)
            if before < owed <= reader.bytes:
                waiting -= 1
            total += got
        if seen is not None:
            seen[slot] = total // (frame * len(readers))
    end = time.monotonic_ns()
    time.sleep(QUIET_S)
    for reader in readers.values():
        _check_surplus(load, reader, owed)
    return Received(count * len(readers), first, end, latencies)


def _check_head(load: Load, data: bytes, head: bytes) -> None:
    # Tags differ from frame to frame above QoS 0, so only equal heads can be compared whole.
    if load.qos == 0 and not data.startswith(head[: len(data)]):
        raise BenchError(f"{load.wire.name}: the first delivery starts {data[:48]!r}, expected {head!r}.")


def _take(load: Load, reader: _Reader, data: bytes, frame: int, stamp_at: int, latencies: Nanoseconds | None) -> None:
    """Acknowledge the whole frames in data and read one stamp."""
    data = reader.rest + data
    whole = len(data) // frame * frame
    reader.rest = data[whole:]
    if not whole:
        return
    acks = load.wire.acknowledge(reader.subscription, load.qos, data[:whole], frame)
    if acks:
        reader.sock.sendall(acks)
    if latencies is not None:
        latencies.append(time.monotonic_ns() - STAMP.unpack_from(data, stamp_at)[0])


def _check_surplus(load: Load, reader: _Reader, owed: int) -> None:
    """Nothing may follow the last message, and what stood between messages must be the protocol's own noise."""
    reader.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while data := reader.sock.recv(READ_BYTES):
            reader.bytes += len(data)
    surplus = reader.bytes - owed
    noise = len(load.wire.noise)
    if surplus and (not noise or surplus % noise or surplus // noise > SURPLUS_NOISE_MAX):
        raise BenchError(f"{load.wire.name}: {surplus} bytes more than the {owed} owed: duplicates or a wrong frame.")


def receive_scheduled(
    control: ControlPipe, load: Load, count: int, seen: Counters | None = None, slot: int = 0
) -> Received:
    """Read every stamp of a scheduled flow: latency is receive time less the time the message was due."""
    payload = payload_of(load.size)
    template = load.wire.delivered(load.topic, payload, load.qos)
    frame, stamp_at = len(template), template.rindex(payload)
    noise = load.wire.noise
    latencies = nanoseconds()
    unpack = STAMP.unpack_from
    sock = load.wire.connect(load.address)
    with sock:
        subscription = load.wire.subscribe(sock, load.topic, load.qos)
        control.ready()
        first = 0
        data = b""
        while len(latencies) < count:
            try:
                piece = sock.recv(READ_BYTES)
            except BlockingIOError as error:
                raise BenchError(f"{load.wire.name}: {count - len(latencies)} of {count} messages lost.") from error
            monotonic = time.monotonic_ns()
            if not piece:
                raise BenchError(f"{load.wire.name}: the server cut the subscriber. See its log.")
            first = first or monotonic
            data += piece
            if noise and noise in piece:
                data = data.replace(noise, b"")
            whole = len(data) // frame * frame
            for at in range(stamp_at, whole, frame):
                latencies.append(monotonic - unpack(data, at)[0])
            if whole:
                acks = load.wire.acknowledge(subscription, load.qos, data[:whole], frame)
                if acks:
                    sock.sendall(acks)
                data = data[whole:]
            if seen is not None:
                seen[slot] = len(latencies)
        return Received(len(latencies), first, time.monotonic_ns(), latencies)
