"""Connects Spark's driver, its executors and the commands to the Flight door: one method per action of the door.

A `FlightConnection` logs in once and keeps the token. `FlightConnection.of` keeps one per process and target, because Spark runs many
short tasks in one Python process. While the broker cannot be reached, calls are repeated with growing pauses for `retry_seconds`:
every action is idempotent, a read goes on after the last row it got, and a stage is sent again as a whole. When the time is over, an
error of quintet.client.core.errors is raised: one sentence that names the option to look at. Nothing here knows Spark. Secrets are
sent and never shown.

If the target is a cell, reads go to a node that nodes.py chooses, and to another one when it fails; everything else goes to the leader, by
a connection of its own (`leader`).
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyarrow import flight

from quintet.client.core.errors import (
    BY_CODE,
    AuthError,
    BadRequest,
    ConnectionLost,
    Forbidden,
    OffsetNotFound,
    QuintetError,
    ServerError,
)
from quintet.flight import wire
from quintet.model.errors import DataLost
from quintet.spark.source.nodes import LEADER, Nodes
from quintet.spark.source.options import Host, OptionError, Target

PAUSE_SECONDS: Final = 0.05  # before the first repetition; it doubles
PAUSE_SECONDS_MAX: Final = 2.0
NODE_SECONDS: Final = 5.0  # for a node of a cell to say what it is
CALL_SECONDS: Final = 120.0  # the longest that one action or login may take
OFFSET: Final = "offset"
_TLS_HINT: Final = " for TLS, for the name in its certificate, and do ?ca=, ?cert= and ?key= fit"
# Flight errors that mean, if they carry no Problem of the broker, that it cannot be reached or went away. A login without a broker
# fails with an internal error.
_GONE: Final = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
)
# What pyarrow raises for a failed call; some kinds of Flight errors are plain Arrow errors.
_FAILED: Final = (flight.FlightError, pa.ArrowException, OSError)
# Code of a Problem -> the class of the error raised here. DataLost needs offsets, which a Problem does not carry.
_KINDS: Final[dict[str, type[QuintetError]]] = {
    **BY_CODE,
    DataLost.code: OffsetNotFound,
}

A = TypeVar("A")
R = TypeVar("R", bound=wire.AgedRequest)
T = TypeVar("T")


class FlightConnection:
    """A connection to the Flight door of one broker, as one user."""

    _open: "dict[tuple[int, Target], FlightConnection]" = {}  # noqa: RUF012

    def __init__(self, target: Target, wanted: str = "") -> None:
        """wanted: of which kind the node must be; "": as the target says."""
        self.target = target
        wanted = wanted or target.read_from
        self._nodes = Nodes(target, wanted) if wanted else None
        self._leader = None if wanted in ("", LEADER) else FlightConnection(target, LEADER)
        self._client: flight.FlightClient | None = None
        self._token = f"Bearer {target.token}".encode() if target.token else b""

    @classmethod
    def of(cls, target: Target) -> "FlightConnection":
        """The connection of this process to a target. A forked process opens its own: connections do not survive a fork."""
        key = (os.getpid(), target)
        connection = cls._open.get(key)
        if connection is None:
            connection = cls._open[key] = cls(target)
        return connection

    def __repr__(self) -> str:
        return f"FlightConnection({self.target})"

    def __enter__(self) -> "FlightConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def leader(self) -> "FlightConnection":
        """For what only the leader of a cell does."""
        return self._leader or self

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._leader is not None:
            self._leader.close()
        self._close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def login(self) -> None:
        """Log in, unless that was done before."""
        self._again(self._options)

    # -- the actions --------------------------------------------------------------------------------------------------

    def topics(self, selection: wire.Selection) -> wire.Topics:
        return self._read("topics", selection, wire.Topics)

    def topic_create(self, topic: str, partitions: int) -> wire.Created:
        return self.leader._act("topic_create", wire.CreateRequest(topic, partitions), wire.Created)

    def offsets_for_time(self, topic: str, at_us: int) -> tuple[int, ...]:
        return self._read("offsets_for_time", wire.TimeRequest(topic, at_us), wire.Offsets).offsets

    def locate(self, request: wire.LocateRequest) -> wire.Located:
        return self._read("locate", request, wire.Located)

    def stage_commit(self, request: wire.StageCommit) -> wire.StageCommitted:
        return self.leader._act("stage_commit", request, wire.StageCommitted)

    def stage_abort(self, stages: Sequence[str]) -> None:
        self.leader._act("stage_abort", wire.StageAbort(tuple(stages)), wire.Nothing)

    def fence(self, writer: str) -> int:
        """The highest batch id that was committed for a writer, -1 if there is none."""
        return self.leader._act("fence", wire.FenceRequest(writer), wire.FenceAnswer).batch_id

    def group_commit(self, request: wire.GroupCommit) -> None:
        self.leader._act("group_commit", request, wire.Nothing)

    def groups(self, topic: str = "", group: str = "") -> wire.GroupPositions:
        return self.leader._act("groups", wire.GroupsRequest(topic, group), wire.GroupPositions)

    def schema(self, subject: str, version: int = 0) -> wire.SchemaAnswer:
        return self._look_again()._act("schema", wire.SchemaRequest(subject, version), wire.SchemaAnswer)

    def reject(self, request: wire.RejectRequest) -> int:
        return self.leader._act("reject", request, wire.Rejected).fresh

    def redrive(self, request: wire.RedriveRequest) -> wire.Redriven:
        return self.leader._act("redrive", request, wire.Redriven)

    def dead(self, topic: str) -> wire.DeadOpen:
        return self.leader._act("dead", wire.DeadRequest(topic), wire.DeadOpen)

    def pipeline_report(self, report: wire.PipelineReport) -> bool:
        """True: somebody asked the pipeline to stop."""
        return self.leader._act("pipeline_report", report, wire.PipelineOrder).stop

    def pipelines(self) -> wire.Pipelines:
        return self.leader._act("pipelines", wire.Nothing(), wire.Pipelines)

    def pipeline_stop(self, name: str) -> None:
        self.leader._act("pipeline_stop", wire.PipelineName(name), wire.Nothing)

    # -- the streams --------------------------------------------------------------------------------------------------

    def read(self, ticket: wire.Ticket) -> Iterator[pa.RecordBatch]:
        """The records of a ticket, in order. If the connection is lost, the read goes on after the last row."""
        extra = OFFSET not in ticket.columns  # needed to go on after a lost connection
        columns = tuple(name for name in wire.COLUMNS if name in ticket.columns or name == OFFSET)
        ticket = self._look_again()._aged(msgspec.structs.replace(ticket, columns=columns))
        give_up = None
        pause = PAUSE_SECONDS
        renewed = False
        while True:
            try:
                options = self._again(self._options)
                for chunk in self._connected().do_get(flight.Ticket(msgspec.json.encode(ticket)), options):
                    batch = chunk.data
                    if batch.num_rows:
                        last = batch.column(OFFSET)[batch.num_rows - 1].as_py()
                        ticket = msgspec.structs.replace(ticket, first=last + 1)
                        give_up, pause, renewed = None, PAUSE_SECONDS, False
                        yield batch.drop_columns([OFFSET]) if extra else batch
                return
            except _FAILED as error:
                if self._stale(error) and not renewed:
                    renewed = True
                    continue
                self._forget(error)
                monotonic = time.monotonic()
                give_up = give_up or monotonic + self.target.retry_seconds
                if not _passing(error) or monotonic + pause > give_up:
                    raise self._named(error) from None
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def stage(self, request: wire.StageRequest, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> wire.Staged:
        """Stage these rows. They are kept until the broker has all of them: a failed attempt is repeated as a new stage."""
        descriptor = flight.FlightDescriptor.for_command(msgspec.json.encode(request))

        def once() -> wire.Staged:
            leader = self.leader
            writer, answers = leader._connected().do_put(descriptor, schema, leader._options())
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                answer = answers.read()
            if answer is None:
                raise ConnectionLost("the broker ended a stage without an answer")
            return self._decoded(answer, wire.Staged)

        return self.leader._again(once)

    # -- the nodes of a cell -----------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """HOST:PORT of the node that answered last; the target, if it is not a cell."""
        current = self._nodes.current if self._nodes is not None else None
        return str(self.target) if current is None else f"{current[0]}:{current[1]}"

    def _look_again(self) -> "FlightConnection":
        """Before a read: the node may have become the leader, or a follower may be back."""
        if self._nodes is not None and self._nodes.is_due:
            self._close()
        return self

    def _aged(self, request: R) -> R:
        age = self.target.max_age_seconds
        return msgspec.structs.replace(request, max_age_seconds=age) if age else request

    def _read(self, name: str, request: wire.AgedRequest, kind: type[A]) -> A:
        return self._look_again()._act(name, self._aged(request), kind)

    def _choose(self, nodes: Nodes) -> flight.FlightClient:
        """A connection to the node that is wanted."""
        host = nodes.choose(self._role_of)
        if host is None:
            raise flight.FlightUnavailableError(f"no node of {nodes} that is wanted answers")
        assert self._client is not None
        return self._client

    def _role_of(self, host: Host) -> str | None:
        """What a node is, after a connection to it was made; None: it does not answer. Raises what another node would say, too."""
        self._close()
        self._client = self._client_of(host)
        if not self.target.token:
            self._token = b""  # those of another node are not known there
        try:
            options = self._options(NODE_SECONDS)
            results = list(self._client.do_action(flight.Action("node", b"{}"), options))
            return self._decoded(results[0].body, wire.NodeAnswer).role
        except _FAILED as error:
            if _passing(error):
                return None
            problem = _problem(error)
            if problem is not None and problem.code == BadRequest.code:
                return LEADER  # a broker from before there were followers that answer
            raise

    # -- internals -----------------------------------------------------------------------------------------------

    def _act(self, name: str, request: msgspec.Struct, kind: type[A]) -> A:
        action = flight.Action(name, msgspec.json.encode(request))

        def once() -> A:
            results = list(self._connected().do_action(action, self._options(CALL_SECONDS)))
            if not results:
                raise ConnectionLost(f"the broker ended the action {name} without an answer")
            return self._decoded(results[0].body, kind)

        return self._again(once)

    def _decoded(self, answer: pa.Buffer, kind: type[A]) -> A:
        try:
            return msgspec.json.decode(answer.to_pybytes(), type=kind)
        except msgspec.ValidationError as error:
            raise ServerError(
                f"the broker at {self.target} answered what this version does not understand ({error}); use the same version of "
                "Quintet at both ends"
            ) from None

    def _again(self, once: Callable[[], T]) -> T:
        """Call `once`, again while the broker cannot be reached, and once more after a new login if the token was refused."""
        give_up = time.monotonic() + self.target.retry_seconds
        pause = PAUSE_SECONDS
        renewed = False
        while True:
            try:
                return once()
            except _FAILED as error:
                if self._stale(error) and not renewed:
                    renewed = True
                    continue
                self._forget(error)
                if not _passing(error) or time.monotonic() + pause > give_up:
                    raise self._named(error) from None
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            self._client = self._client_of(self.target.hosts[0]) if self._nodes is None else self._choose(self._nodes)
        return self._client

    def _client_of(self, place: Host) -> flight.FlightClient:
        target, (name, port) = self.target, place
        host = f"[{name}]" if ":" in name else name
        return flight.FlightClient(
            f"grpc+{'tls' if target.tls else 'tcp'}://{host}:{port}",
            tls_root_certs=_file(target.ca, "ca"),
            cert_chain=_file(target.cert, "cert"),
            private_key=_file(target.key, "key"),
        )

    def _options(self, seconds: float | None = None) -> flight.FlightCallOptions:
        """Call options with the token. Logs in first if there is a user and no token yet."""
        if self._nodes is not None:
            self._connected()  # another node has other tokens
        if not self._token and self.target.user:
            _, self._token = self._connected().authenticate_basic_token(
                self.target.user, self.target.password, flight.FlightCallOptions(timeout=seconds or CALL_SECONDS)
            )
        headers = [(b"authorization", self._token)] if self._token else []
        return flight.FlightCallOptions(timeout=seconds, headers=headers)

    def _stale(self, error: Exception) -> bool:
        """Whether the token of an earlier login was refused, as after a restart of the broker. If so, it is dropped."""
        if not isinstance(error, flight.FlightUnauthenticatedError) or self.target.token or not self._token:
            return False
        self._token = b""
        return True

    def _forget(self, error: Exception) -> None:
        """Close a connection that broke."""
        if _passing(error):
            self._close()
            if self._nodes is not None:
                self._nodes.fail(self._nodes.current)

    def _named(self, error: Exception) -> QuintetError:
        """The error as one sentence, with the option it is about where there is one."""
        if isinstance(error, QuintetError):
            return error
        problem = _problem(error)
        code = problem.code if problem else ""
        if isinstance(error, flight.FlightUnauthenticatedError) or code == AuthError.code:
            what = "option token: the broker" if self.target.token else "options user and password: the broker"
            who = f" user {self.target.user!r}" if self.target.user and not self.target.token else " the caller"
            return AuthError(f"{what} at {self.target} refused{who}; check them, or write them into url")
        if problem is None:
            if _passing(error):
                waited = f" for {self.target.retry_seconds:g} s" if self.target.retry_seconds else ""
                return ConnectionLost(
                    f"option url: no broker could be reached at {self.target}{waited}; is it running, with its flight "
                    f"listener switched on{_TLS_HINT if self.target.tls else ''}?"
                )
            return ServerError(f"the broker at {self.target} failed: {_first_line(error)}; see the server's log")
        kind = _KINDS.get(code, ServerError)
        text = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
        if kind is Forbidden:
            text = f"option user: {text}"
        named = kind(text)
        named.code = code
        return named


def _problem(error: Exception) -> wire.Problem | None:
    extra = getattr(error, "extra_info", None)
    if not extra:
        return None
    try:
        return msgspec.json.decode(bytes(extra), type=wire.Problem)
    except (msgspec.MsgspecError, ValueError):
        return None


def _passing(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    problem = _problem(error)
    if problem is not None:
        return problem.retryable
    if isinstance(error, QuintetError):
        return error.retryable
    return isinstance(error, (*_GONE, OSError))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". gRPC client debug context")[0].strip()


def _file(path: str, name: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError("url", f"the file of ?{name}= cannot be read: {error.strerror}") from None
