"""Clients of six doors that write and read until they are told off, and an administrator that revokes what they came with.

Each client is two connections with the same credential, by wires written by hand. `write` is one operation that the broker
acknowledged; `read` is what was delivered since. Refused is the end of either: an answer that says no, or a connection
that was closed.
"""

import json
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import quintet
from quintet.net.certificates import CERTIFICATE_NAME
from tests.client.server import Server
from tests.wire import blipmq, fast, felix, flymq, peerbus

WITHIN_S: Final = 5.0  # the guarantee: nothing is accepted or delivered later than this after a revocation
QUIET_S: Final = 0.3  # how long a reader waits for what must not come
BLINK_S: Final = 0.005
PASSWORD: Final = "a-long-password"


class Refused(Exception):
    """The credential, or the right, is not good any more."""


@dataclass(frozen=True)
class Person:
    name: str
    key: str
    key_id: str
    password: str = PASSWORD

    @property
    def topic(self) -> str:
        return f"of.{self.name}"


class Office:
    """The administrator, over FlyMQ."""

    def __init__(self, server: Server) -> None:
        self.bus = quintet.sync.connect(server.fly)
        self.bus.__enter__()

    def close(self) -> None:
        self.bus.__exit__(None, None, None)

    def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        return self.bus.request(operation, **fields)

    def hire(self, name: str) -> Person:
        self._user("USER_CREATE", name, PASSWORD, True)
        return self.key_for(name)

    def key_for(self, name: str) -> Person:
        key = self.ask("KEY_CREATE", user=name, name="", expires_s=0)
        return Person(name, key["secret"], key["id"])

    def _user(self, operation: str, name: str, password: str, enabled: bool) -> None:
        roles = ["producer", "consumer"]
        self.ask(operation, user=name, password=password, old_password="", roles=roles, enabled=enabled)

    def revoke(self, how: str, person: Person) -> None:
        """Returns when the broker has acknowledged it."""
        name = person.name
        if how == "key":
            self.ask("KEY_REMOVE", user=name, id=person.key_id)
        elif how == "disabled":
            self._user("USER_UPDATE", name, "", False)
        elif how == "deleted":
            self.ask("USER_DELETE", user=name)
        elif how == "password":
            self._user("USER_UPDATE", name, "another-long-password", True)
        else:
            assert how == "rule"
            for topic in (person.topic, f"peerbus/{name}", f"t/n/{person.topic}"):
                self.ask("ACL_SET", topic=topic, public=False, users=["admin"], roles=[])


class Client:
    """See above. `begin` logs in and leaves what must be closed on the stack."""

    def __init__(self, server: Server, person: Person) -> None:
        self.stack = ExitStack()
        try:
            self.begin(server, person)
        except BaseException:
            self.stack.close()
            raise

    def begin(self, server: Server, person: Person) -> None:
        raise NotImplementedError

    def write(self, value: bytes) -> None:
        raise NotImplementedError

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        raise NotImplementedError

    def close(self) -> None:
        self.stack.close()


class Blip(Client):
    """An API key; pushes of version 2."""

    def begin(self, server: Server, person: Person) -> None:
        address, key = f"127.0.0.1:{server.port}", person.key.encode()
        self._topic = person.topic.encode()
        self._writer = self.stack.enter_context(blipmq.Client(address))
        self._reader = self.stack.enter_context(blipmq.Client(address))
        self._writer.login(key)
        self._reader.login(key, version=2)
        if self._reader.ask(blipmq.subscribe(1, self._topic, 0)).kind != blipmq.ACK:
            raise Refused

    def write(self, value: bytes) -> None:
        self._writer.send(blipmq.publish(2, self._topic, value))
        if self._writer.barrier():
            raise Refused

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        found = []
        try:
            while True:
                found.append(self._reader.read(wait_s).delivery[2])
        except blipmq.Hang:
            return found


class Fly(Client):
    """Name and password."""

    def begin(self, server: Server, person: Person) -> None:
        address = f"127.0.0.1:{server.ports['flymq']}"
        self._topic, self._next = person.topic, 0
        self._writer = self.stack.enter_context(flymq.Client(address))
        self._reader = self.stack.enter_context(flymq.Client(address))
        for each in (self._writer, self._reader):
            each.login(person.name, person.password)

    def write(self, value: bytes) -> None:
        if self._writer.ask(flymq.produce(self._topic, value)).code == flymq.ERROR:
            raise Refused

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        reply = self._reader.ask(flymq.fetch(self._topic, self._next, partition=0))
        if reply.code == flymq.ERROR:
            raise Refused
        values, self._next = flymq.values_of(reply.payload)
        return values


class Fast(Client):
    """A token whose subject is the user."""

    def begin(self, server: Server, person: Person) -> None:
        address = f"127.0.0.1:{server.ports['fast']}"
        self._token = fast.token(person.name, "k", "publish", "subscribe")
        self._id = fast.topic_id(person.topic.encode())
        self._writer = self.stack.enter_context(fast.Client(address))
        self._reader = self.stack.enter_context(fast.Client(address))
        self._ask(self._writer, fast.create(self._token, person.topic.encode(), fast.DURABLE))
        self._ask(self._reader, fast.subscribe(self._token, self._id))

    @staticmethod
    def _ask(connection: fast.Client, packet: bytes) -> None:
        (answer,) = connection.ask(packet)
        if answer.code:
            raise Refused(answer.text)

    def write(self, value: bytes) -> None:
        self._ask(self._writer, fast.publish(self._token, self._id, value))

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        found: list[bytes] = []
        try:
            while isinstance(one := self._reader.read(wait_s), fast.Message):
                found.append(one.payload)
        except fast.Hang:
            return found
        raise Refused(str(one))


