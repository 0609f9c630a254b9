"""Verifies the tokens of Felix tenants: a signed text that names a subject, its tenant and its permissions.

    HEADER . CLAIMS . SIGNATURE             taken apart by quintet.broker.identity.jose, as the tokens of the Fast door are
    {"alg":"EdDSA","typ":"JWT","kid":"k1"}
    {"iss":"felix-auth","aud":"felix-broker","sub":"ann","tid":"t1","exp":1900000000,
     "perms":["stream.publish:stream:t1/default/*"]}

The steps run in this order, and each needs the one before:

    size -> three parts -> header -> claims as JSON -> ring -> algorithm -> signature -> claims -> times

No signature can be checked before a key is chosen, and the key depends on the tenant. So `tid` is read from claims that
nobody vouches for yet, and used for one thing: to choose the ring of keys. A lie about it only chooses the ring in which
the signature must be right, and the claims that count later are the very bytes that were signed.

    ring        of a tenant with keys of its own: those keys, and nothing else
                of every other tenant: the keys for all, and the secrets
    algorithm   EdDSA if the ring has keys, HS256 if it has secrets. `alg` chooses between the two kinds, and each kind is
                only ever given to its own algorithm: a public key is never a secret, nor a secret a public key
    kid         a word to look up in the ring. If it names a key there, that key alone is tried, else all of them; it is no
                file and no address. Secrets have no kid

What a token allows lies within its tenant, whatever its permissions say. `tenant.manage` and `ns.manage` stand for
themselves here: they imply no right to streams or caches. Every error is an AuthError with the rule, as for Fast, and
repeats nothing of the token. The clock is a parameter, and files are read elsewhere (quintet.config.jwks).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from quintet.broker.identity import jose
from quintet.broker.identity.tokens import LEEWAY_US_DEFAULT, SIGNATURE_BYTES, hash_of, prepared_secret
from quintet.model.errors import ConfigError, TooLarge
from quintet.model.json_value import JsonObject

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TOKEN_BYTES_MAX: Final = 16 * 1024
TENANT_BYTES_MAX: Final = 200
KEYS_MAX: Final = 16  # of one ring: a token without a kid is tried with each
KEY_BYTES: Final = 32
KID_BYTES_MAX: Final = 256
JWKS_BYTES_MAX: Final = 64 * 1024
EDDSA_SIGNATURE_BYTES: Final = 64
CACHED_TOKENS_MAX: Final = 512  # verified tokens remembered; with the next line at most 2 MiB of them
CACHED_TOKEN_BYTES_MAX: Final = 4 * 1024
EDDSA: Final = "EdDSA"
HS256: Final = "HS256"
ISSUER_DEFAULT: Final = "felix-auth"
AUDIENCE_DEFAULT: Final = "felix-broker"

# What a permission may allow, and the kind of resource it is about. Other actions are passed over: a token may speak of
# parts of Felix that are not here.
ACTIONS: Final = {
    "stream.publish": "stream",
    "stream.subscribe": "stream",
    "stream.manage": "stream",
    "cache.read": "cache",
    "cache.write": "cache",
    "cache.manage": "cache",
    "ns.manage": "namespace",
    "tenant.manage": "tenant",
    "rbac.view": "tenant",
    "rbac.policy.manage": "tenant",
    "rbac.assignment.manage": "tenant",
}
PARTS: Final = {"tenant": 1, "namespace": 2, "stream": 3, "cache": 3}  # names between the slashes of a resource

RULES: Final = jose.RULES | {
    "no key": "no token of this tenant can be verified, because the broker has no key for it",
    "tid": "its tid is not the name of a tenant",
    "perms": "its perms are not an array of strings",
    "jti": "its jti is not a string",
}
HINTS: Final = jose.HINTS | {
    "no key": "give tokens.jwks_file, [[tokens.secrets]] or the tenant's jwks_file in the configuration",
    "algorithm": "sign with EdDSA and a key of the tenant's JWKS, or with HS256 and a secret if it has no JWKS",
    "signature": "sign with a key of the tenant, and see that the broker has its public half",
    "no exp": "a token of a tenant expires: give it exp",
}


def refuse(rule: str) -> NoReturn:
    jose.refuse(rule, RULES, HINTS)


# -- what a token says ------------------------------------------------------------------------------------------------


class TenantClaims(msgspec.Struct, frozen=True):
    """What a token that was accepted says. Times are microseconds since 1970, with the leeway in them."""

    subject: str
    tenant: str
    permissions: tuple[str, ...]  # "action:pattern", those with a known action
    expires: int  # from here on it is refused
    not_before: int = 0  # until here it is

    def allows(self, action: str, resource: str) -> bool:
        """Whether a permission covers "stream:t1/default/orders" and the like. The resource is of the token's own tenant
        and of the kind the action is about, or the answer is no."""
        kind, _, path = resource.partition(":")
        names = path.split("/")
        if ACTIONS.get(action) != kind or len(names) != PARTS[kind] or names[0] != self.tenant or not all(names):
            return False
        for permission in self.permissions:
            allowed, _, pattern = permission.partition(":")
            if allowed == action and matches(pattern, resource):
                return True
        return False


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern covers the whole text: `*` any run of characters, everything else itself. Each piece between two
    stars is looked for once, behind the one before: the first place is as good as any later one, so none is tried again."""
    first, *pieces = pattern.split("*")
    if not pieces:
        return pattern == text
    last = pieces.pop()
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    for piece in pieces:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


