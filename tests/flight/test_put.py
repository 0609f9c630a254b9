"""do_put between the door and the broker, on a simulated disk: an answer that is late, an owner without room, a broker that
stops, and callers that would take from others."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from quintet.broker.atomic import stages
from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import Credential, Role, hash_secret
from quintet.broker.identity.users import ConfiguredUser
from quintet.flight import login, verbs, wire, writing
from quintet.flight.bridge import Bridge, NoAnswer
from quintet.flight.login import Caller, Login
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.errors import AuthError, Busy, Forbidden, LimitExceeded, ShuttingDown, StorageError
from quintet.model.tasks import Verb, start
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler
from tests.broker.parts import all_rows
from tests.flight.client import basic

pa = pytest.importorskip("pyarrow")

SECRET = b"a-key"


class Line:
    """A broker and a bridge to it that needs no second thread. `late`: so many waits end before there is an answer."""

    def __init__(self) -> None:
        self.disk, self.scheduler, self.late = SimDisk(), SimScheduler(), 0
        log = EmbeddedLog(DATA, self.disk, self.scheduler, lambda *_: None)
        log.recover()
        self.broker = Broker(log, self.scheduler, BrokerOptions(entropy=Random(1).randbytes), lambda *_: None)
        self.allow("*")
        self.bridge = Direct(self)
        self.caller = Caller(f"key:{hash_secret(SECRET)}", "spark", "127.0.0.1:1")

    def allow(self, publish: str) -> None:
        self.broker.set_credentials([Credential("spark", hash_secret(SECRET), (publish,), ("*",))])
        self.scheduler.run_until_idle()

    @property
    def put(self) -> writing.Put:
        return writing.Put(self.broker, self.bridge, self.caller, lambda: False)

    def values(self, topic: bytes) -> list[bytes | None]:
        return [row[3] for part in self.broker.topics.find(topic).partitions for row in all_rows(part)]

    def files(self) -> list[str]:
        self.scheduler.run_until_idle()
        return self.disk.listdir(f"{DATA}/stages")


class Direct(Bridge):
    def __init__(self, line: Line) -> None:
        self._line = line
        self._closed = ""

    def ask(self, call: Callable[[], Any]) -> Any:
        return call()

    def wait_for(self, verb: Callable[[], Verb[Any]]) -> Any:
        told: list[tuple[Any, Exception | None]] = []
        start(verb()).then(lambda result, error: told.append((result, error)))
        if self._line.late and self._line.broker.intents.unfinished:
            self._line.late -= 1
            raise NoAnswer("no answer of the broker")
        self._line.scheduler.run_until_idle()
        [(result, error)] = told
        if error is not None:
            raise error
        return result


def batches(*values: bytes) -> Iterator[Any]:
    return iter([pa.record_batch({"value": pa.array([value])}) for value in values])


def test_rows_are_published_once_however_late_the_answer_is() -> None:
    line = Line()
    line.late = 3
    assert line.put.publish("t", batches(b"one", b"two")).rows == 2
    assert line.values(b"t") == [b"one", b"two"]
    assert line.late == 0 and line.files() == []


def test_a_broker_that_stops_before_the_answer_does_not_say_try_again() -> None:
    line = Line()
    line.late = 1
    put, commit = line.put, line.bridge.wait_for

    def draining(verb: Callable[[], Verb[Any]]) -> Any:
        try:
            return commit(verb)
        except NoAnswer:
            line.broker.draining = True
            raise

    line.bridge.wait_for = draining  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="before it is known") as caught:
        put.publish("t", batches(b"one"))
    assert not caught.value.retryable
    with pytest.raises(ShuttingDown):
        line.put.publish("t", batches(b"not even begun"))


def test_a_put_that_is_refused_at_its_end_leaves_no_file() -> None:
    line = Line()

    def revoked() -> Iterator[Any]:
        yield from batches(b"one")
        line.allow("other")

    with pytest.raises(Forbidden):
        line.put.publish("t", revoked())
    assert line.files() == [] and len(line.broker.stages) == 0
    assert line.values(b"t") == []


def test_an_owner_without_room_is_told_while_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "PARTS_OF_OWNER_MAX", 10)
    monkeypatch.setattr(writing, "ROOM_EVERY_PARTS", 2)
    line, sent = Line(), 0

    def endless() -> Iterator[Any]:
        nonlocal sent
        while sent < 1_000:
            sent += 1
            yield from batches(b"x")

    with pytest.raises(LimitExceeded, match="10 batches"):
        line.put.stage(wire.StageRequest("w", 0, "t"), endless())
    assert sent == 10
    assert line.files() == [] and len(line.broker.stages) == 0


# -- what one caller may take from others ------------------------------------------------------------------------------


def test_one_user_does_not_drive_out_the_tokens_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "TOKENS_OF_IDENTITY_MAX", 3)
    monkeypatch.setattr(login, "TOKENS_MAX", 5)
    line = Line()
    other = b"another-key"
    keys = [Credential(name, hash_secret(key), ("*",), ("*",)) for name, key in (("spark", SECRET), ("ann", other))]
    line.broker.set_credentials(keys)
    door = Login(line.broker, line.bridge, Random(2).randbytes, 0)
    anns = door.handshake(f"Bearer {other.decode()}")
    tokens = [door.handshake(f"Bearer {SECRET.decode()}") for _ in range(9)]

    def valid(token: str) -> bool:
        try:
            return bool(door.who(f"Bearer {token}", "").name)
        except AuthError:
            return False

    assert valid(anns)
    assert [valid(token) for token in tokens] == [False] * 6 + [True] * 3
    line.broker.set_credentials(keys[1:])
    assert not any(valid(token) for token in tokens)
    assert [valid(door.handshake(f"Bearer {other.decode()}")) for _ in range(9)] == [True] * 9
    assert not valid(anns)


@pytest.mark.parametrize("by_us", [-3_600_000_000, 86_400_000_000])
def test_a_login_lasts_its_time_whatever_the_clock_does(by_us: int) -> None:
    line = Line()
    door = Login(line.broker, line.bridge, Random(2).randbytes, 0)
    token = door.handshake(f"Bearer {SECRET.decode()}")
    line.scheduler.jump(by_us)
    assert door.who(f"Bearer {token}", "").name == "spark"
    line.scheduler.advance(login.TOKEN_IDLE_US - 1)
    assert door.who(f"Bearer {token}", "").name == "spark"
    line.scheduler.advance(login.TOKEN_IDLE_US)
    with pytest.raises(AuthError, match="no longer valid"):
        door.who(f"Bearer {token}", "")


def test_who_guesses_at_a_name_does_not_lock_out_its_owner() -> None:
    line = Line()
    told: list[Exception | None] = []
    line.broker.configure_users([Role("reader")], [ConfiguredUser("ann", ("reader",), b"a password")], told.append)
    line.scheduler.run_until_idle()
    assert told == [None]
    door = Login(line.broker, line.bridge, Random(2).randbytes, 3)
    door.handshake(basic("ann", "a password"))
    for _ in range(3):
        with pytest.raises(AuthError):
            door.handshake(basic("ann", "a guess"))
    with pytest.raises(Busy):
        door.handshake(basic("ann", "one guess too many"))
    line.scheduler.time += login.PROVEN_US
    line.scheduler.time -= line.scheduler.monotonic() % 60_000_000  # a minute begins, and has its own guesses
    for _ in range(3):
        with pytest.raises(AuthError):
            door.handshake(basic("ann", "a guess"))
    assert door.handshake(basic("ann", "a password"))
    line.broker.configure_users([Role("reader")], [ConfiguredUser("ann", ("reader",), b"another one")], told.append)
    line.scheduler.run_until_idle()
    with pytest.raises(AuthError):
        door.handshake(basic("ann", "a password"))
    with pytest.raises(Busy):
        door.handshake(basic("ann", "a password"))


def test_files_of_one_answer_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "FILES_SHOWN_MAX", 2)
    line = Line()
    line.put.publish("t", batches(b"one"))
    machine = wire.Machine("boot", "lock", 0, 0, "log")

    def locate(ranges: int) -> Any:
        ask = wire.LocateRequest("t", (wire.Range(0, 0, 1),) * ranges)
        return line.bridge.wait_for(lambda: verbs.locate(machine, verbs.Call(line.broker, line.caller), ask))

    assert [len(files) for files in locate(2).files] == [1, 1]
    with pytest.raises(LimitExceeded, match="more than 2 files"):
        locate(3)
