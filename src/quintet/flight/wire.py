"""What crosses the Flight door: the tickets, the descriptors, the actions and their answers. Words only, no work.

Both ends use these: the door (server.py) and the link of Spark and the pipelines (quintet.spark.source.connection). All of it is JSON,
so that any Arrow client can use the door without this package; bytes of a message never go this way, they are columns.

    get_flight_info   path [TOPIC], or command Selection      one endpoint per partition, each with a ticket
    do_get            ticket Ticket                           the records as record batches
    do_put            path [TOPIC]                            publishes what was sent, all or nothing
                      command StageRequest                    stages it: visible when `stage_commit` says so
    do_action         a name of ACTIONS, its request as body  one result, the answer

An error is the Flight error of its kind whose text is "CODE: what happened", and `extra_info` is a `Problem`.
"""

from typing import Final

import msgspec

from quintet.model.rights import Right

# The columns of a topic, in this order (docs of each in README.md). `columns` fields name some of them.
COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "origin")
ROWS_PER_BATCH: Final = 20_000  # what a reader asks for when it says nothing
ROWS_PER_BATCH_MAX: Final = 1 << 20
# The name of the field `batch_id` on the wire. Clients in other languages send it, so it stays.
BATCH_ID: Final = "epoch"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends; a field that is not known is refused, so that a typing error is not passed over."""


class AgedRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A read that a follower may answer (ADR 43). `max_age_seconds`: how old its state may be; 0: as its configuration says. The
    leader's is never old."""

    max_age_seconds: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    """What the broker answers; a client passes over fields it does not know."""


class Problem(Answer, frozen=True):
    """An error as the client gets it: the code and words of quintet.model.errors."""

    code: str
    message: str
    hint: str = ""
    retryable: bool = False


# -- reading ----------------------------------------------------------------------------------------------------------


class Ticket(AgedRequest, frozen=True):
    """Records first <= offset < last of one partition. `last` -1: up to what is there now. A follower waits for offsets that are
    named and not there yet, and refuses after a while (E1703)."""

    topic: str
    partition: int
    first: int = 0
    last: int = -1
    columns: tuple[str, ...] = COLUMNS
    rows_per_batch: int = ROWS_PER_BATCH
    fail_on_data_loss: bool = True  # false: what retention took meanwhile is passed over


class Least(msgspec.Struct, frozen=True, array_like=True):
    """What whoever asks has seen of a topic already: its identity ("": any), and offsets by partition up to which it has seen it."""

    topic: str
    identity: str = ""
    ends: tuple[int, ...] = ()


