"""The configuration: layers in their order, errors that name place, key and what was meant, secrets that stay secret."""

import hashlib
from pathlib import Path

import pytest

from quintet.cli.manage.config import GUIDE, example, reference
from quintet.config import DEV_BLIPMQ_KEY, Settings, Topics, load_with_origins
from quintet.config.fields import matches, read_secret
from quintet.config.options import tables
from quintet.model import limits
from quintet.model.errors import ConfigError
from quintet.protocols.blipmq.door import BLIPMQ
from quintet.server import _lets_in

ROOT = Path(__file__).parent.parent
A_USER = "[[users]]\nname = 'a'\npassword = 'p'\n"
HASH = "$argon2id$v=19$m={m},t={t},p={p}$cXVpbnRldC1uby11c2VyLg$82drlqSiSYFMOde50c83FicOk5LG7neGu+L5srPw+yA"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quintet.toml"


def test_defaults_are_valid_and_frozen() -> None:
    settings = Settings.load(None, {}, {})
    assert settings.listeners.of(BLIPMQ).port == 5555
    assert settings.listeners.admin.port == 8080
    assert settings.keys == ()
    with pytest.raises(ValueError, match="frozen"):
        settings.dev = True


def test_flags_over_environment_over_file(file: Path) -> None:
    file.write_text('data = "file"\ndrain_timeout_seconds = 1\n[listeners.blipmq]\nport = 1\nconnections_max = 7\n')
    environ = {"QUINTET_DATA": "env", "QUINTET_LISTENERS__BLIPMQ__PORT": "2", "HOME": "x"}
    settings, origins = load_with_origins(file, environ, {"data": Path("flag"), "dev": None})
    assert (settings.data, settings.listeners.of(BLIPMQ).port) == (Path("flag"), 2)
    assert (settings.listeners.of(BLIPMQ).connections_max, settings.drain_timeout_seconds) == (7, 1)
    assert origins[("data",)] == "flag --data"
    assert origins[("listeners", "blipmq", "port")] == "environment variable QUINTET_LISTENERS__BLIPMQ__PORT"
    assert origins[("listeners", "blipmq", "connections_max")] == str(file)


