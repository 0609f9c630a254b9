"""Tokens of tenants that must never be accepted, each with the rule it breaks, and those that must be.

What is wrong with any token is taken from token_corpus.py, made anew with these claims and signatures; what only tokens of
tenants can get wrong is here: the ring of keys, the two algorithms, `tid` and `perms`. Ed25519 is by the book (ed25519.py),
so what forges shares nothing with what verifies.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from quintet.broker.identity.tenant_tokens import TenantKey, TenantTokenOptions
from tests.broker import ed25519
from tests.broker import token_corpus as corpus
from tests.broker.token_corpus import ABSENT, LEEWAY_S, NOW_S, OLD_SECRET, SECRET, Forger, Kind, b64, text

SEED: Final = b"the seed of tenant keys, 32 byte"
OTHER_SEED: Final = b"the seed of another tenant's key"
PUBLIC: Final = ed25519.public_key(SEED)
OTHER_PUBLIC: Final = ed25519.public_key(OTHER_SEED)
KEY: Final = TenantKey(PUBLIC, "k1")
OTHER_KEY: Final = TenantKey(OTHER_PUBLIC, "k2")
ALGORITHMS: Final = ("EdDSA", "HS256")
# How a public key is known to everybody: what libraries once took for a secret.
PREFIX: Final = bytes.fromhex("302a300506032b6570032100")
DER: Final = PREFIX + PUBLIC
PEM: Final = b"-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(DER) + b"\n-----END PUBLIC KEY-----\n"
JWK: Final[dict[str, Any]] = {"kty": "OKP", "crv": "Ed25519", "x": b64(PUBLIC).decode(), "kid": "k1"}
CLAIMS: Final[dict[str, Any]] = {
    "iss": "felix-auth",
    "aud": "felix-broker",
    "sub": "sub-marker",
    "tid": "t1",
    "exp": NOW_S + 900,
    "perms": ["stream.publish:stream:t1/default/*"],
}
TRAVERSALS: Final = (
    "../../../../dev/null",
    "/dev/null",
    "k1/../k2",
    "file:///etc/passwd",
    "' OR 1=1 --",
    "\0",
    "*",
    "k1\0",
)


class TenantForger(Forger):
    """Makes tokens of tenants. For EdDSA a `secret` that is not the usual one stands for another key."""

    def __init__(self, algorithm: str) -> None:
        super().__init__(algorithm)
        self.claims = CLAIMS

    def sign(self, signed: bytes, secret: bytes = SECRET, algorithm: str = "") -> bytes:
        if (algorithm or self.algorithm) != "EdDSA":
            return super().sign(signed, secret, algorithm)
        return ed25519.sign(SEED if secret == SECRET else hashlib.sha256(secret).digest(), signed)


def options(algorithm: str, **changed: Any) -> TenantTokenOptions:
    """The ring of every tenant has one kind of key; t2 has a key of its own."""
    plain: dict[str, Any] = {"keys": {"": (KEY,), "t2": (OTHER_KEY,)}}
    if algorithm == "HS256":
        plain = {"secrets": (SECRET,), "keys": {"t2": (OTHER_KEY,)}}
    return TenantTokenOptions(**(plain | changed))


def forged(algorithm: str) -> list[Kind]:
    forger = TenantForger(algorithm)
    shared = [corpus.headers, corpus.header_texts, corpus.spellings, corpus.shapes, corpus.claim_texts, corpus.subjects]
    shared += [corpus.times, corpus.issuers, corpus.audiences]
    found = [_judged_earlier(kind) for part in shared for kind in part(forger) if "token_bytes_max" not in kind.options]
    own = (algorithms, rings, signatures, confusions, tenants, permissions, parties, times)
    found += [kind for part in own for kind in part(forger)]
    if algorithm == "HS256":
        found += [_judged_earlier(kind) for kind in corpus.signatures(forger)]
    return found


def _judged_earlier(kind: Kind) -> Kind:
    """Claims are read before the signature here, and the tenant before the user."""
    early = {"claims detached": "claims json", "no claims but the braces": "tid"}
    return replace(kind, rule=early.get(kind.name, kind.rule))


def algorithms(forger: Forger) -> Iterator[Kind]:
    claims = b64(text(forger.claims))
    for number, name in enumerate(("none", "None", "NONE", "nOnE", "none ", " none", "", "\tnone")):
        header = b64(text({"alg": name, "typ": "JWT"}))
        yield Kind(f"alg none, spelling {number}, no signature", "unsigned", header + b"." + claims + b".")
        yield Kind(f"alg none, spelling {number}, signed", "unsigned", forger.with_header(alg=name))
    yield Kind("alg null", "unsigned", forger.with_header(alg=None))
    yield Kind("alg absent", "unsigned", forger.with_header(alg=ABSENT))
    others = (
        "RS256",
        "RS512",
        "PS256",
        "ES256",
        "ES256K",
        "Ed25519",
        "Ed448",
        "HS1",
        "HS384",
        "HS512",
        "dir",
        "A128KW",
    )
    for name in others:
        yield Kind(f"alg {name}, signed as ever", "algorithm", forger.with_header(alg=name))
    (other,) = set(ALGORITHMS) - {forger.algorithm}
    good = TenantForger(other).token()
    yield Kind(f"a good {other} token that is not accepted here", "algorithm", good)
    yield Kind(f"signed as ever, but says {other}", "algorithm", forger.with_header(alg=other))
    name = forger.algorithm
    odd: tuple[object, ...] = (name.lower(), name + " ", name + "\0", [name], {name: name}, 256, True, 1.5, ["none"])
    for number, alg in enumerate(odd):
        yield Kind(f"alg that is nearly right, {number}", "algorithm", forger.with_header(alg=alg))
    yield Kind("a token of Fast", "tid", TenantForger("HS256").token(claims=corpus.CLAIMS | {"exp": NOW_S + 60}))


def rings(forger: Forger) -> Iterator[Kind]:
    """The keys of one tenant say nothing about another."""
    second = b64(text({"alg": "EdDSA", "typ": "JWT", "kid": "k2"})) + b"." + b64(text(forger.claims))
    token = second + b"." + b64(ed25519.sign(OTHER_SEED, second))
    rule = "signature" if forger.algorithm == "EdDSA" else "algorithm"
    yield Kind("the key and kid of another tenant", rule, token)
    yield Kind("the global key for a tenant with its own", rule, forger.with_claims(tid="t2"))
    both = {"secrets": (SECRET,), "keys": {"": (KEY,), "t2": (OTHER_KEY,)}}
    yield Kind("the same, where both kinds are global", rule, forger.with_claims(tid="t2"), both)
    yield Kind("a tenant whose key set is empty", "no key", forger.token(), {"keys": {"t1": (), "": (KEY,)}})
    yield Kind("no key at all", "no key", forger.token(), {"keys": {}, "secrets": ()})
    rest: dict[str, Any] = {"keys": {"": (OTHER_KEY,)}} if forger.algorithm == "EdDSA" else {"secrets": (OLD_SECRET,)}
    yield Kind("a key that was taken away", "signature", forger.with_header(kid="k1"), rest)
    if forger.algorithm == "EdDSA":
        wrong = {"keys": {"": (KEY, OTHER_KEY)}}
        yield Kind("a kid that names another key", "signature", forger.with_header(kid="k2"), wrong)
        many = {"keys": {"": tuple(TenantKey(ed25519.public_key(bytes([each] * 32))) for each in range(16))}}
        yield Kind("none of sixteen keys", "signature", forger.token(), many)
    for kid in TRAVERSALS:
        header = forger.header | {"kid": kid}
        yield Kind(f"kid {kid!r} and another key", "signature", forger.token(header, secret=kid.encode() or b"x"))


def signatures(forger: Forger) -> Iterator[Kind]:
    good = forger.token()
    signed, _, last = good.rpartition(b".")
    size = 64 if forger.algorithm == "EdDSA" else 32
    right = forger.sign(signed)
    for what, value in {
        "nothing": b"",
        "a byte less": right[:-1],
        "a byte more": right + b"\0",
        "twice": right * 2,
    }.items():
        yield Kind(f"signature: {what}", "signature size", signed + b"." + b64(value))
    values = {"zeros": bytes(size), "ones": b"\xff" * size, "backwards": right[::-1], "of nothing": forger.sign(b"")}
    values |= {"of the claims": forger.sign(signed.split(b".")[1]), "of more": forger.sign(signed + b".")}
    if forger.algorithm == "EdDSA":
        s = right[32:]
        values |= {"S + L": ed25519.again(right), "R and S swapped": s + right[:32], "S zero": right[:32] + bytes(32)}
        values |= {"S = L": right[:32] + ed25519.L.to_bytes(32, "little"), "high bits of S": right[:-1] + b"\xff"}
        values |= {"made for the neutral key": ed25519.sign_for_anybody(signed), "the public key": PUBLIC + s}
        values |= {"R of another sign": right[:31] + bytes([right[31] ^ 0x80]) + s}
        for number, point in enumerate(ed25519.small_order()):
            values[f"R of small order {number}"] = ed25519.encode(point) + s
            values[f"R of small order {number}, S zero"] = ed25519.encode(point) + bytes(32)
        values["R not in its one spelling"] = (ed25519.P + 1).to_bytes(32, "little") + bytes(32)
    for what, value in values.items():
        yield Kind(f"signature: {what}", "signature", signed + b"." + b64(value))
    other = forger.with_claims(sub="somebody-else").split(b".")
    yield Kind("the signature of another token", "signature", signed + b"." + other[2])
    yield Kind(
        "the claims of another token of the tenant", "signature", b".".join([signed.split(b".")[0], other[1], last])
    )
    yield Kind("signed with another key", "signature", forger.token(secret=OLD_SECRET))


def confusions(forger: Forger) -> Iterator[Kind]:
    """What everybody knows, used as the secret; and a secret used as a key."""
    hs256 = TenantForger("HS256")
    rule = "algorithm" if forger.algorithm == "EdDSA" else "signature"
    known = {
        "bytes": PUBLIC, "base64url": b64(PUBLIC), "hex": PUBLIC.hex().encode(), "DER": DER, "PEM": PEM,
        "PEM without its end": PEM.strip(), "JWK": text(JWK), "JWK set": text({"keys": [JWK]}), "JWK with spaces": json.dumps(JWK).encode(),
        "kid": b"k1", "nothing": b"", "the word": b"secret", "zeros": bytes(32),
    }  # fmt: skip
    for what, secret in known.items():
        yield Kind(f"HS256 with the public key as secret: {what}", rule, hs256.token(secret=secret))
    signed = b64(text({"alg": "EdDSA", "typ": "JWT"})) + b"." + b64(text(forger.claims))
    rule = "signature" if forger.algorithm == "EdDSA" else "algorithm"
    for what, seed in {"the secret": SECRET[:32], "zeros": bytes(32), "the public key": PUBLIC}.items():
        yield Kind(f"EdDSA with {what} as a seed", rule, signed + b"." + b64(ed25519.sign(seed, signed)))


def tenants(forger: Forger) -> Iterator[Kind]:
    odd: dict[str, object] = {
        "absent": ABSENT, "null": None, "empty": "", "number": 1, "true": True, "list": ["t1"], "object": {"t1": 1},
        "slash": "t1/default", "only a slash": "/", "slash behind": "t1/", "zero": "t1\0", "201 bytes": "t" * 201,
        "101 letters of two bytes": "\u00e9" * 101, "half a pair": "\ud800", "the broker's own": "__t1",
    }  # fmt: skip
    for what, tid in odd.items():
        yield Kind(f"tid: {what}", "tid", forger.with_claims(tid=tid))
    yield Kind("tid in another case", "tid", forger.with_claims(tid=ABSENT, TID="t1"))
    yield Kind("tid twice", "claims json", forger.token(claims=text(forger.claims)[:-1] + b',"tid":"t2"}'))
    yield Kind(
        "tid twice, one escaped", "claims json", forger.token(claims=text(forger.claims)[:-1] + b',"t\\u0069d":"t2"}')
    )


def permissions(forger: Forger) -> Iterator[Kind]:
    allowed = CLAIMS["perms"][0]
    values: tuple[object, ...] = (
        None,
        1,
        True,
        allowed,
        "",
        {allowed: True},
        [allowed, 1],
        [allowed, None],
        [[allowed]],
        1.5,
    )
    for number, perms in enumerate(values):
        yield Kind(f"perms that are none, {number}", "perms", forger.with_claims(perms=perms))
    for number, jti in enumerate((1, None, ["x"], True, 1.5)):
        yield Kind(f"jti that is none, {number}", "jti", forger.with_claims(jti=jti))


def parties(forger: Forger) -> Iterator[Kind]:
    for number, iss in enumerate(
        (ABSENT, None, "", "felix", "felix-auth ", "felix-auth2", "FELIX-AUTH", ["felix-auth"], 1)
    ):
        yield Kind(f"issuer by default, {number}", "iss", forger.with_claims(iss=iss))
    values: tuple[object, ...] = (
        ABSENT,
        None,
        "",
        "felix",
        "broker",
        "felix-broker2",
        "xfelix-broker",
        "felix-brok",
        "*",
    )
    values += (
        "felix-broker,other",
        "felix-broker other",
        [],
        ["felix"],
        ["felix-broker2", "other"],
        ["felix-broker", 1],
    )
    values += ([["felix-broker"]], {"felix-broker": 1}, True)
    for number, aud in enumerate(values):
        yield Kind(f"audience by default, {number}", "aud", forger.with_claims(aud=aud))


def times(forger: Forger) -> Iterator[Kind]:
    yield Kind("no subject", "sub", forger.with_claims(sub=ABSENT))
    yield Kind("no exp", "no exp", forger.with_claims(exp=ABSENT))
    yield Kind("exp in another case", "no exp", forger.with_claims(exp=ABSENT, EXP=NOW_S + 60))
    yield Kind("exp null", "exp", forger.with_claims(exp=None))
    exact = {"leeway_us": 0}
    yield Kind("expires now, no leeway", "expired", forger.with_claims(exp=NOW_S), exact)
    yield Kind("valid in a second, no leeway", "too early", forger.with_claims(nbf=NOW_S + 1), exact)


def good(algorithm: str) -> list[Kind]:
    """What must be accepted, as without it a verifier that says no to everything would do. `rule` is empty."""
    forger = TenantForger(algorithm)
    found = {
        "the plain one": forger.token(),
        "without typ": forger.with_header(typ=ABSENT),
        "with its kid": forger.with_header(kid="k1"),
        "a kid nobody knows": forger.with_header(kid="../../key"),
        "an empty kid": forger.with_header(kid=""),
        "expired within the leeway": forger.with_claims(exp=NOW_S - LEEWAY_S + 1),
        "valid soon, within the leeway": forger.with_claims(nbf=NOW_S + LEEWAY_S),
        "a fraction of a second": forger.raw_claim("exp", f"{NOW_S + 1}.5"),
        "several audiences": forger.with_claims(aud=["other", "felix-broker"]),
        "iat, nbf and jti": forger.with_claims(iat=NOW_S, nbf=NOW_S, jti="6fa459ea"),
        "claims nobody knows": forger.with_claims(scope=["a", 1, None, {"b": 1.5}], azp=1),
        "another tenant without keys of its own": forger.with_claims(tid="t3"),
        "a tenant of other letters": forger.with_claims(tid="\u00e9" * 100),
        "no permissions": forger.with_claims(perms=ABSENT),
        "permissions nobody knows": forger.with_claims(perms=["fly:x", "", ":", "stream.publish"]),
        "as long as it may be": forger.with_claims(x="x" * (12_288 - len(forger.token()))),
    }
    kinds = [Kind(name, "", token) for name, token in found.items()]
    both = {"secrets": (OLD_SECRET, SECRET), "keys": {"": (OTHER_KEY, KEY)}}
    own = {"keys": {"t1": (KEY,), "": (OTHER_KEY,)}}
    kinds += [
        Kind("both kinds of keys", "", forger.token(), both),
        Kind("no issuer or audience wanted", "", forger.with_claims(iss=1, aud=ABSENT), {"issuer": "", "audience": ""}),
    ]
    if algorithm == "EdDSA":
        kinds.append(Kind("keys of its own", "", forger.token(), own))
        unnamed = {"keys": {"": (TenantKey(OTHER_PUBLIC), TenantKey(PUBLIC))}}
        kinds.append(Kind("keys without a kid", "", forger.with_header(kid="k9"), unnamed))
    return kinds
