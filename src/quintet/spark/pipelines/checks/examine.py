"""Reads and checks a range of a partition in a Spark task of the audit, and goes on after damage.

Record batches stay in this process, and each is checked as a whole. A batch that cannot be read is recorded, and reading goes on at the
next offset that can. The result is one `Slice`; what it means for the audit is decided in audit.py.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import columns, wire
from quintet.log import mapped
from quintet.model.errors import CorruptData, DataLost, OffsetNotFound, QuintetError
from quintet.spark.pipelines.checks import digest, envelopes
from quintet.spark.source import reader
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import OptionError, ReadOptions
from quintet.spark.source.spans import MappedSpan

DAMAGES_MAX: Final = 1_000  # of one range; what follows them is not read
DAMAGE: Final = {CorruptData.code, DataLost.code, OffsetNotFound.code}  # errors that are findings of the audit
OFFSET_ONLY: Final = ("offset",)


class Damage(msgspec.Struct, frozen=True, array_like=True):
    """Offsets first to last - 1 cannot be read; `why` is the error."""

    first: int
    last: int
    why: str


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """The findings in offsets first to last - 1 of a partition."""

    topic: str
    partition: int
    first: int
    last: int
    rows: int = 0
    early: int = 0  # the time of the first record, microseconds
    late: int = 0  # of the last one
    back: int = 0  # how many records are older than the one before them, by more than the tolerance
    back_at: int = -1  # the offset of the first of these
    low: int = -1  # the first offset that has a record
    chains: digest.Chains = digest.EMPTY
    damages: tuple[Damage, ...] = ()
    signatures: envelopes.Signatures = envelopes.NONE

    @property
    def broken(self) -> int:
        return sum(damage.last - damage.first for damage in self.damages)

    @property
    def absent(self) -> int:
        return self.last - self.first - self.rows - self.broken


def examine(asked: ReadOptions, part: MappedSpan, back_us: int, secret: bytes = b"") -> Slice:
    """Read and check a range. With a secret, also verify the signatures of envelopes in the mailboxes of peers."""
    span, damages = part.span, list[Damage]()
    found = Slice(span.topic, span.partition, span.first, span.last)
    mailbox = span.topic.removeprefix(envelopes.PREFIX) if secret and span.topic.startswith(envelopes.PREFIX) else ""
    wanted = (*digest.COLUMNS, "origin") if mailbox else digest.COLUMNS
    for piece in _pieces(asked, part, wanted):
        if isinstance(piece, Damage):
            damages.append(piece)
            continue
        offsets, times = _numbers(piece, "offset"), _numbers(piece, "timestamp")
        before = np.concatenate(([found.late if found.rows else times[0]], times[:-1]))
        back = np.flatnonzero(before - times > back_us)
        found = msgspec.structs.replace(
            found,
            rows=found.rows + piece.num_rows,
            low=found.low if found.rows else int(offsets[0]),
            early=found.early if found.rows else int(times[0]),
            late=int(times[-1]),
            back=found.back + len(back),
            back_at=found.back_at if found.back or not len(back) else int(offsets[back[0]]),
            chains=digest.extended(found.chains, piece),
            signatures=found.signatures.plus(envelopes.judged(piece, mailbox, secret)) if mailbox else envelopes.NONE,
        )
    return msgspec.structs.replace(found, damages=tuple(damages))


def united(slices: Sequence[Slice], back_us: int) -> Slice:
    """Adjacent slices, in their order, as one."""

    def pair(one: Slice, two: Slice) -> Slice:
        if not one.rows or not two.rows:
            full = two if two.rows else one
            return msgspec.structs.replace(
                full, first=one.first, last=two.last, damages=_merged(one.damages, two.damages)
            )
        back = one.late - two.early > back_us
        return msgspec.structs.replace(
            one,
            last=two.last,
            rows=one.rows + two.rows,
            late=two.late,
            back=one.back + back + two.back,
            back_at=one.back_at if one.back else two.low if back else two.back_at,
            chains=digest.joined(one.chains, two.chains),
            signatures=one.signatures.plus(two.signatures),
            damages=_merged(one.damages, two.damages),
        )

    return reduce(pair, slices)


def _merged(one: tuple[Damage, ...], two: tuple[Damage, ...]) -> tuple[Damage, ...]:
    """The damages of two adjacent slices; a broken batch may be in both."""
    if one and two and one[-1].last == two[0].first:
        return (*one[:-1], Damage(one[-1].first, two[0].last, one[-1].why), *two[1:])
    return (*one, *two)


def _numbers(batch: pa.RecordBatch, name: str) -> "np.typing.NDArray[np.int64]":
    array = batch.column(name)
    return np.frombuffer(array.buffers()[1], "<i8", len(array), 8 * array.offset)


def _pieces(asked: ReadOptions, part: MappedSpan, wanted: tuple[str, ...]) -> Iterator[pa.RecordBatch | Damage]:
    """The record batches of a range, and between them the damages."""
    following, last = part.span.first, part.span.last
    for _ in range(DAMAGES_MAX):
        rest = part._replace(span=part.span._replace(first=following))
        try:
            for batch in reader.open_range(asked, rest, wanted, {}):
                yield batch
                following = batch.column("offset")[batch.num_rows - 1].as_py() + 1
            return
        except (QuintetError, OptionError) as error:
            unmapped = asked.access == "files" and not _here(part)
            if unmapped or (isinstance(error, QuintetError) and error.code not in DAMAGE):
                raise
            rest = part._replace(span=part.span._replace(first=following))
            sound = _sound(asked, rest)
            yield Damage(following, sound, str(error))
        following = sound
        if following >= last:
            return
    yield Damage(following, last, f"not read: there are more than {DAMAGES_MAX:,} damages before it")


def _sound(asked: ReadOptions, part: MappedSpan) -> int:
    """The first offset of a range that can be read, or its end."""
    span = part.span
    if _here(part):
        bits = columns.bits(OFFSET_ONLY)
        for some in mapped.read(
            part.files, span.id, span.partition, span.first, span.last, columns=bits, rows_max=1, fail_on_loss=False,
            name=span.topic,
        ):  # fmt: skip
            return int(np.frombuffer(some.buffers[0] or b"", "<i8", 1)[0])
        return span.last
    ticket = wire.Ticket(
        span.topic, span.partition, span.first, span.last, OFFSET_ONLY, rows_per_batch=1, fail_on_data_loss=False
    )
    for batch in FlightConnection.of(asked.target).read(ticket):
        return int(batch.column("offset")[0].as_py())
    return span.last


def _here(part: MappedSpan) -> bool:
    """Whether the broker's files are this machine's files."""
    return part.machine is not None and bool(part.files) and reader.same_machine(part.machine)
