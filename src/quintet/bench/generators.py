"""Publishes load to a server and counts the answers.

Four shapes: a pipelined publisher, a publisher in windows over many connections, a publisher on a fixed schedule, and a
subscriber that counts. They are written so that they cost as little as they can per message: blocks are encoded
beforehand, reads go into one big buffer, and messages are counted by bytes. No protocol is known here (see wire.py).
"""

import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field, replace

from quintet.bench.clock import Nanoseconds, nanoseconds
from quintet.bench.processes import ControlPipe, Counters
from quintet.bench.wire import STALL_S, Address, BenchError, Wire

READ_BYTES = 1024 * 1024
BLOCK_BYTES = 256 * 1024  # one write of a pipelined publisher
AHEAD_BYTES_MAX = 8 * 1024 * 1024  # a flow's publisher waits when its slowest reader is further behind than this
SURPLUS_NOISE_MAX = 3  # keep-alives of the server that may stand between deliveries
QUIET_S = 0.05  # after the last message nothing but noise may follow for this long
BURST_MAX = 1024  # messages sent in one go by a scheduled publisher that is late
VARIED_BYTES = 4  # of each payload of a block differ
STAMP = struct.Struct(">q")  # monotonic nanoseconds at the start of a payload


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent to one topic of one server."""

    wire: Wire
    address: Address
    topic: str
    size: int
    qos: int = 0


@dataclass(slots=True)
class Sent:
    """What a publisher did. Times are monotonic nanoseconds, the same clock in every process."""

    messages: int
    start: int
    end: int
    latencies: Nanoseconds = field(default_factory=nanoseconds)
    busy_s: float = 0.0  # processor time the generator itself took: near `seconds`, it and not the server is the limit

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass(slots=True)
class Received:
    """What a counting subscriber process saw on all its connections."""

    messages: int
    first: int
    end: int
    latencies: Nanoseconds = field(default_factory=nanoseconds)


def payload_of(size: int) -> bytes:
    """A payload without structure that compressors or word-at-a-time tricks could profit from, the same every time."""
    state = 0x9E3779B9
    out = bytearray()
    while len(out) < size:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(97 + (state >> 16) % 26)
    return bytes(out)


def encode_varied(load: Load, messages: int, connection: int = 0) -> bytearray:
    """So many publishes whose payloads differ: equal ones would flatter a server that has seen the last one before."""
    payload = payload_of(load.size)
    block = bytearray(load.wire.encode(load.topic, payload, load.qos, messages, connection))
    if not messages:
        return block
    stride = len(block) // messages
    at = bytes(block[:stride]).rindex(payload)
    for byte in range(min(VARIED_BYTES, load.size)):
        block[at + byte :: stride] = bytes(97 + (number >> 4 * byte & 15) for number in range(messages))
    return block


def block_messages(load: Load, count: int) -> int:
    """How many messages fill a block of about BLOCK_BYTES, not more than count."""
    one = len(load.wire.encode(load.topic, payload_of(load.size), load.qos, 1))
    return max(1, min(count, BLOCK_BYTES // one))


def wait_answers(load: Load, sock: socket.socket, owed: int) -> None:
    """Read until so many answers came."""
    rest = b""
    while owed > 0:
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError as error:
            raise BenchError(f"{load.wire.name}: {owed} answers still owed after {STALL_S} s.") from error
        if not data:
            raise BenchError(f"{load.wire.name}: connection closed with {owed} answers owed. See the server's log.")
        came, rest = load.wire.answered(load.qos, rest + data)
        owed -= came


def publish_pipelined(
    control: ControlPipe, load: Load, count: int, progress: Counters | None = None, slot: int = 0
) -> Sent:
    """Send everything on one connection without waiting; the clock stops when the final barrier is answered."""
    with load.wire.connect(load.address) as sock:
        per_block = block_messages(load, count)
        block = encode_varied(load, per_block)
        blocks, left = divmod(count, per_block)
        tail = encode_varied(load, left) + load.wire.barrier(load.qos)
        control.ready()
        busy = time.process_time()
        start = time.monotonic_ns()
        for number in range(blocks):
            sock.sendall(block)
            if progress is not None:
                progress[slot] = (number + 1) * per_block
        sock.sendall(tail)
        wait_answers(load, sock, load.wire.answers(load.qos, count))
        return Sent(count, start, time.monotonic_ns(), busy_s=time.process_time() - busy)


def publish_rotating(control: ControlPipe, load: Load, topics: int, run: int, passes: int) -> Sent:
    """Like publish_pipelined, but over many topics, `run` messages to one before the next; `passes` times over all."""
    with load.wire.connect(load.address) as sock:
        whole = b"".join(
            encode_varied(replace(load, topic=f"{load.topic}.{number:05d}"), run) for number in range(topics)
        )
        at_once = max(1, min(passes, BLOCK_BYTES // len(whole)))  # passes over few topics share a write
        view = memoryview(whole * at_once)
        control.ready()
        busy = time.process_time()
        start = time.monotonic_ns()
        for _ in range(passes // at_once):
            for at in range(0, len(view), BLOCK_BYTES):
                sock.sendall(view[at : at + BLOCK_BYTES])
        sock.sendall(view[: passes % at_once * len(whole)])
        sock.sendall(load.wire.barrier(load.qos))
        wait_answers(load, sock, load.wire.answers(load.qos, topics * run * passes))
        return Sent(topics * run * passes, start, time.monotonic_ns(), busy_s=time.process_time() - busy)


def publish_flow(control: ControlPipe, load: Load, count: int, ahead: int, seen: Counters, stamped: bool) -> Sent:
    """Send to subscribers as fast as they take it: never more than `ahead` messages before the slowest of them.

    Without this bound a server that keeps a bounded amount for a slow reader would rightly drop messages, and one that
    keeps an unbounded amount would be measured filling memory. With `stamped`, a block carries the time it was sent."""
    with load.wire.connect(load.address) as sock:
        per_block = min(block_messages(load, count), max(1, ahead // 4))
        block = encode_varied(load, per_block)
        stride = len(block) // per_block
        payload = payload_of(load.size)
        stamp_at = load.wire.encode(load.topic, payload, load.qos, 1).rindex(payload)
        control.ready()
        start = time.monotonic_ns()
        sent = 0
        while sent < count:
            while sent - min(seen) > ahead:
                time.sleep(0.0002)
            take = min(per_block, count - sent)
            if stamped:
                stamp = STAMP.pack(time.monotonic_ns())
                for byte in range(STAMP.size):
                    block[stamp_at + byte :: stride] = stamp[byte : byte + 1] * per_block
            sock.sendall(memoryview(block)[: take * stride])
            sent += take
        sock.sendall(load.wire.barrier(load.qos))
        wait_answers(load, sock, load.wire.answers(load.qos, count))
        return Sent(count, start, time.monotonic_ns())


class _Windows:
    """One connection of publish_windows: what it still has to write, what it is owed, when each window was sent."""

    __slots__ = ("owed", "rest", "sent_at", "sock", "unsent", "window")

    def __init__(self, sock: socket.socket, window: bytes) -> None:
        self.sock = sock
        self.window = window
        self.unsent = memoryview(b"")
        self.owed = 0
        self.rest = b""
        self.sent_at: deque[int] = deque()

    def push(self) -> bool:
        """Write what is left; True if all went out."""
        while self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except BlockingIOError:
                return False
        return True

    def start(self, windows: int, now: int) -> bool:
        """Send so many more windows, behind what is unsent; `now` is when."""
        if windows == 1:
            self.sent_at.append(now)
            data = self.window
        else:
            self.sent_at.extend([now] * windows)
            data = self.window * windows
        if self.unsent:
            self.unsent = memoryview(bytes(self.unsent) + data)
            return self.push()
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return True
        self.unsent = memoryview(data)[sent:]
        return self.push()


def publish_windows(
    control: ControlPipe,
    load: Load,
    connections: int,
    in_flight: int,
    depth: int,
    seconds: float,
    count: int,
    progress: Counters | None,
) -> Sent:
    """Many connections, each with `depth` windows of `in_flight` messages under way, until seconds or count are over.

    A window is in_flight publishes and a barrier; its time is from its write to its last answer. This is a closed loop:
    a stalled server is asked less often, so its percentiles must be marked as such."""
    wire, qos = load.wire, load.qos
    per_window = wire.answers(qos, in_flight)
    states: dict[int, _Windows] = {}
    epoll = select.epoll()
    for number in range(connections):
        sock = wire.connect(load.address, number)
        sock.setblocking(False)
        window = bytes(encode_varied(load, in_flight, number)) + wire.barrier(qos)
        states[sock.fileno()] = _Windows(sock, window)
        epoll.register(sock.fileno(), select.EPOLLIN)
    latencies = nanoseconds()
    control.ready()
    busy = time.process_time()
    start = time.monotonic_ns()
    stop = start + int(seconds * 1e9) if seconds else 1 << 62
    windows_left = -(-count // in_flight) if count else 1 << 62
    under_way = done = 0
    for fd, state in states.items():
        take = min(depth, windows_left)
        windows_left -= take
        under_way += take
        if take and not state.start(take, start):
            epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
    end = start
    while under_way:
        events = epoll.poll(STALL_S)
        if not events:
            raise BenchError(f"{wire.name}: {under_way} windows unanswered for {STALL_S} s. See the server's log.")
        for fd, what in events:
            state = states[fd]
            if what & select.EPOLLOUT and state.push():
                epoll.modify(fd, select.EPOLLIN)
            if not what & ~select.EPOLLOUT:
                continue
            data = state.sock.recv(READ_BYTES)
            if not data:
                raise BenchError(f"{wire.name}: the server closed a connection in the middle. See its log.")
            came, state.rest = wire.answered(qos, state.rest + data if state.rest else data)
            finished, state.owed = divmod(state.owed + came, per_window)
            if not finished:
                continue
            end = time.monotonic_ns()
            for _ in range(finished):
                latencies.append(end - state.sent_at.popleft())
            done += finished
            again = min(finished, windows_left) if end < stop else 0
            windows_left -= again
            under_way += again - finished
            if again and not state.start(again, end):
                epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            if progress is not None:
                progress[0] = done * in_flight
    for state in states.values():
        state.sock.close()
    epoll.close()
    return Sent(done * in_flight, start, end, latencies, time.process_time() - busy)


def publish_scheduled(
    control: ControlPipe, load: Load, rate: float, count: int, answered: bool, progress: Counters | None = None
) -> Sent:
    """Message i leaves at start + i / rate whatever the server does; late ones keep the time they were due.

    The due time stands at the start of each payload. With `answered`, every burst ends with a barrier and the latency
    of a message is from its due time to the answer; without, the subscriber measures."""
    wire, qos = load.wire, load.qos
    with wire.connect(load.address) as sock:
        payload = payload_of(load.size)
        one = bytearray(wire.encode(load.topic, payload, qos, 1))
        stamp_at = bytes(one).rindex(payload)
        head, tail = bytes(one[:stamp_at]), bytes(one[stamp_at + STAMP.size :])
        interval = 1e9 / rate
        owed: deque[tuple[int, list[int]]] = deque()
        latencies = nanoseconds()
        rest = b""
        poller = select.poll()
        poller.register(sock.fileno(), select.POLLIN)
        control.ready()
        start = time.monotonic_ns()
        sent = 0
        while sent < count or owed:
            monotonic = time.monotonic_ns()
            due = min(count, int((monotonic - start) / interval) + 1, sent + BURST_MAX) if sent < count else sent
            if due > sent:
                times = [start + int(number * interval) for number in range(sent, due)]
                burst = b"".join([head + STAMP.pack(moment) + tail for moment in times])
                if answered:
                    burst += wire.barrier(qos)
                    owed.append((wire.answers(qos, len(times)), times))
                sock.sendall(burst)
                sent = due
                if progress is not None:
                    progress[0] = sent
            wait = STALL_S * 1e9 if sent >= count else start + sent * interval - time.monotonic_ns()
            if not answered:
                if wait > 0 and sent < count:
                    time.sleep(wait / 1e9)
                continue
            # Round up to whole milliseconds only when nothing is due soon; below that, poll without waiting and then sleep.
            if poller.poll(max(0, int(wait / 1e6))):
                data = sock.recv(READ_BYTES)
                if not data:
                    raise BenchError(f"{wire.name}: the server closed the connection in the middle. See its log.")
                came, rest = wire.answered(qos, rest + data)
                _take_answers(owed, came, latencies)
            elif sent >= count:
                raise BenchError(f"{wire.name}: answers still owed after {STALL_S} s. See the server's log.")
            elif 0 < wait < 1e6:
                time.sleep(min(wait, 100_000) / 1e9)
        return Sent(count, start, time.monotonic_ns(), latencies)


def _take_answers(owed: deque[tuple[int, list[int]]], came: int, latencies: Nanoseconds) -> None:
    monotonic = time.monotonic_ns()
    while came:
        answers, times = owed.popleft()
        if came < answers:
            owed.appendleft((answers - came, times))
            return
        came -= answers
        latencies.extend([monotonic - moment for moment in times])
