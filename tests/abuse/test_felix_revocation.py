"""Keys of tenants come and go with SIGHUP, and tokens expire: on the Felix door, under load.

Who came with a token of a key that is gone, or whose time is over, is told off within 5 s, and nothing of it is accepted or
delivered later; who came with another key does not notice. A key that is replaced with overlap costs no operation. Tokens
are signed here, the clients are those of revocation.py.
"""

import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quintet.net.certificates import CERTIFICATE_NAME
from tests.abuse.process import Broker, config
from tests.abuse.revocation import QUIET_S, WITHIN_S, Felix, Loop, Refused
from tests.wire import felix

LONG = "QUINTET_TEST_LONG"
ROTATIONS = 100 if os.environ.get(LONG) else 5
SCOPE = ("t", "n", "orders")
DOOR = "[listeners.felix]\nport = 0\n[tokens]\nleeway_seconds = 0\njwks_file = '{}'\n"
TOLD_OFF = "auth failed"  # the word of the wire; a reset event stream has none


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Signer:
    """One key of a tenant."""

    def __init__(self, kid: str) -> None:
        self.kid = kid
        self._key = Ed25519PrivateKey.generate()

    @property
    def public(self) -> dict[str, str]:
        x = _part(self._key.public_key().public_bytes_raw()).decode()
        return {"kty": "OKP", "crv": "Ed25519", "kid": self.kid, "x": x}

    def token(self, subject: str, expires: float) -> str:
        claims = {
            "iss": "felix-auth", "aud": "felix-broker", "sub": subject, "tid": "t", "exp": int(expires),
            "perms": ["stream.publish:stream:t/*", "stream.subscribe:stream:t/*"],
        }  # fmt: skip
        head = {"alg": "EdDSA", "typ": "JWT", "kid": self.kid}
        signed = _part(json.dumps(head).encode()) + b"." + _part(json.dumps(claims).encode())
        return (signed + b"." + _part(self._key.sign(signed))).decode()


class TokenClient(Felix):
    """Any token of tenant t."""

    def __init__(self, broker: Broker, token: str) -> None:
        self.stack = ExitStack()
        address, ca = broker.listeners["felix"], broker.data / "tls" / CERTIFICATE_NAME
        self._scope = SCOPE
        try:
            self._writer = self.stack.enter_context(felix.Session(address, ca, token))
            self._reader = self.stack.enter_context(felix.Session(address, ca, token))
            self._id = self._reader.subscribe(SCOPE)
        except BaseException:
            self.stack.close()
            raise


class House:
    """A broker, the file with the keys of its tenants, and everybody at work there."""

    def __init__(self, broker: Broker, jwks: Path) -> None:
        self.broker = broker
        self._jwks = jwks
        self._reloads = 0
        self.loops: list[Loop] = []

    def keys(self, *signers: Signer) -> None:
        """These and no others, from now on."""
        self._jwks.write_text(json.dumps({"keys": [signer.public for signer in signers]}))
        self._reloads += 1
        self.broker.reload()
        self.broker.await_said("reloaded", self._reloads)

    def started(self, name: str, token: str) -> Loop:
        loop = Loop(TokenClient(self.broker, token), name)
        self.loops.append(loop)
        loop.start()
        assert loop.going.wait(WITHIN_S * 4) and loop.told_off is None, loop.told_off
        return loop

    def stopped(self, loop: Loop) -> None:
        loop.stopping.set()
        loop.join(WITHIN_S * 4)
        loop.client.close()
        assert loop.told_off is None, f"{loop.who}: {loop.told_off!r} after {loop.written} operations"

    def end(self) -> None:
        """Whoever was started is stopped, whatever a test found."""
        while self.loops:
            loop = self.loops.pop()
            loop.stopping.set()
            loop.join(WITHIN_S * 4)
            loop.client.close()

    def refused(self, token: str) -> None:
        with pytest.raises(felix.Closed, match=TOLD_OFF):
            TokenClient(self.broker, token)

    def silence(self, loop: Loop) -> None:
        """What others write is not delivered to it any more."""
        with pytest.raises((felix.Closed, Refused)):
            loop.client.write(b"after")
        try:
            loop.client.read(QUIET_S)  # what was on its way
            assert loop.client.read(QUIET_S) == []
        except (felix.Closed, Refused):
            pass  # its event stream is over, which is what is wanted


