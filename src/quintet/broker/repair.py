"""Reports what the broker's own topics lost, accepts it, and rebuilds rows of `__topics` from the files (ADR 15).

For `quintet log repair`, on a directory that no broker uses. `look` reads everything and changes nothing beyond what any
start does first (the journal, torn tails). The log accepts losses (`accept_losses`), `write_rows` writes rows. Folders that lie
in the wrong place are not repaired here: opening them raises.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from quintet.broker.atomic.dead_letters import TABLE as DEAD_TABLE
from quintet.broker.atomic.delays import TABLE as DELAYED_TABLE
from quintet.broker.atomic.stages import TABLE as FENCES_TABLE
from quintet.broker.audit.audit_log import AUDIT_TOPIC
from quintet.broker.audit.delivery_events import EVENTS_TOPIC
from quintet.broker.core import GROUPS_TABLE, INTENTS_TABLE, PRODUCERS_TABLE, SUBSCRIPTIONS_TABLE, TOPICS_TABLE
from quintet.broker.doors.peers import TABLE as PEERS_TABLE
from quintet.broker.identity.access_rules import ACLS_TABLE
from quintet.broker.identity.keys import CREDENTIALS_TABLE
from quintet.broker.identity.quotas import QUOTAS_TABLE
from quintet.broker.identity.users import USERS_TABLE
from quintet.broker.schemas.registry import SCHEMAS_TABLE
from quintet.broker.table import TABLE_SEGMENT_BYTES, Table
from quintet.broker.topics.folders import folders_without_row
from quintet.broker.topics.names import is_cache_name
from quintet.broker.topics.specs import CACHE_SEGMENT_BYTES, TopicRow
from quintet.log.base import Log, Partition, TopicFiles, TopicSpec
from quintet.model import limits
from quintet.model.errors import TableDamaged

# What each of the broker's own topics keeps, and what its loss means.
MEANS: Final[dict[tuple[int, str], str]] = {
    TOPICS_TABLE: "topics: one deleted there is back, empty; a key of a queue changed there is the one before it",
    CREDENTIALS_TABLE: "API keys: one removed there works again, one made there does not work. See `quintet user key list`",
    SUBSCRIPTIONS_TABLE: "places of subscriptions: messages acknowledged there come again",
    USERS_TABLE: "users: one disabled or deleted there can log in again, a password changed there is the one before. See"
    " `quintet user list`",
    ACLS_TABLE: "access rules: one set there does not count, one removed there counts again. See `quintet acl list`",
    QUOTAS_TABLE: "quotas: one set there does not count, one cleared there counts again. See `quintet quota show`",
    GROUPS_TABLE: "offsets of groups: messages committed there come again",
    SCHEMAS_TABLE: "schemas: a version registered there is gone, one deleted there is back",
    INTENTS_TABLE: "transactions: one committed there and not yet carried out is gone, as a whole",
    DELAYED_TABLE: "delayed messages: one taken there is never delivered, one delivered there may come again",
    DEAD_TABLE: "marks of dead letters: one replayed or purged there is listed again",
    PRODUCERS_TABLE: "sequences of idempotent producers: a batch sent again may be stored twice",
    AUDIT_TOPIC: "the audit: events recorded there are gone. See `quintet audit verify`",
    FENCES_TABLE: "batches of staged writers: one committed there may be taken again",
    PEERS_TABLE: "names of peers: one registered there is free, one freed there is taken",
    EVENTS_TOPIC: "the audit of deliveries: rows written there are gone. See `quintet audit verify`",
}
LOGS: Final = (AUDIT_TOPIC, EVENTS_TOPIC)


@dataclass(slots=True)
class Loss:
    """One topic of which something is lost."""

    topic_id: int
    name: str
    means: str
    ranges: list[str]


@dataclass(slots=True)
class Found:
    """What `look` found, and journals that were damaged. `rows`: those that can be made again; `nameless`: folders no header of
    which checks out."""

    losses: list[Loss] = field(default_factory=list)
    journals: list[str] = field(default_factory=list)
    rows: list[TopicRow] = field(default_factory=list)
    nameless: list[int] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.losses or self.journals or self.rows or self.nameless)


def look(log: Log) -> Found:
    """Read every topic of the broker's own, and compare `__topics` with the folders."""
    found = Found()
    for (topic_id, name), means in MEANS.items():
        spec = TopicSpec(topic_id, name, compact=True, segment_bytes=TABLE_SEGMENT_BYTES)
        if (topic_id, name) in LOGS:
            spec = TopicSpec(topic_id, name)
        _read(log.open_topic(spec)[0])
        _note(log, found, topic_id, name, means)
    table = _topics(log)
    for row in table:
        if row.compact and is_cache_name(row.name):
            _read(log.open_topic(TopicSpec(row.id, row.name, durability=row.durability, compact=True))[0])
            _note(
                log,
                found,
                row.id,
                row.name,
                "a cache: keys put there have the value before, keys deleted there are back",
            )
    _compare(log, table, found)
    return found


def write_rows(log: Log, rows: list[TopicRow]) -> None:
    """Into `__topics`, of which all losses are accepted. They are durable when the log was closed."""
    table = _topics(log)
    for row in rows:
        table.put(row.name.encode(), row)


def _topics(log: Log) -> Table[TopicRow]:
    table = Table(log, *TOPICS_TABLE, TopicRow)
    with suppress(TableDamaged):  # it is noted; what is sound was folded
        table.load()
    return table


def _read(partition: Partition) -> None:
    """All of it: what does not check out is then known to the log."""
    offset = partition.start
    while offset < partition.visible:
        batches = partition.read_now(offset)
        if not batches:
            return
        offset = batches[-1].next_offset


def _note(log: Log, found: Found, topic_id: int, name: str, means: str) -> None:
    ranges = log.losses(topic_id)
    if ranges:
        found.losses.append(Loss(topic_id, name, means, ranges))


def _compare(log: Log, table: Table[TopicRow], found: Found) -> None:
    """The highest number of a name has it: the others were deleted before it was made."""
    ids = {row.name.encode(): row.id for row in table}
    lost, _ = folders_without_row(log, ids, table.deleted())
    newest: dict[str, int] = {}
    for topic_id, files in lost.items():
        if files.name:
            newest[files.name] = max(topic_id, newest.get(files.name, 0))
        else:
            found.nameless.append(topic_id)
    found.rows = [_row(topic_id, lost[topic_id]) for topic_id in newest.values()]


def _row(topic_id: int, files: TopicFiles) -> TopicRow:
    """As careful as can be where the headers say nothing: synced, and nothing is removed by age or size."""
    cache = is_cache_name(files.name)
    return TopicRow(
        id=topic_id,
        name=files.name,
        partitions=files.partitions,
        durability="fsync",
        retention_us=0,
        retention_bytes=0,
        compact=cache,
        segment_bytes=CACHE_SEGMENT_BYTES if cache else limits.SEGMENT_BYTES_DEFAULT,
    )
