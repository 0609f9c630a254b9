"""Tokens that must never be accepted, each with a name and the rule it breaks, and those that must be.

Made with hmac and json alone, by nobody's library: what forges here shares nothing with what verifies. Each kind is made
for each algorithm. `NOW` is the clock they are judged by.
"""

import hashlib
import hmac
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from quintet.broker.identity.tokens import TokenOptions

SECOND: Final = 1_000_000
NOW_S: Final = 1_800_000_000
NOW: Final = NOW_S * SECOND
LEEWAY_S: Final = 60
HASH: Final = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}
# Not over 64 bytes, a block of SHA-256: HMAC takes a longer secret for its hash, and "signed with the hash" would be right.
SECRET: Final = b"the-master-secret-of-a-corpus-is-long-enough-for-all-algorithms."
OLD_SECRET: Final = b"another-master-secret-which-was-the-first-one-and-is-also-long-enough"
CLAIMS: Final[dict[str, Any]] = {
    "sub": "sub-marker",
    "queue_key": "key-marker",
    "permissions": ["publish", "subscribe"],
}
PEM: Final = b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n"
ABSENT: Final = object()


@dataclass(frozen=True)
class Kind:
    """One forged or stale token, and the rule that must refuse it. `options` are those it is judged by."""

    name: str
    rule: str
    token: bytes
    options: dict[str, Any] = field(default_factory=dict)


def options(algorithm: str, **changed: Any) -> TokenOptions:
    plain: dict[str, Any] = {"secrets": (SECRET,), "algorithms": (algorithm,), "token_bytes_max": 16 * 1024}
    return TokenOptions(**(plain | changed))


