"""quicgen is honest: what it counts is what was sent, and a server that answers otherwise fails its run.

Its dependencies take cargo a minute or two, so a test run builds nothing here: the tests run where a benchmark has built it
(`python bench/side_by_side.py --quick --only felix_bytes`), and are skipped, loudly, where none has. No test looks at a rate.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.closed_loop import working_cargo
from bench.felix import PROGRAM, TUNED, Place, bare, lasting, place, run

from bench import peers
from quintet.bench.wire import BenchError

MIB = 1024 * 1024
SHORT = ("--warmup", 0.1, "--seconds", 0.2)

pytestmark = pytest.mark.skipif(
    working_cargo() is None or not PROGRAM.exists(),
    reason="QUICGEN IS NOT BUILT: the QUIC load generator is not tested; a benchmark of the Felix door builds it",
)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = {"QUINTET_TOPICS__DURABILITY": "memory"}
    with peers.quintet(tmp_path_factory.mktemp("felix"), settings, door="felix") as server:
        yield place(server)


@pytest.mark.parametrize("tuned", [(), TUNED], ids=["as it comes", "tuned"])
def test_a_bare_transfer_counts_its_bytes(tmp_path: Path, tuned: tuple[str, ...]) -> None:
    with bare("sink", tmp_path, *tuned) as sink:
        assert run("bare-send", sink, *tuned, "--bytes", 3 * MIB + 5)["bytes"] == 3 * MIB + 5


def test_a_bare_round_trip_comes_back(tmp_path: Path) -> None:
    with bare("echo", tmp_path) as echo:
        said = run("bare-rtt", echo, *SHORT)
    assert said["operations"] > 0
    assert 0 < said["p50_us"] <= said["p99_us"]


@pytest.mark.parametrize("connections", [0, 1, 2])
@pytest.mark.parametrize("outstanding", [0, 4], ids=["unacknowledged", "acknowledged"])
def test_every_subscriber_has_every_record(door: Place, connections: int, outstanding: int) -> None:
    shape = ("--bytes", MIB, "--subscribers", 3, "--connections", connections, "--outstanding", outstanding)
    said = run("felix-flow", door, *shape)
    assert (said["records"], said["bytes"]) == (MIB // 1024, 3 * MIB)


def test_a_publisher_alone_counts_what_subscribers_alone_have(door: Place) -> None:
    apart = (*door.options, "--bytes", MIB, "--stream", "apart")
    with lasting("felix-subscribe", *apart, "--subscribers", 2) as ready:
        assert ready["ready"] == 2
        assert run("felix-publish", door, "--bytes", MIB, "--stream", "apart")["bytes"] == MIB


@pytest.mark.parametrize("form", ["json", "binary"])
def test_publishes_are_answered_one_by_one(door: Place, form: str) -> None:
    said = run("felix-rtt", door, "--form", form, *SHORT)
    assert 0 < said["operations"] < said["total"]


def test_gets_find_what_was_put(door: Place) -> None:
    assert run("felix-cache", door, "--keys", 50, *SHORT)["operations"] > 0


def test_idle_connections_are_held(door: Place) -> None:
    with lasting("felix-idle", *door.options, "--connections", 20) as held:
        assert held["connections"] == 20


def test_a_name_that_is_refused_fails_the_run(door: Place) -> None:
    with pytest.raises(BenchError, match="was not acknowledged"):
        run("felix-publish", door, "--bytes", MIB, "--stream", "__inner", "--outstanding", 1)


def test_a_server_that_echoes_is_no_broker(tmp_path: Path) -> None:
    with bare("echo", tmp_path) as echo, pytest.raises(BenchError, match="auth_ok was due and 0x0"):
        run("felix-rtt", echo, *SHORT)


def test_an_option_nobody_knows_is_refused(tmp_path: Path) -> None:
    with bare("echo", tmp_path) as echo, pytest.raises(BenchError, match="--secnds is not known here"):
        run("bare-rtt", echo, "--secnds", 1)
