"""Keeps beside a query's checkpoint which sink its batches went to, and refuses another one.

    CHECKPOINT/quintet-sink.json      {"kind": "topic", "name": "shouted", "identity": "3fa9.../77c1..."}

A batch counts once by its fence, and the fence is in the sink: in the log that has the topic, in the table. Spark's checkpoint
knows which batches are done and not where they are. So with another log behind the same url, another topic or path, or a topic
or table that was deleted and made again, the query would go on with the next batch, and all before it would be missing there.

What tells sinks apart is their random identity: that of the log and of the topic (flight/wire.py::TopicInfo), or that of the
table (lake/meta.py). Half of it may be unknown yet ("" behind the slash, or ""), and is filled in when it is known. A checkpoint
that is not in a directory of this machine (s3a://, hdfs://) keeps nothing here: a sink has no way to it. A query without
checkpointLocation as its option has none that could be told, either.
"""

import logging
import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from quintet.spark.source.options import OptionError, without_file

FILE: Final = "quintet-sink.json"
REMEDY: Final = "use a new checkpointLocation, or set failOnDataLoss to false to go on without them"

_log = logging.getLogger("quintet.spark")


class Sink(msgspec.Struct, frozen=True):
    """Where batches went. `name` is for people: the topic ("" if a column names it), or the path of the table."""

    kind: Literal["topic", "table"]
    name: str
    identity: str

    @property
    def log(self) -> str:
        return self.identity.partition("/")[0] if self.kind == "topic" else ""

    @property
    def part(self) -> str:
        """What the identity says beside the log."""
        return self.identity.partition("/")[2] if self.kind == "topic" else self.identity

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"the topics that a column names in the log {self.log}"


def load(checkpoint: str) -> Sink | None:
    """The sink of a checkpoint; None if it has none yet, or is out of reach."""
    folder = _folder(checkpoint)
    if folder is None:
        return None
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Sink)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise OptionError(
            "checkpointLocation",
            f"{folder / FILE} cannot be read ({error}); restore it, or remove it if the sink is the one of before",
        ) from None


def check(checkpoint: str, sink: Sink, fail_on_data_loss: bool, *, there: bool = True) -> None:
    """Whether batches may go on to this sink. `there` false: its topic or table does not exist."""
    before = load(checkpoint)
    wrong = "" if before is None else _differs(before, sink, there)
    if not wrong:
        return
    if fail_on_data_loss:
        raise OptionError("checkpointLocation", f"{wrong}: the batches before are missing here; {REMEDY}")
    _log.warning("quintet: %s: the batches before are missing here; going on because failOnDataLoss is false", wrong)


def keep(checkpoint: str, sink: Sink, fail_on_data_loss: bool) -> None:
    """`check`, and remember this sink from now on."""
    check(checkpoint, sink, fail_on_data_loss)
    folder, before = _folder(checkpoint), load(checkpoint)
    if folder is None or not folder.is_dir():
        return
    if before is not None and not sink.part and _differs(before, sink, True) == "":
        return  # it is known better already
    if before != sink:
        fresh = folder / f".{FILE}.{os.getpid()}"
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(sink))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(folder / FILE)


def _differs(before: Sink, sink: Sink, there: bool) -> str:
    """What is wrong, in a sentence; "" if nothing is."""
    if before.kind != sink.kind:
        return f"this checkpoint has written to {before}, and the query now writes to {sink}"
    if before.log != sink.log:
        return (
            f"this checkpoint has written to {before} of the log {before.log}, and this broker has the log {sink.log} (the broker "
            "behind the url was replaced, its data folder was emptied, or it is another url)"
        )
    known = bool(before.part)
    if known and not there:
        return f"this checkpoint has written to {before}, and there is no {sink} any more"
    if known and sink.part and before.part != sink.part:
        made = before.name == sink.name
        return f"this checkpoint has written to {before}, " + (
            "which was deleted and made again since" if made else f"and the query now writes to {sink}"
        )
    if before.kind == "topic" and before.name != sink.name:
        return f"this checkpoint has written to {before}, and the query now writes to {sink}"
    return ""


def _folder(checkpoint: str) -> Path | None:
    bare = without_file(checkpoint)
    return Path(bare) if bare and "://" not in bare else None
