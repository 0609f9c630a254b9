"""Chains and signatures in the audit pipeline: sound ones, a batch made anew, an envelope that is not what was signed."""

import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from quintet import kernel
from quintet.flight.columns import SCHEMA
from quintet.log import pieces
from quintet.log.embedded.files.packs import PACKED_BYTES
from quintet.log.embedded.files.segment import HEADER_BYTES, parse_header
from quintet.log.pieces import Piece
from quintet.model import envelope
from quintet.spark.pipelines import audit
from quintet.spark.pipelines.audit import Options
from quintet.spark.pipelines.checks import chains, envelopes
from quintet.spark.pipelines.checks.envelopes import Signatures
from quintet.spark.source.options import OptionError
from tests.spark.conftest import FlightServer
from tests.spark.data import create, put
from tests.spark.recent import add

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = b"a secret all peers share, of enough bytes"


def copied(broker: FlightServer, folder: Path) -> Path:
    """The data folder as it is now."""
    return Path(shutil.copytree(broker.data, folder / "copy"))


def segment_of(folder: Path, value: bytes) -> tuple[Path, int, int]:
    """The file that a value is in, and where in it its segment begins and ends: a small one shares its file (ADR 31)."""
    for path in sorted([*folder.rglob("*.seg"), *(folder / "packs").iterdir()]):
        at = path.read_bytes().find(value)
        if at >= 0:
            begin = at // PACKED_BYTES * PACKED_BYTES if path.parent.name == "packs" else 0
            return path, begin, begin + (PACKED_BYTES if path.parent.name == "packs" else path.stat().st_size)
    raise AssertionError(f"{value!r} is in no segment of {folder}")


def made_anew(path: Path, begin: int, end: int, value: bytes) -> int:
    """Change a value, and its batch's checksum with it; the offset of the batch."""
    whole = path.read_bytes()
    data = bytearray(whole[begin:end])
    header = parse_header(bytes(data[:HEADER_BYTES]))
    assert header is not None
    entries, _, _ = kernel.walk(data, HEADER_BYTES, len(data), header.seed, True)
    at, length, base, _, _ = next(entry for entry in entries if value in data[entry[0] : entry[0] + entry[1]])
    batch = data[at : at + length]
    batch[batch.index(value)] ^= 1
    kernel.reseal(batch, header.seed)
    data[at : at + length] = batch
    path.write_bytes(whole[:begin] + data + whole[end:])
    return base


def test_files_are_packed_into_tasks() -> None:
    def sizes(*wanted: int) -> list[list[int]]:
        given = [Piece("", 20, 0, number, False, size, ()) for number, size in enumerate(wanted)]
        return [[piece.size for piece in task] for task in chains.packed(given)]

    most = chains.TASK_BYTES
    assert sizes() == []
    assert sizes(1, 2, most, 3, most - 3, 4, 2 * most, 5) == [[1, 2], [most], [3, most - 3], [4], [2 * most], [5]]
    count = 1000
    assert list(itertools.chain(*sizes(*[most // 7] * count))) == [most // 7] * count


def test_a_batch_made_anew_is_found_by_its_link_alone(
    spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    create(broker, topic, 2)
    for begin in (0, 10, 20):
        add(broker, topic, partitions=2, rows=10, begin=begin)
    folder = copied(broker, tmp_path)
    options = Options(url=broker.flight, topic=topic, data=str(folder))
    sound = audit.run(spark, options)
    assert sound.ok, sound.notes
    assert sound.notes[0].startswith("chains: ")
    assert sound.title == "audit: 60 records, partitions: 2"
    place = segment_of(folder, b"1-15")
    base = made_anew(*place, b"1-15")
    result = audit.run(spark, options)
    assert not result.ok
    assert result.notes[0].startswith(f"chain broken: edited: offsets {base} to ") and str(folder) in result.notes[0]
    here = pieces.prepare(str(folder))
    here.conclude([pieces.follow(piece, here.keys) for piece in here.pieces])
    assert result.notes[: len(here.notes)] == tuple(here.notes), "Spark says what one process says"


def test_without_the_files_it_is_said_that_no_chain_was_followed(
    spark: "SparkSession", broker: FlightServer, topic: str
) -> None:
    create(broker, topic)
    result = audit.run(spark, Options(url=broker.flight, topic=topic, via="flight"))
    assert result.ok and result.title.endswith("; chains not followed: that needs the files, data=FOLDER")


def letter(id: str, to: str, secret: bytes = SECRET) -> bytes:
    return envelope.sign(secret, id=id, sender="alice", to=to, ts="2026-11-16T00:00:00Z", body=b'{"n": 1}')


@pytest.mark.parametrize(("key", "value", "kind"), [
    (b"m1", letter("m1", "bob"), "sound"),
    (b"m1", letter("m1", "*"), "sound"),
    (b"m1", letter("m1", "bob").replace(b'"n":1', b'"n":2'), "forged"),
    (b"m1", letter("m1", "bob", b"another secret, of enough bytes too"), "forged"),
    (b"m2", letter("m1", "bob"), "forged"),
    (b"m1", letter("m1", "carol"), "forged"),
    (b"m1", b"no envelope", "forged"),
    (b"m1", letter("m1", "bob", b""), "unsigned"),
    (b"m1", envelope.wire(envelope.parse(letter("m1", "bob"))._replace(hmac="k1:" + "0" * 64)), "peer"),
])  # fmt: skip
def test_kinds_of_envelopes(key: bytes, value: bytes, kind: str) -> None:
    assert envelopes.judge(key, value, "bob", SECRET) == kind


def test_only_what_peers_sent_is_judged_and_the_first_forged_one_is_named() -> None:
    good, bad = letter("m1", "bob"), letter("m1", "carol")
    sent = [
        ("peerbus:alice", good),
        ("blipmq:dev", bad),
        ("peerbus:eve", bad),
        ("peerbus:eve", b""),
        ("peerbus:alice", good),
    ]
    rows = [
        {"key": b"m1", "value": value, "headers": [], "topic": "peerbus/bob", "partition": 0, "offset": 40 + number,
         "timestamp": number, "origin": origin}
        for number, (origin, value) in enumerate(sent)
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert envelopes.judged(batch, "bob", SECRET) == Signatures(sound=2, forged=2, other=1, at=42)


def test_counts_add_up() -> None:
    one, two = Signatures(1, 0, 2, 3, 4), Signatures(5, 2, 0, 0, 1, 17)
    assert one.plus(two) == Signatures(6, 2, 2, 3, 5, 17)
    assert two.plus(Signatures(forged=1, at=30)).at == 17


def test_signatures_of_a_mailbox(spark: "SparkSession", broker: FlightServer, tmp_path: Path) -> None:
    """Records of other doors are no envelopes; only what peers sent is held to its signature."""
    topic = "peerbus/audited"
    create(broker, topic)
    put(broker, topic, {"key": [None] * 3, "value": [b"x"] * 3})
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    options = Options(url=broker.flight, topic=topic, hmac_secret_file=str(secret))
    result = audit.run(spark, options)
    assert result.ok
    assert result.notes[-1] == (
        "signatures: 0 sound, 0 forged, 0 without one, 0 by a key of the peer's own (not verified), 3 of other doors"
    )
    secret.write_bytes(b"short")
    with pytest.raises(OptionError, match="hmac_secret_file"):
        audit.run(spark, options)
