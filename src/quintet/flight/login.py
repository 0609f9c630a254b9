"""Who is calling: from the `authorization` header of a call to an identity that the broker knows.

    Basic USER:PASSWORD   a user; with the handshake the answer is a token, with any other call it counts for that call
    Bearer TOKEN          a token of the handshake
    Bearer KEY            an API key of the configuration

A token stands for an identity and not for rights: the rights are asked for in every call, so whoever is deleted, disabled
or has another password is out at once. All state belongs to the loop thread. Passwords that were right are remembered for
a short time by a keyed hash, so that the slow hash is not paid for in every call; passwords themselves are kept nowhere.

gRPC does not say in the handshake who is at the other end: there, failures are counted per user name, elsewhere per address.
Anybody can fail under the name of another: a password that was right before is looked at all the same.
"""

import base64
import binascii
import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.broker.core import Broker
from quintet.broker.follower import FollowerBroker
from quintet.broker.identity.access import hash_secret
from quintet.flight.bridge import Bridge
from quintet.flight.errors import to_flight
from quintet.model.errors import AuthError, Busy
from quintet.net.listener import Failures

HEADER: Final = "authorization"
MIDDLEWARE: Final = "login"
HEADER_BYTES_MAX: Final = 8 << 10
TOKEN_PREFIX: Final = "flight-"  # so that an old token is not taken for a wrong API key
TOKEN_BYTES: Final = 32
TOKENS_MAX: Final = 10_000  # the one not used for longest goes first
TOKENS_OF_IDENTITY_MAX: Final = 1_000  # the same: nobody drives out the tokens of others
TOKEN_IDLE_US: Final = 12 * 3600 * 1_000_000
PROVEN_MAX: Final = 1_000  # passwords that were right
PROVEN_US: Final = 60_000_000

