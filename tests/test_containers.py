"""deploy/: the image, the compose file and the chart are what their tools accept, and configure a broker that starts.

hadolint, helm and kubernetes-validate are used if they are installed (tools.py); the rest needs none of them.
"""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types

from quintet.cli.main import cli
from quintet.cli.operate import health
from quintet.client.core.errors import ConnectionLost
from quintet.config import Settings
from quintet.protocols.doors import DOORS
from tests.client.server import Server, running
from tests.tools import tool

DEPLOY = Path(__file__).parent.parent / "deploy"
IMAGE = (DEPLOY / "Containerfile").read_text()
STAGE = IMAGE[IMAGE.rindex("\nFROM ") :]  # the last one: what is shipped
CONFIGURED = "compose.toml"
NOBODY = re.compile(r"[1-9]\d*:[1-9]\d*")


def instruction(name: str) -> str:
    """What stands behind the last one of this name in the shipped stage, continued lines joined."""
    found = re.findall(rf"^{name} +((?:.*\\\n)*.*)$", STAGE, re.MULTILINE)
    assert found, name
    return str(found[-1]).replace("\\\n", " ")


def ports(settings: Settings) -> set[str]:
    listeners = {name: getattr(settings.listeners, name) for name in type(settings.listeners).model_fields}
    return {f"{each.port}/udp" if name == "felix" else str(each.port) for name, each in listeners.items()}


# -- the image --------------------------------------------------------------------------------------------------------


def test_the_image_runs_as_nobody_and_says_what_it_is() -> None:
    assert NOBODY.fullmatch(instruction("USER"))
    assert instruction("STOPSIGNAL") == "SIGTERM"
    assert json.loads(instruction("ENTRYPOINT")) == ["quintet"]
    assert json.loads(instruction("CMD")) == ["serve"]
    assert json.loads(instruction("HEALTHCHECK").partition("CMD ")[2]) == ["quintet", "health"]
    assert set(instruction("EXPOSE").split()) == ports(Settings.load(None, {}, {}))
    assert "apt-get" not in STAGE, "no compiler, no package lists"


def environment() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", instruction("ENV")))


def test_every_door_of_the_image_can_be_reached() -> None:
    settings = Settings.load(
        None,
        {
            **{name: value for name, value in environment().items() if name.startswith("QUINTET_")},
            **{f"QUINTET_LISTENERS__{door.key.upper()}__INSECURE": "true" for door in DOORS},
            "QUINTET_LISTENERS__FLIGHT__INSECURE": "true",
        },
        {},
    )
    hosts = {door.key: settings.listeners.of(door).host for door in DOORS} | {"flight": settings.listeners.flight.host}
    assert set(hosts.values()) == {"0.0.0.0"}, hosts
    assert settings.listeners.admin.host == "127.0.0.1"
    assert str(settings.data) == instruction("VOLUME") == instruction("WORKDIR")


def test_what_the_image_is_built_from_is_there() -> None:
    kept = set(re.findall(r"^!(\S+)$", (DEPLOY.parent / ".containerignore").read_text(), re.MULTILINE))
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", IMAGE, re.MULTILINE)]
    assert {word for words in copied for word in words} == kept
    assert [word for word in kept if not (DEPLOY.parent / word).exists()] == []


