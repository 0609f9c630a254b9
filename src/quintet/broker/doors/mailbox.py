"""Holds one peer's name: its owner, the connection that uses it, its topic, the letters on their way there.

A letter is an admitted envelope (broker/doors/peers.py). The records of a mailbox have the sender as origin and the envelope's id as
key, so the broker can read back, after a restart, which ids it has taken. Who may send, and what becomes of a name that
nobody uses, is decided in peers.py.
"""

from datetime import datetime
from typing import Final, Protocol

import msgspec

from quintet import kernel
from quintet.broker.topics.catalog import Topic
from quintet.delivery.lane import Lane
from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Subscription
from quintet.model.batch import Header, RecordBatch, Row
from quintet.model.tasks import completed

TOPIC_PREFIX: Final = "peerbus/"
ORIGIN_PREFIX: Final = b"peerbus:"
MEASURE_EVERY_US: Final = 100_000  # how often a full mailbox is looked at again
FIRST_PARTITION: Final = 0  # where all envelopes of a mailbox go: the order of each sender's is kept

Letter = tuple[
    bytes, bytes, bytes, bool, tuple[Header, ...]
]  # origin, id, envelope, whether this is a copy of a broadcast, headers


class PeerRow(msgspec.Struct, frozen=True):
    """What `__peers` keeps: whose a name is, since when, and when it was last used (to a day). Times in microseconds. If
    there was a topic of the mailbox's name before: its id, and from where on what is in its partitions is this peer's."""

    name: str
    owner: str
    registered: int
    seen: int
    topic: int = 0
    starts: tuple[int, ...] = ()


class AppendedLetter(RecordBatch):
    """A letter that was just appended, as the batch of one record that its topic has of it, for whoever gets it pushed at once. It is not read
    back, so it has no `buffer`."""

    __slots__ = ("expiry_us", "letter")

    flags = columns = 0
    count = span = 1
    memo = None

    def __init__(self, letter: Letter, offset: int, now: int, expiry_us: int) -> None:
        self.letter = letter
        self.base_offset = offset
        self.timestamp = self.max_timestamp = now
        self.expiry_us = expiry_us

    def rows(self, first: int = 0, last: int | None = None) -> list[Row]:
        origin, id, data, _, headers = self.letter
        return [(self.base_offset, self.timestamp, id, data, headers, self.expiry_us, origin)]


class Holder(Protocol):
    """The session a name is bound to."""

    def lost_name(self, freed: bool) -> None:
        """Another connection took the name over, or (`freed`) there is no such name any more."""


