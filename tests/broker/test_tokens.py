"""Tokens: nothing forged or stale is accepted, what is right is, and the checks can fail.

The corpus is in token_corpus.py. Beside it: 10^5 mutations of good tokens, JSON that nobody thought of, two verifiers that
are wrong on purpose and must be found out, minting against the budget of one byte, and the options.
"""

import json
from base64 import urlsafe_b64decode
from collections import Counter
from random import Random
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.tokens import (
    RULES,
    Claims,
    TokenOptions,
    Tokens,
    check_claims,
    inspect,
    mint,
)
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.errors import AuthError, BadRequest, ConfigError, TooLarge
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler
from tests.broker.token_corpus import (
    ABSENT,
    CLAIMS,
    HASH,
    LEEWAY_S,
    NOW,
    NOW_S,
    OLD_SECRET,
    PEM,
    SECOND,
    SECRET,
    Forger,
    Kind,
    forged,
    good,
    options,
)

KINDS_MIN = 60
MUTATIONS = 100_000
EXAMPLE = {"sub": "user123", "queue_key": "abc123xyz", "permissions": ["publish", "subscribe"]}


# -- the corpus -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", HASH)
def test_the_corpus_is_wide_and_reaches_every_rule(algorithm: str) -> None:
    kinds = forged(algorithm)
    assert len({kind.name for kind in kinds}) == len(kinds) >= KINDS_MIN
    assert {kind.rule for kind in kinds} == RULES.keys() - {"no secret"}


@pytest.mark.parametrize("algorithm", HASH)
def test_what_is_forged_or_stale_is_refused_by_its_rule(algorithm: str) -> None:
    wrong = {}
    for kind in forged(algorithm):
        said = verdict(kind, algorithm)
        if said != f"token refused: {RULES[kind.rule]}":
            wrong[kind.name] = said
    assert not wrong


def verdict(kind: Kind, algorithm: str, verifier: type[Tokens] = Tokens) -> str:
    try:
        verifier(options(algorithm, **kind.options)).verify(kind.token, NOW)
    except AuthError as error:
        return error.message
    return "accepted"


@pytest.mark.parametrize("algorithm", HASH)
def test_what_is_right_is_accepted(algorithm: str) -> None:
    assert {kind.name: verdict(kind, algorithm) for kind in good(algorithm)} == {
        kind.name: "accepted" for kind in good(algorithm)
    }


@pytest.mark.parametrize("algorithm", HASH)
def test_an_error_repeats_nothing_of_the_token(algorithm: str) -> None:
    for kind in forged(algorithm):
        with pytest.raises(AuthError) as caught:
            Tokens(options(algorithm, **kind.options)).verify(kind.token, NOW)
        said = f"{caught.value!r} {caught.value.hint}"
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__, "what it was made of may hold the claims"
        assert "marker" not in said
        assert SECRET.decode() not in said
        assert not any(part.decode("latin-1") in said for part in kind.token.split(b".") if len(part) > 8)


def test_no_secret_refuses_everything_and_says_what_to_do() -> None:
    for kind in good("HS256"):
        with pytest.raises(AuthError, match="no secret") as caught:
            Tokens().verify(kind.token, NOW)
        assert "tokens.secrets" in caught.value.hint


# -- verifiers that are wrong on purpose ------------------------------------------------------------------------------


class Gullible(Tokens):
    """Takes the algorithm from the header, as libraries once did."""

    def opened(self, token: bytes) -> dict[str, Any]:
        header, claims, signature = token.split(b".")
        named = json.loads(_lenient(header))["alg"]
        if named.strip().lower() != "none":
            forger = Forger(named)
            if _lenient(signature) != forger.sign(header + b"." + claims):
                raise AuthError("the signature is wrong")
        found: dict[str, Any] = json.loads(_lenient(claims))
        return found


class Lenient(Tokens):
    """PyJWT with its defaults, and the claims as they come."""

    def verify(self, token: bytes, now: int) -> Claims:
        said = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False, "verify_sub": False}
        try:
            found = jwt.decode(token, SECRET, list(self.options.algorithms), options=said)  # type: ignore[arg-type]
        except (jwt.InvalidTokenError, RecursionError) as error:
            raise AuthError(type(error).__name__) from None
        return Claims(str(found.get("sub")), str(found.get("queue_key")).encode("utf-8", "replace"), frozenset())


def _lenient(part: bytes) -> bytes:
    return urlsafe_b64decode(part + b"==")


