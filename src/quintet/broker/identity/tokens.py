"""Verifies JSON web tokens: a signed text that names a subject, the key of a queue and the permissions.

A token is judged by rules fixed here and in the configuration, never by what it says of itself (RFC 8725). The steps
run in this order, and each needs the one before:

    size -> three parts -> header -> signature (canonical, then each secret) -> claims -> times

    HEADER . CLAIMS . SIGNATURE         each base64url without padding, in the one spelling its bytes have
    {"alg":"HS256","typ":"JWT"}         alg, typ and kid; whatever else a header can carry is refused
    {"sub":"ann","queue_key":"k","permissions":["publish"],"exp":1900000000}

The header is read with no key in sight, and its `alg` only chooses among the algorithms of the configuration. `kid` is
ignored: it never leads to a key, a file or an address. Claims are read after the signature is known to be right. A time
is a number of seconds, also with a fraction (RFC 7519, 2); what is no finite number is no JSON here. `sub` may be missing: the
document of Fast only shows it in examples. A claim that is not named above is ignored; `iss` and `aud` are looked at when
the configuration names them.

RFC 8725 wants one algorithm for a key: that is the default, and listing several is the operator's choice. The clock is
a parameter. Nothing here logs, and no error repeats a part of a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from quintet.broker.identity import jose
from quintet.broker.identity.jose import SECOND
from quintet.model.errors import ConfigError, TooLarge
from quintet.model.json_value import JsonObject

if TYPE_CHECKING:
    from jwt.algorithms import HMACAlgorithm

TOKEN_BYTES_MAX: Final = 255  # its length is one byte in the packets of Fast
QUEUE_KEY_BYTES_MAX: Final = 255
LEEWAY_US_DEFAULT: Final = 60 * SECOND

PERMISSIONS: Final = frozenset({"publish", "subscribe", "rotate", "create"})
SIGNATURE_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
SECRET_BYTES_MIN: Final = SIGNATURE_BYTES  # RFC 7518, section 3.2: as long as the hash

# Why a token is refused: the name of the rule, and what is said about it.
RULES: Final = jose.RULES | {
    "no secret": "no token can be verified, because the broker has no secret for tokens",
    "queue_key": "its queue_key is not a string of 1 to 255 bytes",
    "permissions": "its permissions are neither a string nor an array of strings",
}
HINTS: Final = jose.HINTS | {
    "no secret": "give [[tokens.secrets]] in the configuration",
    "algorithm": "sign with one of tokens.algorithms: HS256 unless the configuration says otherwise",
    "signature": "sign with a secret of [[tokens.secrets]]",
}


@cache
def hash_of(algorithm: str) -> "HMACAlgorithm":
    """PyJWT's HMAC of an algorithm in SIGNATURE_BYTES."""
    from jwt.algorithms import HMACAlgorithm  # late: cryptography, 38 ms

    return HMACAlgorithm(getattr(HMACAlgorithm, algorithm.replace("HS", "SHA")))


def refuse(rule: str) -> NoReturn:
    jose.refuse(rule, RULES, HINTS)


class Claims(msgspec.Struct, frozen=True):
    """What a token that was accepted says. Times are microseconds since 1970, 0 for none; the leeway is in them."""

    subject: str  # "": it names nobody
    key: bytes
    permissions: frozenset[str]
    expires: int = 0  # from here on it is refused
    not_before: int = 0  # until here it is


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """By what tokens are judged. Raises ConfigError for a secret that is too short for its algorithms, or no secret at
    all: a public key, a certificate, a key in JSON."""

    secrets: tuple[bytes, ...] = dataclass_field(default=(), repr=False)
    algorithms: tuple[str, ...] = ("HS256",)
    leeway_us: int = LEEWAY_US_DEFAULT
    issuer: str = ""
    audience: str = ""
    require_exp: bool = False
    token_bytes_max: int = TOKEN_BYTES_MAX

    def __post_init__(self) -> None:
        if not self.algorithms or len(set(self.algorithms)) < len(self.algorithms):
            raise ConfigError(
                "the list of algorithms for tokens is empty, or has one of them twice", hint="algorithms = ['HS256']"
            )
        if self.leeway_us < 0:
            raise ConfigError("the leeway of tokens is negative", hint="use 0 or more")
        for algorithm in self.algorithms:
            for number, secret in enumerate(self.secrets):
                prepared_secret(secret, algorithm, f"secret {number} of tokens")


def prepared_secret(secret: bytes, algorithm: str, what: str) -> bytes:
    """The secret, if it may be used with this algorithm."""
    if algorithm not in SIGNATURE_BYTES:
        known = ", ".join(SIGNATURE_BYTES)
        raise ConfigError(f"{algorithm!r} is not an algorithm for tokens", hint=f"use one of {known}")
    least = SECRET_BYTES_MIN[algorithm]
    if len(secret) < least:
        raise ConfigError(
            f"{what} has {len(secret)} bytes, {algorithm} needs at least {least}",
            hint=f"openssl rand -hex {least} makes one",
        )
    from jwt.exceptions import InvalidKeyError  # late, see hash_of

    try:
        return hash_of(algorithm).prepare_key(secret)
    except InvalidKeyError:
        raise ConfigError(
            f"{what} is a public key, a certificate or a key in JSON, which others may know",
            hint=f"openssl rand -hex {least} makes a secret",
        ) from None


# -- verifying --------------------------------------------------------------------------------------------------------


