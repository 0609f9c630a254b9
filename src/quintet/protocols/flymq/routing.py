"""Says which cell each FlyMQ request of a connection is for (protocols/routing.py).

    BY_NAME     the cell of the topic, or of the schema, whose name its payload begins with
    EVERYWHERE  every cell is asked, and the lists in the answers are joined
    HERE        all cells would say the same: users, keys and access rules, and who this connection is
    CHANGES     of those: cell 0 makes them, the others follow before it answers (ADR 48)
    NOWHERE     refused, because one cell's answer would be half of the truth; the text says what to do
    GROUPS      the cell of the topic, which must be named

A transaction is begun in every cell and has the ids of all, joined. The first topic that it writes to, on whatever connection, decides
which cell it is of (`Pins`); another cell's topic is refused. To commit it is to commit it there and to roll it back elsewhere, where it
is empty. Pins are gone when a node is, and another node has none of them, but what was committed is in its cell's log: if the end of a
transaction is asked for that has no pin here, every cell is asked, and one in which it is empty does not count.
"""

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from quintet import kernel
from quintet.broker.atomic.transactions import NOT_EMPTY
from quintet.model.cells import HOME, CellMap
from quintet.model.errors import OtherCell, QuintetError, TransactionNotFound
from quintet.protocols.flymq import codec, errors, frames
from quintet.protocols.flymq.section import FlymqListener
from quintet.protocols.routing import EVERY, REFUSED, Parts, Run

if TYPE_CHECKING:
    from quintet.protocols.base import Session

BY_NAME: Final = frozenset(
    {
        frames.PRODUCE, frames.CONSUME, frames.CREATE_TOPIC, frames.METADATA, frames.SUBSCRIBE, frames.COMMIT, frames.FETCH,
        frames.DELETE_TOPIC, frames.CONSUME_ZERO_COPY, frames.FETCH_BINARY, frames.PEEK, frames.ALTER_TOPIC, frames.PURGE_TOPIC,
        frames.PRODUCE_RECORDS, frames.FETCH_RECORDS, frames.REGISTER_SCHEMA, frames.GET_SCHEMA, frames.VALIDATE_SCHEMA,
        frames.PRODUCE_WITH_SCHEMA, frames.DELETE_SCHEMA, frames.FETCH_DLQ, frames.REPLAY_DLQ, frames.PURGE_DLQ,
        frames.DEAD_LETTER, frames.PRODUCE_DELAYED, frames.CANCEL_DELAYED, frames.PRODUCE_WITH_TTL, frames.GET_OFFSET,
        frames.RESET_OFFSET, frames.GET_LAG, frames.SEEK_TO_TIMESTAMP,
    }
)  # fmt: skip
GROUPS: Final = frozenset({frames.DESCRIBE_GROUP, frames.DELETE_GROUP})
TRANSACTIONS: Final = frozenset({frames.TXN_BEGIN, frames.TXN_COMMIT, frames.TXN_ROLLBACK, frames.TXN_PRODUCE})
# The list of an answer that is joined.
EVERYWHERE: Final = {
    frames.LIST_TOPICS: "topics",
    frames.MATCH_TOPICS: "topics",
    frames.LIST_SCHEMAS: "schemas",
    frames.LIST_DLQ: "topics",
    frames.LIST_GROUPS: "groups",
    frames.CLUSTER_STATUS: "nodes",
    frames.CLUSTER_METADATA: "topics",
    frames.QUOTA_LIST: "quotas",
}
# What a user or tenant uses: each cell counts its own.
USED: Final = (
    "connections", "topics", "storage_bytes", "received_bytes", "sent_bytes", "pauses", "paused_ms", "refused", "held"
)  # fmt: skip
# ... unless a name is given: then the cell of that.
NAMED: Final = frozenset({frames.LIST_SCHEMAS, frames.CLUSTER_METADATA})
HERE: Final = frozenset(
    {
        frames.AUTH, frames.WHOAMI, frames.ROLE_LIST, frames.CLUSTER_JOIN, frames.CLUSTER_LEAVE, frames.USER_LIST, frames.USER_GET,
        frames.ACL_GET, frames.ACL_LIST, frames.ACL_EXPLAIN, frames.KEY_LIST,
    }
)  # fmt: skip
CHANGES: Final = frozenset(
    {
        frames.USER_CREATE, frames.USER_DELETE, frames.USER_UPDATE, frames.ACL_SET, frames.ACL_DELETE, frames.PASSWORD_CHANGE,
        frames.KEY_CREATE, frames.KEY_REMOVE, frames.QUOTA_SET, frames.QUOTA_CLEAR,
    }
)  # fmt: skip
_AUDITED: Final = "each cell of this broker has an audit of its own"
NOWHERE: Final = {
    **dict.fromkeys(
        (frames.AUDIT_QUERY, frames.AUDIT_EXPORT, frames.AUDIT_QUERY_SDK, frames.AUDIT_EXPORT_SDK),
        (_AUDITED, "read it with `quintet audit tail --data DATA/cell-0`, and so on for the others"),
    ),
}  # fmt: skip