def b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def text(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()


class Forger:
    """Makes tokens of one algorithm, good ones and others."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.header = {"alg": algorithm, "typ": "JWT"}
        self.claims = CLAIMS

    def sign(self, signed: bytes, secret: bytes = SECRET, algorithm: str = "") -> bytes:
        return hmac.new(secret, signed, HASH[algorithm or self.algorithm]).digest()

    def token(self, header: object = None, claims: object = None, secret: bytes = SECRET, algorithm: str = "") -> bytes:
        """Header and claims as values, or as bytes that stand for themselves; the signature fits them."""
        header = text(self.header if header is None else header)
        return self.sealed(b64(header), b64(text(self.claims if claims is None else claims)), secret, algorithm)

    def sealed(self, header: bytes, claims: bytes, secret: bytes = SECRET, algorithm: str = "") -> bytes:
        signed = header + b"." + claims
        return signed + b"." + b64(self.sign(signed, secret, algorithm))

    def with_header(self, **changed: object) -> bytes:
        return self.token(header=_changed(self.header, changed))

    def with_claims(self, **changed: object) -> bytes:
        return self.token(claims=_changed(self.claims, changed))

    def raw_claim(self, name: str, value: str) -> bytes:
        """A claim whose value is this JSON text."""
        return self.token(claims=text(_changed(self.claims, {name: ABSENT}))[:-1] + f',"{name}":{value}}}'.encode())


def _changed(value: dict[str, Any], changed: dict[str, object]) -> dict[str, Any]:
    return {name: each for name, each in (value | changed).items() if each is not ABSENT}


def forged(algorithm: str) -> list[Kind]:
    """Every kind, for one algorithm."""
    forger = Forger(algorithm)
    parts = (algorithms, headers, header_texts, spellings, shapes, signatures, claim_texts, subjects, keys_and_rights)
    found = [kind for part in parts for kind in part(forger)]
    found += [kind for part in (times, strict_times, issuers, audiences) for kind in part(forger)]
    return found


def algorithms(forger: Forger) -> Iterator[Kind]:
    signed = forger.token().rpartition(b".")[0]
    for number, name in enumerate(("none", "None", "NONE", "nOnE", "none ", " none", "", "\tnone")):
        header = b64(text({"alg": name, "typ": "JWT"}))
        yield Kind(
            f"alg none, spelling {number}, no signature", "unsigned", header + b"." + signed.split(b".")[1] + b"."
        )
        yield Kind(f"alg none, spelling {number}, signed", "unsigned", forger.with_header(alg=name))
    yield Kind("alg null", "unsigned", forger.with_header(alg=None))
    yield Kind("alg absent", "unsigned", forger.with_header(alg=ABSENT))
    for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K"):
        yield Kind(f"alg {name}, signed with the secret", "algorithm", forger.with_header(alg=name))
    for name in ("EdDSA", "Ed25519", "Ed448", "HS1", "HS224", "HS256/64", "dir", "A128KW", "PBES2-HS256+A128KW"):
        yield Kind(f"alg {name}, signed with the secret", "algorithm", forger.with_header(alg=name))
    yield Kind("a token of Felix", "algorithm", felix())
    for other in HASH:
        if other != forger.algorithm:
            good = forger.token({"alg": other, "typ": "JWT"}, algorithm=other)
            yield Kind(f"a good {other} token that is not accepted here", "algorithm", good)
            lying = forger.token({"alg": forger.algorithm}, algorithm=other)
            yield Kind(f"signed with {other}, and says otherwise", "signature size", lying)
    name = forger.algorithm
    odd = (name.lower(), name + " ", name + "\0", "\uff28" + name[1:], [name], {name: name}, 256, True, 1.5)
    for number, alg in enumerate(odd):
        yield Kind(f"alg that is nearly right, {number}", "algorithm", forger.with_header(alg=alg))


def felix() -> bytes:
    claims = {"iss": "felix-auth", "aud": "felix-broker", "sub": "sub-marker", "tid": "t1", "exp": NOW_S + 900}
    signed = b64(text({"alg": "EdDSA", "typ": "JWT", "kid": "k1"})) + b"." + b64(text(claims | {"perms": ["*:*"]}))
    return signed + b"." + b64(hashlib.sha512(signed).digest())


def headers(forger: Forger) -> Iterator[Kind]:
    extra: dict[str, object] = {
        "crit": ["exp"], "jku": "https://evil.example/keys", "x5u": "https://evil.example/cert", "x5c": ["MIIB"],
        "jwk": {"kty": "oct", "k": b64(b"k" * 32).decode()}, "x5t": "AA", "x5t#S256": "AA", "zip": "DEF", "b64": False,
        "cty": "JWT", "enc": "A128GCM", "epk": {}, "apu": "AA", "p2c": 2**31, "iv": "AA", "tag": "AA", "iss": "me",
        "url": "https://evil.example", "nonce": "1", "ALG": forger.algorithm, "alg ": forger.algorithm, "": 1,
    }  # fmt: skip
    for name, value in extra.items():
        yield Kind(f"header field {name!r}", "header field", forger.with_header(**{name: value}))
    yield Kind("empty crit", "header field", forger.with_header(crit=[]))
    yield Kind("b64 in crit", "header field", forger.with_header(crit=["b64"], b64=True))
    for typ in ("at+jwt", "dpop+jwt", "JOSE", "JWE", "application/jwt", "", "JWT ", "\uff2aWT", None, 1, ["JWT"]):
        yield Kind(f"typ {typ!r}", "typ", forger.with_header(typ=typ))
    for odd in (1, None, ["a"], {"a": 1}, True):
        yield Kind(f"kid {odd!r}", "kid", forger.with_header(kid=odd))
    for kid in ("../../../../dev/null", "/proc/sys/kernel/randomize_va_space", "' OR 1=1 --", "https://evil.example/k"):
        header = forger.header | {"kid": kid}
        for what, secret in (("nothing", b""), ("the kid", kid.encode()), ("a newline", b"\n"), ("a zero", b"\0")):
            yield Kind(f"kid {kid!r}, signed with {what}", "signature", forger.token(header, secret=secret))


def header_texts(forger: Forger) -> Iterator[Kind]:
    good = text(forger.header)
    name = forger.algorithm.encode()
    broken = {
        "alg twice, the last is good": b'{"alg":"none","alg":"%s"}' % name,
        "alg twice, the first is good": b'{"alg":"%s","alg":"none"}' % name,
        "alg twice, one escaped": b'{"\\u0061lg":"none","alg":"%s"}' % name,
        "alg twice, the same": b'{"alg":"%s","alg":"%s"}' % (name, name),
        "an array": b"[" + good + b"]",
        "a string": b'"%s"' % name,
        "a number": b"1",
        "null": b"null",
        "nothing": b"",
        "two objects": good + good,
        "something behind": good + b"x",
        "a comment": good[:-1] + b"/**/}",
        "a comma too many": good[:-1] + b",}",
        "single quotes": good.replace(b'"', b"'"),
        "not UTF-8": good[:-1] + b',"kid":"\xff"}',
        "overlong UTF-8": good[:-1] + b',"kid":"\xc0\xaf"}',
        "UTF-16": good.decode().encode("utf-16"),
        "UTF-16 without a mark": good.decode().encode("utf-16-le"),
        "a byte order mark": b"\xef\xbb\xbf" + good,
        "NaN": good[:-1] + b',"kid":NaN}',
        "a control character": good[:-1] + b',"kid":"\n"}',
        "an endless number": good[:-1] + b',"kid":%s}' % (b"9" * 5000),
        "depth 9": good[:-1] + b',"kid":' + b"[" * 8 + b"]" * 8 + b"}",
        "depth 1500": b'{"alg":' * 1500,
    }
    for what, header in broken.items():
        yield Kind(f"header with {what}", "header json", forger.token(header=header))


def spellings(forger: Forger) -> Iterator[Kind]:
    good = forger.token()
    header, claims, signature = good.split(b".")
    for what, odd in {"=": b"=", "==": b"==", "newline": b"\n", "space": b" ", "zero": b"\0", "other": b"!"}.items():
        yield Kind(f"{what} behind the token", "spelling", good + odd)
        yield Kind(f"{what} before the token", "spelling", odd + good)
        yield Kind(f"{what} within the signature", "spelling", good[:-5] + odd + good[-5:])
        yield Kind(f"{what} in the claims, signed", "spelling", forger.sealed(header, claims[:8] + odd + claims[8:]))
        yield Kind(f"{what} behind the header, signed", "spelling", forger.sealed(header + odd, claims))
    yield Kind("carriage return and newline", "spelling", good + b"\r\n")
    yield Kind("not ASCII", "spelling", good[:-1] + b"\xc3\xa9")
    yield Kind("percent", "spelling", good[:-1] + b"%41")
    yield Kind("one letter over", "spelling", forger.sealed(header, claims + b"A" * (1 + -len(claims) % 4)))
    padded = urlsafe_b64encode(text(CLAIMS | {"queue_key": "four"}))
    assert padded.endswith(b"="), "or this kind is none"
    yield Kind("claims padded as they should not be, signed", "spelling", forger.sealed(header, padded))
    classic = b64encode(text(CLAIMS | {"queue_key": "\u00ff~~???>>>"})).rstrip(b"=")
    classic = classic if set(b"+/") & set(classic) else b64encode(b'{"a":"\xfb\xff\xbf"}').rstrip(b"=")
    yield Kind("the other base64 alphabet, signed", "spelling", forger.sealed(header, classic))
    for part in (header, claims, signature):
        for other in _same_bytes(part):
            changed = {header: (other, claims), claims: (header, other)}.get(part)
            token = forger.sealed(*changed) if changed else header + b"." + claims + b"." + other
            yield Kind(f"spare bits of a part of {len(part)} letters: {other[-1:]!r}", "spelling", token)


def _same_bytes(part: bytes) -> Iterator[bytes]:
    """The other spellings that a lenient decoder takes for the same bytes."""
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = {2: 4, 3: 2}.get(len(part) % 4, 0)
    value = letters.index(part[-1:])
    for bits in range(1, 1 << spare):
        yield part[:-1] + letters[value | bits : (value | bits) + 1]


def shapes(forger: Forger) -> Iterator[Kind]:
    good = forger.token()
    header, claims, signature = good.split(b".")
    yield Kind("nothing", "empty", b"")
    yield Kind("one dot", "parts", b".")
    yield Kind("three dots", "parts", b"...")
    yield Kind("one part", "parts", header)
    yield Kind("two parts", "parts", header + b"." + claims)
    yield Kind("four parts", "parts", good + b"." + signature)
    yield Kind("five parts, as encrypted", "parts", b".".join([header, b"", claims, signature, signature]))
    yield Kind("a dot behind", "parts", good + b".")
    yield Kind("a dot before", "parts", b"." + good)
    yield Kind("two dots in the middle", "parts", header + b".." + claims + b"." + signature)
    document = {"payload": claims.decode(), "protected": header.decode(), "signature": signature.decode()}
    yield Kind("written as a JSON document", "parts", json.dumps(document).encode())
    yield Kind("only dots", "header json", b"..")
    yield Kind("no header", "header json", forger.sealed(b"", claims))
    yield Kind("no claims", "claims json", forger.sealed(header, b""))
    yield Kind("claims detached", "signature", header + b".." + signature)
    short = {"token_bytes_max": 255}
    for size in (256, 257, 300):
        yield Kind(f"{size} bytes", "size", _of_size(forger, size), short)
    yield Kind("16 KiB and a byte", "size", b"a" * (16 * 1024 + 1))
    yield Kind("10000 claims", "size", forger.token(claims=forger.claims | {str(each): each for each in range(10_000)}))
    yield Kind("zeros", "parts", bytes(100))
    yield Kind("the word Bearer before it", "spelling", b"Bearer " + good)


def _of_size(forger: Forger, size: int) -> bytes:
    for spare in range(300):
        token = forger.with_claims(x="x" * spare)
        if len(token) >= size:
            return token
    raise AssertionError("a claim of 300 bytes is longer than any of these")


def signatures(forger: Forger) -> Iterator[Kind]:
    good = forger.token()
    signed, _, signature = good.rpartition(b".")
    size = HASH[forger.algorithm]().digest_size
    other = forger.with_claims(sub="somebody-else")
    secrets = {
        "another secret": OLD_SECRET, "no secret": b"", "a newline behind the secret": SECRET + b"\n",
        "half of the secret": SECRET[:32], "the hash of the secret": HASH[forger.algorithm](SECRET).digest(),
        "a public key": PEM, "the secret in base64": b64(SECRET), "the secret twice": SECRET * 2,
        "the word secret": b"secret", "zeros": bytes(64),
    }  # fmt: skip
    for what, secret in secrets.items():
        yield Kind(f"signed with {what}", "signature", forger.token(secret=secret))
    values = {
        "none": b"", "one byte less": forger.sign(signed)[:-1], "one byte more": forger.sign(signed) + b"\0",
        "one byte": forger.sign(signed)[:1], "half of it": forger.sign(signed)[: size // 2],
        "it twice": forger.sign(signed) * 2, "it in hex": forger.sign(signed).hex().encode(),
    }  # fmt: skip
    for what, value in values.items():
        yield Kind(f"as a signature: {what}", "signature size", signed + b"." + b64(value))
    values = {
        "zeros": bytes(size), "ones": b"\xff" * size, "a hash without a key": HASH[forger.algorithm](signed).digest(),
        "of the claims only": forger.sign(signed.split(b".")[1]), "of the other token": forger.sign(other),
        "of the decoded text": forger.sign(text(forger.header) + b"." + text(forger.claims)), "of nothing": forger.sign(b""),
        "backwards": forger.sign(signed)[::-1], "of the text with its dot": forger.sign(signed + b"."),
    }  # fmt: skip
    for what, value in values.items():
        yield Kind(f"as a signature: {what}", "signature", signed + b"." + b64(value))
    yield Kind("the claims of another token", "signature", b".".join([signed.split(b".")[0], *_tail(other, signature)]))
    bare = b64(text({"alg": forger.algorithm}))
    yield Kind("the header of another token", "signature", bare + good[good.index(b".") :])


def _tail(other: bytes, signature: bytes) -> tuple[bytes, bytes]:
    return other.split(b".")[1], signature


def claim_texts(forger: Forger) -> Iterator[Kind]:
    good = text(forger.claims)
    broken = {
        "sub twice": good[:-1] + b',"sub":"admin"}', "sub twice, one escaped": good[:-1] + b',"s\\u0075b":"admin"}',
        "exp twice": good[:-1] + b',"exp":1,"exp":9999999999}', "a key twice, deep": good[:-1] + b',"x":[{"a":1,"a":2}]}',
        "NaN": good[:-1] + b',"x":NaN}', "Infinity": good[:-1] + b',"exp":Infinity}',
        "minus Infinity": good[:-1] + b',"nbf":-Infinity}', "a number over all": good[:-1] + b',"exp":1e400}',
        "2**63": good[:-1] + b',"x":%d}' % 2**63, "-2**63": good[:-1] + b',"x":%d}' % -(2**63),
        "5000 digits": good[:-1] + b',"exp":%s}' % (b"9" * 5000), "an array": b"[" + good + b"]", "null": b"null",
        "a string": b'"x"', "two objects": good + good, "something behind": good + b"\0", "not UTF-8": b'{"sub":"\xff"}',
        "UTF-16": good.decode().encode("utf-16"), "UTF-32": good.decode().encode("utf-32"), "a mark": b"\xef\xbb\xbf" + good,
        "surrogates in UTF-8": b'{"sub":"\xed\xa0\x80"}', "depth 9": good[:-1] + b',"x":' + b"[" * 8 + b"]" * 8 + b"}",
        "depth 5000": b"[" * 5000, "a control character": good.replace(b"sub-marker", b"a\tb"), "no end": good[:-1],
        "a leading zero": good[:-1] + b',"exp":01900000000}', "a plus": good[:-1] + b',"exp":+1900000000}',
        "hex": good[:-1] + b',"exp":0x7fffffff}', "a cut escape": good[:-1] + b',"x":"\\u12"}', "binary": bytes(range(256)),
    }  # fmt: skip
    for what, claims in broken.items():
        yield Kind(f"claims with {what}", "claims json", forger.token(claims=claims))


def subjects(forger: Forger) -> Iterator[Kind]:
    odd: dict[str, object] = {
        "empty": "", "null": None, "number": 1, "list": ["ann"], "true": True, "object": {}, "zero": "a\0b",
        "256 bytes": "a" * 256, "two alphabets": "\u0430nn", "the anonymous": "(anonymous)", "the broker": "(configuration)",
        "space before": " ann", "space behind": "ann ", "newline": "ann\n", "invisible": "a\u200bnn", "half a pair": "\ud800",
        "right to left": "ann\u202e", "other": "\U000e0041nn",
    }  # fmt: skip
    for what, sub in odd.items():
        yield Kind(f"sub: {what}", "sub", forger.with_claims(sub=sub))
    yield Kind("no claims but the braces", "queue_key", forger.token(claims=b"{}"))


def keys_and_rights(forger: Forger) -> Iterator[Kind]:
    odd: dict[str, object] = {
        "absent": ABSENT, "empty": "", "null": None, "number": 1, "list": ["k"], "object": {"k": 1}, "false": False,
        "256 bytes": "k" * 256, "128 letters of two bytes": "\u00e9" * 128, "half a pair": "\udfff",
    }  # fmt: skip
    for what, key in odd.items():
        yield Kind(f"queue_key: {what}", "queue_key", forger.with_claims(queue_key=key))
    values = (None, 1, True, {"publish": True}, ["publish", 1], ["publish", None], [["publish"]], 1.5)
    for number, permissions in enumerate(values):
        yield Kind(f"permissions that are none, {number}", "permissions", forger.with_claims(permissions=permissions))


def times(forger: Forger) -> Iterator[Kind]:
    for name in ("exp", "nbf", "iat"):
        values = ('"1900000000"', '""', "true", "null", "1e300", "[1900000000]", "{}", "-1", "-0.5",
                  "-9223372036854775807", "1900000000000", "253402300800", "9223372036854775807", '"Infinity"')  # fmt: skip
        for value in values:
            yield Kind(f"{name}: {value}", name, forger.raw_claim(name, value))
    for ago in (LEEWAY_S, LEEWAY_S + 1, 3600, 86400 * 365, NOW_S):
        yield Kind(f"expired {ago} s ago", "expired", forger.with_claims(exp=NOW_S - ago))
    for ahead in (LEEWAY_S + 1, 3600, 86400 * 365):
        yield Kind(f"valid in {ahead} s", "too early", forger.with_claims(nbf=NOW_S + ahead))
    yield Kind("valid never", "expired", forger.with_claims(nbf=NOW_S + 3600, exp=NOW_S - 3600))
    yield Kind("expired, exp zero with a sign", "expired", forger.raw_claim("exp", "-0"))


def strict_times(forger: Forger) -> Iterator[Kind]:
    exact = {"leeway_us": 0}
    yield Kind("expires now, no leeway", "expired", forger.with_claims(exp=NOW_S), exact)
    yield Kind("expired half a second ago, no leeway", "expired", forger.raw_claim("exp", f"{NOW_S - 1}.5"), exact)
    yield Kind("valid in half a second, no leeway", "too early", forger.raw_claim("nbf", f"{NOW_S}.5"), exact)
    yield Kind("valid in a second, no leeway", "too early", forger.with_claims(nbf=NOW_S + 1), exact)
    wanted = {"require_exp": True}
    yield Kind("no exp where one is wanted", "no exp", forger.token(), wanted)
    yield Kind("exp in another case", "no exp", forger.with_claims(EXP=NOW_S + 60), wanted)
    yield Kind("exp null where one is wanted", "exp", forger.with_claims(exp=None), wanted)


def issuers(forger: Forger) -> Iterator[Kind]:
    wanted = {"issuer": "https://issuer.example"}
    values = (ABSENT, None, "", "https://issuer.example/", "https://issuer", "HTTPS://issuer.example", 1, True,
              ["https://issuer.example"], {"https://issuer.example": 1}, "https://issuer.example.evil.example",
              "https://issuer.example\0", " https://issuer.example", "felix-auth")  # fmt: skip
    for number, iss in enumerate(values):
        yield Kind(f"iss that is another, {number}", "iss", forger.with_claims(iss=iss), wanted)


def audiences(forger: Forger) -> Iterator[Kind]:
    wanted = {"audience": "quintet"}
    values: tuple[object, ...] = (ABSENT, None, "", "quinte", "quintets", "Quintet", "quintet ", 1, True, [], ["felix-broker"], [["quintet"]],
              ["quintet", 1], ["quintet", None], {"quintet": 1}, "felix-broker", "*")  # fmt: skip
    for number, aud in enumerate(values):
        yield Kind(f"aud that is another, {number}", "aud", forger.with_claims(aud=aud), wanted)


def good(algorithm: str) -> list[Kind]:
    """What must be accepted, as without it a verifier that says no to everything would do. `rule` is empty."""
    forger = Forger(algorithm)
    found = {
        "the plain one": forger.token(),
        "without typ": forger.with_header(typ=ABSENT),
        "typ in small letters": forger.with_header(typ="jwt"),
        "typ before alg, and white space": forger.token(header=b'{"typ":"JWT",\r\n "alg":"%s"}' % algorithm.encode()),
        "with a kid": forger.with_header(kid="../../key"),
        "alg written with an escape": forger.token(header=b'{"\\u0061lg":"%s"}' % algorithm.encode()),
        "expires in a second": forger.with_claims(exp=NOW_S + 1),
        "expired within the leeway": forger.with_claims(exp=NOW_S - LEEWAY_S + 1),
        "valid since now": forger.with_claims(nbf=NOW_S),
        "valid soon, within the leeway": forger.with_claims(nbf=NOW_S + LEEWAY_S),
        "the last second there is": forger.with_claims(exp=253_402_300_799),
        "issued tomorrow": forger.with_claims(iat=NOW_S + 86_400),
        "claims nobody knows": forger.with_claims(jti="x", scope=["a", 1, None, {"b": 1.5}], iss=1, aud=2),
        "depth 8": forger.raw_claim("x", "[" * 7 + "]" * 7),
        "many brackets in a text": forger.with_claims(x="[{" * 50 + '"\\'),
        "the largest number": forger.raw_claim("x", str(2**63 - 1)),
        "one permission as a string": forger.with_claims(permissions="publish"),
        "permissions nobody knows": forger.with_claims(permissions=["publish", "fly", ""]),
        "no permissions": forger.with_claims(permissions=ABSENT),
        "no subject": forger.with_claims(sub=ABSENT),
        "a fraction of a second": forger.raw_claim("exp", f"{NOW_S + 1}.5"),
        "seconds as a power of ten": forger.raw_claim("exp", "1.9e9"),
        "issued at a fraction": forger.raw_claim("iat", f"{NOW_S}.25"),
        "valid since a fraction": forger.raw_claim("nbf", f"{NOW_S - 1}.75"),
        "a name of other letters": forger.with_claims(sub="\u30a2\u30f3", queue_key="\u00e9" * 127),
        "a text of UTF-8": forger.token(claims='{"sub":"J\u00f6rg","queue_key":"\U0001f511"}'.encode()),
    }
    kinds = [Kind(name, "", token) for name, token in found.items()]
    kinds += [
        Kind("an old secret", "", forger.token(secret=OLD_SECRET), {"secrets": (SECRET, OLD_SECRET)}),
        Kind("the new secret", "", forger.token(), {"secrets": (OLD_SECRET, SECRET)}),
        Kind("expires now, a microsecond of leeway", "", forger.with_claims(exp=NOW_S), {"leeway_us": 1}),
        Kind("expires in half a second, no leeway", "", forger.raw_claim("exp", f"{NOW_S}.5"), {"leeway_us": 0}),
        Kind("valid now, no leeway", "", forger.with_claims(nbf=NOW_S, exp=NOW_S + 1), {"leeway_us": 0}),
        Kind("exp where one is wanted", "", forger.with_claims(exp=NOW_S + 1), {"require_exp": True}),
        Kind("the issuer", "", forger.with_claims(iss="me"), {"issuer": "me"}),
        Kind("the audience", "", forger.with_claims(aud="quintet"), {"audience": "quintet"}),
        Kind("among audiences", "", forger.with_claims(aud=["a", "quintet"]), {"audience": "quintet"}),
        Kind("as long as it may be", "", forger.token(), {"token_bytes_max": len(forger.token())}),
        Kind("several algorithms", "", forger.token(), {"algorithms": tuple(HASH)}),
    ]
    return kinds
