"""The built wheel, in empty environments: without extras it is a client, with each extra it does what README.md says.

Every environment talks to one broker of this checkout. Nothing it prints may be a traceback.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from quintet.cli.main import cli
from quintet.protocols.doors import PROTOCOLS
from tests.client.server import STOP_S, Server, running
from tests.install.commands import ANSWERS, USES, WORKS
from tests.install.environments import (
    ROOT,
    Environment,
    NoIndex,
    build_wheel,
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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


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
    """declarative has a test of its own among the examples; java is the Java of the Spark below."""
    assert set(EXTRAS) == {*SMALL, "spark", "java", "lake", "notebook", "declarative"} - {""}


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
    """In a traceback of Python, too: its last lines are the sentence and the command."""
    for url, needed, extra in (
        (broker.peer("bare"), "peerbus:// over WebSocket needs the package picows", "peerbus"),
        (broker.felix, "felix:// without the native kernel needs the package aioquic", "felix"),
        (f"{broker.fly}?compression=zstd", "compression zstd needs the package backports-zstd", "compression"),
        (f"{broker.fly}?compression=lz4", "compression lz4 needs the package cramjam", "compression"),
    ):
        for way in ((), ("--sync",)):
            said = make("").run("python", PROGRAM, *way, url, "t", QUINTET_PEERBUS_SECRET=SECRET).stderr.splitlines()
            assert said[-2].endswith(f"{needed}, which is not installed")
            assert said[-1] == f"pip install 'quintet[{extra}]'"


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
    }
    uses = [each for each in USES if each.outcome in chosen]
    lines = [[*each.command.split(), *(word.format(**words) for word in each.arguments)] for each in uses]
    done = environment.run(
        *("python", PROGRAM, "--commands"),
        stdin=json.dumps(lines),
        QUINTET_URL=broker.fly,
        QUINTET_PEERBUS_SECRET=SECRET,
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


def test_the_native_kernel_alone_serves_felix(wheel: Path, tmp_path: Path, broker: Server) -> None:
    kernel = native_kernel()
    if kernel is None:
        pytest.skip("NO NATIVE KERNEL WAS BUILT: a wheel with one was not tried")
    bare = linked(wheel, tmp_path / "native", "")
    (bare.packages / "quintet" / "kernel" / kernel.name).symlink_to(kernel)
    assert "kernel native" in succeeded(bare.run("quintet", "--version"))
    use(bare, broker.felix, "native-felix")
    use(bare, broker.fly, "native-flymq")
    for command, (code, said) in outcomes(bare, broker, "native", {"felix"}).items():
        assert code == 0, f"{command}\n{said}"


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


def test_server_is_enough_to_serve_and_to_look_after_the_files(make: Make, tmp_path: Path) -> None:
    made = make("server")
    ports = dict.fromkeys(("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FAST", "PEERBUS", "PEERBUS_TCP", "FELIX", "ADMIN"), "0")
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
    assert "quintet[flight]" in written, "why the Flight door is shut"
    data = str(tmp_path / "data")
    for arguments in (
        *(("log", "verify", data), ("audit", "verify", "--data", data), ("config", "validate"), ("config", "init")),
        *(("token", "mint", "--dev", "--sub", "ann", "--queue-key", "k"), ("token", "keygen", "--out", "keys")),
    ):
        done = made.run("quintet", *arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stderr}"
        assert "Traceback" not in done.stderr


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