class Peer(Client):
    """A bearer token; whatever this peer sends comes back to it: an operation counts when it was delivered."""

    def begin(self, server: Server, person: Person) -> None:
        self._name = person.name
        address = f"127.0.0.1:{server.ports['peerbus-tcp']}"
        self._line = self.stack.enter_context(peerbus.Client(address, person.name, person.key))
        self._early: list[bytes] = []

    def write(self, value: bytes) -> None:
        body = json.dumps(value.decode())
        self._line.say(peerbus.envelope(uuid4().hex, self._name, self._name, body))
        until = monotonic() + WITHIN_S
        while value not in self._early:
            self._early = self.read(WITHIN_S)  # with what came before
            assert monotonic() < until, "an envelope to oneself came neither back nor an end"

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        found, self._early = self._early, []
        while (frame := self._line.next(BLINK_S if found else wait_s)) is not None:
            if frame["type"] == "deliver":
                self._line.ack(frame["delivery_key"])
                body = frame["envelope"]["body"]
                found.append(body.encode() if isinstance(body, str) else json.dumps(body).encode())
        return found


class Flight(Client):
    """`Bearer` and an API key."""

    def begin(self, server: Server, person: Person) -> None:
        from tests.flight.client import Client as FlightClient

        self._topic, self._next = person.topic, 0
        client = FlightClient(server.ports["flight"], header=f"Bearer {person.key}")
        self._client = self.stack.enter_context(client)
        self._client.act("topics")

    def write(self, value: bytes) -> None:
        from tests.flight.client import rows

        self._client.put(self._topic, rows(value))

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        values = self._client.values(self._topic, first=self._next)
        self._next += len(values)
        return [value for value in values if value is not None]


class Felix(Client):
    """An API key; acknowledged batches to a topic of all doors, and an event stream of it."""

    tenant = ""
    namespace = ""

    def begin(self, server: Server, person: Person) -> None:
        address, ca = f"127.0.0.1:{server.ports['felix']}", server.folder / "data" / "tls" / CERTIFICATE_NAME
        self._scope = (self.tenant, self.namespace, person.topic)
        token = self.token(person)
        self._writer = self.stack.enter_context(felix.Session(address, ca, token, self.tenant))
        self._reader = self.stack.enter_context(felix.Session(address, ca, token, self.tenant))
        self._id = self._reader.subscribe(self._scope)

    def token(self, person: Person) -> str:
        return person.key

    def write(self, value: bytes) -> None:
        if refused := self._writer.publish(self._scope, [value]):
            raise Refused(refused)

    def read(self, wait_s: float = BLINK_S) -> list[bytes]:
        found: list[bytes] = []
        while (event := self._reader.next(BLINK_S if found else wait_s)) is not None:
            found += event.values
        if not found and self._id in self._reader.ended:
            raise Refused(f"the event stream was reset with {self._reader.ended[self._id]:#x}")
        return found


class FelixToken(Felix):
    """A token of tenant `t` whose subject is the user."""

    tenant = "t"
    namespace = "n"

    def token(self, person: Person) -> str:
        rights = ["stream.publish:stream:t/n/*", "stream.subscribe:stream:t/n/*"]
        more: dict[str, Any] = {
            "iss": "felix-auth",
            "aud": "felix-broker",
            "tid": "t",
            "exp": int(time.time()) + 3600,
            "perms": rights,
        }
        return fast.token(person.name, "", **more).decode()


DOORS: Final[dict[str, type[Client]]] = {
    "blipmq": Blip, "flymq": Fly, "fast": Fast, "peerbus": Peer, "flight": Flight, "felix": Felix,
    "felix-token": FelixToken,
}  # fmt: skip


def topic_of(door: str, person: Person) -> str:
    """The topic that a client of this door writes and reads."""
    return {"peerbus": f"peerbus/{person.name}", "felix-token": f"t/n/{person.topic}"}.get(door, person.topic)


def ends() -> tuple[type[BaseException], ...]:
    """What being told off looks like, door by door. A login that is refused is an assertion of the wires."""
    from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

    return (
        Refused, AssertionError, OSError, flight.FlightError,
    )  # fmt: skip


class Loop(threading.Thread):
    """A client at work until it is told off, or to stop. `last` is when something was last accepted or delivered."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(daemon=True)
        self.client, self.who = client, name
        self.written = self.heard = 0
        self.last = 0.0
        self.told_off: BaseException | None = None
        self.stopping = threading.Event()
        self.going = threading.Event()
        self._ends = ends()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.client.write(f"{self.who} {self.written}".encode())
                self.written += 1
                self.heard += len(self.client.read())
                self.last = monotonic()
                if self.written >= 3 and self.heard >= 3:
                    self.going.set()
        except self._ends as error:
            self.told_off = error
        finally:
            self.going.set()


def connects(door: str, server: Server, person: Person) -> bool:
    """Whether this credential still does anything at all there."""
    try:
        client = DOORS[door](server, person)
        try:
            client.write(b"again 0")
            return True
        finally:
            client.close()
    except ends():
        return False
