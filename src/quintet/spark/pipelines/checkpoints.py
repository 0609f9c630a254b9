"""Stores beside a checkpoint what it belongs to: the pipeline, its topics, its sink and the options that shape its rows.

    CHECKPOINT/quintet-pipeline.json      {"kind": "archive", "options": {"topics": "orders", "path": "/lake/orders", ...}}

A checkpoint says how far a run is and not what it did. With other options the next run would go on behind what the first one
read: another table or topic would get none of the rows before, and a changed window or key would mean something else from the
middle on. So every option counts but those in RUNNING; a run with another one is refused until it gets a checkpoint of its own.
`topics` may grow: a topic that is new is read from its beginning.

A checkpoint that has planned no batch yet takes any options: so a typing error in the first run can be corrected. One from before this
file was kept is taken as it is. Which log and which table the rows went to is known elsewhere (offsets.py, sinks.py).
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from quintet.model.errors import ConfigError
from quintet.spark.source.options import without_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE: Final = "quintet-pipeline.json"
OFFSETS: Final = "offsets"  # Spark's folder: a file for each batch that was planned
# Options that say how a run goes, who asks and how to get there, and not which rows come out. Secrets are among them only:
# every other option is written down.
RUNNING: Final = frozenset({
    "url", "user", "password", "token", "name", "checkpoint", "trigger", "starting", "max_per_trigger", "fail_on_data_loss",
    "compact_every", "target_mb", "storage", "catalog",
})  # fmt: skip
PLACES: Final = frozenset({"path", "to_table"})  # written as they are from anywhere
GROWING: Final = frozenset({"topics"})
SHOWN_CHARS_MAX: Final = 80  # of a value in an error
BUILT_IN: Final = "quintet.spark.pipelines."
DIGEST: Final = "blake2b:"


class Note(msgspec.Struct, frozen=True):
    """What a checkpoint is of. A table of options is kept as its digest."""

    kind: str
    options: dict[str, str]


def check(spark: "SparkSession", checkpoint: str, module: str, options: Mapping[str, Any]) -> None:
    """ConfigError if the checkpoint is of another run than one of this module with these options; else it is of this one."""
    note = Note(
        module.removeprefix(BUILT_IN), {name: _text(name, options[name]) for name in sorted({*options} - RUNNING)}
    )
    folder = _folder(spark, checkpoint)
    data = folder.read(FILE)
    if data is not None and folder.count(OFFSETS):
        try:
            known = msgspec.json.decode(data, type=Note)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{checkpoint}/{FILE} cannot be read: {error}",
                hint="restore it, or remove it if the options are those of before",
            ) from None
        _compare(checkpoint, known, note)
        note = Note(note.kind, known.options | note.options)
    if data != msgspec.json.encode(note):
        folder.write(FILE, msgspec.json.encode(note))


def _compare(checkpoint: str, known: Note, note: Note) -> None:
    if known.kind != note.kind:
        wrong = [f"it is of the pipeline {known.kind}, and this is {note.kind}"]
    else:
        names = [
            name for name in note.options if name in known.options
        ]  # one that is new has its old meaning by default
        wrong = [_changed(name, known.options[name], note.options[name]) for name in names]
    wrong = [sentence for sentence in wrong if sentence]
    if wrong:
        raise ConfigError(
            f"the checkpoint {checkpoint} belongs to another run: {'; '.join(wrong)}. Rows that were read before would be missing",
            hint="run it as before to go on, or give this one another --name or --checkpoint: it then reads from the beginning",
        )


def _changed(name: str, before: str, after: str) -> str:
    if before == after or (name in GROWING and _names(before) <= _names(after)):
        return ""
    if before.startswith(DIGEST) or after.startswith(DIGEST):
        return f"{name} was another one"
    return f"{name} was {_shown(before)}, and is {_shown(after)}"


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "...") if text else "not given"


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        plain = msgspec.json.encode(value, order="sorted")
        return DIGEST + hashlib.blake2b(plain, digest_size=16).hexdigest() if value else ""
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    if name in PLACES and value and "://" not in without_file(str(value)):
        return os.path.abspath(without_file(str(value)))
    return str(value).rstrip("/") if name in PLACES else str(value)


# -- where checkpoints are --------------------------------------------------------------------------------------------


class Folder(Protocol):
    def read(self, name: str) -> bytes | None: ...  # None: it is not there

    def write(self, name: str, data: bytes) -> None: ...  # whole or not at all

    def count(self, name: str) -> int: ...  # entries of a folder in it


def _folder(spark: "SparkSession", checkpoint: str) -> Folder:
    bare = without_file(checkpoint)
    return HadoopFolder(spark, checkpoint) if "://" in bare else LocalFolder(Path(bare))


class LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            fresh = self._path / f".{name}.{os.getpid()}"
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path / name)
        except OSError as error:
            raise ConfigError(
                f"the checkpoint {self._path} cannot be used: {error.strerror}",
                hint="choose another directory with --checkpoint",
            ) from error

    def count(self, name: str) -> int:
        folder = self._path / name
        return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


class HadoopFolder:
    """By the file systems that Spark keeps checkpoints on: s3a, hdfs, gs, abfss."""

    def __init__(self, spark: "SparkSession", checkpoint: str) -> None:
        java: Any = spark.sparkContext._jvm
        self._make: Any = java.org.apache.hadoop.fs.Path
        self._root: Any = self._make(checkpoint)
        self._files: Any = self._root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def _path(self, name: str) -> Any:
        return self._make(self._root, name)

    def read(self, name: str) -> bytes | None:
        if not self._files.exists(self._path(name)):
            return None
        stream = self._files.open(self._path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        stream = self._files.create(self._path(name), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def count(self, name: str) -> int:
        return len(self._files.listStatus(self._path(name))) if self._files.exists(self._path(name)) else 0