def test_sizes_may_have_a_unit(file: Path) -> None:
    file.write_text('[topics]\nsegment_bytes = "4 MiB"\nretention_bytes = "2GiB"\nmemory_bytes = 100_000\n')
    topics = Settings.load(file, {"QUINTET_LIMITS__DISK_FREE_BYTES_MIN": "1KiB"}, {})
    assert (topics.topics.segment_bytes, topics.topics.retention_bytes) == (4 * limits.MIB, 2048 * limits.MIB)
    assert (topics.topics.memory_bytes, topics.limits.disk_free_bytes_min) == (100_000, 1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[listeners.blipmq]\nprot = 1", "listeners.blipmq.prot: unknown key; did you mean listeners.blipmq.port?"),
        ("[listners.blipmq]\nport = 1", "listners: unknown key; did you mean listeners?"),
        ("[log]\nqqqqq = 1", "log.qqqqq: unknown key; valid here: log.level, log.format"),
        ("[listeners.blipmq]\nport = 70000", "listeners.blipmq.port: should be less than or equal to 65535, not 70000"),
        ("[listeners.blipmq]\nport = 'x'", "listeners.blipmq.port: should be a valid integer"),
        ("[topics]\ndurability = 'fsnyc'", "should be 'fsync', 'interval', 'os' or 'memory', not 'fsnyc'"),
        ("[topics]\nsegment_bytes = '4 bananas'", "topics.segment_bytes: expected a number of bytes"),
        ("[listeners.blipmq]\nhost = '0.0.0.0'", "listeners.blipmq: plaintext on '0.0.0.0'"),
        ("[listeners.admin]\nhost = '::'", "listeners.admin: plaintext on '::'"),
        ("[listeners.blipmq]\ntls_cert = 'a'", "tls_cert and tls_key belong together"),
        ("dev = true\n[listeners.blipmq]\nhost = '::'\ninsecure = true", "listeners.blipmq.host: :: is not loopback"),
        ("[[keys]]\nname = 'a'", "keys[0]: give exactly one of key, key_file and key_sha256 (given: none)"),
        ("[[keys]]\nname = 'a'\nkye = 'b'", "keys[0].kye: unknown key; did you mean keys[0].key?"),
        ("[[keys]]\nkey = 'b'", "keys[0].name: missing"),
        ("[[keys]]\nname = 'a'\nkey = 'b'\n[[keys]]\nname = 'a'\nkey = 'c'", "keys: 'a' and 'a' have the same name"),
        ("[[keys]]\nname = 'a'\nkey = 'b'\n[[keys]]\nname = 'c'\nkey = 'b'", "keys: 'a' and 'c' have the same key"),
        ("[[keys]]\nname = 'a'\nkey = 'b'\npublish = ['a*b']", "pattern 'a*b': a * is allowed at the end only"),
        ("[[keys]]\nname = 'a'\nkey = 'b'\nuser = 'u'\npublish = ['x']", "has the rights of that user"),
        ("[[topics.overrides]]\npattern = '*x'", "topics.overrides[0]: pattern '*x': a * is allowed at the end only"),
        (
            "[[users]]\nname = 'a'",
            "users[0]: give exactly one of password, password_file, password_argon2 (given: none)",
        ),
        ('[[users]]\nname = "a\\u200b"\npassword = "p"', "users[0].name: a user name has no control or invisible"),
        ("[[users]]\nname = 'a'\npassword = 'p'\nroles = ['boss']", "users[0].roles: there is no role 'boss'"),
        (f"{A_USER}[[users]]\nname = 'a'\npassword = 'q'", "users[1].name: 'a' is there twice"),
        (
            f"{A_USER}[[users]]\nname = 'A'\npassword = 'q'",
            "users[1].name: 'A' is there twice, or looks the same as 'a'",
        ),
        ("[[keys]]\nname = 'A'\nkey = 'k'\n" + A_USER, "users[0].name: 'a' is there twice, or looks the same as 'A'"),
        ("[[users]]\nname = 'a'\npassword_argon2 = '$2b$10$x'", "users[0]: expected an argon2id hash"),
        ("[[roles]]\nname = 'admin'", "roles[0]: the role 'admin' is built in"),
        ("[[roles]]\nname = 'r'\nread = ['a*b']", "roles[0]: pattern 'a*b': a * is allowed at the end only"),
        ("[[roles]]\nname = 'r'\n[[roles]]\nname = 'r'", "roles: two roles have the same name"),
        ("data = ", "not valid TOML"),
        ("a = 1\nb = 2", "(and 1 more)"),
    ],
)
def test_an_error_names_file_key_and_what_was_meant(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Settings.load(file, {}, {})
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("QUINTET_LISTENERS__BLIPMQ__PROT", "1", "did you mean listeners.blipmq.port?"),
        ("QUINTET_PORT", "1", "port: unknown key"),
        ("QUINTET_LISTENERS__BLIPMQ__PORT", "x", "should be a valid integer"),
        ("QUINTET_LISTENERS__BLIPMQ__HOST", "0.0.0.0", "plaintext on '0.0.0.0'"),
        ("QUINTET_DEV", "perhaps", "should be a valid boolean"),
        ("QUINTET_KEYS", "[{", "not valid JSON"),
        ("QUINTET_KEYS", '[{"name": "a", "kye": "b"}]', "did you mean keys[0].key?"),
    ],
)
def test_an_error_names_the_variable(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(None, {name: value}, {})
    assert str(caught.value).startswith(f"environment variable {name}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["QUINTET_URL", "QUINTET_PURE", "QUINTET_CONFIG", "QUINTET_TEST_SEED", "PATH"])
def test_variables_of_others_are_left_alone(name: str) -> None:
    assert Settings.load(None, {name: "x"}, {}) == Settings.load(None, {}, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        Settings.load(tmp_path / "nowhere.toml", {}, {})


def test_only_the_digest_of_a_key_is_kept(file: Path) -> None:
    file.write_text("[[keys]]\nname = 'a'\nkey = 'very-secret'\npublish = ['orders*']\n")
    settings = Settings.load(file, {}, {})
    assert settings.keys[0].digest == hashlib.sha256(b"very-secret").digest()
    assert "very-secret" not in repr(settings) + settings.model_dump_json()


def test_a_users_secret_is_kept_for_the_broker_and_shown_to_nobody(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("filed-secret\n")
    secret.chmod(0o600)
    hashed = HASH.format(m=19456, t=2, p=1)
    file.write_text(
        "[[users]]\nname = 'a'\npassword = 'typed-secret'\nroles = ['audit', 'producer']\n"
        f"[[users]]\nname = 'b'\npassword_file = '{secret}'\n[[users]]\nname = 'c'\npassword_argon2 = '{hashed}'\n"
        "[[roles]]\nname = 'audit'\nread = ['logs*']\n"
    )
    settings = Settings.load(file, {}, {})
    assert [user.secret for user in settings.users] == [b"typed-secret", b"filed-secret", b""]
    assert [user.hashed for user in settings.users] == ["", "", hashed]
    assert settings.users[0].roles == ("audit", "producer")
    shown = repr(settings) + str(settings.users) + settings.model_dump_json()
    assert "-secret" not in shown
    assert "argon2id" not in shown


@pytest.mark.parametrize(("m", "t", "p"), [(262_145, 2, 1), (19456, 11, 1), (19456, 2, 5)])
def test_a_hash_that_costs_too_much_is_refused_without_repeating_it(file: Path, m: int, t: int, p: int) -> None:
    hashed = HASH.format(m=m, t=t, p=p)
    file.write_text(f"[[users]]\nname = 'a'\npassword_argon2 = '{hashed}'\n")
    with pytest.raises(ConfigError, match="the hash costs more than a login may") as caught:
        Settings.load(file, {}, {})
    assert hashed not in str(caught.value)


@pytest.mark.parametrize("line", ["password = 7", "password = ''", "password_argon2 = 7", "password = ['very-secret']"])
def test_a_bad_password_is_not_repeated_in_the_error(file: Path, line: str) -> None:
    file.write_text(f"[[users]]\nname = 'a'\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        Settings.load(file, {}, {})
    assert f"users[0].{line.partition(' ')[0]}: " in str(caught.value)
    assert ", not " not in str(caught.value)


def test_a_bad_key_is_not_repeated_in_the_error(file: Path) -> None:
    file.write_text("[[keys]]\nname = 'a'\nkey_sha256 = 'very-secret'\n")
    with pytest.raises(ConfigError) as caught:
        Settings.load(file, {}, {})
    assert "keys[0].key_sha256" in str(caught.value)
    assert "very-secret" not in str(caught.value)


def test_key_files_belong_to_their_owner_alone(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("very-secret\n")
    file.write_text(f"[[keys]]\nname = 'a'\nkey_file = '{secret}'\n")
    for mode in (0o640, 0o604, 0o620):
        secret.chmod(mode)
        with pytest.raises(ConfigError, match=f"can be read by others .mode {mode:04o}.; chmod 600"):
            Settings.load(file, {}, {})
    secret.chmod(0o600)
    assert Settings.load(file, {}, {}).keys[0].digest == hashlib.sha256(b"very-secret").digest()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_key_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    secret = tmp_path / "key"
    secret.write_bytes(content)
    secret.chmod(0o600)
    with pytest.raises(ValueError, match=str(secret)):
        read_secret(secret)


def test_dev_is_a_preset_below_everything_else(file: Path) -> None:
    plain = Settings.load(None, {}, {"dev": True})
    assert (plain.data, plain.keys[0].name) == (Path(".quintet"), "dev")
    assert plain.keys[0].digest == hashlib.sha256(DEV_BLIPMQ_KEY.encode()).digest()
    assert [(user.name, user.secret, user.roles) for user in plain.users] == [("admin", b"admin", ("admin",))]
    file.write_text("[[users]]\nname = 'admin'\npassword = 'other'\n")
    assert [user.secret for user in Settings.load(file, {}, {"dev": True}).users] == [b"other"]
    file.write_text("[[keys]]\nname = 'a'\nkey = 'b'\n")
    both = Settings.load(file, {"QUINTET_DEV": "true"}, {"data": Path("here")})
    assert (both.data, [key.name for key in both.keys]) == (Path("here"), ["a", "dev", "dev-peer"])


@pytest.mark.parametrize(
    ("text", "way_in"),
    [
        ("", False),
        ("[listeners.felix]\nanonymous_role = 'admin'\n", False),  # of no effect: the door is not open
        ("[[keys]]\nname = 'a'\nkey = 'a-key'\n", True),
        ("[tokens]\nsecrets = [{secret = 'a secret of more than thirty-two bytes'}]\n", True),
        ("[listeners.flymq]\nanonymous_role = 'reader'\n", True),
        ("[tokens]\njwks_file = 'JWKS'\n", True),
    ],
)
def test_whether_anybody_can_log_in(file: Path, text: str, way_in: bool) -> None:
    """What the warning at start goes by: tokens and open doors let people in who have no key."""
    jwks = file.with_name("jwks.json")
    jwks.write_text(
        '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kid": "1", "alg": "EdDSA"}]}'
    )
    file.write_text(text.replace("JWKS", str(jwks)))
    assert _lets_in(Settings.load(file, {}, {})) is way_in


def test_secrets_of_tokens_and_peers_are_long_and_hidden(file: Path) -> None:
    long, short = "x" * 32, "y" * 31
    file.write_text(f"[tokens]\nsecrets = [{{secret = '{long}'}}]\n[peers]\nhmac_secret = '{long}'\nverify = true\n")
    settings = Settings.load(file, {}, {})
    assert [secret.value for secret in settings.tokens.secrets] == [settings.peers.secret] == [long.encode()]
    assert long not in repr(settings)
    for text, words in (
        (f"[tokens]\nsecrets = [{{secret = '{short}'}}]\n", "31 bytes; HS256 needs at least 32"),
        (f"[tokens]\nalgorithms = ['HS512']\nsecrets = [{{secret = '{long}'}}]\n", "needs at least 64"),
        ("[tokens]\nsecrets = [{}]\n", "exactly one of secret and secret_file"),
        ("[tokens]\nalgorithms = ['none']\n", "HS256"),
        (f"[peers]\nhmac_secret = '{short}'\n", "31 bytes"),
        ("[peers]\nverify = true\n", "verify needs"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words) as caught:
            Settings.load(file, {}, {})
        assert short not in str(caught.value)


def test_tls_or_insecure_opens_the_door_to_others(file: Path) -> None:
    for extra in ("insecure = true", "tls_cert = 'c'\ntls_key = 'k'", "enabled = false"):
        file.write_text(f"[listeners.blipmq]\nhost = '0.0.0.0'\n{extra}\n")
        assert Settings.load(file, {}, {}).listeners.of(BLIPMQ).host == "0.0.0.0"


def test_overrides_change_only_what_they_name() -> None:
    topics = Topics.model_validate(
        {
            "retention_seconds": 5,
            "overrides": [{"pattern": "fast*", "durability": "memory"}, {"pattern": "*", "retention_bytes": 9}],
        }
    )
    assert (topics.of("faster").durability, topics.of("faster").retention_seconds) == ("memory", 5)
    assert (topics.of("slow").durability, topics.of("slow").retention_bytes) == ("fsync", 9)
    assert topics.of("faster").retention_bytes == 0


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [("a", "a", True), ("a", "ab", False), ("a*", "ab", True), ("a*", "a", True), ("*", "x", True), ("a*", "b", False)],
)
def test_patterns(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


# -- what is made from the tree ---------------------------------------------------------------------------------------


def test_every_option_is_described() -> None:
    for table in tables():
        for option in table.options:
            assert option.help.endswith("."), option.key


def test_a_number_names_its_unit() -> None:
    units = {
        "_bytes": "bytes",
        "_bytes_max": "bytes",
        "_bytes_min": "bytes",
        "_seconds": "seconds",
        "_per_second_max": "per second",
    }
    for table in tables():
        for option in table.options:
            for ending, unit in units.items():
                if option.key.endswith(ending) and not option.help.startswith("As listeners."):
                    assert unit in option.help.lower(), option.key


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "CONFIGURATION.md").read_text() == reference(), "run make docs"


def test_the_broker_of_the_guide_is_valid(file: Path, tmp_path: Path) -> None:
    text = GUIDE.split("```toml\n")[1].split("```")[0]
    for name in ("cert.pem", "key.pem", "ops.password", "shop.password"):
        (tmp_path / name).write_text(f"it is {name}\n")
        (tmp_path / name).chmod(0o600)
    file.write_text(text.replace("/etc/quintet", str(tmp_path)))
    settings = Settings.load(file, {}, {})
    assert [(user.name, user.roles) for user in settings.users] == [("ops", ("admin",)), ("shop", ("orders-writer",))]


def test_the_example_is_the_defaults(file: Path) -> None:
    file.write_text(example())
    assert Settings.load(file, {}, {}) == Settings.load(None, {}, {})


def test_the_example_uncommented_is_understood(file: Path) -> None:
    """Every commented line is a key of the tree: with the ones that have no default left out, it loads."""
    lines = [line.removeprefix("# ") if " = " in line and '""' not in line else line for line in example().splitlines()]
    file.write_text("\n".join(lines))
    text = file.read_text().replace("# [[keys]]", "[[keys]]\nname = 'a'\nkey = 'b'")
    text = text.replace("# [[users]]", "[[users]]\nname = 'u'\npassword = 'p'")
    text = text.replace("# [[roles]]", "[[roles]]\nname = 'r'")
    text = text.replace("# [[tenants]]", "[[tenants]]\nname = 't'")
    file.write_text(text.replace("# [[topics.overrides]]", "[[topics.overrides]]\npattern = 'x'"))
    settings = Settings.load(file, {}, {})
    assert settings.listeners == Settings.load(None, {}, {}).listeners
    assert (settings.keys[0].name, settings.users[0].name, settings.roles[0].name) == ("a", "u", "r")
