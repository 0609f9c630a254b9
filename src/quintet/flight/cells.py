"""The Flight door of a broker with several cells (ADR 48): cell 0 has it, and passes on what concerns topics of the others.

    client -> CellsDoor (cell 0) -> its own broker, or the InnerDoor of another cell, by a socket that only this user's processes reach

Over nodes (ADR 53) every node has all cells, and its process of cell 0 has the door. A socket `lead` leads to the InnerDoor of the cell's
leader, on whichever node that is. While this node leads cell 0 all goes there. While it follows cell 0, reads are answered by the node's own
files of each cell, as old as they may be (ADR 43), and judged here: the replicas of other cells have no identities.

Cell 0 finds out who calls; the others are told (`Caller`), and judge rights by their own tables, which are cell 0's (broker/identity/
shared.py). To clients the broker is one log: the identity of cell 0's is put in the place of the others'. A stage says its cell; stages of
two cells are not committed together, because that could not be atomic. Topics named by a column are those of cell 0.
"""

import base64
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyarrow import flight

from quintet.broker.follower import FollowerBroker
from quintet.flight import columns, reading, verbs, wire
from quintet.flight.errors import text_of, to_flight
from quintet.flight.login import HEADER, Caller, Login
from quintet.flight.section import FlightListener
from quintet.flight.server import CallPermit, Door, _bytes, _decode, _path
from quintet.model.cells import CellMap
from quintet.model.errors import BadRequest, OtherCell, ShuttingDown
from quintet.net.cells.sockets import flight_lead_path, flight_path

BY_TOPIC: Final = frozenset({"topic_create", "offsets_for_time", "locate", "reject", "redrive", "dead", "schema"})
SPLIT: Final = frozenset({"topics", "stage_commit", "stage_abort", "fence", "group_commit", "groups"})
CELL_0: Final = frozenset({"pipeline_report", "pipelines", "pipeline_stop"})
HERE: Final = frozenset({"node"})
assert set(wire.ACTIONS) == BY_TOPIC | SPLIT | CELL_0 | HERE, "every action has one place"
READS: Final = frozenset({"topics", "offsets_for_time", "locate", "schema"})  # what a follower answers, beside do_get
CALL_S: Final = 120.0  # for an action of another cell: as long as its bridge waits, and more
RECONNECT_MS: Final = 500  # at most between two tries to reach a cell that was started again
WHOLE: Final = b"whole"  # behind the last rows of a do_put
SEPARATOR: Final = ":"  # between the cell of a stage and its name there

S = TypeVar("S", bound=msgspec.Struct)


class ToldLogin(Login):
    """Of a door that only cell 0 reaches, which has found out who calls."""

    def who(self, header: str, _peer: str) -> Caller:
        return msgspec.json.decode(base64.b64decode(header), type=Caller)


