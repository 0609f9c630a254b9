"""What is in deploy/: the systemd unit is one that systemd accepts and the broker lives under."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.config import Settings
from quintet.config.credentials import PREFIX
from quintet.model.errors import ConfigError
from quintet.process import notify
from tests.tools import tool

DEPLOY = Path(__file__).parent.parent / "deploy"
UNIT = DEPLOY / "quintet.service"
EXPOSURE_MAX = 1.5  # of 10: what is left is the network, which a broker is for


def analyze(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([tool("systemd-analyze"), *arguments], capture_output=True, text=True, check=False)


def exposure(unit: Path) -> float:
    found = re.search(
        r"Overall exposure level for \S+: ([\d.]+)", analyze("security", "--offline=true", str(unit)).stdout
    )
    assert found is not None
    return float(found[1])


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    done = analyze("verify", str(UNIT))
    assert (done.returncode, done.stderr) == (0, "")
    broken = tmp_path / UNIT.name  # a control
    broken.write_text(UNIT.read_text().replace("Type=notify", "Type=notified"))
    assert "notified" in analyze("verify", str(broken)).stderr


def test_the_unit_gives_away_little(tmp_path: Path) -> None:
    assert exposure(UNIT) <= EXPOSURE_MAX
    open_unit = tmp_path / UNIT.name  # a control
    open_unit.write_text(re.sub(r"^SystemCallFilter=.*$", "", UNIT.read_text(), flags=re.MULTILINE))
    assert exposure(open_unit) > EXPOSURE_MAX


def test_the_unit_waits_longer_than_the_drain() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    assert int(found[1]) > Settings.load(None, {}, {}).drain_timeout_seconds


# -- credentials ------------------------------------------------------------------------------------------------------


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As systemd leaves them: of root, with access for the service that shows in the mode as a group that may read."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    for name in ("quintet_ops", "quintet_key"):
        (folder / name).write_text("correct horse battery staple\n")
        (folder / name).chmod(0o440)
    return folder


def config(folder: Path, name: str = "quintet_ops") -> Path:
    file = folder / "quintet.toml"
    file.write_text(
        f'[[users]]\nname = "ops"\npassword_file = "{PREFIX}{name}"\nroles = ["admin"]\n'
        f'[[keys]]\nname = "k"\nkey_file = "{PREFIX}quintet_key"\n'
    )
    return file


def test_credentials_are_read_as_systemd_leaves_them(credentials: Path, tmp_path: Path) -> None:
    settings = Settings.load(config(tmp_path), os.environ, {})
    assert settings.users[0].secret == b"correct horse battery staple"
    assert settings.users[0].password_file == credentials / "quintet_ops"


def test_a_credential_that_all_may_read_is_refused(credentials: Path, tmp_path: Path) -> None:
    (credentials / "quintet_ops").chmod(0o444)
    with pytest.raises(ConfigError, match="can be read by others"):
        Settings.load(config(tmp_path), os.environ, {})
    other = tmp_path / "elsewhere"
    other.write_text("x\n")
    other.chmod(0o440)
    with pytest.raises(ConfigError, match="can be read by others"):  # outside of the folder the group may not, either
        Settings.load(None, {"QUINTET_KEYS": f'[{{"name": "k", "key_file": "{other}"}}]'}, {})


def test_credentials_without_their_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CREDENTIALS_DIRECTORY is not set") as caught:
        Settings.load(config(tmp_path), {}, {})
    assert "LoadCredential=" in caught.value.hint


def test_the_unit_names_credentials_as_systemd_does() -> None:
    """Of a folder each file becomes ID_FILE."""
    assert re.search(r"^LoadCredential=quintet:/etc/quintet/credentials$", UNIT.read_text(), re.MULTILINE)
    assert "$CREDENTIALS_DIRECTORY/quintet_ops" in UNIT.read_text()


# -- Type=notify ------------------------------------------------------------------------------------------------------


def test_systemd_is_told_when_the_broker_is_ready_and_when_it_stops(tmp_path: Path, credentials: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(str(tmp_path / "notify"))
        inbox.settimeout(60)
        ports = {
            f"QUINTET_LISTENERS__{name}__ENABLED": "false"
            for name in ("FAST", "FELIX", "FLIGHT", "PEERBUS", "PEERBUS_TCP")
        }
        ports |= {f"QUINTET_LISTENERS__{name}__PORT": "0" for name in ("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "ADMIN")}
        command = ["serve", "--config", str(config(tmp_path)), "--data", str(tmp_path / "data")]
        process = subprocess.Popen(
            [sys.executable, "-m", "quintet", *command],
            env={**os.environ, **ports, "NOTIFY_SOCKET": inbox.getsockname()},
            stderr=subprocess.DEVNULL,
        )
        try:
            assert inbox.recv(100) == b"READY=1"
            process.terminate()
            assert inbox.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait(30)


def test_a_broker_that_nobody_waits_for_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(f"\0quintet-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@quintet-{os.getpid()}")
        notify("READY=1")
        assert inbox.recv(100) == b"READY=1"
