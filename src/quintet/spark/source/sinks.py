"""Records in a query's checkpoint directory which sink its batches went to, and refuses another one.

    CHECKPOINT/quintet-sink.json      {"kind": "topic", "name": "shouted", "identity": "3fa9.../77c1..."}

The fence that keeps a batch from being written twice is in the sink: in the topic's log, or in the table. Spark's checkpoint knows
which batches are done, but not where they are. With another log behind the same url, another topic or path, or a topic or table that
was deleted and made again, the query would go on with the next batch, and all earlier ones would be missing there.

Sinks are compared by their random identities: that of the log and the topic (flight/wire.py::TopicInfo), or that of the table
(lake/meta.py). A part of it may be unknown at first ("" after the slash, or "") and is filled in when it is known. Nothing is recorded
if the checkpoint is not in a directory of this machine (s3a://, hdfs://), because the sink cannot write there, nor if
checkpointLocation is not an option of the query, because the sink does not see it then.
"""

import logging
import os
from pathlib import Path
from typing import Final, Literal

import msgspec
from pyspark import TaskContext

from quintet.model.errors import QuintetError
from quintet.spark.source.options import OptionError, without_file

FILE: Final = "quintet-sink.json"
# Local properties of Spark's tasks.
QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
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
        """The identity without that of the log."""
        return self.identity.partition("/")[2] if self.kind == "topic" else self.identity

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"the topics that a column names in the log {self.log}"


def batch_of_task() -> tuple[str, int]:
    """The query id and the batch id of the streaming query whose task this process runs."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    batch = context.getLocalProperty(BATCH) if context is not None else None
    if not query or batch is None:
        raise QuintetError("Spark did not tell its query id and batch id to a task; is this a streaming query?")
    return query, int(batch)


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
            f"{folder / FILE} cannot be read ({error}); restore it, or remove it if the sink is still the same",
        ) from None


def check(checkpoint: str, sink: Sink, fail_on_data_loss: bool, *, there: bool = True) -> None:
    """OptionError, or a warning, if earlier batches went to another sink. `there` false: its topic or table does not exist."""
    before = load(checkpoint)
    wrong = "" if before is None else _differs(before, sink, there)
    if not wrong:
        return
    if fail_on_data_loss:
        raise OptionError("checkpointLocation", f"{wrong}: the batches before are missing here; {REMEDY}")
    _log.warning("quintet: %s: the batches before are missing here; going on because failOnDataLoss is false", wrong)


def keep(checkpoint: str, sink: Sink, fail_on_data_loss: bool) -> None:
    """`check`, and record this sink."""
    check(checkpoint, sink, fail_on_data_loss)
    folder, before = _folder(checkpoint), load(checkpoint)
    if folder is None or not folder.is_dir():
        return
    if before is not None and not sink.part and _differs(before, sink, True) == "":
        return  # the record has more of the identity
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