def accepted_by(verifier: type[Tokens], algorithm: str) -> Counter[str]:
    """How many kinds of each rule this verifier lets in; what makes it crash it does not."""
    found: Counter[str] = Counter()
    for kind in forged(algorithm):
        try:
            found[kind.rule] += verdict(kind, algorithm, verifier) == "accepted"
        except Exception as error:  # it is a bad verifier
            assert verifier is not Tokens, error
    return +found


@pytest.mark.parametrize("algorithm", HASH)
def test_a_verifier_that_believes_the_header_is_found_out(algorithm: str) -> None:
    found = accepted_by(Gullible, algorithm)
    assert found["unsigned"] >= 8
    assert found["algorithm"] == 2, "the two other hashes"
    assert found["header field"]
    assert found["spelling"]
    assert not accepted_by(Tokens, algorithm)


@pytest.mark.parametrize("algorithm", HASH)
def test_the_library_with_its_defaults_is_found_out(algorithm: str) -> None:
    found = accepted_by(Lenient, algorithm)
    for rule in (
        "header json",
        "header field",
        "typ",
        "claims json",
        "sub",
        "queue_key",
        "exp",
        "expired",
        "aud",
        "spelling",
    ):
        assert found[rule], rule
    for rule in ("unsigned", "algorithm", "signature", "signature size", "parts"):
        assert not found[rule], rule


# -- mutations --------------------------------------------------------------------------------------------------------


def originals() -> list[bytes]:
    made = []
    for algorithm in HASH:
        forger = Forger(algorithm)
        made += [
            forger.with_claims(exp=NOW_S + 100),
            forger.with_claims(sub="other", queue_key="k2"),
            forger.with_header(typ=ABSENT),
        ]
    return made


