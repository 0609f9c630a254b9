"""The Arrow Flight door: from a call of gRPC to the broker and back. Words of the wire are in wire.py.

gRPC runs each call in a thread of its own. Here a call is counted, its caller found out (login.py) and its request decoded
and checked; what concerns the broker's state goes over the bridge to the loop thread (verbs.py), what moves many bytes stays
in the thread of the call (reading.py, writing.py). Every error leaves as errors.py says. Nothing here touches the broker.

    state \\ event   a call                       drain                 close
    OPEN             counted, answered            -> DRAINING
    DRAINING         refused: come back later                           streams end with the next batch, then CLOSED
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyarrow import flight

from quintet.broker.core import Broker
from quintet.broker.doors.pipelines import Pipelines
from quintet.broker.follower import FollowerBroker
from quintet.flight import columns, reading, verbs, wire, writing
from quintet.flight.bridge import Bridge
from quintet.flight.errors import to_flight
from quintet.flight.login import MIDDLEWARE, Caller, Login, LoginFactory, NoHandshakePayload, peer_of
from quintet.flight.outgoing import Outgoing
from quintet.flight.pacing import StreamQuota
from quintet.flight.section import FlightListener
from quintet.flight.streams import Stream
from quintet.model import limits
from quintet.model.errors import (
    SHUTTING_DOWN,
    BadRequest,
    Busy,
    LimitExceeded,
    ShuttingDown,
    StorageError,
    TooLarge,
)
from quintet.model.tasks import Verb
from quintet.net.doors import content

STREAMS_OF_PRINCIPAL_MAX: Final = 64  # do_get and do_put at once
REQUEST_BYTES_MAX: Final = 4 << 20  # of a ticket, a descriptor or the body of an action
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
FLIGHTS_LISTED_MAX: Final = 10_000

READS_NOTHING: Final = "the reader took nothing of a stream for too long, and shut with it were all its streams"

T = TypeVar("T")
Report = Callable[[str, dict[str, object]], None]
Action = Callable[..., Verb[msgspec.Struct]]  # of (verbs.Call, a request); wire.ACTIONS has the type of the request

# What each action does, for list_actions; the names are those of wire.ACTIONS.
ABOUT: Final = {
    "topics": "the topics one may read, with their offsets",
    "topic_create": "make a topic with a number of partitions",
    "offsets_for_time": "the first offsets at or after a time",
    "locate": "where ranges of a topic lie in files of this machine",
    "stage_commit": "publish staged rows, all of them and once",
    "stage_abort": "forget staged rows",
    "fence": "the last batch a writer committed",
    "group_commit": "store how far a group of readers is",
    "groups": "positions and lag of groups",
    "schema": "one version of a schema",
    "reject": "put records among the dead letters of their topic",
    "redrive": "publish dead letters again",
    "dead": "which dead letters are open",
    "pipeline_report": "how a pipeline is",
    "pipelines": "the pipelines that reported",
    "pipeline_stop": "let a pipeline stop",
    "node": "whether this node leads its cell, and how old its state may be",
}
assert set(ABOUT) == set(wire.ACTIONS), "every action says what it does"


class Figures:
    """What the door counts. Changed by the threads of calls under the door's lock, read by anybody."""

    def __init__(self) -> None:
        self.calls = self.refused = self.reads = self.rows_out = self.bytes_out = 0
        self.puts = self.rows_in = self.bytes_in = 0
        self.cut = 0  # connections whose reader took nothing


class CallPermit:
    """The place of one call among those under way; given back once, however the call ends."""

    def __init__(self, release: Callable[[], None], quota: StreamQuota, stream: Stream) -> None:
        self.quota = quota
        self.stream = stream
        self._finalizer = weakref.finalize(self, release)
        self._finalizer.atexit = False

    def release(self) -> None:
        self._finalizer()


