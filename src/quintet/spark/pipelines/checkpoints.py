"""Records in a checkpoint's directory which pipeline it belongs to and with which options, and refuses others.

    CHECKPOINT/quintet-pipeline.json      {"kind": "archive", "options": {"topics": "orders", "path": "/lake/orders", ...}}

A checkpoint knows how far a run has read, but not what it did with the rows. A run with other options would go on after these rows:
another table or topic would lack all earlier ones, and a changed window or key would apply to later rows only. So a run is refused if
any option differs, except those in RUNNING; it needs a checkpoint of its own. `topics` may grow: a new topic is read from its
beginning.

A checkpoint without a planned batch accepts any options, so that a typing error in the first run can be corrected. A checkpoint without
this file, of an older version, is accepted. offsets.py and sinks.py record which log and which table the rows went to.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from quintet.model.errors import ConfigError
from quintet.spark.source.options import without_file

if TYPE_CHECKING:
    from py4j.java_gateway import JavaClass, JavaObject, JVMView  # type: ignore[import-untyped]  # py4j ships no types
    from pyspark.sql import SparkSession

FILE: Final = "quintet-pipeline.json"
OFFSETS: Final = "offsets"  # Spark's folder: a file for each batch that was planned
# Options that do not change the rows of a run: schedule, credentials, addresses. All secrets are among them, because all other
# options are written to the file.
RUNNING: Final = frozenset({
    "url", "user", "password", "token", "name", "checkpoint", "trigger", "starting", "max_per_trigger", "fail_on_data_loss",
    "compact_every", "target_mb", "storage", "catalog",
})  # fmt: skip
PLACES: Final = frozenset({"path", "to_table"})  # paths: written as absolute ones
GROWING: Final = frozenset({"topics"})
SHOWN_CHARS_MAX: Final = 80  # of a value in an error
BUILT_IN: Final = "quintet.spark.pipelines."
DIGEST: Final = "blake2b:"


class Note(msgspec.Struct, frozen=True):
    """The pipeline and options of a checkpoint. A mapping is kept as its digest."""

    kind: str
    options: dict[str, str]


def check(spark: "SparkSession", checkpoint: str, module: str, options: Mapping[str, object]) -> None:
    """ConfigError if the checkpoint belongs to another pipeline or to other options; else record these."""
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
                hint="restore it, or remove it if the options have not changed",
            ) from None
        _compare(checkpoint, known, note)
        note = Note(note.kind, known.options | note.options)
    if data != msgspec.json.encode(note):
        folder.write(FILE, msgspec.json.encode(note))


def _compare(checkpoint: str, known: Note, note: Note) -> None:
    if known.kind != note.kind:
        wrong = [f"it belongs to the pipeline {known.kind}, and this is {note.kind}"]
    else:
        # An option that the file lacks is newer than it, and its default is what was done before.
        names = [name for name in note.options if name in known.options]
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


def _text(name: str, value: object) -> str:
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
    def read(self, name: str) -> bytes | None: ...  # None: it does not exist

    def write(self, name: str, data: bytes) -> None: ...  # atomically

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
    """A directory in one of Hadoop's file systems: s3a, hdfs, gs, abfss."""

    def __init__(self, spark: "SparkSession", checkpoint: str) -> None:
        java: JVMView = spark.sparkContext._jvm
        self._make: JavaClass = java.org.apache.hadoop.fs.Path
        self._root: JavaObject = self._make(checkpoint)
        self._files: JavaObject = self._root.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def _path(self, name: str) -> "JavaObject":
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