@contextmanager
def open_house(folder: Path, *signers: Signer) -> Iterator[House]:
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps({"keys": [signer.public for signer in signers]}))
    with Broker(folder, config(listener=DOOR.format(jwks))) as broker:
        house = House(broker, jwks)
        try:
            yield house
        finally:
            house.end()


FIRST, SECOND = Signer("k1"), Signer("k2")


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("house"), FIRST, SECOND) as made:
        yield made


@pytest.fixture
def house(building: House) -> Iterator[House]:
    building.keys(FIRST, SECOND)
    yield building
    building.end()


def hour() -> float:
    return time.time() + 3600


def test_a_key_that_is_taken_out_of_the_set_ends_what_it_signed(house: House) -> None:
    steady = house.started("steady", SECOND.token("steady", hour()))
    token = FIRST.token("ann", hour())
    loop = house.started("ann", token)
    house.keys(SECOND)
    at = monotonic()
    loop.join(WITHIN_S)
    assert loop.told_off is not None, f"still at work after {WITHIN_S} s"
    assert TOLD_OFF in str(loop.told_off) or isinstance(loop.told_off, Refused), loop.told_off
    assert loop.last - at <= WITHIN_S
    house.silence(loop)
    house.refused(token)
    house.stopped(steady)


def test_a_token_that_expires_under_load_ends(house: House) -> None:
    steady = house.started("steady", SECOND.token("steady", hour()))
    expires = int(time.time()) + 3
    token = FIRST.token("ann", expires)
    loop = house.started("ann", token)
    loop.join(WITHIN_S + expires - time.time())
    assert loop.told_off is not None, f"still at work {WITHIN_S} s after its token expired"
    house.silence(loop)
    house.refused(token)
    house.stopped(steady)


@pytest.mark.parametrize("finished", [False, True])
def test_an_event_stream_ends_with_its_token_though_nobody_writes(house: House, finished: bool) -> None:
    """Its stream is silent, or was ended as published clients do: nothing but time tells the broker."""
    expires = int(time.time()) + 2
    idle = TokenClient(house.broker, FIRST.token("idle", expires))
    if finished:
        idle._reader.finish()
    try:
        with pytest.raises((felix.Closed, Refused)):
            while time.time() < expires + WITHIN_S:
                assert idle.read(0.2) == []
    finally:
        idle.close()


@pytest.mark.timeout(30 * ROTATIONS)
def test_keys_that_are_replaced_with_overlap_cost_no_operation(house: House) -> None:
    old_key, operations = FIRST, 0
    house.keys(old_key)
    old = house.started("client 0", old_key.token("ann", hour()))
    for number in range(ROTATIONS):
        new_key = Signer(f"next{number}")
        house.keys(old_key, new_key)
        new = house.started(f"client {number + 1}", new_key.token("ann", hour()))
        house.stopped(old)
        operations += old.written
        house.keys(new_key)
        house.refused(old_key.token("ann", hour()))
        old, old_key = new, new_key
    house.stopped(old)
    assert operations > 3 * ROTATIONS


def test_a_set_that_cannot_be_read_leaves_everybody_at_work(house: House) -> None:
    steady = house.started("steady", SECOND.token("steady", hour()))
    house._jwks.write_text('{"keys": [')
    house.broker.reload()
    house.broker.await_said("reload_refused")
    written = steady.written
    until = monotonic() + WITHIN_S
    while steady.written < written + 3 and monotonic() < until:
        time.sleep(0.02)
    assert steady.written >= written + 3
    house.stopped(steady)
