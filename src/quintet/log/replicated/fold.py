"""Decides which records of a WAL count. Every node folds the same prefix, so every node decides the same.

1. A claim is in force if and only if nothing before it has its epoch or a higher one.
2. Data counts if and only if its epoch is in force at its place and its sequence is the next one of that epoch. So a record that was
   sent twice counts once, and what was sent behind a record that got lost does not count at all.
3. Bytes that no node of a cell wrote count for nothing.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

from quintet.log.replicated.records import Kind, WalError, WalRecord, host_of


class Verdict(IntEnum):
    IGNORED = 0
    COUNTS = 1
    CLAIMED = 2


class WalReplaced(WalError):
    """The WAL is not the one that this node has read: records are missing, or it was made anew or restored from a backup."""

    code = "E1511"


@dataclass(slots=True)
class Fold:
    """What a prefix of the WAL comes to: up to `next`, without it."""

    next: int = 0  # the WAL offset that is read next
    epoch: int = 0  # in force; 0: nobody has claimed yet
    top: int = 0  # the highest that was seen
    sequence: int = 0  # of the next data record that counts
    node: str = ""  # who has the epoch in force
    instance: bytes = b""
    host: str = ""  # by which others reach that node
    last: int = 0  # digest of the record before `next`; 0: not known

    def copy(self) -> "Fold":
        return replace(self)

    def take(self, offset: int, record: WalRecord | None) -> Verdict:
        """The record at `offset`, which is the next one; None: bytes of somebody else."""
        if offset != self.next:
            raise WalReplaced(
                f"the WAL gave offset {offset} where {self.next} comes next",
                hint="records are missing: make this node's data directory anew from a peer",
            )
        self.next = offset + 1
        if record is None:
            return Verdict.IGNORED
        if record.kind is Kind.CLAIM:
            if record.epoch <= self.top:
                return Verdict.IGNORED
            self.epoch = self.top = record.epoch
            self.node, self.instance, self.sequence = record.node, record.instance, 0
            self.host = host_of(record)
            return Verdict.CLAIMED
        if record.epoch > self.top:
            raise WalReplaced(
                f"data of epoch {record.epoch} at WAL offset {offset}, and no claim before it is above {self.top}",
                hint="the WAL lost records: restore it, or make the cell anew from the node that has most",
            )
        if record.epoch != self.epoch:
            return Verdict.IGNORED
        if record.instance != self.instance:  # only who has the claim in force writes in its epoch
            raise WalReplaced(
                f"data of epoch {record.epoch} by {record.node} at WAL offset {offset}, and the claim that was read is another one's",
                hint="the WAL was restored from a backup, or made anew: make this node's data directory anew from a peer",
            )
        if record.sequence != self.sequence:
            return Verdict.IGNORED
        self.sequence += 1
        return Verdict.COUNTS