class Selection(AgedRequest, frozen=True):
    """Topics by name or by a pattern (RE2 that must match the whole name). Only what the caller may read is found. `at_least`: a
    follower that does not have so much waits, and refuses after a while (E1703)."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    at_least: tuple[Least, ...] = ()


class PartitionInfo(Answer, frozen=True):
    """The offsets there are: first <= offset < end, and about how many bytes."""

    first: int
    end: int
    bytes: int = 0


class TopicInfo(Answer, frozen=True):
    """`id` tells topics of one log apart, by a small number. `identity` tells a topic from every other one, of other logs, too:
    LOG/TOPIC, both random. Who remembers offsets remembers it with them."""

    name: str
    id: int
    durability: str
    partitions: tuple[PartitionInfo, ...]
    identity: str


class Topics(Answer, frozen=True):
    """`missing`: names that were asked for and do not exist (or may not be known to exist). `log`: the identity of the log."""

    topics: tuple[TopicInfo, ...]
    missing: tuple[str, ...]
    log: str


class CreateRequest(Request, frozen=True):
    """Make a topic with so many partitions, durable, unless there is one of this name."""

    topic: str
    partitions: int


class Created(Answer, frozen=True):
    """`fresh` false: the topic was there. `partitions`: how many it has."""

    fresh: bool
    partitions: int


class TimeRequest(AgedRequest, frozen=True):
    topic: str
    at_us: int  # microseconds since 1970


class Offsets(Answer, frozen=True):
    """Of each partition the first offset whose record is not older; its end, if there is none."""

    offsets: tuple[int, ...]


class Range(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    first: int
    last: int


class LocateRequest(AgedRequest, frozen=True):
    topic: str
    ranges: tuple[Range, ...]


class SegmentFile(Answer, frozen=True):
    """One segment of a range. `position` is where to begin to look: a batch at or before the range begins there."""

    path: str
    seed: int
    position: int
    base: int
    next_offset: int


class Machine(Answer, frozen=True):
    """Which machine and which data directory the paths are of: the files are the broker's only if all of it agrees. A directory
    that was emptied and used again may have the same path, device and inode; the file `identity` in it then has another log."""

    boot_id: str
    lock_path: str
    lock_device: int
    lock_inode: int
    log: str


class Located(Answer, frozen=True):
    """The files of each range asked for; none for a topic in memory. `machine` None: mapping is switched off. `identity` is that
    of the topic, as in TopicInfo."""

    identity: str
    machine: Machine | None
    files: tuple[tuple[SegmentFile, ...], ...]


# -- writing ----------------------------------------------------------------------------------------------------------


class StageRequest(Request, frozen=True):
    """Stage the rows of this do_put for batch `batch_id` of `writer`. `topic` "": a column names the topic of each row."""

    writer: str
    batch_id: int = msgspec.field(name=BATCH_ID)
    topic: str = ""


class Staged(Answer, frozen=True):
    """Sent as the metadata of a do_put: the stage and what it holds. `stage` "": no rows came, and there is nothing to
    commit; a StageCommit may name it all the same. `log`: the log that has it. `identity`: of the topic that the request
    named, as in TopicInfo; "" if it named none."""

    stage: str
    rows: int
    bytes: int
    log: str
    identity: str = ""


class StageCommit(Request, frozen=True):
    """Publish these stages as batch `batch_id` of `writer`: all of it, once. `rows` is what the caller counted.
    `accept_other`: this batch was committed before with another number of rows; pass over that. `log`: the log that has the
    stages and knows the writer; another one refuses (E1333), "" is not checked."""

    writer: str
    batch_id: int = msgspec.field(name=BATCH_ID)
    stages: tuple[str, ...]
    rows: int
    accept_other: bool = False
    log: str = ""


class StageCommitted(Answer, frozen=True):
    """`fresh` false: this batch had been committed before, and these stages were thrown away."""

    fresh: bool
    rows: int


class StageAbort(Request, frozen=True):
    stages: tuple[str, ...]


class FenceRequest(Request, frozen=True):
    writer: str


class FenceAnswer(Answer, frozen=True):
    """The highest batch id that was committed in this log, -1 if none was."""

    batch_id: int = msgspec.field(name=BATCH_ID)
    log: str


# -- groups, schemas, dead letters ------------------------------------------------------------------------------------


class GroupCommit(Request, frozen=True):
    """Show how far a reader is: offsets by topic and partition, under the name of a group."""

    group: str
    offsets: dict[str, dict[int, int]]


class GroupsRequest(Request, frozen=True):
    """Positions of all groups the caller may see; `topic` and `group` narrow it."""

    topic: str = ""
    group: str = ""


class GroupPosition(Answer, frozen=True):
    """One committed offset. `lag_us` is the age of the oldest record that was not committed, 0 if there is none."""

    group: str
    topic: str
    partition: int
    offset: int
    end: int
    lag: int
    lag_us: int


class GroupPositions(Answer, frozen=True):
    positions: tuple[GroupPosition, ...]
    now_us: int


class SchemaRequest(Request, frozen=True):
    """`version` 0: the latest."""

    subject: str
    version: int = 0


class SchemaAnswer(Answer, frozen=True):
    subject: str
    id: str
    version: int
    type: str  # json, avro, protobuf
    definition: str


class Reject(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    offset: int
    error: str


class RejectRequest(Request, frozen=True):
    """Copy these records of a topic to its dead letters, each once however often it is asked."""

    topic: str
    rejects: tuple[Reject, ...]


class Rejected(Answer, frozen=True):
    """How many are there now that were not there before."""

    fresh: int


class RedriveRequest(Request, frozen=True):
    """Send dead letters of a topic again: their ids, "partition-offset" of the dead-letter topic."""

    topic: str
    ids: tuple[str, ...]


class Redriven(Answer, frozen=True):
    sent: int
    missing: tuple[str, ...]


class DeadRequest(Request, frozen=True):
    """Which dead letters of a topic are still open."""

    topic: str


class DeadOpen(Answer, frozen=True):
    """The dead-letter topic, and of each partition the ranges [first, last) that are open."""

    topic: str
    open: tuple[tuple[tuple[int, int], ...], ...]


# -- nodes of a cell --------------------------------------------------------------------------------------------------


class NodeAnswer(Answer, frozen=True):
    """What the node that was asked is. `role`: leader, which answers everything, or follower, which answers reads. `leader`: HOST:PORT
    of the leader's Flight door; "": it is not known, or this is it. `age_seconds`: how old a follower's state may be; -1: not known."""

    node: str
    role: str
    leader: str = ""
    age_seconds: float = 0.0


# -- pipelines --------------------------------------------------------------------------------------------------------


class PipelineReport(Request, frozen=True):
    """How a running pipeline is: kept by the broker until a while after the last one, shown by `status` and /metrics."""

    name: str
    kind: str
    state: str  # starting, running, restarting, failed, stopped, finished
    detail: str = ""  # what failed, for people
    started_us: int = 0
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_per_second: float = 0.0
    batch_ms: float = 0.0
    lag: int = 0  # records not yet read
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0


class PipelineOrder(Answer, frozen=True):
    """The answer to a report: `stop` when somebody asked for that."""

    stop: bool


class PipelineName(Request, frozen=True):
    name: str


class PipelineStatus(Answer, frozen=True):
    report: PipelineReport
    owner: str
    seen_us: int  # when it reported last


class Pipelines(Answer, frozen=True):
    pipelines: tuple[PipelineStatus, ...]
    now_us: int


class Nothing(Request, frozen=True):
    """A request or an answer without fields."""


# action -> (request, answer)
ACTIONS: Final[dict[str, tuple[type, type]]] = {
    "topics": (Selection, Topics),
    "topic_create": (CreateRequest, Created),
    "offsets_for_time": (TimeRequest, Offsets),
    "locate": (LocateRequest, Located),
    "stage_commit": (StageCommit, StageCommitted),
    "stage_abort": (StageAbort, Nothing),
    "fence": (FenceRequest, FenceAnswer),
    "group_commit": (GroupCommit, Nothing),
    "groups": (GroupsRequest, GroupPositions),
    "schema": (SchemaRequest, SchemaAnswer),
    "reject": (RejectRequest, Rejected),
    "redrive": (RedriveRequest, Redriven),
    "dead": (DeadRequest, DeadOpen),
    "pipeline_report": (PipelineReport, PipelineOrder),
    "pipelines": (Nothing, Pipelines),
    "pipeline_stop": (PipelineName, Nothing),
    "node": (Nothing, NodeAnswer),
}

# The calls of Flight that the door answers. do_action asks for what its action needs.
CALLS: Final = ("list_flights", "get_flight_info", "get_schema", "list_actions", "do_action", "do_get", "do_put")

# What a call or an action needs, of each topic it names. "known" shows only what the caller may see.
RIGHTS: Final[dict[str, Right]] = {
    "list_flights": "known",
    "get_flight_info": "known",
    "get_schema": "known",
    "list_actions": "known",
    "do_action": "known",
    "do_get": "read",
    "do_put": "write",
    "topics": "known",
    "topic_create": "manage",
    "offsets_for_time": "read",
    "locate": "read",
    "stage_commit": "write",
    "stage_abort": "owner",
    "fence": "owner",
    "group_commit": "read",
    "groups": "known",
    "schema": "read or write",
    "reject": "read",
    "redrive": "write",
    "dead": "read",
    "pipeline_report": "known",
    "pipelines": "known",
    "pipeline_stop": "owner",
    "node": "known",
}
