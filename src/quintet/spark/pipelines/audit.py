"""audit: reads every record of the topics once and checks it, and compares an archive with its topics.

    checksum of every batch     broken: named with its offsets and, if files are read, the file and the position in it
    offsets                     lost if they are in no file. `absent` are offsets whose records expired or were compacted, and
                                control batches of the broker: not a loss, and a note says how many there are
    timestamps                  a note, if one is older than that of the record before it by more than `tolerance`
    digest                      of keys, values, headers, offsets and times in their order (digest.py): two audits of the same
                                offsets have the same digest
    archive                     each of its rows against the topic's (reconcile.py)

Rows never leave the process that reads them: Spark's tasks get ranges of offsets and return their findings (examine.py). So the work is
linear in the rows and is divided among the cores, and a broken batch does not hide the batches after it.

    chains                      with `data`: the links of every segment file there, and the anchors (chains.py). Records read
                                over Flight have no links: without the files no chain is checked, and the title says so
    signatures                  with `hmac_secret_file`: of the envelopes in the mailboxes of peers (envelopes.py)
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from quintet.flight import wire
from quintet.model.errors import TopicNotFound
from quintet.spark.pipelines.base import Catalog, Common, Result, Storage, lake_options, microseconds

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyspark.sql import SparkSession

    from quintet.spark.pipelines.checks.examine import Damage, Slice
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import ReadOptions
    from quintet.spark.source.spans import MappedSpan

SUMMARY = "checks every record of topics, and an archive against the topics it was made of"
TASKS_PER_CORE: Final = 4
NOTES_MAX: Final = 20  # of one kind
SECRET_BYTES_MIN: Final = 32
COLUMNS: Final = ("topic", "partition", "records", "first", "last", "absent", "broken", "digest")


class Options(Common, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="Topics to check: a,b,c. All there are, if left out.")] = ""
    starting: Annotated[str, msgspec.Meta(description="Where to begin: earliest, or offsets as JSON.")] = "earliest"
    ending: Annotated[str, msgspec.Meta(description="Where to end: latest, or offsets as JSON.")] = "latest"
    via: Annotated[
        Literal["auto", "files", "flight"],
        msgspec.Meta(
            description="files: check the broker's files here; flight: ask the broker; auto: what is possible."
        ),
    ] = "auto"
    tolerance: Annotated[str, msgspec.Meta(description="How far back a timestamp may go unnoticed: 500ms, 1s.")] = "1s"
    archive: Annotated[
        str, msgspec.Meta(description="An archive to compare with the topics: s3://..., or a directory.")
    ] = ""
    storage: Storage = msgspec.field(default_factory=dict)
    catalog: Catalog = msgspec.field(default_factory=dict)
    format: Annotated[
        Literal["parquet", "delta", "iceberg"], msgspec.Meta(description="What kind of table the archive is.")
    ] = "parquet"
    data: Annotated[
        str,
        msgspec.Meta(
            description="The broker's data folder, or a copy: the chain of every file in it is followed. Flight has no links."
        ),
    ] = ""
    anchors: Annotated[str, msgspec.Meta(description="File of the anchors, if it is not in the data folder.")] = ""
    key_file: Annotated[str, msgspec.Meta(description="File with the key of the chains, if they have one.")] = ""
    hmac_secret_file: Annotated[
        str, msgspec.Meta(description="File with the secret of the peers: signatures in peerbus/* are verified.")
    ] = ""


def run(spark: "SparkSession", options: Options) -> Result:
    """Read and check all records, then compare the archive. The notes say what is wrong."""
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import read_options

    chosen = {"subscribe": options.topic} if options.topic else {"subscribePattern": ".*"}
    bounds = {"startingOffsets": options.starting, "endingOffsets": options.ending, "access": options.via}
    asked = read_options({**options.access(), **chosen, **bounds})
    secret = _secret("hmac_secret_file", options.hmac_secret_file)
    slices = _slices(spark, asked, FlightConnection.of(asked.target), microseconds(options.tolerance), secret)
    notes, ok = _findings(slices, options.tolerance)
    if secret:
        notes += _signed(slices)
        ok = ok and not any(part.signatures.forged for part in slices)
    if options.data:
        from quintet.spark.pipelines.checks import chains

        followed = chains.follow(spark, options.data, options.anchors, _secret("key_file", options.key_file))
        notes, ok = [*_some(followed.notes), *notes], ok and followed.ok
    if options.archive:
        from quintet.spark.pipelines.checks.reconcile import reconcile

        damaged = {part.topic for part in slices if part.damages}
        sound = sorted({part.topic for part in slices} - damaged)
        notes += [
            f"topic {topic} cannot be compared with the archive before it can be read" for topic in sorted(damaged)
        ]
        where = lake_options(options)
        said, same = reconcile(spark, options, options.archive, options.format, sound, where) if sound else ([], ok)
        notes, ok = [*notes, *said], ok and same
    return Result(
        title=f"audit: {sum(part.rows for part in slices)} records, partitions: {len(slices)}"
        + ("" if options.data else "; chains not followed: that needs the files, data=FOLDER"),
        columns=COLUMNS,
        rows=tuple(_row(part) for part in slices),
        notes=tuple(notes),
        ok=ok,
    )


def _secret(option: str, file: str) -> bytes:
    """The secret in a file; b"" if no file is named."""
    from quintet.spark.source.options import OptionError

    if not file:
        return b""
    try:
        found = Path(file).read_bytes().strip()
    except OSError as error:
        raise OptionError(option, f"{file}: {error.strerror}") from None
    if len(found) < SECRET_BYTES_MIN:
        raise OptionError(option, f"{file} has {len(found)} bytes, a secret has at least {SECRET_BYTES_MIN}")
    return found


def _slices(
    spark: "SparkSession", asked: "ReadOptions", link: "FlightConnection", back_us: int, secret: bytes
) -> "list[Slice]":
    """One slice for each partition, read by as many tasks as there are cores for."""
    from quintet.spark.pipelines.checks.examine import Slice, united
    from quintet.spark.source import reader

    spans = reader.bounds(asked, link, reader.select(asked, link))
    full = [span for span in spans if span.rows > 0]
    worth = sum(span.rows for span in full) // reader.PACK_ROWS
    tasks_max = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    pieces = reader.split(full, min(tasks_max, worth)) if worth else full
    tasks = [reader.locate(asked, link, group) for group in reader.pack(pieces)]
    found = [Slice(span.topic, span.partition, span.first, span.last) for span in spans if span.rows <= 0]
    found += _examined(spark, asked, tasks, back_us, secret)
    found.sort(key=lambda part: (part.topic, part.partition, part.first))
    whole = [united(list(group), back_us) for _, group in groupby(found, lambda part: (part.topic, part.partition))]
    ids = {span.topic: span.identity for span in spans}
    kept = link.topics(wire.Selection(tuple(ids))).topics if ids else ()
    for topic in ids.keys() - {info.name for info in kept if info.identity == ids[info.name]}:
        raise TopicNotFound(f"topic {topic!r} was deleted, or made again, while it was read", hint="run it again")
    firsts = {(info.name, number): part.first for info in kept for number, part in enumerate(info.partitions)}
    return [_pardoned(part, firsts[part.topic, part.partition]) for part in whole]


def _examined(
    spark: "SparkSession", asked: "ReadOptions", tasks: "Sequence[list[MappedSpan]]", back_us: int, secret: bytes
) -> "Iterator[Slice]":
    """Run `examine` in Spark tasks, one for each element of `tasks`."""
    from quintet.spark.pipelines.checks.examine import Slice

    if tasks:
        found = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(
            _worker(asked, tasks, back_us, secret), "slice binary"
        )
        for row in found.toArrow().column("slice"):
            yield msgspec.msgpack.decode(row.as_py(), type=Slice)


def _worker(
    asked: "ReadOptions", tasks: "Sequence[list[MappedSpan]]", back_us: int, secret: bytes
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from quintet.spark.pipelines.checks.examine import examine

        for batch in batches:
            for number in batch.column("id").to_pylist():
                made = [msgspec.msgpack.encode(examine(asked, part, back_us, secret)) for part in tasks[number]]
                yield pa.RecordBatch.from_arrays([pa.array(made, pa.binary())], names=["slice"])

    return work


def _pardoned(part: "Slice", first: int) -> "Slice":
    """The slice without damage that is only retention's work during the audit: the partition begins at `first` now."""
    from quintet.spark.pipelines.checks.examine import Damage

    left = [Damage(max(each.first, first), each.last, each.why) for each in part.damages if each.last > first]
    return msgspec.structs.replace(part, damages=tuple(left))


