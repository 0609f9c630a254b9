"""`quintet token` for Felix: what keygen writes and mint prints a broker takes, inspect says what it would say, and what is
wrong with a file is said with its name."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from quintet import server
from quintet.broker.identity.tenant_tokens import TenantClaims, TenantTokenOptions, TenantTokens
from quintet.cli.manage.tenant_token import thumbprint
from quintet.cli.terminal.common import now_ms
from quintet.config import Settings
from quintet.config.jwks import read_key_set
from quintet.model.errors import AuthError, ConfigError
from tests.broker.tenant_token_corpus import JWK, TenantForger
from tests.broker.token_corpus import felix
from tests.cli.conftest import Commands

SECRET = "a-secret-of-the-tests-that-is-long-enough-for-every-algorithm-here"
ALLOW = "stream.publish:stream:t1/default/*"
ANN = ("--tenant", "t1", "--subject", "ann", "--allow", ALLOW)
quintet = Commands("flymq://127.0.0.1:1")  # no broker is asked


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    quintet("token", "keygen", "--out", str(tmp_path / "keys"))
    return tmp_path / "keys"


def mint(*arguments: str) -> str:
    return quintet("token", "mint", *ANN, *arguments).out.strip()


def inspect(text: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = quintet("token", "inspect", text, "--json", *arguments, code=code).json
    return found


def options(config: str, tmp_path: Path) -> TenantTokenOptions:
    """What a broker with this configuration judges by."""
    file = tmp_path / "quintet.toml"
    file.write_text(config)
    return server._tenant_tokens(Settings.load(file, {}, {}))


def accepted(options: TenantTokenOptions, token: str) -> TenantClaims | None:
    try:
        return TenantTokens(options).verify(token.encode(), now_ms() * 1000)
    except AuthError:
        return None


# -- keygen -----------------------------------------------------------------------------------------------------------


def test_the_two_files_fit_each_other_and_only_one_is_for_all_eyes(keys: Path) -> None:
    private = load_pem_private_key((keys / "key.pem").read_bytes(), None)
    assert isinstance(private, Ed25519PrivateKey)
    (key,) = read_key_set(keys / "jwks.json")
    assert key.public == private.public_key().public_bytes_raw()
    assert key.kid == thumbprint(private)
    assert stat.S_IMODE((keys / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert '"d"' not in (keys / "jwks.json").read_text()


def test_the_thumbprint_of_rfc_8037() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert thumbprint(Ed25519PrivateKey.from_private_bytes(seed)) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_nothing_is_overwritten_and_nothing_is_left_half_done(keys: Path, tmp_path: Path) -> None:
    before = (keys / "key.pem").read_bytes()
    refused = quintet("token", "keygen", "--out", str(keys), code=2)
    assert f"cannot write {keys / 'key.pem'}: File exists" in refused.err
    assert (keys / "key.pem").read_bytes() == before
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "jwks.json").write_text("mine")
    assert "jwks.json: File exists" in quintet("token", "keygen", "--out", str(tmp_path / "half"), code=2).err
    assert os.listdir(tmp_path / "half") == ["jwks.json"]
    assert "kid is not" in quintet("token", "keygen", "--out", str(tmp_path / "long"), "--kid", "k" * 300, code=2).err
    assert not (tmp_path / "long").exists()


def test_one_key_replaces_another(keys: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    made = quintet("token", "keygen", "--out", str(new), "--kid", "2027", "--beside", str(keys / "jwks.json"), "--json")
    assert made.json == {
        "key_file": str(new / "key.pem"), "jwks_file": str(new / "jwks.json"), "kid": "2027", "keys": 2
    }  # fmt: skip
    old_token = mint("--key-file", str(keys / "key.pem"))
    new_token = mint("--key-file", str(new / "key.pem"), "--kid", "2027")
    both = options(f"tokens.jwks_file = '{new / 'jwks.json'}'", tmp_path)
    assert accepted(both, old_token)
    assert accepted(both, new_token)
    only = json.loads((new / "jwks.json").read_text())
    (new / "jwks.json").write_text(json.dumps({"keys": only["keys"][:1]}))
    last = options(f"tokens.jwks_file = '{new / 'jwks.json'}'", tmp_path)
    assert last != both, "so the broker judges what is open again"
    assert not accepted(last, old_token)
    assert accepted(last, new_token)


# -- mint -------------------------------------------------------------------------------------------------------------


def test_what_mint_prints_a_broker_takes(keys: Path, tmp_path: Path) -> None:
    made = quintet("token", "mint", *ANN, "--key-file", str(keys / "key.pem"), "--expires", "90s")
    found = accepted(options(f"tokens.jwks_file = '{keys / 'jwks.json'}'", tmp_path), made.out.strip())
    assert found is not None
    assert (found.subject, found.tenant, found.permissions) == ("ann", "t1", (ALLOW,))
    assert 0 < found.expires - 60_000_000 - now_ms() * 1000 <= 92_000_000
    assert found.allows("stream.publish", "stream:t1/default/orders")
    assert re.fullmatch(r"\d+ bytes, EdDSA, expires \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", made.err)


def test_what_mint_prints_a_development_broker_takes() -> None:
    judged = server._tenant_tokens(Settings.load(None, {}, {"dev": True}))
    made = quintet("token", "mint", "--dev", *ANN, "--json").json
    assert accepted(judged, made["token"])
    assert made["bytes"] == len(made["token"])
    assert (made["claims"]["iss"], made["claims"]["aud"]) == ("felix-auth", "felix-broker")
    assert not accepted(judged, mint("--dev", "--issuer", "me"))
    bare = quintet("token", "mint", "--dev", *ANN, "--issuer", "", "--audience", "", "--json").json["claims"]
    assert not {"iss", "aud"} & bare.keys()


def test_the_key_file_wins_over_the_variable(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_TOKEN_SECRET", SECRET)
    assert inspect(mint("--key-file", str(keys / "key.pem")))["header"]["alg"] == "EdDSA"
    assert inspect(mint())["header"] == {"alg": "HS256", "typ": "JWT"}


def test_mint_says_what_gives_nothing(keys: Path) -> None:
    more = ("--allow", "cache.read:cache:t2/*", "--allow", "fly:x")
    made = quintet("token", "mint", *ANN, *more, "--key-file", str(keys / "key.pem"))
    assert "cache.read:cache:t2/* gives nothing: not a cache of tenant t1" in made.err
    assert "fly:x gives nothing: not an action of this broker" in made.err


def test_mint_refuses_what_makes_no_sense(keys: Path, tmp_path: Path) -> None:
    key, fast = ("--key-file", str(keys / "key.pem")), ("--sub", "ann", "--queue-key", "k1")
    rows: list[tuple[tuple[str, ...], str]] = [
        (("--sub", "ann", *key), "either --queue-key"),
        ((*ANN, "--queue-key", "k1", *key), "either --queue-key"),
        (ANN, "There is no key to sign with"),
        ((*ANN, *key, "--dev"), "--key-file excludes"),
        ((*ANN, *key, "--secret", SECRET), "--key-file excludes"),
        ((*ANN, "--dev", "--alg", "HS512"), "--alg is not for tokens of Felix"),
        ((*ANN, "--dev", "--no-typ"), "--no-typ is not for tokens of Felix"),
        ((*ANN, "--dev", "--permissions", "publish"), "--permissions is not for tokens of Felix"),
        ((*fast, "--dev", "--allow", "x"), "--allow is not for tokens of Fast"),
        ((*fast, *key), "--key-file is not for tokens of Fast"),
        ((*ANN, *key, "--expires", "0"), "expires"),
        ((*ANN, "--secret", "short"), "at least 32"),
    ]
    for arguments, why in rows:
        assert why in quintet("token", "mint", *arguments, code=2).err
    slash = quintet("token", "mint", "--dev", "--sub", "ann", "--tenant", "t1/x", code=1)
    assert "its tid is not the name of a tenant" in slash.err
    assert "its sub is not" in quintet("token", "mint", "--dev", "--sub", "(x)", "--tenant", "t1", code=1).err


def test_private_keys_that_are_none(tmp_path: Path) -> None:
    whole = Encoding.PEM, PrivateFormat.PKCS8
    contents = {
        "empty": b"",
        "text": b"hello",
        "public": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        "another curve": generate_private_key(SECP256R1()).private_bytes(*whole, NoEncryption()),
        "locked": Ed25519PrivateKey.generate().private_bytes(*whole, BestAvailableEncryption(b"word")),
    }
    for name, content in contents.items():
        file = tmp_path / name
        file.write_bytes(content)
        file.chmod(0o600)
        refused = quintet("token", "mint", *ANN, "--key-file", str(file), code=2)
        assert f"{file} is not an Ed25519 private key in PEM without a passphrase" in refused.err
    (tmp_path / "text").chmod(0o644)
    assert "chmod 600" in quintet("token", "mint", *ANN, "--key-file", str(tmp_path / "text"), code=2).err
    assert "cannot read" in quintet("token", "mint", *ANN, "--key-file", str(tmp_path / "none"), code=2).err


# -- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_for_people(keys: Path, tmp_path: Path) -> None:
    made = mint("--allow", "cache.read:cache:t2/*", "--key-file", str(keys / "key.pem"))
    found = quintet("token", "inspect", "--jwks-file", str(keys / "jwks.json"), data=made)
    assert re.search(r"claim +tid +t1 +11", found.out)
    assert re.search(r"stream\.publish +stream:t1/default/\* +allowed", found.out)
    assert re.search(r"cache\.read +cache:t2/\* +nothing: not a cache of tenant t1", found.out)
    assert found.lines[-3:] == [f"size: {len(made)} of 16384 bytes", "signature: right", "a broker takes it"]
    quintet("token", "keygen", "--out", str(tmp_path / "other"))
    wrong = quintet("token", "inspect", made, "--jwks-file", str(tmp_path / "other" / "jwks.json"), code=1)
    assert wrong.lines[-2:] == ["signature: wrong", "a broker refuses it: its signature is wrong"]
    unsure = quintet("token", "inspect", made)
    assert unsure.lines[-2:] == ["signature: not checked", "a broker takes it, if the signature is right"]


def test_inspect_tells_the_two_kinds_apart() -> None:
    found = inspect(felix().decode())
    assert (found["door"], found["claims"]["tid"]) == ("felix", "t1")
    assert found["allows"] == [["*", "*", "nothing: not an action of this broker"]]
    fast = quintet("token", "mint", "--dev", "--sub", "ann", "--queue-key", "k1").out.strip()
    found = inspect(fast, "--dev")
    assert (found["door"], found["signature"]) == ("fast", "right")
    assert found["allows"] == [[word, "topics with its queue_key", "allowed"] for word in ("publish", "subscribe")]


def test_inspect_says_what_a_broker_says() -> None:
    forger, now = TenantForger("HS256"), now_ms() // 1000
    rows = {
        forger.with_claims(exp=now - 3600): "it has expired",
        forger.with_claims(exp=now + 60, nbf=now + 3600): "it is not valid yet",
        forger.with_claims(tid=1): "its tid is not the name of a tenant",
        forger.with_claims(perms="x"): "its perms are not an array of strings",
        forger.with_claims(iss="me"): "its iss is not the issuer this broker trusts",
        forger.with_header(alg="none"): "it is not signed",
        forger.with_header(alg="HS512"): "its algorithm is not one that this broker accepts",
        forger.with_header(crit=["x"]): "its header has a field other than alg, typ and kid",
    }
    for text, why in rows.items():
        found = inspect(text.decode(), code=1)
        assert (found["refused"], found["signature"], found["door"]) == (why, "not checked", "felix")
    other = forger.with_claims(exp=now + 60, iss="me", aud="us").decode()
    assert inspect(other, "--issuer", "me", "--audience", "")["refused"] == ""
    strange = forger.with_claims(tid="\x1b[2J", perms=["stream.publish:\x1b[2J"], exp="x").decode()
    assert "\x1b" not in quintet("token", "inspect", strange, code=1).out


# -- the files of the broker ------------------------------------------------------------------------------------------


def test_a_tenant_with_a_file_is_judged_by_it_alone(keys: Path, tmp_path: Path) -> None:
    quintet("token", "keygen", "--out", str(tmp_path / "own"))
    config = f"""
        [tokens]
        jwks_file = '{keys / "jwks.json"}'
        secrets = [{{secret = '{SECRET}'}}]
        leeway_seconds = 5
        [listeners.felix]
        issuer = 'me'
        audience = ''
        [[tenants]]
        name = 't1'
        jwks_file = '{tmp_path / "own" / "jwks.json"}'
        [[tenants]]
        name = 't2'
    """
    judged = options(config, tmp_path)
    assert (judged.leeway_us, judged.issuer, judged.audience) == (5_000_000, "me", "")
    assert judged.keys.keys() == {"", "t1"}
    signers = {
        "own": ("--key-file", str(tmp_path / "own" / "key.pem")),
        "global": ("--key-file", str(keys / "key.pem")),
        "secret": ("--secret", SECRET),
    }
    seen = set()
    for tenant in ("t1", "t2", "t3"):
        for name, signer in signers.items():
            made = quintet("token", "mint", "--sub", "ann", "--tenant", tenant, "--issuer", "me", *signer).out.strip()
            if accepted(judged, made):
                seen.add((tenant, name))
    assert seen == {("t1", "own"), ("t2", "global"), ("t2", "secret"), ("t3", "global"), ("t3", "secret")}


def test_a_secret_for_other_algorithms_judges_no_token_of_felix(tmp_path: Path) -> None:
    config = f"[tokens]\nalgorithms = ['HS512']\nsecrets = [{{secret = '{SECRET}'}}]\n"
    assert options(config, tmp_path).secrets == ()
    assert options(config.replace("HS512", "HS256"), tmp_path).secrets == (SECRET.encode(),)


def test_key_sets_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    rows = {
        b"": "not a JSON object",
        json.dumps({"keys": [JWK | {"d": "AA"}]}).encode(): "key 0 is a private key",
        b" " * 70_000: "at most 65536 bytes",
    }
    for content, why in rows.items():
        file.write_bytes(content)
        for config in (f"tokens.jwks_file = '{file}'", f"[[tenants]]\nname = 't1'\njwks_file = '{file}'"):
            with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: .*{why}"):
                options(config, tmp_path)
    file.write_text(json.dumps({"keys": [JWK]}))
    assert options(f"tokens.jwks_file = '{file}'", tmp_path).keys
    file.chmod(0o666)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        read_key_set(file)
    file.unlink()
    with pytest.raises(ConfigError, match=f"cannot read {re.escape(str(file))}: No such file"):
        read_key_set(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_key_set(tmp_path)