_LOG_IN: Final = "send Basic credentials, a token of the handshake, or `Bearer` and an API key"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked, and from where. `identity` is what `access.current` wants."""

    identity: str
    name: str
    peer: str


class Login:
    """All methods with an underscore run on the loop thread, the others in a thread of gRPC."""

    def __init__(
        self, broker: Broker | FollowerBroker, bridge: Bridge, entropy: Callable[[int], bytes], failures_per_minute: int
    ) -> None:
        self.broker = broker
        self._bridge = bridge
        self._entropy = entropy
        self._secret = entropy(32)
        self._failures = Failures(failures_per_minute)
        self._tokens: OrderedDict[str, tuple[str, int]] = OrderedDict()  # digest of the token: identity, used last
        self._issued: Counter[str] = Counter()  # tokens by identity
        self._proven: OrderedDict[bytes, tuple[str, int]] = OrderedDict()  # keyed hash: identity, when
        self.failed = 0

    def handshake(self, header: str) -> str:
        """The token for these credentials."""
        caller = self.who(header, "")
        return self._bridge.ask(lambda: self._issue(caller))

    def who(self, header: str, peer: str) -> Caller:
        return self._bridge.wait_for(lambda: self._who(header, peer))

    # -- on the loop -----------------------------------------------------------------------------------------------

    async def _who(self, header: str, peer: str) -> Caller:
        if isinstance(self.broker, FollowerBroker):
            self.broker.follow()  # whoever the leader has revoked is unknown here, too
        kind, _, rest = header.partition(" ")
        if not header or len(header) > HEADER_BYTES_MAX:
            raise AuthError("no credentials were sent" if not header else "the credentials are too long", hint=_LOG_IN)
        if kind.lower() == "basic":
            return await self._password(*_basic(rest.strip()), peer)
        if kind.lower() == "bearer":
            return self._bearer(rest.strip(), peer)
        raise AuthError("the authorization header is neither Basic nor Bearer", hint=_LOG_IN)

    def _bearer(self, token: str, peer: str) -> Caller:
        is_key = self.broker.access.current(f"key:{hash_secret(token.encode())}") is not None
        if token.startswith(TOKEN_PREFIX) and not is_key:
            return self._known_token(token, peer)
        address = _address(peer, "")
        self._check_rate(address)
        try:
            identity, principal = self.broker.authenticate(token.encode(), peer)
        except AuthError:
            self._fail(address)
            raise
        return Caller(identity, principal.name, peer)

    def _known_token(self, token: str, peer: str) -> Caller:
        monotonic, digest = self.broker.scheduler.monotonic(), hash_secret(token.encode())
        identity, used = self._tokens.get(digest, ("", 0))
        principal = self.broker.access.current(identity) if identity and monotonic - used < TOKEN_IDLE_US else None
        if principal is None:
            self._forget(digest)
            raise AuthError("the token is no longer valid", hint="log in again: authenticate_basic_token()")
        self._tokens[digest] = (identity, monotonic)
        self._tokens.move_to_end(digest)
        return Caller(identity, principal.name, peer)

    def _issue(self, caller: Caller) -> str:
        token = TOKEN_PREFIX + self._entropy(TOKEN_BYTES).hex()
        if self._issued[caller.identity] >= TOKENS_OF_IDENTITY_MAX:
            self._forget(next(digest for digest, (whose, _) in self._tokens.items() if whose == caller.identity))
        elif len(self._tokens) >= TOKENS_MAX:
            self._forget(next(iter(self._tokens)))
        self._tokens[hash_secret(token.encode())] = (caller.identity, self.broker.scheduler.monotonic())
        self._issued[caller.identity] += 1
        return token

    def _forget(self, digest: str) -> None:
        identity, _ = self._tokens.pop(digest, ("", 0))
        self._issued[identity] -= 1
        if self._issued[identity] <= 0:
            del self._issued[identity]

    async def _password(self, name: str, password: bytes, peer: str) -> Caller:
        address = _address(peer, name)
        proof = hmac.digest(self._secret, name.encode() + b"\0" + password, "sha256")
        identity, since = self._proven.get(proof, ("", 0))
        if not identity:  # who was right before is not kept out by others who guess at the same name
            self._check_rate(address)
        if identity and self.broker.scheduler.monotonic() - since < PROVEN_US:
            principal = self.broker.access.current(identity)
            if principal is not None:
                return Caller(identity, principal.name, peer)
        try:
            identity, principal = await self.broker.users.authenticate_password(name, password, peer=peer)
        except AuthError:
            self._proven.pop(proof, None)
            self._fail(address)
            raise
        self._proven[proof] = (identity, self.broker.scheduler.monotonic())
        self._proven.move_to_end(proof)
        if len(self._proven) > PROVEN_MAX:
            self._proven.popitem(last=False)
        return Caller(identity, principal.name, peer)

    def _check_rate(self, address: str) -> None:
        if self._failures.blocked(address, self.broker.scheduler.monotonic()):
            raise Busy(f"too many failed authentications of {address}", hint="try again in a minute")

    def _fail(self, address: str) -> None:
        self.failed += 1
        self._failures.add(address, self.broker.scheduler.monotonic())


class Headers(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """Of one call: the credentials that came, or (handshake) the token that goes."""

    def __init__(self, header: str, token: str) -> None:
        super().__init__()
        self.header = header
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {HEADER: f"Bearer {self._token}"} if self._token else {}


class LoginFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Sees every call before its handler does."""

    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> Headers:
        found = next((values for name, values in headers.items() if name.lower() == HEADER), [])
        header = found[0] if found and isinstance(found[0], str) else ""
        token = ""
        if info.method == flight.FlightMethod.HANDSHAKE:
            try:
                token = self._login.handshake(header)
            except Exception as error:
                raise to_flight(error) from None
        return Headers(header, token)


class NoHandshakePayload(flight.ServerAuthHandler):  # type: ignore[misc]  # pyarrow ships no types
    """Flight answers a handshake only if there is such a handler; who somebody is was found out before, by the header."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """The header has said everything."""

    def is_valid(self, token: bytes) -> bytes:
        return b""


def _basic(text: str) -> tuple[str, bytes]:
    try:
        name, colon, password = base64.b64decode(text, validate=True).partition(b":")
        if colon:
            return name.decode(), password
    except (binascii.Error, ValueError):
        pass
    raise AuthError("the Basic credentials are not base64 of USER:PASSWORD", hint=_LOG_IN)


def _address(peer: str, name: str) -> str:
    """What failures are counted against."""
    return peer.rpartition(":")[0] or f"user {name!r}"


def peer_of(text: str) -> str:
    """gRPC's word for the other end ("ipv4:127.0.0.1:5000", "ipv6:%5B::1%5D:5000") as HOST:PORT."""
    _, _, place = text.partition(":")
    return place.replace("%5B", "[").replace("%5D", "]")