# -- keys -------------------------------------------------------------------------------------------------------------

# The curve of Ed25519: -x^2 + y^2 = 1 + D x^2 y^2 over the integers modulo P (RFC 8032, section 5.1).
P: Final = (1 << 255) - 19
D: Final = -121665 * pow(121666, -1, P) % P
COFACTOR_BITS: Final = 3  # points whose order divides 8 sign whatever one likes


def point_fault(key: bytes) -> str:
    """What is wrong with an Ed25519 public key: "" if nothing is. OpenSSL would take a point of small order, for which
    anybody can make signatures; all zeros is one of them. Only y and x^2 are needed to tell."""
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    if y >= P:
        return "is not in its one spelling"
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    if pow(square, (P - 1) // 2, P) == P - 1:
        return "is no point of the curve"
    for _ in range(COFACTOR_BITS):
        y = (y * y + square) * pow(1 - D * square * y * y, -1, P) % P
        square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    return "is a point of small order, for which anybody can sign" if y == 1 else ""


class TenantKey(msgspec.Struct, frozen=True):
    """One Ed25519 public key. Raises ConfigError for bytes that are none, or none that proves anything."""

    public: bytes
    kid: str = ""

    def __post_init__(self) -> None:
        if len(self.public) != KEY_BYTES:
            raise ConfigError(f"an Ed25519 public key has {KEY_BYTES} bytes, this one has {len(self.public)}")
        fault = point_fault(self.public)
        if fault:
            raise ConfigError(f"this Ed25519 public key {fault}", hint="make a pair with `quintet token keygen`")


def read_jwks(data: bytes) -> tuple[TenantKey, ...]:
    """The keys of a JSON Web Key Set (RFC 7517) of Ed25519 keys (RFC 8037). An empty set is one: nobody gets in. ConfigError
    says what is wrong; it repeats no key."""
    if len(data) > JWKS_BYTES_MAX:
        raise ConfigError(f"a key set has at most {JWKS_BYTES_MAX} bytes")
    found = jose.json_object(data)
    rows = None if found is None else found.get("keys")
    if type(rows) is not list:
        raise ConfigError('the key set is not a JSON object {"keys": [...]}, or has a name twice')
    if len(rows) > KEYS_MAX:
        raise ConfigError(f"a key set has at most {KEYS_MAX} keys here, this one has {len(rows)}")
    keys = tuple(_read_key(row, f"key {number}") for number, row in enumerate(rows))
    _check_kids(keys)
    return keys


def _read_key(row: object, what: str) -> TenantKey:
    if type(row) is not dict:
        raise ConfigError(f"{what} is not a JSON object")
    if "d" in row:
        raise ConfigError(
            f"{what} is a private key: it has a member d",
            hint="keep it with who signs; the broker needs the public half",
        )
    wanted = {"kty": ("OKP",), "crv": ("Ed25519",), "use": ("sig", None), "alg": (EDDSA, "Ed25519", None)}
    for name, values in wanted.items():
        value = row.get(name)
        if (value is None and name in row) or not any(value == each for each in values):
            raise ConfigError(f"{what}: {name} is not {' or '.join(each for each in values if each)}")
    kid, x = row.get("kid", ""), row.get("x")
    if type(kid) is not str or ("kid" in row and not 1 <= len(kid.encode(errors="replace")) <= KID_BYTES_MAX):
        raise ConfigError(f"{what}: kid is not a string of 1 to {KID_BYTES_MAX} bytes")
    return TenantKey(_public(x, what), kid)


def _public(x: object, what: str) -> bytes:
    try:
        found = jose.bytes_of(x.encode()) if type(x) is str else b""
    except (PermissionError, UnicodeEncodeError):  # the AuthError of a spelling; here it is the operator's file
        found = b""
    if len(found) != KEY_BYTES:
        raise ConfigError(f"{what}: x is not {KEY_BYTES} bytes of base64url in its one spelling")
    fault = point_fault(found)
    if fault:
        raise ConfigError(f"{what}: x {fault}")
    return found


def _check_kids(keys: tuple[TenantKey, ...]) -> None:
    named = [key.kid for key in keys if key.kid]
    if len(set(named)) < len(named):
        raise ConfigError("two keys of the key set have the same kid")


# -- options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TenantTokenOptions:
    """By what tokens of tenants are judged. `keys` are those of each tenant, under "" those of all that are not named.
    Raises ConfigError for a secret that is too short or known to others, and for too many keys."""

    secrets: tuple[bytes, ...] = dataclass_field(default=(), repr=False)
    leeway_us: int = LEEWAY_US_DEFAULT
    issuer: str = ISSUER_DEFAULT
    audience: str = AUDIENCE_DEFAULT
    keys: Mapping[str, tuple[TenantKey, ...]] = dataclass_field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.leeway_us < 0:
            raise ConfigError("the leeway of tokens is negative", hint="use 0 or more")
        for tenant, keys in self.keys.items():
            if len(keys) > KEYS_MAX:
                raise ConfigError(f"tenant {tenant!r} has {len(keys)} keys for tokens, {KEYS_MAX} are the most")
            _check_kids(keys)
        known = {form for keys in self.keys.values() for key in keys for form in _texts_of(key.public)}
        for number, secret in enumerate(self.secrets):
            prepared_secret(secret, HS256, f"secret {number} of tokens")
            if secret in known:
                raise ConfigError(
                    f"secret {number} of tokens is a public key, which others know",
                    hint="openssl rand -hex 32 makes a secret",
                )


def _texts_of(public: bytes) -> tuple[bytes, ...]:
    """The ways to write a public key that could be mistaken for a secret; PEM and JSON are refused by their look."""
    return public, jose.spelled(public), jose.spelled(public) + b"=", public.hex().encode()


# -- verifying --------------------------------------------------------------------------------------------------------


class _Ring(msgspec.Struct, frozen=True):
    """What may have signed the tokens of a tenant. Two fields, because nothing may wander from one to the other."""

    keys: tuple[tuple[str, "Ed25519PublicKey"], ...] = ()  # kid, key
    secrets: tuple[bytes, ...] = ()

    @property
    def algorithms(self) -> tuple[str, ...]:
        return ((EDDSA,) if self.keys else ()) + ((HS256,) if self.secrets else ())


class TenantTokens:
    """Verifies tokens of tenants. `epoch` rises when the options change: who remembers a verdict asks again."""

    def __init__(self, options: TenantTokenOptions | None = None) -> None:
        self.epoch = 0
        self.options = TenantTokenOptions()
        self._rings: dict[str, _Ring] = {}
        self._seen: dict[bytes, TenantClaims] = {}
        self.replace(options or self.options)

    def replace(self, options: TenantTokenOptions) -> None:
        """Judge by these from now on. What was verified before is forgotten."""
        rings = {tenant: _Ring(_loaded(keys)) for tenant, keys in options.keys.items()}
        secrets = tuple(prepared_secret(secret, HS256, "a secret of tokens") for secret in options.secrets)
        rings[""] = _Ring(_loaded(options.keys.get("", ())), secrets)
        self.options = options
        self._rings = rings
        self._seen = {}
        self.epoch += 1

    def verify(self, token: bytes, now: int) -> TenantClaims:
        """What the token says, if every rule holds at `now`; else AuthError with the rule. TenantClaims.expires tells how
        long the answer may be remembered."""
        seen = self._seen.get(token)
        if seen is not None:
            if now < seen.not_before:
                refuse("too early")
            if now < seen.expires:
                return seen
            del self._seen[token]
        claims = check_tenant_claims(self.opened(token), self.options, now)
        self._remember(token, claims)
        return claims

    def opened(self, token: bytes) -> JsonObject:
        """The claims of a token whose signature is right in the ring of its tenant; else AuthError with the rule."""
        header_part, claims_part, signature_part = jose.split(token, TOKEN_BYTES_MAX)
        header = jose.decoded(header_part, "header json")
        named, kid = check_tenant_header(header)
        claims = jose.decoded(claims_part, "claims json")
        tenant = check_tenant(claims.get("tid"))
        ring = self._rings.get(tenant, self._rings[""])
        algorithm = _algorithm(named, ring)
        signed = token[: len(header_part) + 1 + len(claims_part)]
        signature = jose.bytes_of(signature_part)
        if algorithm == EDDSA:
            _check_eddsa(signed, signature, kid, ring)
        else:
            _check_hs256(signed, signature, ring)
        return claims

    def _remember(self, token: bytes, claims: TenantClaims) -> None:
        """The oldest goes for the newest: a client shows one token on each of its streams, one right after another."""
        if len(token) > CACHED_TOKEN_BYTES_MAX:
            return
        if len(self._seen) >= CACHED_TOKENS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[bytes(token)] = claims


def _loaded(keys: tuple[TenantKey, ...]) -> tuple[tuple[str, "Ed25519PublicKey"], ...]:
    if not keys:
        return ()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # late: 25 ms

    return tuple((key.kid, Ed25519PublicKey.from_public_bytes(key.public)) for key in keys)


def check_tenant_header(header: JsonObject) -> tuple[str, str]:
    """The algorithm and the kid of a header, as far as they can be checked before the tenant is known."""
    algorithm = header.get("alg")
    if type(algorithm) is not str or algorithm not in (EDDSA, HS256):
        refuse("unsigned" if jose.says_unsigned(algorithm) else "algorithm")
    return algorithm, jose.check_header_fields(header)


def _algorithm(named: str, ring: _Ring) -> str:
    """The one of the ring's algorithms that the token names."""
    if not ring.algorithms:
        refuse("no key")
    if named not in ring.algorithms:
        refuse("algorithm")
    return named


def _check_eddsa(signed: bytes, signature: bytes, kid: str, ring: _Ring) -> None:
    if len(signature) != EDDSA_SIGNATURE_BYTES:
        refuse("signature size")
    from cryptography.exceptions import InvalidSignature  # late, see _loaded

    named = [key for name, key in ring.keys if kid and name == kid]
    for key in named or [key for _, key in ring.keys]:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            continue
        return
    refuse("signature")


def _check_hs256(signed: bytes, signature: bytes, ring: _Ring) -> None:
    if len(signature) != SIGNATURE_BYTES[HS256]:
        refuse("signature size")
    if not any(hash_of(HS256).verify(signed, secret, signature) for secret in ring.secrets):
        refuse("signature")


def check_tenant(value: object) -> str:
    """The name of a tenant as a token may give it: the first part of its topics' names."""
    if type(value) is not str or "/" in value or "\0" in value or value.startswith("__"):
        refuse("tid")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        refuse("tid")
    if not 1 <= size <= TENANT_BYTES_MAX:
        refuse("tid")
    return value


def check_tenant_claims(claims: JsonObject, options: TenantTokenOptions, now: int) -> TenantClaims:
    """The claims, if they follow the rules at `now`; the signature is not looked at here."""
    subject, tenant = jose.subject(claims.get("sub")), check_tenant(claims.get("tid"))
    permissions = _permissions(claims.get("perms", []))
    if type(claims.get("jti", "")) is not str:
        refuse("jti")
    times = [jose.seconds(claims, name) for name in ("exp", "nbf", "iat")]
    if times[0] is None:
        refuse("no exp")
    jose.check_party(claims, options.issuer, options.audience)
    until, since = jose.check_times(times[0], times[1], options.leeway_us, now)
    return TenantClaims(subject, tenant, permissions, until, since)


def _permissions(value: object) -> tuple[str, ...]:
    """Those with a known action, each once."""
    if type(value) is not list or not all(type(each) is str for each in value):
        refuse("perms")
    return tuple(dict.fromkeys(each for each in value if each.partition(":")[0] in ACTIONS))


# -- making -----------------------------------------------------------------------------------------------------------


def mint_tenant(claims: Mapping[str, object], algorithm: str, sign: Callable[[bytes], bytes], kid: str = "") -> bytes:
    """A token with these claims in this order; `sign` gives the signature of what is signed. TooLarge if no broker would
    take it, BadRequest for claims that JSON cannot hold."""
    header = {"alg": algorithm, "typ": "JWT"} | ({"kid": kid} if kid else {})
    signed = jose.spelled(jose.json_text(header)) + b"." + jose.spelled(jose.json_text(claims))
    token = signed + b"." + jose.spelled(sign(signed))
    if len(token) > TOKEN_BYTES_MAX:
        raise TooLarge(
            f"the token would have {len(token)} bytes, {TOKEN_BYTES_MAX} are the most",
            hint="say it with fewer permissions: * stands for any run of characters",
        )
    return token


def secret_signer(secret: bytes) -> Callable[[bytes], bytes]:
    """How HS256 signs with this secret. ConfigError for a secret that no broker takes."""
    key = prepared_secret(secret, HS256, "the secret")
    return lambda signed: hash_of(HS256).sign(signed, key)


def explain_permission(permission: str, tenant: str) -> tuple[str, str, str]:
    """(action, pattern, why it gives nothing to a token of this tenant: "" if it gives something), for people."""
    action, _, pattern = permission.partition(":")
    kind = ACTIONS.get(action)
    if kind is None:
        return action, pattern, "not an action of this broker"
    home = f"{kind}:{tenant}" + ("/" if PARTS[kind] > 1 else "")
    first, star, _ = pattern.partition("*")
    if not first.startswith(home) and not (star and home.startswith(first)):
        return action, pattern, f"not a {kind} of tenant {tenant}"
    if not star and not TenantClaims("", tenant, (permission,), 0).allows(action, pattern):
        return action, pattern, f"not the name of a {kind}"
    return action, pattern, ""
