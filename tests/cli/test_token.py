"""`quintet token`: what mint prints a broker takes, what inspect says a broker would say, and no secret gets out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from quintet import server
from quintet.broker.identity.tokens import Tokens
from quintet.cli.terminal.common import now_ms
from quintet.config import DEV_FAST_MASTER_SECRET, Settings
from tests.broker.token_corpus import Forger
from tests.cli.conftest import Commands

SECRET = "a-secret-of-the-tests-that-is-long-enough-for-every-algorithm-here"
ANN = ("--sub", "ann", "--queue-key", "k1")
quintet = Commands("flymq://127.0.0.1:1")  # no broker is asked


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    file = tmp_path / "master.key"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return str(file)


def mint(*arguments: str) -> str:
    return quintet("token", "mint", *ANN, *arguments).out.strip()


def inspect(text: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = quintet("token", "inspect", text, "--json", *arguments, code=code).json
    return found


# -- mint -------------------------------------------------------------------------------------------------------------


def test_what_mint_prints_a_development_broker_takes() -> None:
    settings = Settings.load(None, {}, {"dev": True})
    tokens = Tokens(server._tokens(settings))
    made = quintet("token", "mint", "--dev", *ANN, "--permissions", "rotate, create,rotate", "--expires", "90s")
    now = now_ms() * 1000
    found = tokens.verify(made.raw.strip(), now)
    assert (found.subject, found.key, found.permissions) == ("ann", b"k1", frozenset({"rotate", "create"}))
    left = found.expires - settings.tokens.leeway_seconds * 1_000_000 - now
    assert 0 < left <= 92_000_000
    assert re.fullmatch(r"\d+ of 255 bytes, expires \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", made.err)


def test_where_the_secret_comes_from(secret_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never = ("--expires", "0")
    made = mint("--secret-file", secret_file, *never)
    assert mint("--secret", SECRET, *never) == made
    monkeypatch.setenv("QUINTET_TOKEN_SECRET", SECRET)
    assert mint(*never) == made
    assert mint("--dev", *never) != made, "a flag wins over the variable"
    monkeypatch.setenv("QUINTET_TOKEN_SECRET", "another")
    assert mint("--secret-file", secret_file, *never) == made
    assert inspect(made, "--secret-file", secret_file)["signature"] == "right"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_every_algorithm_and_the_shorter_header(algorithm: str) -> None:
    whole = mint("--secret", SECRET, "--alg", algorithm, "--expires", "0")
    bare = mint("--secret", SECRET, "--alg", algorithm, "--expires", "0", "--no-typ")
    assert len(whole) - len(bare) == 16
    for made in (whole, bare):
        found = inspect(made, "--secret", SECRET, "--alg", algorithm)
        assert (found["signature"], found["refused"], found["bytes"]) == ("right", "", len(made))


def test_mint_as_json_with_issuer_and_audience() -> None:
    found = quintet("token", "mint", "--dev", *ANN, "--issuer", "me", "--audience", "us", "--json").json
    assert len(found["token"]) == found["bytes"] == 255 - found["bytes_left"]
    assert (found["claims"]["iss"], found["claims"]["aud"]) == ("me", "us")


def test_mint_refuses_what_does_not_fit_or_makes_no_sense(tmp_path: Path) -> None:
    long = quintet("token", "mint", "--dev", "--sub", "ann", "--queue-key", "k" * 120, code=1)
    assert re.search(r"\d+ over the 255 that fit; its longest claim is queue_key with 135 bytes", long.err)
    assert "is not a permission" in quintet("token", "mint", "--dev", *ANN, "--permissions", "fly", code=2).err
    assert "is not a duration" in quintet("token", "mint", "--dev", *ANN, "--expires", "soon", code=2).err
    assert "There is no secret to sign with" in quintet("token", "mint", *ANN, code=2).err
    assert "5 bytes, HS256 needs at least 32" in quintet("token", "mint", *ANN, "--secret", "short", code=2).err
    assert "needs at least 64" in quintet("token", "mint", *ANN, "--dev", "--alg", "HS512", code=2).err
    assert "its sub is not" in quintet("token", "mint", "--dev", "--sub", "(x)", "--queue-key", "k", code=1).err
    open_file = tmp_path / "open.key"
    open_file.write_text(SECRET)
    open_file.chmod(0o644)
    assert "chmod 600" in quintet("token", "mint", *ANN, "--secret-file", str(open_file), code=2).err
    both = quintet("token", "mint", *ANN, "--dev", "--secret-file", str(open_file), code=2)
    assert "exclude each other" in both.err
    assert "cannot read" in quintet("token", "mint", *ANN, "--secret-file", str(tmp_path / "none"), code=2).err


# -- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_for_people(secret_file: str) -> None:
    made = mint("--secret-file", secret_file, "--expires", "7d")
    found = quintet("token", "inspect", "-", "--secret-file", secret_file, data=f"  {made}\n")
    assert re.search(r"claim +sub +ann +12", found.out)
    assert re.search(r"claim +exp +\d+: \d{4}-.*, in 7 d +17", found.out)
    assert found.lines[-3:] == [f"size: {len(made)} of 255 bytes", "signature: right", "a broker takes it"]
    assert SECRET not in found.out + found.err
    unsure = quintet("token", "inspect", made)
    assert unsure.lines[-2:] == ["signature: not checked", "a broker takes it, if the signature is right"]
    wrong = quintet("token", "inspect", made, "--dev", code=1)
    assert wrong.lines[-2:] == ["signature: wrong", "a broker refuses it: its signature is wrong"]


def test_inspect_says_what_a_broker_says() -> None:
    forger, now = Forger("HS256"), now_ms() // 1000
    rows = {
        forger.with_claims(exp=now - 3600): "it has expired",
        forger.with_claims(nbf=now + 3600): "it is not valid yet",
        forger.with_claims(exp="soon"): "its exp is not a number of seconds since 1970",
        forger.with_header(alg="none"): "it is not signed",
        forger.with_header(crit=["x"]): "its header has a field other than alg, typ and kid",
        forger.with_claims(x="x" * 200): "it is longer than a token may be here",
        forger.token(algorithm="HS512", header={"alg": "HS512"}): "its algorithm is not one that this broker accepts",
    }
    for text, why in rows.items():
        found = inspect(text.decode(), code=1)
        assert (found["refused"], found["signature"]) == (why, "not checked")


def test_inspect_shows_strange_claims_and_steers_no_terminal() -> None:
    forger = Forger("HS256")
    token = forger.with_claims(sub="\x1b[2J\ud800", exp=10**18, nbf="x", iat=[1]).decode()
    found = quintet("token", "inspect", token, code=1)
    assert "\x1b" not in found.out
    assert "(no time)" in found.out
    assert json.loads(quintet("token", "inspect", token, "--json", code=1).out)["claims"]["sub"] == "\x1b[2J\ud800"


def test_inspect_of_what_is_no_token() -> None:
    assert "exactly three parts" in quintet("token", "inspect", "hello", code=1).err
    assert "it is empty" in quintet("token", "inspect", data=b"", code=1).err
    assert "longer" in quintet("token", "inspect", data=b"a" * 70_000, code=1).err


def test_the_variable_with_the_secret_is_no_option_of_the_broker() -> None:
    assert Settings.load(None, {"QUINTET_TOKEN_SECRET": "x"}, {"dev": True}).tokens.secrets[0].value == (
        DEV_FAST_MASTER_SECRET.encode()
    )
