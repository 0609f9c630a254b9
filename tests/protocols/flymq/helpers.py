"""Small words for tests of the FlyMQ door: requests made from the table by name, replies taken apart, a client over a Peer.

Passwords here have hashes that cost nothing to check; what a real hash costs is tested where users are.
"""

from collections.abc import Iterable
from random import Random
from typing import Any, Final

from argon2 import low_level

from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Role
from quintet.broker.identity.users import ConfiguredUser
from quintet.protocols.flymq import codec, frames
from quintet.protocols.flymq.section import FlymqListener
from quintet.protocols.flymq.session import FlySession
from quintet.testing.line import Peer, SimBroker
from quintet.testing.sim import SimScheduler
from tests.wire.flymq import Frame as Reply
from tests.wire.flymq import frame as raw
from tests.wire.flymq import frames_of as parse

SECOND: Final = 1_000_000
PASSWORD: Final = "password"
BY_NAME: Final = {operation.name: operation for operation in frames.OPERATIONS.values()}
__all__ = ["Reply", "parse", "raw"]
DIALECTS: Final[tuple[frames.Dialect, ...]] = ("document", "sdk")
TENANT: Final = Role("tenant", read=("tenant.*",), write=("tenant.*",), admin=("tenant.*",))


def cheap_hash(password: str) -> str:
    return low_level.hash_secret(password.encode(), b"0123456789abcdef", 1, 8, 1, 32, low_level.Type.ID).decode()


CHEAP: Final = cheap_hash(PASSWORD)
USERS: Final = {
    "admin": ("admin",),
    "paula": ("producer",),
    "conny": ("consumer",),
    "bruno": ("producer", "consumer"),
    "eve": ("producer", "consumer"),
    "guste": ("guest",),
    "tina": ("tenant",),
}


class Refused(Exception):
    """An ERROR, or an AUTH_RESPONSE that says no: its code and its text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def payload_of(name: str, form: int = 0, /, **fields: Any) -> bytes:
    """The payload of a request, by the layout of that number."""
    return codec.layout(BY_NAME[name].asks[form]).encode(fields)


def request(name: str, form: int = 0, /, flags: int = 1, **fields: Any) -> bytes:
    return raw(BY_NAME[name].code, payload_of(name, form, **fields), flags)


def auth(user: str, password: str = PASSWORD) -> bytes:
    return request("AUTH", user=user, password=password)


def error_of(reply: Reply, dialect: frames.Dialect) -> Refused:
    """Code and text of an ERROR frame."""
    assert reply.flags == 1, reply
    if dialect == "sdk":
        number, text = reply.error_sdk
        return Refused(f"E{number}", text)
    words, _, code = reply.error.rpartition(" [")
    return Refused(code.removesuffix("]"), words)


class Client:
    """A client that asks one thing at a time and reads the answer by the table."""

    def __init__(
        self, sim: SimBroker, user: str = "", dialect: frames.Dialect = "document", anonymous: str = ""
    ) -> None:
        self.sim = sim
        self.dialect = dialect
        options = FlymqListener(dialect=dialect, anonymous_role=anonymous)
        self.peer = Peer(sim, lambda b, s, n: FlySession(b, s, n, options, "10.0.0.9:1234", "127.0.0.1:9092"))
        if user:
            self.login(user)

    def login(self, user: str, password: str = PASSWORD) -> dict[str, Any]:
        answer = self.ask("AUTH", user=user, password=password)
        if not answer["success"]:
            raise Refused("AUTH", answer["error"])
        return answer

    def exchange(self, data: bytes) -> list[Reply]:
        return parse(self.peer.exchange(data))

    def read(self, name: str, reply: Reply) -> dict[str, Any]:
        operation = BY_NAME[name]
        if reply.code == frames.ERROR:
            raise error_of(reply, self.dialect)
        assert reply.code == operation.answer_code, (name, reply)
        return codec.answer_layout(operation, self.dialect).decode(memoryview(reply.payload))

    def ask(self, name: str, form: int = 0, /, **fields: Any) -> dict[str, Any]:
        replies = self.exchange(request(name, form, **fields))
        assert len(replies) == 1, f"{len(replies)} replies to one {name}; closing: {self.peer.session.closing}"
        return self.read(name, replies[0])

    def refused(self, name: str, form: int = 0, /, **fields: Any) -> str:
        """The code of the refusal this must get."""
        try:
            answer = self.ask(name, form, **fields)
        except Refused as refused:
            return refused.code
        if name == "AUTH" and not answer["success"]:
            return "AUTH"
        raise AssertionError(f"{name} of {fields} was answered: {answer}")

    def produce(self, topic: str, *values: bytes, key: bytes = b"", partition: int = -1) -> list[int]:
        """The offsets these got, produced in one write."""
        frames_ = [request("PRODUCE", topic=topic, key=key, value=v, partition=partition) for v in values]
        replies = self.exchange(b"".join(frames_))
        return [self.read("PRODUCE", reply)["offset"] for reply in replies]

    def values(self, topic: str, partition: int = 0) -> list[bytes]:
        found = self.ask("FETCH", topic=topic, partition=partition, offset=0, max=10_000)
        return [message["value"] for message in found["messages"]]

    def close(self) -> None:
        self.peer.close()


def configure(
    sim: SimBroker, users: dict[str, tuple[str, ...]] | None = None, roles: Iterable[Role] = (TENANT,)
) -> None:
    told: list[Exception | None] = []
    people = [ConfiguredUser(name, given, password_hash=CHEAP) for name, given in (users or USERS).items()]
    sim.broker.configure_users(roles, people, told.append)
    sim.scheduler.run_until_idle()
    assert told == [None]


def make_sim(options: BrokerOptions | None = None, users: dict[str, tuple[str, ...]] | None = None) -> SimBroker:
    """A broker that knows USERS, each with PASSWORD."""
    sim = SimBroker(options=options)
    configure(sim, users)
    return sim


def abandon(sim: SimBroker) -> None:
    """The process is gone in the middle of whatever it did, and with it all that was about to be called."""
    sim.log.abandon()
    time, sim.scheduler = sim.scheduler.now(), SimScheduler()
    sim.scheduler.time = time


def power_cut(sim: SimBroker, seed: int) -> None:
    """The power is gone and back; the broker has started again and knows the same users."""
    abandon(sim)
    sim.disk.crash(Random(seed))
    sim.start()
    configure(sim)
