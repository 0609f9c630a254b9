"""A door of one's own in one file: a line protocol that Quintet loads from its configuration, and knows nothing else of.

    AUTH key            OK name                    first, by an API key
    PUB topic value     OK offset                  when it is durable
    SUB topic           OK                         and from then on, for each message:
                        MSG topic bytes            followed by so many bytes and a line end
    anything wrong      ERR text                   a line that is too long ends the connection

Replies keep the order of their requests; MSG comes between them. To try it, in the folder of this file:

    PYTHONPATH=. QUINTET_PLUGINS__DOORS='["line_door:LINE"]' quintet serve --dev
    nc 127.0.0.1 7007

It shows what a session owes (quintet/protocols/base.py): it takes whole frames, stops when the turn is over, asks the broker's
verbs, looks at its rights again when their epoch has changed, and lets go of everything when it is closed. Frames are split here
in Python: a kernel function is for protocols that need its speed. `kernel.build` makes a batch, `batch.rows` reads one.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Final

from pydantic import Field

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.identity.access import Principal
from quintet.broker.topics.catalog import Topic
from quintet.delivery.subscription import Subscription
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import AuthError, LimitExceeded, QuintetError
from quintet.model.rights import Right
from quintet.protocols.base import FLOWING, STALL, WAIT, Replies, SessionConnection, Slot
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.options import BytesMax, Port, TcpListener

NAME: Final = "line"
RIGHTS: Final[dict[str, Right]] = {"AUTH": "open", "PUB": "write", "SUB": "read"}
REPLIES_WAITING_MAX: Final = 1_000
SUBSCRIPTIONS_MAX: Final = 100
AUTH_FAILURES_MAX: Final = 3


class LineSession:
    """One connection. `connection` is where late answers and records come through."""

    def __init__(self, broker: Broker, connection: SessionConnection, line_bytes_max: int, peer: str) -> None:
        self.closing: str | None = None
        self.principal_name: str | None = None
        self.auth_failures = 0
        self.stopped = False
        self.operation = ""
        self._broker = broker
        self._connection = connection
        self._line_bytes_max = line_bytes_max
        self._peer = peer
        self._deadline: int | None = broker.scheduler.monotonic() + limits.HANDSHAKE_US
        self._identity = ""
        self._principal: Principal | None = None
        self._epoch = 0
        self._topic: Topic | None = None  # published to last, for congestion
        self._asked = 0  # subscriptions that were asked for
        self._subscriptions: list[Subscription] = []
        self._replies = Replies()
        self.take_output = self._replies.take

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        return False  # late answers wait in their slots, so no frame has to

    def receive(self, view: memoryview, now: int) -> int:
        self.stopped = False
        if self._identity and self._epoch != self._broker.access.epoch:
            self._look_again()
        data, position = bytes(view), 0
        while self.closing is None and not self.stopped:
            end = data.find(b"\n", position)
            length = (len(data) if end < 0 else end) - position
            most = self._line_bytes_max if self._identity else limits.UNAUTHENTICATED_FRAME_BYTES_MAX
            if length > most:
                self.closing = f"a line of more than {most} bytes"
            if self.closing is not None or end < 0:
                break
            self._act(data[position:end])
            position = end + 1
            self.stopped = position < len(data) and self._connection.turn_over()
        return position

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        assert isinstance(token, Slot)
        self._replies.fill(token, b"OK %d\n" % offset if error is None else _refusal(error))

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert isinstance(token, Slot)
        if not isinstance(result, Subscription):
            assert error is not None
            return self._replies.fill(token, _refusal(error))
        self._replies.fill(token, b"OK\n")
        self._subscriptions.append(result)
        self._drop_what_is_not_ours()  # the right to it may have been taken away while it was made
        if result in self._subscriptions:
            result.attach(self._connection)
        return None

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        assert isinstance(subscription, Subscription)
        for _, _, _, value, *_ in batch.rows(first, last):
            body = value or b""
            self._replies.push(b"MSG %b %d\n%b\n" % (subscription.topic_name, len(body), body))

    @property
    def unanswered(self) -> int:
        return self._replies.waiting

    def congestion(self) -> int:
        if self._replies.waiting > REPLIES_WAITING_MAX or self._broker.overloaded():
            return WAIT
        if self._topic is None:
            return FLOWING
        return WAIT if self._topic.waiting else STALL if self._topic.overrun() else FLOWING

    def deadline(self) -> int | None:
        return self._deadline

    def tick(self, monotonic: int) -> None:
        if self._deadline is not None and monotonic >= self._deadline:
            self._deadline, self.closing = None, "no AUTH in time"

    def closed(self) -> None:
        for subscription in self._subscriptions:
            self._broker.leave(subscription, self._connection)
        self._subscriptions.clear()
        self._topic = None
        self._broker.quotas.leave(self._connection)
        del self._connection  # connection and session hold each other

    # -- requests --------------------------------------------------------------------------------------------------

    def _act(self, line: bytes) -> None:
        word, _, rest = line.rstrip(b"\r").partition(b" ")
        self.operation = word.decode("ascii", "replace")
        if self.operation not in RIGHTS:
            self.operation = ""
            return self._replies.put(b"ERR expected AUTH, PUB or SUB\n")
        if self.operation == "AUTH":
            return self._auth(rest)
        if self._principal is None:
            self._broker.audit.record("access.denied", "", "", "denied", self._peer, self.operation)
            return self._replies.put(b"ERR AUTH first\n")
        slot = self._replies.reserve()
        try:
            ask: Callable[[Principal, bytes, Slot], None] = self._pub if self.operation == "PUB" else self._sub
            ask(self._principal, rest, slot)
        except QuintetError as error:
            self._replies.fill(slot, _refusal(error))
        return None

    def _auth(self, key: bytes) -> None:
        if self._principal is not None:
            return self._replies.put(b"ERR AUTH was done\n")
        try:
            identity, principal = self._broker.authenticate(key, self._peer)
            self._broker.quotas.join(self._connection, principal.name)
        except LimitExceeded as error:
            self.closing = "its user has too many connections"
            return self._replies.put(_refusal(error))
        except AuthError as error:
            self.auth_failures += 1
            if self.auth_failures >= AUTH_FAILURES_MAX:
                self.closing = "too many failed authentications"
            return self._replies.put(_refusal(error))
        self._identity, self._principal = identity, principal
        self._deadline, self._epoch = None, self._broker.access.epoch
        self.principal_name = principal.name
        return self._replies.put(b"OK %b\n" % self.principal_name.encode())

    def _pub(self, principal: Principal, rest: bytes, slot: Slot) -> None:
        name, _, value = rest.partition(b" ")
        self._topic = topic = self._broker.publish_target(principal, name, True, self._peer)
        batch = kernel.build([value], origin=f"{NAME}:{principal.name}".encode()[:200])
        topic.publish(batch, 1, True, partial(self._connection.appended, slot))

    def _sub(self, principal: Principal, name: bytes, slot: Slot) -> None:
        if self._asked >= SUBSCRIPTIONS_MAX or b" " in name:
            why = "a name has no blank" if b" " in name else f"more than {SUBSCRIPTIONS_MAX} subscriptions"
            return self._replies.fill(slot, b"ERR %b\n" % why.encode())
        self._broker.listen(principal, name, 0, self._connection, slot, self._peer, door=NAME)
        self._asked += 1
        return None

    # -- rights ----------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Rights changed: take them as they are now, or leave."""
        self._epoch = self._broker.access.epoch
        self._principal = self._broker.access.current(self._identity)
        if self._principal is None:
            self.closing = "the API key was revoked"
        self._drop_what_is_not_ours()

    def _drop_what_is_not_ours(self) -> None:
        """Subscriptions that this client may not read any more, or whose topic was deleted."""
        for found in list(self._subscriptions):
            if self._principal is None or self._broker.subscription(self._principal, found.id) is not found:
                self._subscriptions.remove(found)
                self._broker.leave(found, self._connection)


def _refusal(error: Exception) -> bytes:
    return f"ERR {' '.join(str(error).split())}\n".encode()


class LineListener(TcpListener):
    """The line door."""

    port: Port = Field(default=7007, description="TCP port; 0 picks a free one, which --print-ready reports.")
    line_bytes_max: Annotated[BytesMax, Field(ge=64, le=limits.MIB)] = Field(
        default=64 * limits.KIB, description="Longest line accepted, in bytes; a longer one closes the connection."
    )


def _open(broker: Broker, options: LineListener) -> MakeSession:
    def make(connection: SessionConnection, peer: str, _address: str) -> LineSession:
        return LineSession(broker, connection, options.line_bytes_max, peer)

    return make


def _dev_lines(dev: Development) -> list[str]:
    host, _, port = dev.address.rpartition(":")
    return [f"printf 'AUTH {dev.key}\\nPUB demo hello\\n' | nc -q1 {host} {port}"]


LINE: Final = Door(
    name=NAME,
    protocol=NAME,
    title="line",
    about="The line door.",
    options=LineListener,
    operations=RIGHTS,
    rights=RIGHTS,
    open=_open,
    dev_lines=_dev_lines,
)