class Mailbox:
    """One name: its owner, what waits for it, and who is connected under it."""

    __slots__ = (
        "broadcast_bytes", "broadcast_since", "direct_end", "durable", "gone", "holder", "known_end", "left", "measured_at",
        "name", "origin", "outbox", "outbox_bytes", "owner", "raw", "registered", "room_bytes", "room_messages", "row", "seen",
        "sink", "subscription", "takeovers", "takeovers_since", "topic",
    )  # fmt: skip

    def __init__(self, row: PeerRow, durable: bool, seen: int) -> None:
        self.name = row.name
        self.raw = (TOPIC_PREFIX + row.name).encode()
        self.origin = ORIGIN_PREFIX + row.name.encode()
        self.owner = row.owner
        self.row = row
        self.seen = seen  # by the monotonic clock; the row has the date
        self.durable = durable
        self.gone = False
        self.holder: Holder | None = None
        self.sink: Sink | None = None
        self.topic: Topic | None = None
        self.subscription: Subscription | None = None
        self.registered = completed(None)  # over when the row is durable
        self.outbox: list[Letter] | None = None
        self.outbox_bytes = 0
        self.room_messages = self.room_bytes = 0
        self.measured_at = -MEASURE_EVERY_US  # never
        self.takeovers = self.takeovers_since = 0
        self.broadcast_bytes = self.broadcast_since = 0
        self.left = 0  # when the last connection was gone, by the monotonic clock
        # Of its first partition: behind the last record that may be more than a copy of a broadcast, and behind the last
        # that was put there by peers. What others put there is not known to be a copy.
        self.direct_end = self.known_end = 0

    def attach(self, sink: Sink) -> None:
        """Push to this connection from now on."""
        self.sink = sink
        if self.subscription is not None:
            self.subscription.attach(sink)

    def detach(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None and self.subscription is not None and self.subscription.sink is sink:
            self.subscription.detach(sink)

    def has_topic(self, topic: Topic) -> None:
        """This is where its messages are. What is there already may be for it alone."""
        self.topic = topic
        self.direct_end = self.known_end = 0 if topic.waiting else topic.partitions[FIRST_PARTITION].end

    def stored(self, offset: int, letters: list[Letter]) -> None:
        """These were appended at this offset."""
        if offset != self.known_end:
            self.direct_end = offset
        self.known_end = offset + len(letters)
        if len(letters) == 1:  # most often
            if not letters[0][3]:
                self.direct_end = offset + 1
        elif direct := behind_direct(letters):
            self.direct_end = offset + direct

    @property
    def dispensable(self) -> bool:
        """Nobody is connected and nothing but copies of broadcasts waits."""
        if self.holder is not None or not self.durable or self.outbox:
            return False
        if self.subscription is None:
            return self.topic is None
        for lane in self.subscription.lanes:
            end = lane.partition.end
            if (end != lane.position or lane.pending) and (
                lane.partition.number != FIRST_PARTITION or end != self.known_end or lane.floor < self.direct_end
            ):
                return False
        return True

    @property
    def identity(self) -> str:
        """Of its topic: no other has it."""
        return "" if self.topic is None else self.topic.spec.identity

    @property
    def backlog(self) -> int:
        """Messages not settled, those on their way to the disk among them."""
        found = len(self.outbox or ())
        for lane in self.subscription.lanes if self.subscription is not None else ():
            found += lane.partition.end - lane.position + lane.pending
        return found


def batch_of(letters: list[Letter], expiry: int, copies_expiry: int, now: int) -> bytearray:
    """One unsealed batch; its origins are the senders. Copies of broadcasts expire at a time of their own; 0: never."""
    if len(letters) == 1:  # one message under way
        origin, id, data, copy, said = letters[0]
        return kernel.build([data], [id], [said], None, [copies_expiry if copy else expiry], origin=origin)
    batches, start = [], 0
    for at in range(1, len(letters) + 1):
        if at == len(letters) or letters[at][0] != letters[start][0]:
            run = letters[start:at]
            values, keys = [letter[2] for letter in run], [letter[1] for letter in run]
            expiries = [copies_expiry if letter[3] else expiry for letter in run]
            headers = [letter[4] for letter in run]
            batches.append(kernel.build(values, keys, headers, None, expiries, origin=letters[start][0]))
            start = at
    return batches[0] if len(batches) == 1 else kernel.merge(batches, now)


def behind_direct(letters: list[Letter]) -> int:
    """How many letters there are up to the last one that is not a copy of a broadcast, that one among them."""
    for at in range(len(letters), 0, -1):
        _, _, _, copy, _ = letters[at - 1]
        if not copy:
            return at
    return 0


def bytes_waiting(lane: Lane) -> int:
    """About how many bytes are not settled. One old message that is never acknowledged (a client must not, if it cannot
    verify it) counts as itself, not as all that came and went behind it."""
    floor, position = lane.floor, lane.position
    new = lane.partition.bytes_from(position)
    if floor == position:
        return new
    return new + (lane.partition.bytes_from(floor) - new) * lane.pending // (position - floor)


def time_of(ts: str) -> int | None:
    """Microseconds since 1970 of a time in RFC 3339; None if it is something else."""
    try:
        found = datetime.fromisoformat(ts)
    except ValueError:
        return None
    return None if found.tzinfo is None else int(found.timestamp() * 1_000_000)
