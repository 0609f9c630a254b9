"""The built wheel, in empty environments: without extras it is a client, with each extra it does what README.md says.

Every environment talks to one broker of this checkout. Nothing it prints may be a traceback.
"""

import json
import os
import platform
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_string
from functools import cache
from pathlib import Path

import click
import pytest
from wheel.wheelfile import WheelFile  # type: ignore[import-not-found,import-untyped,unused-ignore]

from deploy import wheels
from quintet.cli.main import cli
from quintet.protocols.doors import PROTOCOLS
from tests.client.server import STOP_S, Server, running
from tests.install.commands import ANSWERS, USES, WORKS
from tests.install.environments import (
    ROOT,
    Environment,
    NoIndex,
    build,
    build_without_rust,
    closure,
    installed,
    linked,
    native_kernel,
)

PROGRAM = str(Path(__file__).with_name("uses.py"))
SECRET = "a secret that peers share, of 32 bytes"
LONG = "QUINTET_TEST_LONG"  # set: Spark itself runs, too
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SMALL = ("", "compression", "peerbus", "mcp", "felix", "flight", "bench", "server")  # those with pyspark are linked
Make = Callable[[str], Environment]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(source distribution, wheel without the native kernel); QUINTET_TEST_DIST names a folder that has them."""
    given = os.environ.get("QUINTET_TEST_DIST")
    if given is None:
        return build(tmp_path_factory.mktemp("wheel"))
    (archive,), (wheel,) = Path(given).glob("*.tar.gz"), Path(given).glob("*-none-any.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def wheel(published: tuple[Path, Path]) -> Path:
    return published[1]


@pytest.fixture(scope="module")
def native(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the native kernel: the published one for this platform, else one with the kernel of this checkout."""
    given = os.environ.get("QUINTET_TEST_DIST")
    if given is not None:
        (found,) = Path(given).glob(f"*-manylinux*{platform.machine()}.whl")
        return found
    kernel = native_kernel()
    if kernel is None:
        pytest.skip("NO NATIVE KERNEL WAS BUILT: a wheel with one was not tried")
    return wheels.with_kernel(wheel, kernel, f"linux_{platform.machine()}", tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def make(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """An environment with an extra, made when it is first asked for; without an index it is linked."""

    @cache
    def made(extra: str) -> Environment:
        folder = tmp_path_factory.mktemp(extra or "bare")
        if extra in SMALL:
            try:
                return installed(wheel, folder / "index", extra)
            except NoIndex:
                pass  # test_the_index_brings_what_is_declared says so
        return linked(wheel, folder / "linked", extra)

    return made


@pytest.fixture(scope="module")
def broker() -> Iterator[Server]:
    with running() as server:
        yield server


def succeeded(done: "subprocess.CompletedProcess[str]") -> str:
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return done.stdout


def use(environment: Environment, url: str, topic: str) -> None:
    succeeded(environment.run("python", PROGRAM, url, topic, QUINTET_PEERBUS_SECRET=SECRET))


# -- what there is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", SMALL)
def test_the_index_brings_what_is_declared(extra: str, wheel: Path, tmp_path: Path, make: Make) -> None:
    """So what is linked, for Spark and where there is no index, is what a user gets."""
    made = make(extra)
    if made.folder.name == "linked":
        pytest.skip(
            "NO PACKAGE INDEX ANSWERS: the wheel was tried with packages linked from .venv, and never installed"
        )
    found = {file.name.partition("-")[0] for file in made.packages.glob("*.dist-info")} - {"quintet"}
    assert {name.lower().replace("_", "-").replace(".", "-") for name in found} == closure(wheel, extra)


def test_every_extra_is_tried() -> None:
    """declarative has a test of its own among the examples, keyring among those of profiles; faststream, otel and kafka are in
    tests/faststream, tests/telemetry and tests/log; java is the Java of the Spark below."""
    assert set(EXTRAS) == {
        *SMALL,
        "spark",
        "java",
        "lake",
        "notebook",
        "declarative",
        "keyring",
        "faststream",
        "kafka",
        "otel",
    } - {""}


# -- bare -------------------------------------------------------------------------------------------------------------


def test_a_bare_install_is_a_client_of_every_door_it_can_serve(make: Make, broker: Server) -> None:
    bare = make("")
    assert "kernel pure" in succeeded(bare.run("quintet", "--version"))
    use(bare, broker.url, "bare-blipmq")
    use(bare, broker.fly, "bare-flymq")
    use(bare, broker.fly_sdk, "bare-flymq-sdk")
    use(bare, f"{broker.fly}?compression=gzip", "bare-gzip")
    use(bare, broker.fast, "bare-fast")
    use(bare, broker.peer("bare", lines=True), "peerbus/bare")
    for url, topic in ((broker.url, "bare-blipmq"), (broker.fly, "bare-flymq")):
        succeeded(bare.run("python", PROGRAM, "--sync", url, topic))


def test_a_url_that_needs_an_extra_names_it(make: Make, broker: Server) -> None:
    """In a traceback of Python, too: its last line is the sentence with the command."""
    for url, needed, extra in (
        (broker.peer("bare"), "peerbus:// over WebSocket needs the package picows", "peerbus"),
        (broker.felix, "felix:// without the native kernel needs the package aioquic", "felix"),
        (f"{broker.fly}?compression=zstd", "compression zstd needs the package backports-zstd", "compression"),
        (f"{broker.fly}?compression=lz4", "compression lz4 needs the package cramjam", "compression"),
    ):
        for way in ((), ("--sync",)):
            said = make("").run("python", PROGRAM, *way, url, "t", QUINTET_PEERBUS_SECRET=SECRET).stderr.splitlines()
            assert said[-1].endswith(f"{needed}, which is not installed (pip install 'quintet[{extra}]')")


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, (*path, name))


def test_every_command_has_a_use() -> None:
    assert sorted(each.command for each in USES) == sorted(leaves(cli))


def outcomes(environment: Environment, broker: Server, topic: str, chosen: set[str]) -> dict[str, tuple[int, str]]:
    """Exit code and stderr of the commands with these outcomes."""
    home = environment.folder / "home"
    home.mkdir(exist_ok=True)
    (home / "schema.json").write_text('{"type": "object"}')
    (home / "lines.jsonl").write_text(f'{{"topic": "{topic}-txn", "value": "1"}}\n')
    (home / "password").write_text("correct horse battery staple\n")
    words = {
        **{"topic": topic, "home": home, "data": broker.folder / "data", "blip": broker.url, "felix": broker.felix},
        **{"peer": broker.peer(topic, lines=True), "flight": broker.flight},
        "admin": f"http://127.0.0.1:{broker.ports['admin']}",
    }
    uses = [each for each in USES if each.outcome in chosen]
    lines = [[*each.command.split(), *(word.format(**words) for word in each.arguments)] for each in uses]
    done = environment.run(
        *("python", PROGRAM, "--commands"),
        stdin=json.dumps(lines),
        QUINTET_URL=broker.fly,
        QUINTET_PEERBUS_SECRET=SECRET,
        XDG_CONFIG_HOME=str(home),
    )
    found = json.loads(succeeded(done))
    return {each.command: (got["code"], got["err"]) for each, got in zip(uses, found, strict=True)}


def test_every_command_works_or_names_its_extra_in_a_line(make: Make, broker: Server) -> None:
    assert int(succeeded(make("").run("python", PROGRAM, "--helps"))) > len(USES)
    found = outcomes(make(""), broker, "every-command", {each.outcome for each in USES})
    wanted = {each.command: each.outcome for each in USES}
    for command, (code, said) in found.items():
        assert "Traceback" not in said, f"{command}\n{said}"
        if wanted[command] == WORKS:
            assert code == 0, f"{command}\n{said}"
            continue
        assert code == 1, f"{command}\n{said}"
        assert len(said.splitlines()) == 1, f"{command}\n{said}"
        assert said.startswith("quintet: ")
        if wanted[command] != ANSWERS:
            assert f"(pip install 'quintet[{wanted[command]}]'" in said, f"{command}\n{said}"


def test_the_native_kernel_alone_serves_felix(native: Path, tmp_path: Path, broker: Server) -> None:
    bare = linked(native, tmp_path / "native", "")
    assert "kernel native" in succeeded(bare.run("quintet", "--version"))
    use(bare, broker.felix, "native-felix")
    use(bare, broker.fly, "native-flymq")
    for command, (code, said) in outcomes(bare, broker, "native", {"felix"}).items():
        assert code == 0, f"{command}\n{said}"


# -- what is in them --------------------------------------------------------------------------------------------------


def problems(wheel: Path) -> list[str]:
    """What a published wheel must not be. Its hashes are checked by reading it."""
    with WheelFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
    described = message_from_string(next(data for name, data in files.items() if name.endswith("/METADATA")).decode())
    folder = wheels.KERNEL.rpartition("/")[0]
    return [
        what
        for what, wrong in {
            "it is too large": wheel.stat().st_size > wheels.WHEEL_BYTES_MAX,
            "tests are in it": any("test_" in name or name.startswith("tests/") for name in files),
            "more than the package is in it": {name.partition("/")[0].partition("-")[0] for name in files}
            != {"quintet", "pyspark_quintet", "pyspark_quintet_lake"},
            "a pure wheel has a library": "none-any" in wheel.name and any(name.endswith(".so") for name in files),
            "a native wheel has no kernel": "none-any" not in wheel.name and wheels.KERNEL not in files,
            "the pure twin is missing": f"{folder}/pure.py" not in files,
            "the blocking client is missing": "quintet/client/blocking/sync.py" not in files,
            "it has no types": "quintet/py.typed" not in files,
            "README.md is not its description": described.get_payload() != (ROOT / "README.md").read_text(),
            "the licence is missing": described["License-Expression"] != "Apache-2.0"
            or not any(name.endswith("licenses/LICENSE") for name in files),
        }.items()
        if wrong
    ]


def test_the_wheels_have_the_package_and_nothing_else(wheel: Path, native: Path) -> None:
    assert problems(wheel) == []
    assert problems(native) == []


def test_wheels_that_are_wrong_are_seen(wheel: Path, tmp_path: Path) -> None:
    """A control: two files too many, and one too few."""
    made = tmp_path / wheel.name
    with WheelFile(wheel) as source, WheelFile(made, "w") as target:
        for name in source.namelist():
            if not name.endswith(("/RECORD", "/sync.py")):
                target.writestr(name, source.read(name))
        target.writestr("tests/test_x.py", b"")
        target.writestr(wheels.KERNEL, b"")
    assert problems(made) == [
        "tests are in it",
        "more than the package is in it",
        "a pure wheel has a library",
        "the blocking client is missing",
    ]


def test_the_source_distribution_builds_without_rust(published: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(published[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"kernel/Cargo.toml", "kernel/src/lib.rs", "setup.py", "LICENSE", "README.md"} <= names
    assert [name for name in names if name.startswith(("tests", "kernel/target")) or name.endswith(".so")] == []
    built = build_without_rust(published[0], tmp_path / "built")
    with zipfile.ZipFile(built) as made, zipfile.ZipFile(published[1]) as wheel:
        packed = [{name for name in each.namelist() if "dist-info" not in name} for each in (made, wheel)]
    assert packed[0] == packed[1]


# -- extras -----------------------------------------------------------------------------------------------------------


def test_peerbus_and_compression_are_enough_for_a_client(make: Make, broker: Server) -> None:
    use(make("peerbus"), broker.peer("installed"), "peerbus/installed")
    for codec in ("zstd", "lz4", "snappy"):
        use(make("compression"), f"{broker.fly}?compression={codec}", f"compression-{codec}")


def test_mcp_is_enough_for_a_peer_of_a_model(make: Make, broker: Server) -> None:
    use(make("mcp"), broker.peer("model"), "peerbus/model")
    assert outcomes(make("mcp"), broker, "model", {"mcp"}) == {"mcp": (0, "")}


def test_felix_is_enough_for_a_client(make: Make, broker: Server) -> None:
    use(make("felix"), broker.felix, "felix-topic")
    for command, (code, said) in outcomes(make("felix"), broker, "felix", {"felix"}).items():
        assert code == 0, f"{command}\n{said}"


def test_flight_is_enough_for_arrow_and_the_state_of_pipelines(make: Make, broker: Server) -> None:
    example = str(ROOT / "examples" / "flight_arrow_clients.py")
    done = make("flight").run("python", example, str(broker.ports["flight"]), "admin", "admin")
    assert done.stdout.startswith("pyarrow ann 22\npyarrow bob 20\n"), done.stderr
    assert "Traceback" not in done.stderr  # pyarrow's own remark on how memory happens to lie may be there
    found = outcomes(make("flight"), broker, "flight", {"flight"})
    assert found["pipeline status"] == (0, "no pipelines; `quintet pipeline run` starts one\n")
    assert found["pipeline stop"][1].startswith("quintet: ")


def test_bench_is_enough_to_measure_and_draw(make: Make, broker: Server) -> None:
    said = succeeded(make("bench").run("quintet", "bench", "pub", broker.url, "--count", "200", "--picture", "a.png"))
    assert "messages/s" in said
    assert (make("bench").folder / "home" / "a.png").stat().st_size > 0


def test_a_broker_from_the_native_wheel_uses_its_kernel(native: Path, tmp_path: Path) -> None:
    made = linked(native, tmp_path / "native", "server")
    assert '"kernel": "native"' in serve_once(made, tmp_path)


def test_server_is_enough_to_serve_and_to_look_after_the_files(make: Make, tmp_path: Path) -> None:
    made = make("server")
    assert "quintet[flight]" in serve_once(made, tmp_path), "why the Flight door is shut"
    data = str(tmp_path / "data")
    for arguments in (
        *(("log", "verify", data), ("audit", "verify", "--data", data), ("config", "validate"), ("config", "init")),
        *(("token", "mint", "--dev", "--sub", "ann", "--queue-key", "k"), ("token", "keygen", "--out", "keys")),
    ):
        done = made.run("quintet", *arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stderr}"
        assert "Traceback" not in done.stderr


def serve_once(made: Environment, tmp_path: Path) -> str:
    """Start the broker of an environment, publish and read through it, stop it; what it wrote."""
    ports = dict.fromkeys(
        ("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FAST", "PEERBUS", "PEERBUS_TCP", "FELIX", "CONSOLE", "ADMIN"), "0"
    )
    settings = {f"QUINTET_LISTENERS__{name}__PORT": port for name, port in ports.items()}
    command = ["serve", "--dev", "--data", str(tmp_path / "data"), "--print-ready"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [str(made.folder / "bin" / "quintet"), *command],
            env={"PATH": "/usr/bin:/bin", **settings},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    assert process.stdout is not None
    try:
        doors = json.loads(process.stdout.readline())["listeners"]
        assert set(PROTOCOLS) <= set(doors), "without pyarrow all but Flight"
        url = f"flymq://admin:admin@{doors['flymq'].rpartition('/')[2]}"
        use(made, url, "served")
    finally:
        process.terminate()
        process.wait(STOP_S)
        process.stdout.close()
    assert process.returncode == 0
    written = (tmp_path / "said").read_text()
    assert "Traceback" not in written
    return written


# What Spark calls in its Python processes, called in their order: all of the code that needs packages, without Java.
BY_HAND = """
import sys
import pyarrow as pa
from pyspark.sql.types import StringType, StructType
from quintet.spark.sessions.start import check_packages
from pyspark_quintet import DefaultSource

check_packages()
schema = StructType().add("key", StringType()).add("value", StringType())
writer = DefaultSource({"url": sys.argv[1], "topic": "from-spark"}).writer(schema, False)
rows = pa.RecordBatch.from_pydict({"key": ["a", "b"], "value": ["1", "2"]})
writer.commit([writer.write(iter([rows]))])
source = DefaultSource({"url": sys.argv[1], "subscribe": "from-spark"})
reader = source.reader(source.schema())
found = pa.Table.from_batches(batch for part in reader.partitions() for batch in reader.read(part))
sys.stdout.write(str(sorted(zip(found["key"].to_pylist(), found["value"].to_pylist()))))
"""
SESSION = """
import sys
from quintet.spark import session

spark = session("local[1]", conf={"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1",
                                  "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
rows = spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
rows.write.format("quintet").options(url=sys.argv[1], topic="from-session").mode("append").save()
read = spark.read.format("quintet").options(url=sys.argv[1], subscribe="from-session").load()
sys.stdout.write(str(sorted((bytes(row.key), bytes(row.value)) for row in read.collect())))
spark.stop()
"""
READ = "[(b'a', b'1'), (b'b', b'2')]"


def test_spark_is_enough_to_write_and_read_topics(make: Make, broker: Server) -> None:
    """Without Java, whose start in a new place is a minute of the processor; the next test has it."""
    made = make("spark")
    assert succeeded(made.run("python", "-W", "error", "-c", BY_HAND, broker.flight)) == READ
    done = made.run("quintet", "pipeline", "run", "audit", "--help")
    assert "what it is" in succeeded(done), "its module loads"


@pytest.mark.timeout(400)
def test_a_session_of_an_installed_spark_writes_and_reads(make: Make, broker: Server) -> None:
    """With the Java of the extra java."""
    if not os.environ.get(LONG):
        pytest.skip(f"it starts a Java that was never started here; {LONG}=1 does it")
    done = make("spark,java").run("python", "-c", SESSION, broker.flight, timeout=300)
    assert done.stdout == READ, done.stderr