WITH_SCHEMA: Final = frozenset({frames.PRODUCE_WITH_SCHEMA, frames.PRODUCE_RECORDS})
KERNEL_KIND: Final = 2
NAME_BYTES: Final = 2  # of the length before a name
_PARTITION_BYTES: Final = 4
_SIZE_BYTES: Final = 4  # of the length before a record set
_PRODUCER_BYTES: Final = 12  # of a producer's id and sequence
_COMMIT_BYTES: Final = 16  # of partition, offset and generation
INFLATED_BYTES_MAX: Final = frames.LARGE_BYTES  # of a compressed request: a larger one would hold up the loop
SEPARATOR: Final = "|"  # between the ids of one transaction in each cell


class Pins(Protocol):
    """Which cell each transaction is of, for all connections of a broker, by the first of its ids."""

    def begin(self, name: str) -> None:
        """It was begun."""

    def knows(self, name: str) -> bool:
        """Was it begun, a while ago at most?"""

    def pin(self, name: str, cell: int) -> int:
        """The cell that it is of: this one, if it is of none yet."""

    def cell(self, name: str) -> int | None:
        """The cell that it is of."""


class FlyRouter:
    """See above. Remembers the last AUTH, for the sessions of other cells."""

    def __init__(self, cells: CellMap, own: int, options: FlymqListener, session: "Session") -> None:
        self._cells = cells
        self._own = own
        self._dialect = options.dialect
        self._frame_bytes_max = options.frame_bytes_max
        self._session = session
        self._auth = b""
        self._user = ""
        assert cells.pins is not None, "who has FlyMQ has pins"
        self._pins: Pins = cells.pins
        self.reached: set[int] = set()

    needs_login = True
    at_once = False  # passwords are checked in a thread

    @property
    def login(self) -> bytes:
        """Nothing if somebody without a name tried to become somebody, and failed."""
        return self._auth if self._session.principal_name == self._user else b""

    def frame_end(self, view: memoryview | bytes, position: int) -> int:
        left = len(view) - position
        if left < frames.HEADER_BYTES:
            wrong = (left > 0 and view[position] != frames.MAGIC) or (left > 1 and view[position + 1] != frames.VERSION)
            return len(view) if wrong else position
        magic, version, _, _, length = frames.HEADER.unpack_from(view, position)
        if magic != frames.MAGIC or version != frames.VERSION or length > self._frame_bytes_max:
            return len(view)
        end = position + frames.HEADER_BYTES + int(length)
        return end if end <= len(view) else position

    def note(self, frame: memoryview) -> None:
        if len(frame) > frames.HEADER_BYTES and frame[2] == frames.AUTH:
            try:
                ask = codec.decode_request(frames.OPERATIONS[frames.AUTH], frame[frames.HEADER_BYTES :])
            except QuintetError:
                return
            self._auth, self._user = bytes(frame), ask["user"]

    def is_own(self, view: memoryview, now: int) -> bool:
        cells, own, most = self._cells, self._own, self._frame_bytes_max
        found = kernel.cell_run(KERNEL_KIND, view, 0, most, cells.count, own, cells.suffix, b"")
        return cells.by_hash and found == (own, len(view))

    def run(self, view: memoryview, position: int, now: int) -> Run:
        """Requests whose name decides may stand behind each other; any other is alone."""
        cells = self._cells
        if cells.by_hash:
            found, end = kernel.cell_run(
                KERNEL_KIND, view, position, self._frame_bytes_max, cells.count, self._own, cells.suffix, b""
            )
            if end > position:
                return Run(found, end)
        at, chosen = position, -1
        while at < len(view):
            end = self.frame_end(view, at)
            if end == at:
                break
            cell = self._quickly(view, at, end)
            if cell is None:
                return Run(chosen, at) if at > position else self._one(view, at, end)
            if at > position and cell != chosen:
                break
            chosen, at = cell, end
        return Run(chosen, at)

    def _quickly(self, view: memoryview, at: int, end: int) -> int | None:
        """The cell of a request that begins with a name and has nothing else to be looked at."""
        start = at + frames.HEADER_BYTES
        code, flags = view[at + 2], view[at + 3]
        if code not in BY_NAME or flags & frames.COMPRESSION_MASK or code == frames.PRODUCE_WITH_SCHEMA:
            return None
        size = view[start] << 8 | view[start + 1] if start + NAME_BYTES <= end else 0
        behind = start + NAME_BYTES + size
        if not size or behind > end:
            return self._own
        if (code == frames.PRODUCE_RECORDS and _says_more(view, behind, end)) or (
            code == frames.COMMIT and _in_transaction(view, behind, end)
        ):
            return None
        return self._cells.cell_of(bytes(view[start + NAME_BYTES : behind]))

    def _one(self, view: memoryview, at: int, end: int) -> Run:
        if end - at < frames.HEADER_BYTES or view[at] != frames.MAGIC:
            return Run(self._own, end)
        _, _, code, flags, length = frames.HEADER.unpack_from(view, at)
        operation = frames.OPERATIONS.get(code)
        if operation is None or at + frames.HEADER_BYTES + length != end:
            return Run(self._own, end)
        payload: bytes | memoryview = view[at + frames.HEADER_BYTES : end]
        try:
            compression = (flags & frames.COMPRESSION_MASK) >> frames.COMPRESSION_SHIFT
            if compression:
                payload = codec.inflate(compression, payload, INFLATED_BYTES_MAX)
            return self._choose(operation, code, flags, payload, bytes(view[at:end]), end)
        except QuintetError as error:
            return Run(REFUSED, end, errors.to_frame(error, self._dialect))

    def _choose(
        self, operation: frames.Operation, code: int, flags: int, payload: bytes | memoryview, frame: bytes, end: int
    ) -> Run:
        if code in NOWHERE:
            what, hint = NOWHERE[code]
            raise OtherCell(f"{operation.name}: {what}", hint=hint)
        if code in HERE:
            if code == frames.AUTH:
                self.note(memoryview(frame))
            return Run(self._own, end)
        if code in CHANGES:
            return Run(HOME, end)
        ask = codec.decode_request(operation, payload)
        plain = frames.HEADER.pack(frames.MAGIC, frames.VERSION, code, frames.BINARY, len(payload)) + bytes(payload)
        if code in EVERYWHERE:
            if code in NAMED and ask.get("topic"):
                return Run(self._cells.cell_of(ask["topic"].encode()), end)
            return self._everywhere(operation, ask, plain, end)
        if code in TRANSACTIONS or ask.get("txn_id"):
            return self._transact(operation, ask, plain, end)
        if code in GROUPS and not ask.get("topic"):
            raise OtherCell(
                f"{operation.name}: a group is in the cell of its topic", hint="name the topic of the group, too"
            )
        name = ask.get("topic") or ask.get("name") or ""
        cell = self._cells.cell_of(name.encode())
        schema = ask.get("schema") if code in WITH_SCHEMA else None
        if isinstance(schema, str) and schema:
            self._check_schema(schema, name, cell)
        return Run(cell, end)

    def _check_schema(self, schema: str, topic: str, cell: int) -> None:
        """A schema is known in the cell of its name; the id of a version is NAME-vN, and belongs where the name does."""
        names = {schema, schema.rpartition("-v")[0]} - {""}
        if any(self._cells.cell_of(name.encode()) == cell for name in names):
            return
        raise OtherCell(
            f"topic {topic!r} is in cell {cell} and schema {schema!r} in cell {self._cells.cell_of(schema.encode())}",
            hint="register the schema by the name of its topic",
        )

    # -- every cell --------------------------------------------------------------------------------------------------

    def _everywhere(self, operation: frames.Operation, ask: codec.Values, plain: bytes, end: int) -> Run:
        asked = 0
        if operation.code == frames.MATCH_TOPICS:
            asked = ask["version"]
            plain = _request(operation, {**ask, "version": 0})
        each = dict.fromkeys(range(self._cells.count), plain)
        return Run(EVERY, end, each=each, merge=partial(self._joined, operation, asked))

    def _joined(self, operation: frames.Operation, asked: int, parts: Parts) -> bytes:
        """One answer with the rows of all; the first error, if there is one."""
        answers = []
        for number in sorted(parts):
            if parts[number][2] == frames.ERROR:
                return parts[number]
            answers.append(self._values(operation, parts[number]))
        rows = EVERYWHERE[operation.code]
        joined = dict(answers[0])
        if operation.code == frames.CLUSTER_STATUS:
            joined |= {name: sum(answer[name] for answer in answers) for name in ("topics", "partitions")}
        else:
            joined[rows] = [row for answer in answers for row in answer[rows]]
        if operation.code in (frames.LIST_TOPICS, frames.MATCH_TOPICS):
            joined[rows].sort()
        if operation.code == frames.QUOTA_LIST:
            joined[rows] = _used_in_all(joined[rows])
        if operation.code == frames.MATCH_TOPICS:
            joined["version"] = sum(answer["version"] for answer in answers)
            joined["changed"] = joined["version"] != asked
            joined[rows] = joined[rows] if joined["changed"] else []
        try:
            return codec.encode_answer(operation, self._dialect, joined, 0)
        except QuintetError as error:
            return errors.to_frame(error, self._dialect)

    def _values(self, operation: frames.Operation, frame: bytes) -> codec.Values:
        return codec.answer_layout(operation, self._dialect).decode(memoryview(frame)[frames.HEADER_BYTES :])

    # -- transactions ------------------------------------------------------------------------------------------------

    def _transact(self, operation: frames.Operation, ask: codec.Values, plain: bytes, end: int) -> Run:
        if operation.code == frames.TXN_BEGIN:
            each = dict.fromkeys(range(self._cells.count), plain)
            return Run(EVERY, end, each=each, merge=partial(self._begun, operation))
        id = ask["txn_id"]
        ids, pins = id.split(SEPARATOR), self._pins
        ends, known = operation.code in (frames.TXN_COMMIT, frames.TXN_ROLLBACK), pins.knows(ids[0])
        if len(ids) != self._cells.count or not (ends or known):
            raise TransactionNotFound(f"transaction not found: {id}", hint="it is none of this broker, or long over")
        if ends:
            return (
                self._end(operation, ids, pins.cell(ids[0]) or 0, end) if known else self._ask_all(operation, ids, end)
            )
        cell = self._cells.cell_of(ask["topic"].encode())
        pinned = pins.pin(ids[0], cell)
        if pinned != cell:
            raise OtherCell(
                f"topic {ask['topic']!r} is in cell {cell}, and this transaction is of cell {pinned}: one of two cells "
                "could not be atomic",
                hint="use topics of one cell, as --place can arrange it",
            )
        return Run(cell, end, _request(operation, {**ask, "txn_id": ids[cell]}))

    def _begun(self, operation: frames.Operation, parts: Parts) -> bytes:
        ids = []
        for number in sorted(parts):
            if parts[number][2] == frames.ERROR:
                return parts[number]  # those that were begun end by their time
            ids.append(self._values(operation, parts[number])["txn_id"])
        self._pins.begin(ids[0])
        answer = {"txn_id": SEPARATOR.join(ids), "success": True}
        return codec.encode_answer(operation, self._dialect, answer, 0)

    def _end(self, operation: frames.Operation, ids: list[str], cell: int, end: int) -> Run:
        """The answer is that of its cell; elsewhere it is empty, and rolled back."""
        undo = frames.OPERATIONS[frames.TXN_ROLLBACK]
        each = {
            number: _request(operation if number == cell else undo, {"txn_id": id}) for number, id in enumerate(ids)
        }
        return Run(EVERY, end, each=each, merge=partial(self._told_end, operation, SEPARATOR.join(ids), cell))

    def _ask_all(self, operation: frames.Operation, ids: list[str], end: int) -> Run:
        """It was begun at another node, or before this one was started again."""
        mark = NOT_EMPTY if operation.code == frames.TXN_COMMIT else ""
        each = {number: _request(operation, {"txn_id": mark + id}) for number, id in enumerate(ids)}
        return Run(EVERY, end, each=each, merge=partial(self._told_by_any, operation, SEPARATOR.join(ids)))

    def _told_by_any(self, operation: frames.Operation, id: str, parts: Parts) -> bytes:
        """The cell that has it, if there is one. If one of those that do not say so could not look, that is the answer: it may have it."""
        refused = [part for part in parts.values() if part[2] == frames.ERROR]
        if len(refused) == len(parts):
            return next((part for part in refused if not self._is_not_found(part)), refused[0])
        return codec.encode_answer(operation, self._dialect, {"txn_id": id, "success": True}, 0)

    def _is_not_found(self, refused: bytes) -> bool:
        layout, code = codec.layout(frames.ERROR_LAYOUT[self._dialect]), TransactionNotFound.code
        said = layout.decode(memoryview(refused)[frames.HEADER_BYTES :])
        return bool(said["code"] == int(code[1:]) if "code" in said else said["message"].endswith(f"[{code}]"))

    def _told_end(self, operation: frames.Operation, id: str, cell: int, parts: Parts) -> bytes:
        answer = parts[cell]
        if answer[2] == frames.ERROR:
            return answer
        return codec.encode_answer(operation, self._dialect, {**self._values(operation, answer), "txn_id": id}, 0)


