"""Tokens of tenants: nothing forged or stale is accepted, nothing allowed leaves its tenant, and the checks can fail.

The corpus is in tenant_token_corpus.py. Beside it: mutations, two verifiers that are wrong on purpose and must be found
out, permissions, key sets, points of small order, rotation, and the options.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections import Counter
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.tenant_tokens import (
    ACTIONS,
    CACHED_TOKEN_BYTES_MAX,
    CACHED_TOKENS_MAX,
    JWKS_BYTES_MAX,
    RULES,
    TOKEN_BYTES_MAX,
    TenantClaims,
    TenantKey,
    TenantTokenOptions,
    TenantTokens,
    explain_permission,
    matches,
    mint_tenant,
    point_fault,
    read_jwks,
    secret_signer,
)
from quintet.broker.identity.tokens import TokenOptions, Tokens
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.errors import AuthError, BadRequest, ConfigError, TooLarge
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler
from tests.broker import ed25519
from tests.broker.tenant_token_corpus import (
    ALGORITHMS,
    CLAIMS,
    JWK,
    KEY,
    OTHER_KEY,
    OTHER_SEED,
    PEM,
    PUBLIC,
    SEED,
    TenantForger,
    forged,
    good,
    options,
)
from tests.broker.test_tokens import mutated
from tests.broker.token_corpus import LEEWAY_S, NOW, NOW_S, OLD_SECRET, SECOND, SECRET, Kind, b64, text

KINDS_MIN = 400
MUTATIONS = 10_000


# -- the corpus -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_corpus_is_wide_and_reaches_every_rule(algorithm: str) -> None:
    kinds = forged(algorithm)
    assert len({kind.name for kind in kinds}) == len(kinds) >= KINDS_MIN
    assert {kind.rule for kind in kinds} == RULES.keys()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_forged_or_stale_is_refused_by_its_rule(algorithm: str) -> None:
    wrong = {}
    for kind in forged(algorithm):
        said = verdict(kind, algorithm)
        if said != f"token refused: {RULES[kind.rule]}":
            wrong[kind.name] = said
    assert not wrong


def verdict(kind: Kind, algorithm: str, verifier: type[TenantTokens] = TenantTokens) -> str:
    try:
        verifier(options(algorithm, **kind.options)).verify(kind.token, NOW)
    except AuthError as error:
        return error.message
    return "accepted"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_right_is_accepted(algorithm: str) -> None:
    assert {kind.name: verdict(kind, algorithm) for kind in good(algorithm)} == {
        kind.name: "accepted" for kind in good(algorithm)
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_error_repeats_nothing_of_the_token(algorithm: str) -> None:
    for kind in forged(algorithm):
        with pytest.raises(AuthError) as caught:
            TenantTokens(options(algorithm, **kind.options)).verify(kind.token, NOW)
        said = f"{caught.value!r} {caught.value.hint}"
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__, "what it was made of may hold the claims"
        assert "marker" not in said
        assert not any(part.decode("latin-1") in said for part in kind.token.split(b".") if len(part) > 8)


def test_a_token_of_one_door_is_none_at_the_other() -> None:
    felix = TenantForger("HS256").token()
    assert lets_in(TenantTokens(options("HS256")), felix)
    for most in (255, TOKEN_BYTES_MAX):
        with pytest.raises(AuthError, match="longer" if most == 255 else "queue_key"):
            Tokens(TokenOptions((SECRET,), token_bytes_max=most)).verify(felix, NOW)


# -- verifiers that are wrong on purpose ------------------------------------------------------------------------------


class Gullible(TenantTokens):
    """Has one bag of keys, and lets the header say what they are: a public key is as good as a secret."""

    def opened(self, token: bytes) -> dict[str, Any]:
        header, claims, signature = token.split(b".")
        named = json.loads(_lenient(header))["alg"]
        signed = header + b"." + claims
        bag = [key.public for keys in self.options.keys.values() for key in keys] + list(self.options.secrets)
        if named == "EdDSA":
            right = any(_right(key, _lenient(signature), signed) for key in bag)
        else:
            right = named == "none" or any(
                TenantForger("HS256").sign(signed, key) == _lenient(signature) for key in bag
            )
        if not right:
            raise AuthError("the signature is wrong")
        found: dict[str, Any] = json.loads(_lenient(claims))
        return found


def _right(key: bytes, signature: bytes, signed: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


class Lenient(TenantTokens):
    """PyJWT with its defaults, and the claims as they come."""

    def verify(self, token: bytes, now: int) -> TenantClaims:
        said = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False, "verify_sub": False}
        key = Ed25519PublicKey.from_public_bytes(PUBLIC)
        try:
            found = jwt.decode(token, key, ["EdDSA"], options=said)  # type: ignore[arg-type]
        except (jwt.InvalidTokenError, RecursionError) as error:
            raise AuthError(type(error).__name__) from None
        return TenantClaims(str(found.get("sub")), str(found.get("tid")), (), 0)


def _lenient(part: bytes) -> bytes:
    return urlsafe_b64decode(part + b"==")


def accepted_by(verifier: type[TenantTokens], algorithm: str) -> Counter[str]:
    """How many kinds of each rule this verifier lets in; what makes it crash it does not."""
    found: Counter[str] = Counter()
    for kind in forged(algorithm):
        try:
            found[kind.rule] += verdict(kind, algorithm, verifier) == "accepted"
        except Exception as error:  # it is a bad verifier
            assert verifier is not TenantTokens, error
    return +found


def test_a_verifier_with_one_bag_of_keys_is_found_out() -> None:
    found = accepted_by(Gullible, "EdDSA")
    assert found["algorithm"] >= 1, "HS256 with the public key"
    assert found["signature"] >= 2, "the key of another tenant, and the global one for a tenant with its own"
    assert found["unsigned"]
    assert found["header field"]
    assert not accepted_by(TenantTokens, "EdDSA")
    assert not accepted_by(TenantTokens, "HS256")


def test_the_library_with_its_defaults_is_found_out() -> None:
    found = accepted_by(Lenient, "EdDSA")
    for rule in ("header field", "typ", "claims json", "sub", "tid", "perms", "exp", "expired", "aud", "spelling"):
        assert found[rule], rule
    for rule in ("unsigned", "signature size", "parts"):
        assert not found[rule], rule


# -- mutations --------------------------------------------------------------------------------------------------------


def lets_in(verifier: TenantTokens, token: bytes, now: int = NOW) -> bool:
    try:
        verifier.verify(token, now)
    except AuthError:
        return False
    return True


def test_ten_thousand_mutations_and_none_is_accepted() -> None:
    tokens = []
    for algorithm in ALGORITHMS:
        forger = TenantForger(algorithm)
        tokens += [forger.token(), forger.with_claims(sub="other", tid="t3"), forger.with_header(kid="k1")]
    verifier = TenantTokens(TenantTokenOptions((SECRET, OLD_SECRET), keys={"": (KEY, OTHER_KEY), "t2": (OTHER_KEY,)}))
    assert all(lets_in(verifier, token) for token in tokens)
    tried, accepted = 0, []
    for token in (tokens[0], tokens[3]):
        for bit in range(len(token) * 8):
            flipped = bytearray(token)
            flipped[bit // 8] ^= 1 << bit % 8
            tried += 1
            if lets_in(verifier, bytes(flipped)):
                accepted.append(bytes(flipped))
    random = Random(6)
    while tried < MUTATIONS:
        token = mutated(random, tokens)
        if token not in tokens:
            tried += 1
            if lets_in(verifier, token):
                accepted.append(token)
    assert not accepted, accepted[:3]


def test_the_mutations_find_a_verifier_that_reads_base64_as_it_comes() -> None:
    token, found = TenantForger("EdDSA").token(), 0
    for bit in range(len(token) * 8):
        flipped = bytearray(token)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found += lets_in(Gullible(options("EdDSA")), bytes(flipped))
        except (ValueError, KeyError):
            continue
    assert found


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["alg", "typ", "kid", "crit", "sub", "tid", "perms", "exp", "nbf", "iat", "jti", "iss", "aud"])


@given(st.dictionaries(names, values), st.dictionaries(names | st.text(), values))
def test_whatever_is_signed_is_judged_and_nothing_else_is_raised(
    header: dict[str, Any], claims: dict[str, Any]
) -> None:
    verifier = TenantTokens(options("HS256"))
    forger = TenantForger("HS256")
    assert not lets_in(verifier, forger.token(claims=json.dumps(claims).encode())), "the issuer is of other letters"
    lets_in(verifier, forger.token(header=json.dumps(forger.header | header).encode()))
    lets_in(verifier, forger.token(claims=json.dumps(CLAIMS | claims).encode()))


@given(st.binary(max_size=300))
def test_whatever_comes_is_judged_and_nothing_else_is_raised(data: bytes) -> None:
    verifier = TenantTokens(options("HS256"))
    assert not lets_in(verifier, data)
    assert not lets_in(verifier, TenantForger("HS256").token(claims=data))
    assert not lets_in(verifier, TenantForger("HS256").token(header=data))


# -- what an accepted token says --------------------------------------------------------------------------------------


def test_claims() -> None:
    perms = ["cache.read:cache:t1/*", "fly:x", "cache.read:cache:t1/*", "stream.publish:stream:t2/*"]
    token = TenantForger("EdDSA").with_claims(nbf=NOW_S - 100, perms=perms)
    found = TenantTokens(options("EdDSA")).verify(token, NOW)
    assert found == TenantClaims(
        subject="sub-marker",
        tenant="t1",
        permissions=("cache.read:cache:t1/*", "stream.publish:stream:t2/*"),
        expires=(NOW_S + 900 + LEEWAY_S) * SECOND,
        not_before=(NOW_S - 100 - LEEWAY_S) * SECOND,
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_times_are_judged_to_the_microsecond_also_when_the_token_is_known(algorithm: str) -> None:
    token = TenantForger(algorithm).with_claims(nbf=NOW_S)
    found = TenantTokens(options(algorithm)).verify(token, NOW)
    known = TenantTokens(options(algorithm))
    known.verify(token, NOW)
    rows = (
        (found.not_before - 1, False), (found.not_before, True), (found.expires - 1, True), (found.expires, False),
        (NOW, True),
    )  # fmt: skip
    for now, right in rows:
        assert lets_in(TenantTokens(options(algorithm)), token, now) is right
        assert lets_in(known, token, now) is right, "what is remembered is judged by the clock again"


def claims_with(*permissions: str, tenant: str = "t1") -> TenantClaims:
    return TenantClaims("ann", tenant, permissions, NOW)


def test_what_a_permission_allows() -> None:
    rows = [
        ("stream.publish:stream:t1/default/orders", "stream.publish", "stream:t1/default/orders", True),
        ("stream.publish:stream:t1/default/*", "stream.publish", "stream:t1/default/orders", True),
        ("stream.publish:stream:t1/*/*", "stream.publish", "stream:t1/default/orders", True),
        ("stream.publish:stream:t1/*", "stream.publish", "stream:t1/default/orders", True),
        ("stream.publish:stream:*", "stream.publish", "stream:t1/default/orders", True),
        ("stream.publish:*", "stream.publish", "stream:t1/default/orders", True),
        ("cache.read:cache:t1/default/a*c", "cache.read", "cache:t1/default/abbc", True),
        ("ns.manage:namespace:t1/default", "ns.manage", "namespace:t1/default", True),
        ("tenant.manage:tenant:t1", "tenant.manage", "tenant:t1", True),
        # another action, another kind, another case
        ("stream.publish:stream:t1/default/*", "stream.subscribe", "stream:t1/default/orders", False),
        ("stream.publish:*", "cache.write", "cache:t1/default/orders", False),
        ("stream.publish:*", "stream.publish", "cache:t1/default/orders", False),
        ("cache.write:*", "cache.write", "stream:t1/default/orders", False),
        ("stream.*:stream:t1/*", "stream.publish", "stream:t1/default/orders", False),
        ("*:*", "stream.publish", "stream:t1/default/orders", False),
        ("STREAM.PUBLISH:stream:t1/*", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish:stream:t1/default/*", "stream.publish", "stream:t1/Default/orders", False),
        ("stream.publish:stream:t1/default/ord.rs", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish:stream:t1/default/order?", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish:stream:t1/default/[a-z]*", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish:", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish:stream:t1/default/orders2", "stream.publish", "stream:t1/default/orders", False),
        ("stream.publish:stream:t1/default/order", "stream.publish", "stream:t1/default/orders", False),
        # what manages stands for itself
        ("tenant.manage:tenant:t1", "stream.publish", "stream:t1/default/orders", False),
        ("tenant.manage:*", "ns.manage", "namespace:t1/default", False),
        ("ns.manage:*", "stream.manage", "stream:t1/default/orders", False),
        ("stream.manage:*", "stream.publish", "stream:t1/default/orders", False),
        # resources that are none
        ("stream.publish:*", "stream.publish", "stream:t1/a/b/c", False),
        ("stream.publish:*", "stream.publish", "stream:t1/a", False),
        ("stream.publish:*", "stream.publish", "stream:t1//b", False),
        ("stream.publish:*", "stream.publish", "stream:t1/a/", False),
        ("stream.publish:*", "stream.publish", "stream:", False),
        ("stream.publish:*", "stream.publish", "t1/default/orders", False),
        ("stream.publish:*", "fly", "stream:t1/default/orders", False),
        ("fly:*", "fly", "stream:t1/default/orders", False),
        ("", "", "", False),
    ]
    for permission, action, resource, allowed in rows:
        assert claims_with(permission).allows(action, resource) is allowed, (permission, action, resource)
    assert not claims_with().allows("stream.publish", "stream:t1/default/orders")


@pytest.mark.parametrize("action", ACTIONS)
def test_no_permission_reaches_another_tenant(action: str) -> None:
    kind = ACTIONS[action]
    path = {"tenant": "", "namespace": "/n"}.get(kind, "/n/x")
    for pattern in ("*", f"{kind}:*", f"{kind}:t2{path}", f"{kind}:t*", f"{kind}:*{path}", "t2", f"{kind}:t1{path}*"):
        for tenant in ("t2", "t11", "t", "T1", "", "t1\0", "*", "t1:x", " t1"):
            assert not claims_with(f"{action}:{pattern}").allows(action, f"{kind}:{tenant}{path}"), (pattern, tenant)
    assert claims_with(f"{action}:{kind}:*").allows(action, f"{kind}:t1{path}")
    star = claims_with(f"{action}:{kind}:*", tenant="*")
    assert star.allows(action, f"{kind}:*{path}")
    assert not star.allows(action, f"{kind}:t1{path}"), "the name of a tenant is no pattern"


def by_the_book(pattern: str, word: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), word, re.DOTALL) is not None


@given(st.text("ab*/", max_size=8), st.text("ab*/\n", max_size=10))
def test_patterns_match_as_the_book_says(pattern: str, word: str) -> None:
    assert matches(pattern, word) is by_the_book(pattern, word)


def test_a_pattern_made_to_hurt_is_answered() -> None:
    assert not matches("*a" * 6_000 + "*b", "a" * 12_000)
    assert matches("*" * 12_000, "a" * 600)


def test_permissions_are_explained_as_they_are_judged() -> None:
    rows = {
        "stream.publish:stream:t1/default/*": "",
        "stream.publish:stream:*": "",
        "stream.publish:*": "",
        "tenant.manage:tenant:t1": "",
        "stream.publish:stream:t2/*": "not a stream of tenant t1",
        "stream.publish:cache:t1/*": "not a stream of tenant t1",
        "stream.publish:stream:t1/a": "not the name of a stream",
        "tenant.manage:tenant:t11": "not the name of a tenant",
        "stream.publish": "not a stream of tenant t1",
        "fly:stream:t1/*": "not an action of this broker",
    }
    assert {permission: explain_permission(permission, "t1")[2] for permission in rows} == rows


# -- keys -------------------------------------------------------------------------------------------------------------


def test_the_vectors_of_rfc_8032_and_rfc_8037() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert ed25519.public_key(seed).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert ed25519.sign(seed, b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155")
    for number in range(8):
        key = Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        assert ed25519.sign(bytes([number]) * 32, b"m" * number) == key.sign(b"m" * number)
    signed = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
    signature = b64(ed25519.sign(seed, signed))
    assert signature == (b"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"), (
        "RFC 8037, appendix A.4"
    )


def test_a_key_of_small_order_is_refused_though_the_library_takes_it() -> None:
    message = b"whatever"
    neutral = ed25519.encode(ed25519.ZERO)
    Ed25519PublicKey.from_public_bytes(neutral).verify(ed25519.sign_for_anybody(message), message)
    points = {ed25519.encode(point) for point in ed25519.small_order()}
    points |= {bytes(32), b"\1" + bytes(30) + b"\x80", (ed25519.P - 1).to_bytes(32, "little")}
    assert len(points) >= 9
    for point in points:
        assert "small order" in point_fault(point)
        with pytest.raises(ConfigError, match="anybody can sign"):
            TenantKey(point)
    for value in (ed25519.P, ed25519.P + 1, 2**255 - 1, 2**256 - 1):
        assert "one spelling" in point_fault(value.to_bytes(32, "little"))
    missing = next(y for y in range(2, 50) if ed25519.point_at(y) is None)
    assert "no point" in point_fault(missing.to_bytes(32, "little"))
    for seed in range(32):
        assert point_fault(ed25519.public_key(bytes([seed]) * 32)) == ""
    with pytest.raises(ConfigError, match="has 32 bytes, this one has 31"):
        TenantKey(PUBLIC[:31])


def jwks(*rows: object) -> bytes:
    return text({"keys": list(rows)})


def changed(**values: object) -> dict[str, Any]:
    return {name: value for name, value in (JWK | values).items() if value is not ...}


def test_key_sets_that_are_good() -> None:
    other = changed(kid="k2", x=b64(OTHER_KEY.public).decode(), use="sig", alg="EdDSA", note=[1])
    assert read_jwks(jwks(JWK, other)) == (KEY, OTHER_KEY)
    unnamed = changed(kid=...)
    assert read_jwks(jwks(unnamed, unnamed)) == (TenantKey(PUBLIC), TenantKey(PUBLIC))
    assert read_jwks(jwks()) == ()
    assert read_jwks(b' {"keys" : [] , "x" : 1}\n') == ()


def test_key_sets_that_are_not() -> None:
    x = JWK["x"]
    rows: dict[bytes, str] = {
        b"": "not a JSON object", b"[]": "not a JSON object", b"{}": "not a JSON object", b'{"keys":{}}': "not a JSON object",
        b'{"keys":[],"keys":[]}': "a name twice", b'{"keys":[]}x': "not a JSON object", b"\xff": "not a JSON object",
        jwks(JWK)[:-1]: "not a JSON object", text(JWK): "not a JSON object", PEM: "not a JSON object",
        jwks(JWK).replace(b'"crv"', b'"kid":"k2","crv"'): "a name twice", b'{"keys":' + b"[" * 5000: "not a JSON object",
        jwks(1): "key 0 is not a JSON object", jwks(JWK, [JWK]): "key 1 is not a JSON object",
        jwks(changed(d="AA")): "key 0 is a private key", jwks(JWK, {"d": None}): "key 1 is a private key",
        jwks({"kty": "oct", "k": x}): "kty is not OKP", jwks(changed(kty=...)): "kty is not OKP",
        jwks(changed(kty="okp")): "kty is not OKP", jwks(changed(kty=["OKP"])): "kty is not OKP",
        jwks(changed(kty="RSA", n="AA", e="AQAB")): "kty is not OKP", jwks(changed(crv="X25519")): "crv is not Ed25519",
        jwks(changed(crv="Ed448")): "crv is not Ed25519", jwks(changed(crv=None)): "crv is not Ed25519",
        jwks(changed(use="enc")): "use is not sig", jwks(changed(use=None)): "use is not sig",
        jwks(changed(alg="HS256")): "alg is not EdDSA or Ed25519", jwks(changed(alg="none")): "alg is not EdDSA",
        jwks(changed(kid="")): "kid is not", jwks(changed(kid=1)): "kid is not", jwks(changed(kid=None)): "kid is not",
        jwks(changed(kid="k" * 257)): "kid is not", jwks(JWK, JWK): "two keys of the key set have the same kid",
        jwks(changed(x=...)): "x is not 32 bytes", jwks(changed(x=x + "=")): "x is not 32 bytes",
        jwks(changed(x=x + "A")): "x is not 32 bytes", jwks(changed(x=x[:-1])): "x is not 32 bytes",
        jwks(changed(x=x[:-1] + "p")): "x is not 32 bytes", jwks(changed(x=" " + x)): "x is not 32 bytes",
        jwks(changed(x="\ud800")): "x is not 32 bytes", jwks(changed(x=[x])): "x is not 32 bytes",
        jwks(changed(x=PUBLIC.hex())): "x is not 32 bytes", jwks(changed(x=b64(bytes(32)).decode())): "small order",
        jwks(changed(x=b64(b"\xff" * 32).decode())): "one spelling",
        jwks(*[changed(kid=str(number)) for number in range(17)]): "at most 16 keys here, this one has 17",
        jwks(JWK) + b" " * JWKS_BYTES_MAX: "at most 65536 bytes",
    }  # fmt: skip
    assert x[-1] != "p", "or the row with spare bits is none"
    for data, why in rows.items():
        with pytest.raises(ConfigError) as caught:
            read_jwks(data)
        assert why in str(caught.value), (data[:80], caught.value)
        assert x not in f"{caught.value} {caught.value.hint}"


# -- options ----------------------------------------------------------------------------------------------------------


def test_options_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="31 bytes, HS256 needs at least 32"):
        TenantTokenOptions((SECRET[:31],))
    with pytest.raises(ConfigError, match="negative"):
        TenantTokenOptions(leeway_us=-1)
    for secret in (PEM, text(JWK), PUBLIC, b64(PUBLIC), b64(PUBLIC) + b"=", PUBLIC.hex().encode()):
        with pytest.raises(ConfigError, match="public key"):
            TenantTokenOptions((secret,), keys={"t1": (KEY,)})
    with pytest.raises(ConfigError, match="has 17 keys"):
        TenantTokenOptions(keys={"t1": (TenantKey(PUBLIC),) * 17})
    with pytest.raises(ConfigError, match="the same kid"):
        TenantTokenOptions(keys={"": (KEY, KEY)})


def test_options_do_not_show_their_secrets() -> None:
    assert SECRET.decode() not in repr(options("HS256"))


def test_a_rotation_of_keys_with_an_overlap() -> None:
    first, second = TenantForger("EdDSA").with_header(kid="k1"), _signed_with_the_other_key()
    tokens, seen = TenantTokens(), []
    for keys in ((KEY,), (KEY, OTHER_KEY), (OTHER_KEY,), ()):
        tokens.replace(TenantTokenOptions(keys={"t1": keys}))
        seen.append([(lets_in(tokens, first), lets_in(tokens, second)) for _ in range(2)][1])
    assert seen == [(True, False), (True, True), (False, True), (False, False)]
    assert tokens.epoch == 5


def _signed_with_the_other_key() -> bytes:
    return mint_tenant(CLAIMS, "EdDSA", lambda signed: ed25519.sign(OTHER_SEED, signed), "k2")


def test_sessions_look_again_when_the_broker_gets_other_keys() -> None:
    scheduler = SimScheduler()
    log = EmbeddedLog(DATA, SimDisk(), scheduler, lambda _event, _fields: None)
    log.recover()
    broker = Broker(log, scheduler, BrokerOptions(entropy=bytes), lambda _event, _fields: None)
    token = TenantForger("EdDSA").token()
    assert not lets_in(broker.tenant_tokens, token), "without a key nothing is accepted"
    before = broker.access.epoch
    for _ in range(2):
        broker.set_tenant_tokens(options("EdDSA"))
        assert lets_in(broker.tenant_tokens, token)
        assert broker.access.epoch == before + 1, "the same options again change nothing"
    broker.set_tenant_tokens(options("EdDSA", keys={"": (OTHER_KEY,)}))
    assert broker.access.epoch == before + 2
    assert not lets_in(broker.tenant_tokens, token), "a verdict that was remembered is not"


def test_what_is_remembered_is_bounded() -> None:
    tokens = TenantTokens(options("HS256"))
    forger = TenantForger("HS256")
    for number in range(CACHED_TOKENS_MAX + 50):
        tokens.verify(forger.with_claims(jti=str(number)), NOW)
    tokens.verify(forger.with_claims(jti="x" * CACHED_TOKEN_BYTES_MAX), NOW)
    assert len(tokens._seen) == CACHED_TOKENS_MAX
    assert max(map(len, tokens._seen)) <= CACHED_TOKEN_BYTES_MAX
    assert forger.with_claims(jti="0") not in tokens._seen
    last = forger.with_claims(jti=str(CACHED_TOKENS_MAX + 49))
    assert tokens.verify(last, NOW) is tokens.verify(last, NOW)
    assert not lets_in(tokens, last, NOW + 10**12)
    assert last not in tokens._seen


# -- minting ----------------------------------------------------------------------------------------------------------


def test_another_library_and_ours_make_tokens_for_each_other() -> None:
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    ours = mint_tenant(CLAIMS, "EdDSA", key.sign, "k1")
    claims = jwt.decode(ours, key.public_key(), ["EdDSA"], audience="felix-broker", options={"verify_exp": False})
    assert claims == CLAIMS
    assert jwt.get_unverified_header(ours) == {"alg": "EdDSA", "typ": "JWT", "kid": "k1"}
    theirs = jwt.encode(CLAIMS, key, "EdDSA", {"kid": "k1"}).encode()
    assert lets_in(TenantTokens(options("EdDSA")), theirs)
    assert mint_tenant(CLAIMS, "HS256", secret_signer(SECRET)).decode() == jwt.encode(CLAIMS, SECRET, "HS256")


def test_mint_refuses_what_no_token_can_hold() -> None:
    sign = secret_signer(SECRET)
    with pytest.raises(TooLarge, match="16384 are the most"):
        mint_tenant(CLAIMS | {"perms": ["stream.publish:stream:t1/default/x"] * 400}, "HS256", sign)
    with pytest.raises(BadRequest, match="UTF-8"):
        mint_tenant({"sub": "\ud800"}, "HS256", sign)
    with pytest.raises(ConfigError, match="at least 32"):
        secret_signer(b"short")