class InnerDoor(Door):
    """The door of another cell."""

    login_type = ToldLogin

    def __init__(self, *given: Any, path: str, **more: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of this cell before it was started again
        self._socket = path
        super().__init__(*given, **more)

    def _location(self, _options: FlightListener, _secure: bool) -> flight.Location:
        return flight.Location.for_grpc_unix(self._socket)

    def _taken(self, reader: Iterable[flight.FlightStreamChunk], permit: CallPermit) -> Iterator[pa.RecordBatch]:
        """Rows, and a word that these are all: for gRPC those of a client that died end as if it had sent all of them, and cell 0 alone
        sees that it died."""
        whole = False

        def chunks() -> Iterator[flight.FlightStreamChunk]:
            nonlocal whole
            for chunk in reader:
                whole = whole or chunk.app_metadata is not None
                yield chunk

        yield from super()._taken(chunks(), permit)
        if not whole:
            raise BadRequest("the rows ended before all were sent: nothing is published")

    def _certificates(self, _options: FlightListener) -> tuple[bytes, bytes, bytes]:
        return b"", b"", b""

    @property
    def address(self) -> str:
        return self._socket


class CellsDoor(Door):
    """The door of cell 0."""

    def __init__(
        self, *given: Any, cells: CellMap, own: int, links: Path, over_nodes: bool = False, **more: Any
    ) -> None:
        self._cells = cells
        self._own = own
        numbers = range(cells.count)
        self._near = {cell: _client(flight_path(links, cell)) for cell in numbers if cell != own}
        self._leaders = {cell: _client(flight_lead_path(links, cell)) for cell in numbers} if over_nodes else self._near
        super().__init__(*given, **more)

    @property
    def _follows(self) -> bool:
        return isinstance(self._broker, FollowerBroker)

    def _is_here(self, cell: int, reads: bool) -> bool:
        """Is it for the broker of this process?"""
        return cell == self._own and (reads or not self._follows)

    def _other(self, cell: int, reads: bool) -> flight.FlightClient:
        return self._near[cell] if reads and self._follows else self._leaders[cell]

    def _judge(self, caller: Caller, max_age_seconds: float, topic: str, sight: bool = False) -> None:
        """Before another process of this node reads for somebody."""
        if self._follows:
            self._bridge.wait_for(lambda: verbs.judge(verbs.Call(self._broker, caller), max_age_seconds, topic, sight))

    def _cell_of(self, topic: str) -> int:
        return self._cells.cell_of(topic.encode(errors="replace"))

    def _options_of(self, caller: Caller, seconds: float | None = CALL_S) -> flight.FlightCallOptions:
        said = base64.b64encode(msgspec.json.encode(caller))  # a header has no other letters than ASCII
        return flight.FlightCallOptions(timeout=seconds, headers=[(HEADER.encode(), said)])

    # -- one cell ----------------------------------------------------------------------------------------------------

    def _ask_cell(self, cell: int, caller: Caller, name: str, ask: msgspec.Struct, kind: type[S]) -> S:
        """The answer of one cell, as if it were of cell 0's log."""
        reads = name in READS
        if self._is_here(cell, reads):
            verb = self._verbs[name]
            return cast(S, self._bridge.wait_for(lambda: verb(verbs.Call(self._broker, caller), ask)))
        action = flight.Action(name, msgspec.json.encode(ask))
        with _far(cell):
            (result,) = self._other(cell, reads).do_action(action, self._options_of(caller))
            return self._here(msgspec.json.decode(bytes(result.body), type=kind))

    def _here(self, answer: S) -> S:
        own = self._broker.log.identity
        changes: dict[str, object] = {}
        if isinstance(answer, wire.Topics):
            changes = {"log": own, "topics": tuple(map(self._here, answer.topics))}
        elif isinstance(answer, wire.FenceAnswer):
            changes = {"log": own}
        elif isinstance(answer, wire.TopicInfo | wire.Located) or (isinstance(answer, wire.Staged) and answer.identity):
            changes = {"identity": f"{own}/{answer.identity.partition('/')[2]}"}
        if isinstance(answer, wire.Staged):
            changes["log"] = own
        return msgspec.structs.replace(answer, **changes) if changes else answer

    # -- actions -----------------------------------------------------------------------------------------------------

    def _act(self, caller: Caller, action: flight.Action) -> bytes:
        name = action.type
        if name in BY_TOPIC:
            kinds = wire.ACTIONS[name]
            ask: Any = _decode(kinds[0], _bytes(action.body), name)
            topic = ask.subject if name == "schema" else ask.topic
            cell = self._cell_of(topic)
            if name in READS and cell != self._own:
                self._judge(caller, getattr(ask, "max_age_seconds", 0.0), topic, sight=name == "schema")
            return msgspec.json.encode(self._ask_cell(cell, caller, name, ask, kinds[1]))
        if name in SPLIT:
            ask = _decode(wire.ACTIONS[name][0], _bytes(action.body), name)
            return msgspec.json.encode(getattr(self, f"_{name}")(caller, ask))
        if name in CELL_0:
            ask, kind = _decode(wire.ACTIONS[name][0], _bytes(action.body), name), wire.ACTIONS[name][1]
            return msgspec.json.encode(self._ask_cell(self._own, caller, name, ask, kind))
        return super()._act(caller, action)

    def _topics(self, caller: Caller, ask: wire.Selection) -> wire.Topics:
        names: dict[int, list[str]] = defaultdict(list)
        for topic in ask.topics:
            names[self._cell_of(topic)].append(topic)
        found: list[wire.Topics] = []
        seen = self._readable(caller, ask, (each.topic for each in ask.at_least))
        for cell in range(self._cells.count):
            if ask.topics and not ask.pattern and cell not in names:
                continue
            least = tuple(each for each in ask.at_least if self._cell_of(each.topic) == cell and each.topic in seen)
            part = msgspec.structs.replace(ask, topics=tuple(names[cell]), at_least=least)
            found.append(self._ask_cell(cell, caller, "topics", part, wire.Topics))
        topics = sorted((topic for each in found for topic in each.topics), key=lambda topic: topic.name)
        missing = {name for each in found for name in each.missing}
        seen = self._readable(caller, ask, (topic.name for topic in topics))
        missing |= {topic.name for topic in topics if topic.name not in seen}
        topics = [topic for topic in topics if topic.name in seen]
        return wire.Topics(
            tuple(topics), tuple(name for name in ask.topics if name in missing), self._broker.log.identity
        )

    def _readable(self, caller: Caller, ask: wire.Selection, names: Iterable[str]) -> set[str]:
        """Those of them that the caller may read, as far as it is judged here."""
        given = set(names)
        if not self._follows or not given:
            return given
        call = lambda: verbs.readable(verbs.Call(self._broker, caller), ask.max_age_seconds, given)  # noqa: E731
        return self._bridge.wait_for(call)

    def _groups(self, caller: Caller, ask: wire.GroupsRequest) -> wire.GroupPositions:
        cells = [self._cell_of(ask.topic)] if ask.topic else list(range(self._cells.count))
        found = [self._ask_cell(cell, caller, "groups", ask, wire.GroupPositions) for cell in cells]
        return wire.GroupPositions(tuple(each for part in found for each in part.positions), found[0].now_us)

    def _group_commit(self, caller: Caller, ask: wire.GroupCommit) -> wire.Nothing:
        parts: dict[int, dict[str, dict[int, int]]] = defaultdict(dict)
        for topic, offsets in ask.offsets.items():
            parts[self._cell_of(topic)][topic] = offsets
        for cell, part in parts.items():
            self._ask_cell(cell, caller, "group_commit", wire.GroupCommit(ask.group, part), wire.Nothing)
        return wire.Nothing()

    def _fence(self, caller: Caller, ask: wire.FenceRequest) -> wire.FenceAnswer:
        found = [self._ask_cell(cell, caller, "fence", ask, wire.FenceAnswer) for cell in range(self._cells.count)]
        return max(found, key=lambda each: each.batch_id)

    def _stage_commit(self, caller: Caller, ask: wire.StageCommit) -> wire.StageCommitted:
        by_cell = self._by_cell(ask.stages)
        if len(by_cell) > 1:
            raise OtherCell(
                f"batch {ask.batch_id} of {ask.writer} has stages of cells {', '.join(map(str, sorted(by_cell)))}: one of two cells "
                "could not be atomic",
                hint="write to topics of one cell, as --place can arrange it",
            )
        ((cell, stages),) = by_cell.items() if by_cell else ((self._own, ()),)
        log = "" if ask.log == self._broker.log.identity and cell != self._own else ask.log
        part = msgspec.structs.replace(ask, stages=tuple(stages), log=log)
        return self._ask_cell(cell, caller, "stage_commit", part, wire.StageCommitted)

    def _stage_abort(self, caller: Caller, ask: wire.StageAbort) -> wire.Nothing:
        for cell, stages in self._by_cell(ask.stages).items():
            self._ask_cell(cell, caller, "stage_abort", wire.StageAbort(tuple(stages)), wire.Nothing)
        return wire.Nothing()

    def _by_cell(self, stages: tuple[str, ...]) -> dict[int, list[str]]:
        """Of those that hold something: "" is the stage of a do_put without rows."""
        found: dict[int, list[str]] = defaultdict(list)
        for stage in stages:
            number, separator, name = stage.partition(SEPARATOR)
            if separator and not (number.isascii() and number.isdigit() and int(number) in self._leaders):
                raise BadRequest(f"there is no stage {stage[:100]!r}")
            if stage:
                found[int(number) if separator else self._own].append(name if separator else stage)
        return found

    def _select(self, context: flight.ServerCallContext, ask: wire.Selection) -> list[wire.TopicInfo]:
        caller, permit = self._enter(context)
        try:
            found = self._topics(caller, ask)
            if found.missing:
                self._say_why(caller, found.missing[0])
            return list(found.topics)
        finally:
            permit.release()

    def _say_why(self, caller: Caller, topic: str) -> None:
        """Raise what is wrong with a topic that was not found."""
        cell = self._cell_of(topic)
        if cell == self._own:
            self._ask(caller, lambda call: call.source(topic))
        else:
            self._judge(caller, 0.0, topic)
            place = flight.FlightDescriptor.for_path(topic)
            with _far(cell):
                self._other(cell, reads=True).get_flight_info(place, self._options_of(caller))

    # -- streams -----------------------------------------------------------------------------------------------------

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            ask = _decode(wire.Ticket, ticket.ticket, "ticket")
            cell = self._cell_of(ask.topic)
            if cell == self._own:
                return super().do_get(context, ticket)
            caller, permit = self._enter(context, stream=True)
            try:
                reading.check(ask)
                self._judge(caller, ask.max_age_seconds, ask.topic)
                with _far(cell):
                    reader = self._other(cell, reads=True).do_get(ticket, self._options_of(caller, None))
                with self._lock:
                    self.figures.reads += 1
                batches = self._counted(_batches(reader, cell), permit)
                return flight.GeneratorStream(columns.schema_of(ask.columns), batches)
            except BaseException:
                permit.release()
                raise
        except Exception as error:
            raise to_flight(error) from None

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        try:
            by_path = descriptor.descriptor_type == flight.DescriptorType.PATH
            topic = _path(descriptor) if by_path else _decode(wire.StageRequest, descriptor.command, "command").topic
            cell = self._cell_of(topic) if topic else self._own
            if self._is_here(cell, reads=False):
                super().do_put(context, descriptor, reader, writer)
                return
            caller, permit = self._enter(context, stream=True)
            try:
                batches = self._taken(reader, permit)
                staged = self._passed_on(cell, caller, descriptor, reader.schema, batches, context.is_cancelled)
                writer.write(pa.py_buffer(msgspec.json.encode(staged)))
            finally:
                permit.release()
        except Exception as error:
            raise to_flight(error) from None

    def _passed_on(
        self, cell: int, caller: Caller, descriptor: flight.FlightDescriptor, schema: pa.Schema,
        batches: Iterator[pa.RecordBatch], is_cancelled: Callable[[], bool],
    ) -> wire.Staged:  # fmt: skip
        with _far(cell):
            out, told = self._leaders[cell].do_put(descriptor, schema, self._options_of(caller, None))
            try:
                for batch in batches:
                    out.write_batch(batch)
                if is_cancelled():
                    raise BadRequest("the rows ended before all were sent: nothing is published")
                out.write_metadata(WHOLE)
                out.done_writing()
                said = told.read()
            finally:
                out.close()  # raises what the other cell refused
        if said is None:
            raise ShuttingDown(f"cell {cell} of this broker has ended", hint="connect again in a moment")
        staged = self._here(msgspec.json.decode(bytes(said), type=wire.Staged))
        named = staged.stage and cell != self._own
        return msgspec.structs.replace(staged, stage=f"{cell}{SEPARATOR}{staged.stage}") if named else staged


def _client(path: str) -> flight.FlightClient:
    options = [("grpc.max_reconnect_backoff_ms", RECONNECT_MS), ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS)]
    return flight.FlightClient(flight.Location.for_grpc_unix(path), generic_options=options)


def _batches(reader: flight.FlightStreamReader, cell: int) -> Iterator[pa.RecordBatch]:
    try:
        with _far(cell):
            for chunk in reader:
                yield chunk.data
    finally:
        reader.cancel()


@contextlib.contextmanager
def _far(cell: int) -> Iterator[None]:
    """Errors of another cell, in the words they had there."""
    try:
        yield
    except flight.FlightError as error:
        try:
            problem = msgspec.json.decode(error.extra_info, type=wire.Problem)
        except (msgspec.MsgspecError, TypeError):
            raise ShuttingDown(
                f"cell {cell} of this broker does not answer", hint="it is started again; try again in a moment"
            ) from None
        raise type(error)(text_of(problem), error.extra_info) from None
    except pa.ArrowException:
        raise ShuttingDown(f"cell {cell} of this broker has ended", hint="try again in a moment") from None