def _findings(slices: "Sequence[Slice]", tolerance: str) -> tuple[list[str], bool]:
    """The notes, and whether all is well."""
    broken = [_broken(part, each) for part in slices for each in part.damages]
    backwards = [
        f"{part.topic}/{part.partition}: {part.back} timestamps are older than the one before by more than {tolerance}, "
        f"the first at offset {part.back_at}"
        for part in slices
        if part.back
    ]
    absent = [
        f"{part.topic}/{part.partition}: {part.absent} offsets have no record: expired, compacted, or control batches of the broker"
        for part in slices
        if part.absent
    ]
    return [*_some(broken), *_some(backwards), *_some(absent)], not broken


def _signed(slices: "Sequence[Slice]") -> list[str]:
    """Notes about the signatures in mailboxes, forged ones first."""
    from quintet.spark.pipelines.checks.envelopes import NONE

    forged = [
        f"forged: topic {part.topic}, partition {part.partition}, offset {part.signatures.at}: the envelope is not what its "
        f"sender signed (of {part.signatures.forged} such)"
        for part in slices
        if part.signatures.forged
    ]
    total = reduce(lambda one, two: one.plus(two), (part.signatures for part in slices), NONE)
    said = f"signatures: {total.sound} sound, {total.forged} forged, {total.unsigned} without one"
    said += f", {total.peer} by a key of the peer's own (not verified), {total.other} of other doors"
    return [*_some(forged), said]


def _broken(part: "Slice", damage: "Damage") -> str:
    many = (
        f"offsets {damage.first} to {damage.last - 1}" if damage.last - damage.first > 1 else f"offset {damage.first}"
    )
    return f"broken: topic {part.topic}, partition {part.partition}, {many}: {damage.why}"


def _some(notes: list[str]) -> list[str]:
    return notes if len(notes) <= NOTES_MAX else [*notes[:NOTES_MAX], f"and {len(notes) - NOTES_MAX} more of this kind"]


def _row(part: "Slice") -> tuple[object, ...]:
    from quintet.spark.pipelines.checks import digest

    word = digest.shown(part.rows, part.chains)
    return part.topic, part.partition, part.rows, part.first, part.last - 1, part.absent, part.broken, word