class Door(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Serves as soon as it is made. Made and closed on the loop thread; the handlers run elsewhere. `data` is the directory whose
    files readers of this machine may map, if the section lets them."""

    login_type = Login

    def __init__(
        self,
        broker: Broker | FollowerBroker,
        bridge: Bridge,
        options: FlightListener,
        data: Path,
        entropy: Callable[[int], bytes],
        report: Report,
        *,
        failures_per_minute: int = 0,
        output_bytes_max: int = limits.OUTPUT_BYTES_MAX,
        pipelines: Pipelines | None = None,
    ) -> None:
        self.figures = Figures()
        self.outgoing = Outgoing(output_bytes_max, self._stalled)
        self._report = report
        self.pipelines = Pipelines() if pipelines is None else pipelines
        self.login = self.login_type(broker, bridge, entropy, failures_per_minute)
        self.draining = False
        self._drain_reason = SHUTTING_DOWN
        self._broker = broker
        self._bridge = bridge
        self._options = options
        self._lock = threading.Lock()
        self._under_way = 0
        self._streams: Counter[str] = Counter()
        self._open: dict[int, Stream] = {}
        self._closer: threading.Thread | None = None
        self._closing = threading.Event()
        self._verbs: dict[str, Action] = {
            "topics": verbs.topics, "topic_create": verbs.topic_create, "offsets_for_time": verbs.offsets_for_time,
            "locate": partial(verbs.locate, _machine(data if options.map_files else None, broker.log.identity)),
            "stage_commit": verbs.stage_commit, "stage_abort": verbs.stage_abort, "fence": verbs.fence,
            "group_commit": verbs.group_commit, "groups": verbs.groups, "schema": verbs.schema,
            "reject": verbs.reject, "redrive": verbs.redrive, "dead": verbs.dead,
            "pipeline_report": partial(verbs.pipeline_report, self.pipelines),
            "pipelines": partial(verbs.pipelines_seen, self.pipelines),
            "pipeline_stop": partial(verbs.pipeline_stop, self.pipelines),
            "node": verbs.node,
        }  # fmt: skip
        assert set(self._verbs) == set(wire.ACTIONS), "every action has one verb"
        certificate, key, client_ca = self._certificates(options)
        secure = bool(certificate)
        self._tls = "TLS" if secure else ""
        try:
            super().__init__(
                self._location(options, secure),
                auth_handler=NoHandshakePayload(),
                tls_certificates=[(certificate, key)] if secure else None,
                verify_client=bool(client_ca),
                root_certificates=client_ca or None,
                middleware={MIDDLEWARE: LoginFactory(self.login)},
            )
        except (pa.ArrowException, OSError) as error:
            raise StorageError(str(error)) from error

    def _certificates(self, options: FlightListener) -> tuple[bytes, bytes, bytes]:
        """Certificate, key, authorities of clients; empty: none."""
        return content(options.tls_cert), content(options.tls_key), content(options.tls_client_ca)

    def _location(self, options: FlightListener, secure: bool) -> flight.Location:
        place = flight.Location.for_grpc_tls if secure else flight.Location.for_grpc_tcp
        return place(f"[{options.host}]" if ":" in options.host else options.host, options.port)

    @property
    def address(self) -> str:
        host = self._options.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def streams(self) -> int:
        """do_get and do_put that are under way."""
        return sum(self._streams.values())

    # What the console asks every door for.

    @property
    def connections(self) -> list[Stream]:
        with self._lock:
            return [*self._open.values()]

    @property
    def bytes_in(self) -> int:
        return self.figures.bytes_in

    @property
    def bytes_out(self) -> int:
        return self.figures.bytes_out

    @property
    def refused(self) -> int:
        return self.figures.refused

    @property
    def cut(self) -> int:
        return self.figures.cut

    def lead(self, broker: Broker) -> None:
        """The node leads from now on: calls go to its broker. Connections, tokens and streams that are under way stay."""
        self._broker = self.login.broker = broker

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """Refuse what comes for this reason, end the streams with their next batch, and go when all calls are answered: see `closed`."""
        self._drain_reason = reason
        self.draining = True
        self._closing.set()
        self.outgoing.close(reason)
        self._closer = threading.Thread(target=self.shutdown, name="quintet-flight-close", daemon=True)
        self._closer.start()

    @property
    def closed(self) -> bool:
        """False for as long as a call is under way, for ever if a reader takes nothing of its stream."""
        return self._closer is not None and not self._closer.is_alive()

    # -- every call ------------------------------------------------------------------------------------------------

    def _enter(self, context: flight.ServerCallContext, stream: bool = False) -> tuple[Caller, CallPermit]:
        """Who it is, and its place among the calls under way."""
        with self._lock:
            self.figures.calls += 1
            if self.draining:
                raise ShuttingDown(self._drain_reason, hint="connect again in a moment")
            if self._under_way >= self._options.calls_max:
                self.figures.refused += 1
                raise Busy(f"{self._under_way} calls are under way, which is the limit (listeners.flight.calls_max)")
            self._under_way += 1
        streaming: list[str] = []
        quota = StreamQuota(self._broker, self._bridge, self._closing)
        peer = peer_of(context.peer())
        row = Stream(self._bridge.connection_id() if stream else 0, peer, "", self._tls)
        permit = CallPermit(partial(self._leave, streaming, quota, row.id), quota, row)
        try:
            headers = context.get_middleware(MIDDLEWARE)
            caller = self.login.who(headers.header, peer)
            if stream:
                self._begin_stream(caller.name)
                streaming.append(caller.name)
                quota.join(caller.name)
                row.who = caller.name
                with self._lock:
                    self._open[row.id] = row
        except BaseException:
            permit.release()
            raise
        return caller, permit

    def _begin_stream(self, name: str) -> None:
        with self._lock:
            if self._streams[name] >= STREAMS_OF_PRINCIPAL_MAX:
                self.figures.refused += 1
                raise LimitExceeded(f"{name} has {STREAMS_OF_PRINCIPAL_MAX} streams open, which is the limit")
            self._streams[name] += 1

    def _leave(self, streaming: list[str], quota: StreamQuota, id: int) -> None:
        if streaming:
            quota.leave()
        with self._lock:
            self._under_way -= 1
            self._open.pop(id, None)
            for name in streaming:
                self._streams[name] -= 1
                if not self._streams[name]:
                    del self._streams[name]

    def _ask(self, caller: Caller, call: Callable[[verbs.Call], T]) -> T:
        return self._bridge.ask(lambda: call(verbs.Call(self._broker, caller)))

    def _select(self, context: flight.ServerCallContext, ask: wire.Selection) -> list[wire.TopicInfo]:
        caller, permit = self._enter(context)
        try:
            found = self._bridge.wait_for(lambda: verbs.topics(verbs.Call(self._broker, caller), ask))
            if found.missing:
                self._ask(caller, lambda call: call.source(found.missing[0]))  # raises, and says why
            return list(found.topics)
        finally:
            permit.release()

    # -- finding the way -------------------------------------------------------------------------------------------

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        try:
            pattern = _text(criteria)
            topics = self._select(context, wire.Selection(pattern=pattern))[:FLIGHTS_LISTED_MAX]
            return iter([_flight_info(flight.FlightDescriptor.for_path(topic.name), [topic]) for topic in topics])
        except Exception as error:
            raise to_flight(error) from None

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        try:
            return _flight_info(descriptor, self._select(context, _selection(descriptor)))
        except Exception as error:
            raise to_flight(error) from None

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        try:
            self._select(context, _selection(descriptor))
            return flight.SchemaResult(columns.SCHEMA)
        except Exception as error:
            raise to_flight(error) from None

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        try:
            self._enter(context)[1].release()
        except Exception as error:
            raise to_flight(error) from None
        return list(ABOUT.items())

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        try:
            caller, permit = self._enter(context)
            try:
                return [flight.Result(pa.py_buffer(self._act(caller, action)))]
            finally:
                permit.release()
        except Exception as error:
            raise to_flight(error) from None

    def _act(self, caller: Caller, action: flight.Action) -> bytes:
        verb = self._verbs.get(action.type)
        if verb is None:
            raise BadRequest(f"unknown action {action.type[:100]!r}", hint=f"one of {', '.join(wire.ACTIONS)}")
        ask: object = _decode(wire.ACTIONS[action.type][0], _bytes(action.body), action.type)
        answer = self._bridge.wait_for(lambda: verb(verbs.Call(self._broker, caller), ask))
        return msgspec.json.encode(answer)

    # -- streams ---------------------------------------------------------------------------------------------------

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            caller, permit = self._enter(context, stream=True)
            try:
                ask = _decode(wire.Ticket, ticket.ticket, "ticket")
                reading.check(ask)
                plan = self._bridge.wait_for(lambda: self._planned(caller, ask))
                with self._lock:
                    self.figures.reads += 1
                batches = self._counted(reading.read(self._bridge, plan, ask), permit)
                return flight.GeneratorStream(columns.schema_of(ask.columns), batches)
            except BaseException:
                permit.release()
                raise
        except Exception as error:
            raise to_flight(error) from None

    async def _planned(self, caller: Caller, ask: wire.Ticket) -> reading.Plan:
        broker = self._broker
        needed = wire.Range(ask.partition, ask.first, ask.last)
        needs = verbs.needs_of(verbs.Call(broker, caller), ask.topic, (needed,))
        await verbs.fresh(broker, ask.max_age_seconds, needs)
        return reading.plan(verbs.Call(broker, caller), ask)

    def _counted(self, batches: Iterator[pa.RecordBatch], permit: CallPermit) -> Iterator[pa.RecordBatch]:
        """Each batch on its way out. The permit goes with this generator, also if it is never begun."""
        figures, outgoing, stream = self.figures, self.outgoing, permit.stream
        try:
            while True:
                held = outgoing.hold(stream.peer, columns.BYTES_PER_BATCH)
                try:
                    batch = next(batches, None)
                    if batch is None:
                        return
                    outgoing.made(held, batch.nbytes)
                    if self.draining:
                        raise ShuttingDown(self._drain_reason, hint="connect again, and go on at this offset")
                    with self._lock:
                        figures.rows_out += batch.num_rows
                        figures.bytes_out += batch.nbytes
                    stream.unsent = batch.nbytes
                    yield batch
                finally:
                    outgoing.release(held)
                stream.unsent, stream.bytes_out, stream.paused = 0, stream.bytes_out + batch.nbytes, True
                permit.quota.handed(batch.nbytes)  # with nothing held: who waits for its quota does not stall
                stream.paused = False
        except Exception as error:
            raise to_flight(error) from None
        finally:
            permit.release()

    def _stalled(self, peer: str) -> None:
        with self._lock:
            self.figures.cut += 1
        self._report("connection_closed", {"door": "flight", "peer": peer, "reason": READS_NOTHING})

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        try:
            caller, permit = self._enter(context, stream=True)
            try:
                put = writing.Put(verbs.leading(self._broker), self._bridge, caller, context.is_cancelled)
                batches = self._taken(reader, permit)
                if descriptor.descriptor_type == flight.DescriptorType.PATH:
                    staged = put.publish(_path(descriptor), batches)
                else:
                    staged = put.stage(_decode(wire.StageRequest, descriptor.command, "command"), batches)
                writer.write(pa.py_buffer(msgspec.json.encode(staged)))
            finally:
                permit.release()
        except Exception as error:
            raise to_flight(error) from None

    def _taken(self, reader: Iterable[flight.FlightStreamChunk], permit: CallPermit) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.figures.puts += 1
        for chunk in reader:
            if self.draining:
                raise ShuttingDown(self._drain_reason, hint="connect again in a moment")
            if chunk.data is not None and chunk.data.num_rows:
                writing.check(chunk.data)
                with self._lock:
                    self.figures.rows_in += chunk.data.num_rows
                    self.figures.bytes_in += chunk.data.nbytes
                permit.stream.bytes_in += chunk.data.nbytes
                yield chunk.data
                permit.stream.paused = True
                permit.quota.taken(chunk.data.nbytes)
                permit.stream.paused = False


def _machine(data: Path | None, log: str) -> wire.Machine | None:
    """What says that another process sees the same files: the same boot of the same machine, and the broker's own lock."""
    if data is None:
        return None
    try:
        lock = (data / "lock").resolve()
        facts = lock.stat()
        return wire.Machine(BOOT_ID.read_text().strip(), str(lock), facts.st_dev, facts.st_ino, log)
    except OSError:  # not Linux: everything goes through this door
        return None


# -- requests ---------------------------------------------------------------------------------------------------------


def _decode(kind: type[T], data: bytes, what: str) -> T:
    if len(data) > REQUEST_BYTES_MAX:
        raise TooLarge(f"a {what} of {len(data)} bytes, the limit is {REQUEST_BYTES_MAX}")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{what}: {error}", hint="it is JSON with the fields that quintet.flight.wire names") from None


def _bytes(body: pa.Buffer | None) -> bytes:
    return b"" if body is None else bytes(body)


def _text(data: bytes) -> str:
    if len(data) > REQUEST_BYTES_MAX:
        raise TooLarge(f"criteria of {len(data)} bytes, the limit is {REQUEST_BYTES_MAX}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequest("the criteria are no text", hint="a pattern of topic names, or nothing for all") from None


def _path(descriptor: flight.FlightDescriptor) -> str:
    parts = descriptor.path
    if len(parts) != 1 or not parts[0]:
        raise BadRequest(f"a path of {len(parts)} parts", hint="the path is one part: the topic's name")
    return _text(parts[0])


def _selection(descriptor: flight.FlightDescriptor) -> wire.Selection:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return wire.Selection(topics=(_path(descriptor),))
    return _decode(wire.Selection, descriptor.command, "command")


def _flight_info(descriptor: flight.FlightDescriptor, topics: list[wire.TopicInfo]) -> flight.FlightInfo:
    """One endpoint for each partition, without a location: they are all here."""
    endpoints = [
        flight.FlightEndpoint(msgspec.json.encode(wire.Ticket(topic.name, number, part.first, part.end)), [])
        for topic in topics
        for number, part in enumerate(topic.partitions)
    ]
    parts = [part for topic in topics for part in topic.partitions]
    rows, size = sum(part.end - part.first for part in parts), sum(part.bytes for part in parts)
    return flight.FlightInfo(columns.SCHEMA, descriptor, endpoints, rows, size)