class Tokens:
    """Verifies tokens. `epoch` rises when the options change: who remembers a verdict asks again."""

    def __init__(self, options: TokenOptions | None = None) -> None:
        self.epoch = 0
        self.options = TokenOptions()
        self._keys: dict[str, tuple[bytes, ...]] = {}
        self.replace(options or self.options)

    def replace(self, options: TokenOptions) -> None:
        self.options = options
        self._keys = {
            name: tuple(prepared_secret(secret, name, "a secret of tokens") for secret in options.secrets)
            for name in options.algorithms
        }
        self.epoch += 1

    def verify(self, token: bytes, now: int) -> Claims:
        """What the token says, if every rule holds at `now`; else AuthError with the rule. Claims.expires tells how long
        the answer may be remembered."""
        return check_claims(self.opened(token), self.options, now)

    def opened(self, token: bytes) -> JsonObject:
        """The claims of a token whose signature is right, whatever they are; else AuthError with the rule."""
        options = self.options
        if not options.secrets:
            refuse("no secret")
        header, claims, signature = jose.split(token, options.token_bytes_max)
        algorithm = check_header(jose.decoded(header, "header json"), options.algorithms)
        signed = token[: len(header) + 1 + len(claims)]
        _check_signature(signed, jose.bytes_of(signature), algorithm, self._keys[algorithm])
        return jose.decoded(claims, "claims json")


def _check_signature(signed: bytes, signature: bytes, algorithm: str, keys: tuple[bytes, ...]) -> None:
    """PyJWT's HMAC, compared in constant time, with each secret in turn."""
    if len(signature) != SIGNATURE_BYTES[algorithm]:
        refuse("signature size")
    hashed = hash_of(algorithm)
    if not any(hashed.verify(signed, key, signature) for key in keys):
        refuse("signature")


def check_header(header: JsonObject, algorithms: tuple[str, ...]) -> str:
    """The algorithm of a token whose header follows the rules."""
    algorithm = header.get("alg")
    if algorithm not in algorithms or type(algorithm) is not str:
        refuse("unsigned" if jose.says_unsigned(algorithm) else "algorithm")
    jose.check_header_fields(header)
    return algorithm


def check_claims(claims: JsonObject, options: TokenOptions, now: int) -> Claims:
    """The claims, if they follow the rules at `now`; the signature is not looked at here."""
    subject = jose.subject(claims["sub"]) if "sub" in claims else ""
    key = _queue_key(claims.get("queue_key"))
    permissions = _permissions(claims.get("permissions", ()))
    expires, not_before, _ = jose.seconds(claims, "exp"), jose.seconds(claims, "nbf"), jose.seconds(claims, "iat")
    if expires is None and options.require_exp:
        refuse("no exp")
    jose.check_party(claims, options.issuer, options.audience)
    until, since = jose.check_times(expires, not_before, options.leeway_us, now)
    return Claims(subject, key, permissions, until, since)


def _queue_key(value: object) -> bytes:
    if type(value) is not str:
        refuse("queue_key")
    try:
        found = value.encode()
    except UnicodeEncodeError:
        refuse("queue_key")
    if not 1 <= len(found) <= QUEUE_KEY_BYTES_MAX:
        refuse("queue_key")
    return found


def _permissions(value: object) -> frozenset[str]:
    """Those that are known; a token may speak of others."""
    words = (value,) if type(value) is str else value
    if not isinstance(words, list | tuple) or not all(type(word) is str for word in words):
        refuse("permissions")
    return PERMISSIONS.intersection(words)


# -- making and looking at --------------------------------------------------------------------------------------------


class Inspected(msgspec.Struct, frozen=True):
    """What a token says of itself; nothing of it is verified. Sizes are bytes of JSON: a claim's name, value and comma."""

    header: JsonObject
    claims: JsonObject
    sizes: dict[str, int]
    size: int


def inspect(token: bytes, bytes_max: int = 16 * 1024) -> Inspected:
    """Take a token apart without verifying it; AuthError if it is none."""
    header, claims, signature = jose.split(token, bytes_max)
    found = jose.decoded(claims, "claims json")
    jose.bytes_of(signature)
    return Inspected(jose.decoded(header, "header json"), found, claim_sizes(found), len(token))


def claim_sizes(claims: Mapping[str, object]) -> dict[str, int]:
    """Bytes of JSON that each claim takes: its name, its value and a comma."""
    return {name: len(jose.json_text({name: value}, "surrogatepass")) - 1 for name, value in claims.items()}


def mint(
    secret: bytes,
    claims: Mapping[str, object],
    algorithm: str = "HS256",
    *,
    typ: bool = True,
    bytes_max: int = TOKEN_BYTES_MAX,
) -> bytes:
    """A token with these claims in this order. Raises TooLarge, with the claim to shorten, if it is over `bytes_max`
    bytes, ConfigError for a secret that no broker takes, and BadRequest for claims that JSON cannot hold."""
    key = prepared_secret(secret, algorithm, "the secret")
    header = jose.spelled(jose.json_text({"alg": algorithm, "typ": "JWT"} if typ else {"alg": algorithm}))
    said = jose.json_text(claims)
    signed = header + b"." + jose.spelled(said)
    token = signed + b"." + jose.spelled(hash_of(algorithm).sign(signed, key))
    if len(token) > bytes_max:
        sizes = claim_sizes(claims)
        longest = max(sizes, key=sizes.__getitem__)
        room = (bytes_max - len(token) + len(jose.spelled(said))) * 3 // 4
        raise TooLarge(
            f"the token would have {len(token)} bytes, {len(token) - bytes_max} over the {bytes_max} that fit; its longest "
            f"claim is {longest} with {sizes[longest]} bytes",
            hint=f"shorten the claims by {len(said) - room} bytes"
            + ("; without typ there is room for 12 more" if typ else ""),
        )
    return token
