"""`quintet profile` and `--profile`: one name for a broker, a password that is asked for once and shown never."""

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest

from quintet.cli.main import COMMANDS, LOCAL, cli
from quintet.cli.terminal import profiles
from quintet.client.core import url as urls
from tests.cli.conftest import Commands, Result
from tests.client.server import Server

PASSWORD = "pass/word @:%?#& ü"  # every sign that a URL would take for its own


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without profiles and without a keyring."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("QUINTET_PROFILE", "")
    monkeypatch.setattr(profiles, "keyring", lambda: None)
    return tmp_path / "quintet" / "profiles.json"


@pytest.fixture
def quintet() -> Commands:
    return Commands("")


def add(quintet: Commands, name: str, url: str, *more: str, password: str = "admin") -> Result:
    return quintet("profile", "add", name, "--url", url, *more, data=f"{password}\n")


def test_a_profile_stands_for_url_and_password(quintet: Commands, broker: Server, home: Path) -> None:
    bare = broker.fly.replace(":admin@", "@")
    assert "admin" not in add(quintet, "here", bare).out.replace("admin@", "")
    assert quintet("--profile", "here", "topic", "list", "--json").json is not None
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    os.environ["QUINTET_PROFILE"] = "here"
    assert quintet("topic", "create", "by-variable").code == 0
    del os.environ["QUINTET_PROFILE"]
    assert quintet("profile", "use", "here").code == 0
    assert quintet("topic", "describe", "by-variable").code == 0
    assert "QUINTET_URL" not in os.environ, "the password stays in the command"


def test_what_is_typed_goes_before_the_profile(quintet: Commands, broker: Server) -> None:
    add(quintet, "wrong", "flymq://admin@127.0.0.1:1")
    quintet("profile", "use", "wrong")
    assert quintet("topic", "list", code=1).err
    assert quintet("topic", "list", url=broker.fly).code == 0, "QUINTET_URL goes before the profile in use"
    assert quintet("--profile", "wrong", "topic", "list", url=broker.fly, code=1).err, "--profile before QUINTET_URL"
    assert quintet("--profile", "wrong", "topic", "list", "--url", broker.fly).code == 0, "--url before all"


def test_each_command_takes_the_door_it_speaks(quintet: Commands, broker: Server) -> None:
    add(quintet, "all", broker.fly.replace(":admin@", "@"))
    ca = broker.felix.partition("?ca=")[2]
    add(quintet, "all", broker.felix.replace(":dev-key@", "").partition("?")[0], "--ca", ca, password="dev-key")
    assert quintet("--profile", "all", "kv", "put", "k", "v").code == 0
    assert quintet("--profile", "all", "kv", "get", "k").out.strip() == "v"
    assert quintet("--profile", "all", "topic", "list").code == 0
    assert [each["door"] for each in quintet("profile", "show", "all", "--json").json] == ["flymq", "felix"]


@pytest.mark.parametrize("url", ["flymq://ann@h:1", "blipmq://h", "felix://h?tenant=t", "peerbus+tcp://h?name=bob"])
def test_a_secret_of_any_signs_comes_back_and_is_never_shown(quintet: Commands, url: str) -> None:
    said = add(quintet, "p", url, password=PASSWORD)
    said_more = [quintet("profile", *words) for words in (("list",), ("show", "p"), ("show", "p", "--json"))]
    for each in (said, *said_more):
        assert PASSWORD not in each.out + each.err
    end = urls.parse(profiles.load().url("p", "pub"))
    assert end.secret == PASSWORD
    assert end.user == urls.parse(url).user
    assert PASSWORD not in repr(profiles.load())


def test_a_password_in_the_url_is_taken_out_of_it(quintet: Commands, home: Path) -> None:
    said = quintet("profile", "add", "p", "--url", "blipmq://:hunter2@h:5555")
    assert "history" in said.err
    assert "hunter2" not in said.out + quintet("profile", "show", "p").out
    assert json.loads(home.read_text())["profiles"]["p"]["blipmq"] == {"url": "blipmq://h:5555", "secret": "hunter2"}


