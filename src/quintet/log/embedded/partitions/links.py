"""Tracks the audit links of one partition: which one comes next, which one is durable, where to go on after a failure.

Links follow the order in which batches are staged, which is the order of their offsets. A batch that is refused takes its
link with it: the chain goes on from the last batch that was committed. A partition without a chain has the same object
with nothing in it, so that the partition need not ask. How links are verified is log/chain.py's matter.

    staged: head --(written)--> committed --(synced, or in the journal)--> durable --> anchored (anchoring.py)
"""

from functools import cache
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.chain import KEYED, PLAIN, genesis, key_id
from quintet.log.embedded.files.segment import UNCHAINED, ChainStart, Segment
from quintet.log.embedded.recovery.directories import Opened
from quintet.model.batch import CHAIN, LINK_BYTES, kind_of

T = TypeVar("T")  # a partition

ChainMode = Literal["durable", "all", "off"]


class ChainPolicy(NamedTuple):
    """Which topics are chained: durable means those with durability fsync. `key`: 32 bytes, or none."""

    mode: ChainMode = "durable"
    key: bytes = b""

    def wants(self, spec: TopicSpec) -> bool:
        return self.mode == "all" or (self.mode == "durable" and spec.durability == "fsync")


class ChainHead(NamedTuple):
    """The link of the last batch below next_offset."""

    next_offset: int
    link: bytes


NOTHING: Final = ChainHead(0, b"")


class Links:
    """Of a partition without a chain."""

    __slots__ = ()
    room = 0  # bytes that a batch grows by

    @property
    def durable(self) -> ChainHead:
        """How far the chain is durable."""
        return NOTHING

    def start(self) -> ChainStart:
        """For the header of a segment that begins with the next batch."""
        return UNCHAINED

    def continues(self, segment: Segment) -> bool:
        """May the next batch go into this segment?"""
        return True

    def seal(self, batch: bytearray, base: int, now: int, seed: int) -> None:
        """Place and seal a batch that is staged."""
        kernel.seal(batch, base, now, seed)

    def accept(self, batch: bytearray, seed: int) -> bool:
        """Stage a batch that another node sealed, with its offset, time and link. False: its link is not the next one."""
        if kind_of(batch)[1] & CHAIN:
            return False
        kernel.reseal(batch, seed)
        return True

    def commit(self, batch: bytearray, next_offset: int, durable: bool) -> None:
        """This batch is the last one that was written, and perhaps durable."""

    @property
    def lent(self) -> tuple[bytes, bytes]:
        """What the kernel needs to go on: the link of the last batch that was staged, and the key."""
        return b"", b""

    def resume(self, link: bytes) -> None:
        """The kernel has gone on: this is the link of the last batch that it staged."""

    def commit_link(self, link: bytes, next_offset: int, durable: bool) -> None:
        """As `commit`, of a batch with this link."""

    def begin_sync(self) -> None:
        """What is committed now is being synced."""

    def mark_durable(self, next_offset: int) -> None:
        """Everything below next_offset is durable: where a sync began, or all that is committed."""

    def fall_back(self) -> None:
        """What was staged and not committed is gone."""


NO_LINKS: Final = Links()  # it has no state: one for all


class ChainedLinks(Links, Generic[T]):
    """Of a partition with a chain. `owner` is put into `moved` when `durable` went on. Offsets and links are kept side by side and not
    as heads: this is done for every batch, and heads are asked for every few seconds."""

    __slots__ = (
        "_committed", "_committed_to", "_durable", "_durable_to", "_head", "_key", "_kind", "_moved", "_owner", "_syncing",
        "_syncing_to",
    )  # fmt: skip
    room = LINK_BYTES

    def __init__(self, key: bytes, head: ChainHead, owner: T, moved: set[T]) -> None:
        self._key = key
        self._kind = _kind_with(key)  # one object for all
        self._owner = owner
        self._committed_to = self._syncing_to = self._durable_to = head.next_offset
        self._head = self._committed = self._syncing = self._durable = head.link
        self._moved = moved

    @property
    def durable(self) -> ChainHead:
        return ChainHead(self._durable_to, self._durable)

    def start(self) -> ChainStart:
        return ChainStart(*self._kind, self._head)

    def continues(self, segment: Segment) -> bool:
        return segment.chain[:2] == self._kind

    def seal(self, batch: bytearray, base: int, now: int, seed: int) -> None:
        self._head = kernel.chain(batch, base, now, seed, self._head, self._key)

    def accept(self, batch: bytearray, seed: int) -> bool:
        followed, link = kernel.follow(batch, 0, len(batch), self._head, self._key)
        if followed != len(batch):
            return False
        self._head = link
        kernel.reseal(batch, seed)
        return True

    @property
    def lent(self) -> tuple[bytes, bytes]:
        return self._head, self._key

    def resume(self, link: bytes) -> None:
        self._head = link

    def commit(self, batch: bytearray, next_offset: int, durable: bool) -> None:
        self.commit_link(bytes(batch[-LINK_BYTES:]), next_offset, durable)

    def commit_link(self, link: bytes, next_offset: int, durable: bool) -> None:
        self._committed_to = next_offset
        self._committed = link
        if durable:
            self._durable_to, self._durable = next_offset, self._committed
            self._moved.add(self._owner)

    def begin_sync(self) -> None:
        self._syncing_to, self._syncing = self._committed_to, self._committed

    def mark_durable(self, next_offset: int) -> None:
        if next_offset <= self._durable_to:
            return
        if next_offset == self._committed_to:
            self._durable = self._committed
        elif next_offset == self._syncing_to:
            self._durable = self._syncing
        else:
            return
        self._durable_to = next_offset
        self._moved.add(self._owner)

    def fall_back(self) -> None:
        self._head = self._committed


@cache
def _kind_with(key: bytes) -> tuple[int, int]:
    return (KEYED, key_id(key)) if key else (PLAIN, 0)


def open_links(policy: ChainPolicy, spec: TopicSpec, number: int, opened: Opened, owner: T, moved: set[T]) -> Links:
    """The links of a partition as it was found. A log that is chained stays so, whatever the policy says now: what comes
    without a link behind chained batches is always somebody else's. Compaction rewrites batches, so tables have none."""
    chained = bool(opened.segments) and opened.segments[-1].chain.kind != 0
    if spec.compact or not (chained or policy.wants(spec)):
        return NO_LINKS
    if chained and len(opened.link) == LINK_BYTES:
        return ChainedLinks(policy.key, ChainHead(opened.next_offset, opened.link), owner, moved)
    before_all = ChainHead(0, genesis(spec.id, number))  # nothing to anchor before a batch
    return ChainedLinks(policy.key, before_all, owner, moved)