def mutated(random: Random, tokens: list[bytes]) -> bytes:
    token = bytearray(random.choice(tokens))
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at, to = random.randrange(len(token)), random.randrange(len(token))
        match random.randrange(9):
            case 0:
                token[at] ^= 1 << random.randrange(8)
            case 1:
                token[at] = random.choice(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
            case 2:
                token.insert(at, random.choice(b"A.=_- \n\0"))
            case 3 if len(token) > 1:
                del token[at]
            case 4:
                token[at], token[to] = token[to], token[at]
            case 5:
                token[at:at] = token[min(at, to) : max(at, to)]
            case 6:
                token = token[: max(1, at)]
            case 7:
                other = random.choice(tokens)
                token = bytearray(token[:at] + other[at:])
            case _:
                parts, others = bytes(token).split(b"."), random.choice(tokens).split(b".")
                which = random.randrange(3)
                token = bytearray(b".".join([*parts[:which], others[which], *parts[which + 1 :]]))
    return bytes(token)


def lets_in(verifier: Tokens, token: bytes) -> bool:
    try:
        verifier.verify(token, NOW)
    except AuthError:
        return False
    return True


def test_a_hundred_thousand_mutations_and_none_is_accepted() -> None:
    tokens = originals()
    verifier = Tokens(options("HS256", algorithms=tuple(HASH), secrets=(SECRET, OLD_SECRET)))
    assert all(lets_in(verifier, token) for token in tokens)
    tried, accepted = 0, []
    for token in tokens:
        for bit in range(len(token) * 8):
            flipped = bytearray(token)
            flipped[bit // 8] ^= 1 << bit % 8
            tried += 1
            if lets_in(verifier, bytes(flipped)):
                accepted.append(bytes(flipped))
    random = Random(5)
    while tried < MUTATIONS:
        token = mutated(random, tokens)
        if token not in tokens:
            tried += 1
            if lets_in(verifier, token):
                accepted.append(token)
    assert not accepted, accepted[:3]


def test_the_mutations_find_a_verifier_of_half_the_signature() -> None:
    class Half(Gullible):
        def opened(self, token: bytes) -> dict[str, Any]:
            signed, _, signature = token.rpartition(b".")
            if _lenient(signature)[:16] != Forger("HS256").sign(signed)[:16]:
                raise AuthError("the signature is wrong")
            found: dict[str, Any] = json.loads(_lenient(signed.split(b".")[1]))
            return found

    token, found = originals()[0], 0
    for bit in range(len(token) * 8):
        flipped = bytearray(token)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found += lets_in(Half(options("HS256")), bytes(flipped))
        except ValueError:
            continue
    assert found > 100


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["alg", "typ", "kid", "crit", "sub", "queue_key", "permissions", "exp", "nbf", "iat", "iss", "aud"]
)


@given(st.dictionaries(names, values), st.dictionaries(names | st.text(), values))
def test_whatever_is_signed_is_judged_and_nothing_else_is_raised(
    header: dict[str, Any], claims: dict[str, Any]
) -> None:
    verifier = Tokens(options("HS256", issuer="me", audience="us"))
    forger = Forger("HS256")
    token = forger.token(claims=json.dumps(claims).encode())
    for each in (token, forger.token(header=json.dumps(forger.header | header).encode()), forger.token(header, claims)):
        assert not lets_in(verifier, each), "iss and aud are texts of other letters"
        assert not lets_in(verifier, each[1:])


@given(st.binary(max_size=300))
def test_whatever_comes_is_judged_and_nothing_else_is_raised(data: bytes) -> None:
    verifier = Tokens(options("HS256"))
    assert not lets_in(verifier, data)
    assert not lets_in(verifier, Forger("HS256").token(claims=data))
    assert not lets_in(verifier, Forger("HS256").token(header=data))


# -- what an accepted token says --------------------------------------------------------------------------------------


def test_claims() -> None:
    token = Forger("HS256").with_claims(exp=NOW_S + 100, nbf=NOW_S - 100, permissions=["rotate", "fly", "create"])
    found = Tokens(options("HS256")).verify(token, NOW)
    assert found == Claims(
        subject="sub-marker",
        key=b"key-marker",
        permissions=frozenset({"rotate", "create"}),
        expires=(NOW_S + 100 + LEEWAY_S) * SECOND,
        not_before=(NOW_S - 100 - LEEWAY_S) * SECOND,
    )


def test_times_are_judged_to_the_microsecond() -> None:
    verifier = Tokens(options("HS256"))
    token = Forger("HS256").with_claims(nbf=NOW_S, exp=NOW_S + 10)
    found = verifier.verify(token, NOW)
    for now, good_ in (
        (found.not_before - 1, False), (found.not_before, True), (found.expires - 1, True), (found.expires, False)
    ):  # fmt: skip
        assert _at(verifier, token, now) is good_
    assert verifier.verify(Forger("HS256").with_claims(nbf=1), NOW).not_before == 0, "no time is before 1970"


def _at(verifier: Tokens, token: bytes, now: int) -> bool:
    try:
        return bool(verifier.verify(token, now))
    except AuthError:
        return False


def test_one_name_has_one_spelling() -> None:
    token = Forger("HS256").with_claims(sub="Jo\u0308rg")
    assert Tokens(options("HS256")).verify(token, NOW).subject == "J\u00f6rg"


def test_the_vector_of_rfc_7515() -> None:
    """Appendix A.1: claims of somebody else, but a signature that the RFC computed."""
    key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow=="
    token = (
        b"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt"
        b"cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    )
    verifier = Tokens(TokenOptions((urlsafe_b64decode(key),)))
    assert verifier.opened(token) == {"iss": "joe", "exp": 1300819380, "http://example.com/is_root": True}
    with pytest.raises(AuthError, match="its queue_key"):
        verifier.verify(token, 0)


@pytest.mark.parametrize("algorithm", HASH)
def test_another_library_and_ours_make_the_same_token(algorithm: str) -> None:
    claims = EXAMPLE | {"sub": "J\u00f6rg"}
    ours = mint(SECRET, claims, algorithm)
    assert jwt.decode(ours, SECRET, [algorithm]) == claims
    assert mint(SECRET, EXAMPLE, algorithm).decode() == jwt.encode(EXAMPLE, SECRET, algorithm)
    assert mint(SECRET, EXAMPLE, algorithm, typ=False).decode() == jwt.encode(EXAMPLE, SECRET, algorithm, {"typ": None})
    assert Tokens(options(algorithm)).verify(ours, NOW).subject == "J\u00f6rg"


# -- minting ----------------------------------------------------------------------------------------------------------

UUID = "6fa459ea-ee8a-3ca4-894e-db77e160355e"
SIZES = [
    ({}, 187),
    ({"exp": NOW_S}, 209),
    ({"exp": NOW_S, "iat": NOW_S}, 232),
    ({"queue_key": "k" * 32}, 217),
    ({"exp": NOW_S, "iat": NOW_S, "jti": UUID}, 292),
    ({"sub": UUID, "queue_key": "k" * 32, "exp": NOW_S}, 279),
]


@pytest.mark.parametrize(("more", "size"), SIZES)
def test_the_budget_of_one_byte(more: dict[str, Any], size: int) -> None:
    if size <= 255:
        assert len(mint(SECRET, EXAMPLE | more)) == size
        return
    with pytest.raises(TooLarge, match=f"{size} bytes, {size - 255} over the 255"):
        mint(SECRET, EXAMPLE | more)
    assert len(mint(SECRET, EXAMPLE | more, bytes_max=16 * 1024)) == size


@pytest.mark.parametrize(("typ", "budget"), [(True, 130), (False, 142)])
def test_the_hint_says_how_much_is_too_much(typ: bool, budget: int) -> None:
    for extra in range(1, 40):
        claims = {"sub": "ann", "queue_key": ""}
        claims["queue_key"] = "k" * (budget + extra - len(json.dumps(claims, separators=(",", ":"))))
        with pytest.raises(TooLarge, match="longest claim is queue_key") as caught:
            mint(SECRET, claims, typ=typ)
        assert f"shorten the claims by {extra} bytes" in caught.value.hint
        claims["queue_key"] = claims["queue_key"][extra:]
        assert len(mint(SECRET, claims, typ=typ)) <= 255


def test_mint_refuses_what_no_token_can_hold() -> None:
    for claims in ({"exp": float("nan")}, {"sub": b"bytes"}, {"sub": "\ud800"}):
        with pytest.raises(BadRequest, match="UTF-8"):
            mint(SECRET, claims)
    with pytest.raises(ConfigError, match="31 bytes, HS256 needs at least 32"):
        mint(SECRET[:31], EXAMPLE)
    with pytest.raises(ConfigError, match="'none' is not an algorithm"):
        mint(SECRET, EXAMPLE, "none")


def test_inspect_believes_nothing_and_shows_all() -> None:
    found = inspect(Forger("HS256").token({"alg": "none", "crit": ["x"]}, EXAMPLE, b"whatever"))
    assert found.header == {"alg": "none", "crit": ["x"]}
    assert found.claims == EXAMPLE
    assert sum(found.sizes.values()) == len(json.dumps(EXAMPLE, separators=(",", ":"))) - 1
    assert inspect(Forger("HS256").token(claims={"sub": "\ud800"})).sizes == {"sub": 12}
    for broken in (b"", b"a.b", b"a.b.c", Forger("HS256").token(claims=b"[]")):
        with pytest.raises(AuthError):
            inspect(broken)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "least"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_short_secret_is_refused_when_options_are_made(algorithm: str, least: int) -> None:
    TokenOptions((b"\x80" * least,), (algorithm,))
    with pytest.raises(
        ConfigError, match=f"secret 1 of tokens has {least - 1} bytes, {algorithm} needs at least {least}"
    ):
        TokenOptions((b"\x80" * least, b"\x80" * (least - 1)), (algorithm,))


def test_options_that_make_no_sense() -> None:
    jwk = json.dumps({"kty": "oct", "k": "a" * 43}).encode()
    for secret in (PEM, jwk):
        with pytest.raises(ConfigError, match="public key, a certificate or a key in JSON"):
            TokenOptions((secret,))
    for names_ in ((), ("HS256", "HS256"), ("none",), ("RS256",), ("hs256",)):
        with pytest.raises(ConfigError):
            TokenOptions((SECRET,), names_)
    with pytest.raises(ConfigError, match="negative"):
        TokenOptions(leeway_us=-1)


def test_options_do_not_show_their_secrets() -> None:
    assert SECRET.decode() not in repr(options("HS256"))


def test_a_rotation_of_the_master_secret() -> None:
    tokens = Tokens(TokenOptions((OLD_SECRET,)))
    old, new = mint(OLD_SECRET, CLAIMS), mint(SECRET, CLAIMS)
    seen = []
    for secrets in ((OLD_SECRET,), (SECRET, OLD_SECRET), (SECRET,), ()):
        tokens.replace(TokenOptions(secrets))
        seen.append((lets_in(tokens, old), lets_in(tokens, new)))
    assert seen == [(True, False), (True, True), (False, True), (False, False)]
    assert tokens.epoch == 5


def test_sessions_look_again_when_the_broker_gets_other_options() -> None:
    scheduler = SimScheduler()
    log = EmbeddedLog(DATA, SimDisk(), scheduler, lambda _event, _fields: None)
    log.recover()
    broker = Broker(log, scheduler, BrokerOptions(entropy=bytes), lambda _event, _fields: None)
    assert not lets_in(broker.tokens, mint(SECRET, CLAIMS)), "without a secret nothing is accepted"
    before = broker.access.epoch
    for _ in range(2):
        broker.set_tokens(TokenOptions((SECRET,)))
        assert lets_in(broker.tokens, mint(SECRET, CLAIMS))
        assert broker.access.epoch == before + 1, "the same options again change nothing"
    broker.set_tokens(TokenOptions((OLD_SECRET,)))
    assert broker.access.epoch == before + 2
    assert not lets_in(broker.tokens, mint(SECRET, CLAIMS))


def test_claims_are_judged_alone_for_who_has_no_secret() -> None:
    assert check_claims(CLAIMS, TokenOptions(), NOW).subject == "sub-marker"
