"""The options of a cell: what is missing or weaker is refused with a sentence, secrets come from files, folders are not mixed up."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintet.config import Settings
from quintet.log.replicated.mark import NAME
from quintet.model.errors import ConfigError
from quintet.server import CELL_MARK
from tests.crash.brokers import SETTINGS

CELL = {"engine": "kafka", "cell.node": "n1", "cell.servers": ["k1:9092", "k2:9092"]}
WITHOUT_EXTRA = """
import sys
sys.modules["confluent_kafka"] = None
from quintet.cli.main import main
main()
"""


def load(**more: Any) -> Settings:
    flags = CELL | {name.replace("__", "."): value for name, value in more.items()}
    return Settings.load(None, {}, flags)


def refusal(**more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(**more)
    return str(caught.value)


def test_the_defaults_promise_what_an_acknowledgement_promises() -> None:
    cell = load().cell
    assert (cell.replicas_min, cell.in_sync_replicas_min, cell.flushed, cell.weaker_allowed) == (3, 2, True, False)
    assert cell.hold > cell.lease_seconds == 5.0
    assert Settings().engine == "embedded"


def test_a_node_needs_a_name_and_brokers() -> None:
    assert "cell.node: engine = kafka needs it" in refusal(cell__node="")
    assert "cell.servers: engine = kafka needs it" in refusal(cell__servers=[])
    assert "should match pattern" in refusal(cell__node="a b")


@pytest.mark.parametrize(("key", "value"), [("replicas_min", 2), ("in_sync_replicas_min", 1), ("flushed", False)])
def test_a_weaker_wal_must_be_asked_for_by_name(key: str, value: object) -> None:
    assert "say weaker_allowed = true" in refusal(**{f"cell__{key}": value})
    assert getattr(load(**{f"cell__{key}": value, "cell__weaker_allowed": True}).cell, key) == value


def test_a_hold_that_ends_with_the_lease_is_refused() -> None:
    assert "it is 5.5 or more" in refusal(cell__hold_seconds=5.0)
    assert load(cell__hold_seconds=6.0).cell.hold == 6.0
    assert "greater than or equal to 1" in refusal(cell__lease_seconds=0.2)


def test_a_cell_without_its_engine_is_refused() -> None:
    assert "only with engine" in refusal(engine="embedded")


def test_identity_and_encryption_reach_kafkas_client(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hidden\n")
    secret.chmod(0o600)
    sasl: dict[str, Any] = {"cell__security_protocol": "sasl_ssl", "cell__tls_ca": tmp_path / "ca.pem"}
    assert "needs sasl_user and sasl_password_file" in refusal(**sasl)
    settings = load(**sasl, cell__sasl_user="quintet", cell__sasl_password_file=secret)
    assert settings.cell.client() == {
        "security.protocol": "sasl_ssl",
        "client.id": "quintet-n1",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "quintet",
        "sasl.password": "hidden",
    }
    assert "hidden" not in repr(settings)
    secret.chmod(0o644)
    assert "can be read by others" in refusal(**sasl, cell__sasl_user="q", cell__sasl_password_file=secret)


def serve(data: Path, program: list[str], **more: str) -> str:
    """What a start says that fails."""
    command = [sys.executable, *program, "serve", "--dev", "--data", str(data)]
    run = subprocess.run(command, env=SETTINGS | more, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1, run.stderr
    return run.stderr


def test_a_folder_of_a_cell_is_not_served_without_it(tmp_path: Path) -> None:
    assert CELL_MARK == NAME
    (tmp_path / CELL_MARK).write_text("quintet-cell 1")
    said = serve(tmp_path, ["-m", "quintet"])
    assert "belongs to a cell" in said
    assert len(said.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [CELL_MARK], "nothing was written"


def test_without_its_extra_the_engine_says_what_to_install(tmp_path: Path) -> None:
    cell = {"QUINTET_ENGINE": "kafka", "QUINTET_CELL__NODE": "n1", "QUINTET_CELL__SERVERS": '["127.0.0.1:1"]'}
    said = serve(tmp_path, ["-c", WITHOUT_EXTRA], **cell)
    assert "quintet[kafka]" in said
    assert len(said.strip().splitlines()) == 1


def test_nodes_beyond_loopback_need_certificates(tmp_path: Path) -> None:
    files: dict[str, Any] = {f"cluster__tls_{name}": tmp_path / name for name in ("cert", "key", "ca")}
    assert "nodes prove who they are" in refusal(cluster__listen="10.0.0.1:7790")
    assert "nodes prove who they are" in refusal(cluster__listen="127.0.0.1:7790", cluster__peers=["10.0.0.2:7790"])
    assert load(cluster__listen="10.0.0.1:7790", **files).cluster.peers == ()
    assert load(cluster__listen="127.0.0.1:0", cluster__peers=["[::1]:7790"]).cluster.tls_ca is None
    assert "give all three" in refusal(cluster__listen="127.0.0.1:0", cluster__tls_ca=tmp_path / "ca")


def test_addresses_of_nodes_are_checked() -> None:
    assert "is no address" in refusal(cluster__listen="somewhere")
    assert "is no address" in refusal(cluster__listen="::1:7790")
    assert "is no address" in refusal(cluster__listen="127.0.0.1:0", cluster__peers=["127.0.0.1:0"])
    assert "give listen too" in refusal(cluster__peers=["127.0.0.1:1"])
    assert "only with engine" in refusal(
        engine="embedded", cell__node="", cell__servers=[], cluster__listen="127.0.0.1:0"
    )