def test_a_file_that_others_may_read_is_refused(quintet: Commands, home: Path) -> None:
    add(quintet, "p", "blipmq://h")
    home.chmod(0o640)
    said = quintet("--profile", "p", "topic", "list", code=2)
    assert "0640" in said.err
    assert "chmod 600" in said.err
    assert quintet("config", "explain", "data").code == 0, "commands without a broker go on"
    home.chmod(0o600)
    home.write_text("{}")
    assert "not a file of profiles" in quintet("profile", "list", code=2).err


def test_wrong_names_and_urls_are_said(quintet: Commands, tmp_path: Path) -> None:
    add(quintet, "prod", "blipmq://h")
    assert "did you mean 'prod'?" in quintet("--profile", "prd", "pub", "t", "x", code=2).err
    assert "not a name" in quintet("profile", "add", "../x", "--url", "blipmq://h", code=2).err
    assert "scheme" in quintet("profile", "add", "x", "--url", "nats://h", code=2).err
    assert "needs TLS" in quintet("profile", "add", "x", "--url", "blipmq://h", "--ca", __file__, code=2).err
    assert "empty" in quintet("profile", "add", "x", "--url", "blipmq://h", code=2).err
    assert (
        "no keyring"
        in quintet("profile", "add", "x", "--url", "blipmq://h", "--store", "keyring", data="s\n", code=2).err
    )
    assert "--none" in quintet("profile", "use", code=2).err
    assert quintet("profile", "add", "x", "--url", "flymqs://h", "--no-password").out.endswith("(password: none)\n")


def test_remove_and_use_forget(quintet: Commands) -> None:
    add(quintet, "p", "blipmq://h")
    quintet("profile", "use", "p")
    assert quintet("profile", "list", "--json").json == [{"profile": "p", "used": True, "doors": ["blipmq"]}]
    quintet("profile", "remove", "p")
    assert quintet("profile", "list", "--json").json == []
    assert profiles.load().used == ""
    assert "no profile" in quintet("profile", "remove", "p", code=2).err


def fake_keyring() -> ModuleType:
    """The three calls of the package, kept in a dict."""
    held: dict[tuple[str, str], str] = {}
    module = ModuleType("keyring")
    module.__dict__.update(
        held=held,
        errors=SimpleNamespace(KeyringError=KeyError),
        set_password=lambda service, name, secret: held.__setitem__((service, name), secret),
        get_password=lambda service, name: held.get((service, name)),
        delete_password=lambda service, name: held.pop((service, name)),
    )
    return module


def test_the_keyring_has_the_password_and_the_file_has_not(
    quintet: Commands, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = fake_keyring()
    monkeypatch.setattr(profiles, "keyring", lambda: package)
    assert "in the keyring" in add(quintet, "p", "blipmq://h", password=PASSWORD).out
    assert package.held == {("quintet", "p/blipmq"): PASSWORD}
    assert json.loads(home.read_text())["profiles"]["p"]["blipmq"]["secret"] is None
    assert urls.parse(profiles.load().url("p", "pub")).secret == PASSWORD
    package.held.clear()
    assert "lost it" in quintet("--profile", "p", "pub", "t", "x", code=2).err
    quintet("profile", "remove", "p")
    assert package.held == {}


def test_a_machine_without_a_keyring_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real package, if it is here: on a machine without a desktop it finds none."""
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert profiles.keyring() is None


def leaves(command: click.Command) -> Iterator[click.Command]:
    if not isinstance(command, click.Group):
        yield command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"profile"}))
def test_profiles_are_for_every_command_with_a_url(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    takes = any(param.name == "url" for leaf in leaves(command) for param in leaf.params)
    assert takes == (name not in LOCAL)
