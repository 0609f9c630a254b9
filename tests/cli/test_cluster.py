"""`quintet cluster`: what it makes for nodes is what they start with."""

import stat
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from quintet.cli.operate.cluster import cluster
from quintet.config import Settings
from quintet.model.errors import ConfigError
from quintet.net.cluster.trust import Trust

SERVERS = "k1:9092,k2:9092"


def init(folder: Path, *arguments: str) -> str:
    found = CliRunner().invoke(
        cluster, ["init", str(folder), *arguments], catch_exceptions=False, standalone_mode=False
    )
    return found.output


def refused(folder: Path, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        init(folder, *arguments)
    return str(caught.value)


def test_what_init_makes_is_what_a_node_starts_with(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    named = ["--node", "n1=10.0.0.1", "--node", "n2=::1", "--servers", SERVERS]
    said = init(folder, *named, "--place", str(folder / "n1"))
    for name in ("n1", "n2"):
        settings = Settings.load(folder / name / "quintet.toml", {}, {})
        assert (settings.cell.node, settings.cell.servers) == (name, ("k1:9092", "k2:9092"))
        assert settings.cluster.peers == ("10.0.0.1:7790", "[::1]:7790")
        Trust(*(folder / name / file for file in ("node.pem", "node-key.pem", "ca.pem"))).check(name)
        assert (folder / name / "quintet.toml").read_text() in said
    secrets = [folder / "ca-key.pem", folder / "n1" / "node-key.pem", folder / "n2" / "node-key.pem"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_a_node_is_added_by_the_same_authority(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    init(folder, "--node", "n1=10.0.0.1", "--servers", SERVERS, "--topic", "orders-wal")
    before = (folder / "ca.pem").read_bytes()
    init(folder, "--node", "n2=10.0.0.2")
    assert (folder / "n2" / "ca.pem").read_bytes() == before
    added = tomllib.loads((folder / "n2" / "quintet.toml").read_text())
    assert (added["cell"]["servers"], added["cell"]["topic"]) == (["k1:9092", "k2:9092"], "orders-wal")
    assert added["cluster"]["peers"] == ["10.0.0.1:7790", "10.0.0.2:7790"]


def test_an_added_node_has_the_cell_of_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    init(folder, "--node", "n1=10.0.0.1", "--servers", SERVERS, "--cells", "4")
    path = folder / "n1" / "quintet.toml"
    more = (
        'lease_seconds = 7.5\nplaces = ["orders.=1"]\nsecurity_protocol = "ssl"\ntls_ca = "/etc/quintet/kafka-ca.pem"\n'
    )
    path.write_text(path.read_text().replace("[cell]\n", f"[cell]\n{more}"))
    init(folder, "--node", "n2=10.0.0.2", "--place", str(folder / "n2"))
    first, added = (tomllib.loads((folder / name / "quintet.toml").read_text()) for name in ("n1", "n2"))
    assert added["cell"] == first["cell"] | {"node": "n2", "advertised_host": "10.0.0.2"}
    assert added["cell"]["cells"] == 4
    assert added["cluster"]["tls_ca"] == str(folder / "n2" / "ca.pem")
    assert "have 4" in refused(folder, "--node", "n3=10.0.0.3", "--cells", "2")


def test_a_certificate_is_not_renewed_for_another_host(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    init(folder, "--node", "n1=10.0.0.1", "--servers", SERVERS, "--port", "7000")
    before = (folder / "n1" / "node.pem").read_bytes()
    assert "has advertised_host = 10.0.0.1" in refused(folder, "--node", "n1=10.0.0.9", "--renew")
    assert (folder / "n1" / "node.pem").read_bytes() == before
    init(folder, "--node", "n1=10.0.0.1", "--node", "n2=10.0.0.2", "--renew")
    assert tomllib.loads((folder / "n2" / "quintet.toml").read_text())["cluster"]["peers"][0] == "10.0.0.1:7000"


def test_files_of_a_node_are_not_overwritten_by_accident(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    init(folder, "--node", "n1=10.0.0.1", "--servers", SERVERS)
    old = (folder / "n1" / "node.pem").read_bytes()
    assert "has files of n1 already" in refused(folder, "--node", "n1=10.0.0.1")
    (folder / "n1" / "quintet.toml").write_text((folder / "n1" / "quintet.toml").read_text() + "# ours\n")
    init(folder, "--node", "n1=10.0.0.1", "--renew")
    assert (folder / "n1" / "node.pem").read_bytes() != old
    assert "# ours" in (folder / "n1" / "quintet.toml").read_text()


def test_what_init_cannot_use_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert "write NAME=HOST" in refused(folder, "--node", "n1", "--servers", SERVERS)
    assert "write NAME=HOST" in refused(folder, "--node", "../n1=10.0.0.1", "--servers", SERVERS)
    assert "no brokers of Kafka" in refused(folder, "--node", "n1=10.0.0.1")
    assert "same name" in refused(folder, "--node", "n1=a", "--node", "n1=b", "--servers", SERVERS)
    init(folder, "--node", "n1=10.0.0.1", "--servers", SERVERS)
    (folder / "ca-key.pem").write_bytes((folder / "n1" / "node-key.pem").read_bytes())
    assert "is not the key of" in refused(folder, "--node", "n2=10.0.0.2")