def test_hadolint_accepts_the_containerfile(tmp_path: Path) -> None:
    lint = tool("hadolint")
    done = subprocess.run([lint, str(DEPLOY / "Containerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = tmp_path / "Containerfile"  # a control
    wrong.write_text(IMAGE.replace("WORKDIR /source", "WORKDIR source"))
    assert subprocess.run([lint, str(wrong)], capture_output=True, check=False).returncode == 1


# -- quintet health ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Server]:
    with running() as server:
        yield server


def test_health_says_whether_a_broker_is_ready(broker: Server, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"admin\W+(?:http://)?(127\.0\.0\.1:\d+)", (broker.folder / "server.log").read_text())
    assert found is not None
    cli.main(["health", "--admin", found[1]], standalone_mode=False)
    cli.main(["health", "--live", "--admin", found[1]], standalone_mode=False)
    assert "alive" in capsys.readouterr().out
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        cli.main(["health", "--admin", "127.0.0.1:1"], standalone_mode=False)


def test_health_says_why_a_broker_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "get", lambda _admin, _path: (503, "[-] draining\n"))
    with pytest.raises(health.Unhealthy, match="draining"):
        cli.main(["health"], standalone_mode=False)


# -- compose ----------------------------------------------------------------------------------------------------------


def test_the_compose_file_configures_a_broker(tmp_path: Path) -> None:
    tree = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    broker = tree["services"]["broker"]
    assert broker["read_only"] is True
    assert broker["cap_drop"] == ["ALL"]
    assert set(broker["secrets"]) == set(tree["secrets"])
    assert f"./{CONFIGURED}:{broker['command'][-1]}:ro" in broker["volumes"]
    assert int(broker["stop_grace_period"].removesuffix("s")) > Settings.load(None, {}, {}).drain_timeout_seconds
    settings = load(tmp_path, (DEPLOY / CONFIGURED).read_text().replace("/run/secrets", str(tmp_path)), ["ops"])
    opened = {door.key: settings.listeners.of(door) for door in DOORS if settings.listeners.of(door).enabled}
    published = {each.partition(":")[2].removesuffix("/udp") for each in broker["ports"]}
    assert {str(each.port) for each in opened.values()} == published


def load(folder: Path, text: str, users: list[str]) -> Settings:
    """The settings of a configuration in the image, its credentials in a folder."""
    for name in (*users, "cert.pem", "key.pem"):
        (folder / name).write_text("secret\n")
        (folder / name).chmod(0o440)
    (folder / "quintet.toml").write_text(text)
    inside = {name: value for name, value in environment().items() if name.startswith("QUINTET_")}
    before = pytest.MonkeyPatch()
    before.setenv("CREDENTIALS_DIRECTORY", str(folder))
    try:
        return Settings.load(folder / "quintet.toml", {**inside, "CREDENTIALS_DIRECTORY": str(folder)}, {})
    finally:
        before.undo()


# -- the chart --------------------------------------------------------------------------------------------------------

CHART = str(DEPLOY / "helm")
OPEN = ("tls.insecure=true",)
CLOSED = (
    "tls.existingSecret=c",
    "doors.fast.enabled=true",
    "doors.peerbus.enabled=true",
    "credentials.passwords.ops=x",
)


def helm(*arguments: str, values: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
    given = [word for value in values for word in ("--set", value)]
    return subprocess.run([tool("helm"), *arguments, *given], capture_output=True, text=True, check=False)


def rendered(values: tuple[str, ...]) -> dict[str, Any]:
    done = helm("template", "q", CHART, "--kube-version", "1.31.0", values=values)
    assert done.returncode == 0, done.stderr
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout) if each}


@pytest.mark.parametrize("values", [OPEN, CLOSED], ids=["insecure", "tls"])
def test_the_chart_makes_a_broker_that_is_configured(values: tuple[str, ...], tmp_path: Path) -> None:
    done = helm("lint", "--strict", CHART, values=values)
    assert done.returncode == 0, done.stdout
    found = rendered(values)
    settings = load(tmp_path, found["ConfigMap/q-quintet"]["data"]["quintet.toml"], ["ops"])
    (container,) = found["StatefulSet/q-quintet"]["spec"]["template"]["spec"]["containers"]
    opened = {
        door.key.replace("_", "-"): settings.listeners.of(door).port
        for door in DOORS
        if settings.listeners.of(door).enabled
    }
    opened |= {"flight": settings.listeners.flight.port, "metrics": settings.listeners.admin.port}
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == opened
    assert {each["name"]: each["port"] for each in found["Service/q-quintet"]["spec"]["ports"]} == opened
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert found["StatefulSet/q-quintet"]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    password = base64.b64decode(found["Secret/q-quintet-users"]["data"]["ops"]).decode()
    assert password == "x" if values is CLOSED else len(password) == 32


def test_the_chart_refuses_what_would_not_start() -> None:
    """Controls: no TLS and nothing said about it; a value that does not exist."""
    assert "tls.insecure=true" in helm("template", "q", CHART, "--kube-version", "1.31.0", values=()).stderr
    assert "replicas" in helm("template", "q", CHART, "--kube-version", "1.31.0", values=(*OPEN, "replicas=3")).stderr


def test_kubernetes_knows_every_field_of_the_chart(tmp_path: Path) -> None:
    validate, file = tool("kubernetes-validate"), tmp_path / "chart.yaml"
    file.write_text(yaml.safe_dump_all(rendered(CLOSED).values()))
    done = subprocess.run([validate, "--strict", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    file.write_text(file.read_text().replace("readOnlyRootFilesystem", "readOnlyRoot"))  # a control
    assert subprocess.run([validate, "--strict", str(file)], capture_output=True, check=False).returncode != 0