def _used_in_all(rows: list[codec.Values]) -> list[codec.Values]:
    """One row for each user and tenant, with what it uses in all cells. The bounds are the same in all."""
    found: dict[tuple[str, str], codec.Values] = {}
    for row in rows:
        one = found.setdefault((row["kind"], row["name"]), {**row, **dict.fromkeys(USED, 0)})
        one |= {name: one[name] + row[name] for name in USED}
    return [{**found[who], "held": bool(found[who]["held"])} for who in sorted(found)]


def _says_more(view: memoryview, at: int, end: int) -> bool:
    """Does a PRODUCE_RECORDS have fields behind the idempotent producer's? `at` is behind its topic."""
    at += _PARTITION_BYTES
    if at + _SIZE_BYTES > end:
        return False
    return end - at - _SIZE_BYTES - int.from_bytes(view[at : at + _SIZE_BYTES], "big") > _PRODUCER_BYTES


def _in_transaction(view: memoryview, at: int, end: int) -> bool:
    """Does a COMMIT have fields behind the generation? `at` is behind its topic."""
    if at + NAME_BYTES > end:
        return False
    group = view[at] << 8 | view[at + 1]
    return end - at - NAME_BYTES - group > _COMMIT_BYTES


def _request(operation: frames.Operation, values: codec.Values) -> bytes:
    """A request of these fields, in the first of its layouts."""
    body = codec.layout(operation.asks[0]).encode(values)
    return frames.HEADER.pack(frames.MAGIC, frames.VERSION, operation.code, frames.BINARY, len(body)) + body
