"""The Flight door of a broker of two processes: topics of both cells are listed, read and written through it. Real sockets."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from pyarrow import flight

import quintet
from quintet.cli.terminal.common import manage
from tests.client.server import Server, running_cells
from tests.crash.test_cell_processes import children
from tests.flight.client import Client, refused, rows
from tests.flight.test_door import HALF_A_PUT
from tests.interop.test_cells import topic_of

CELLS = 2
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS) as found:
        yield found


@pytest.fixture
def flying(server: Server) -> Iterator[Client]:
    with Client(server.ports["flight"], "admin", "admin") as made:
        yield made


@pytest.mark.parametrize("cell", range(CELLS))
def test_what_is_put_is_read_and_listed(flying: Client, cell: int) -> None:
    topic = topic_of(cell)
    assert flying.put(topic, rows(b"a", b"b"))["rows"] == 2
    assert flying.values(topic) == [b"a", b"b"]
    assert flying.act("offsets_for_time", topic=topic, at_us=0)["offsets"] == [0]
    assert len(flying.act("locate", topic=topic, ranges=[[0, 0, 2]])["files"][0]) == 1
    flying.act("group_commit", group="g", offsets={topic: {"0": 1}})
    (position,) = flying.act("groups", topic=topic)["positions"]
    assert (position["offset"], position["lag"]) == (1, 1)


def test_lists_have_topics_of_both_cells_and_one_log(flying: Client) -> None:
    topics = sorted([topic_of(0), topic_of(1)])
    for topic in topics:
        flying.put(topic, rows(b"x"))
    found = flying.act("topics", topics=[*topics, "nowhere"])
    assert [info["name"] for info in found["topics"]] == topics and found["missing"] == ["nowhere"]
    assert {info["identity"].partition("/")[0] for info in found["topics"]} == {found["log"]}
    listed = {info.descriptor.path[0].decode() for info in flying.flight.list_flights(b"cells\\..*", flying.options)}
    assert set(topics) <= listed
    flying.act("group_commit", group="both", offsets={topic: {"0": 1} for topic in topics})
    assert {each["topic"] for each in flying.act("groups", group="both")["positions"]} == set(topics)


@pytest.mark.parametrize("cell", range(CELLS))
def test_a_staged_batch_is_published_once_in_its_cell(flying: Client, cell: int) -> None:
    topic, writer = topic_of(cell), f"writer-{cell}"
    for fresh in (True, False):
        staged = flying.put({"writer": writer, "epoch": 3, "topic": topic}, rows(b"a", b"b"))
        said = {"writer": writer, "epoch": 3, "stages": [staged["stage"]], "rows": 2, "log": staged["log"]}
        assert flying.act("stage_commit", **said) == {"fresh": fresh, "rows": 2}
        assert flying.act("fence", writer=writer) == {"epoch": 3, "log": staged["log"]}
    staged = flying.put({"writer": writer, "epoch": 4, "topic": topic}, rows(b"c"))
    with refused("E1333"):
        flying.act("stage_commit", writer=writer, epoch=4, stages=[staged["stage"]], rows=1, log="of another broker")
    flying.act("stage_abort", stages=[staged["stage"]])
    while flying.values(topic) != [b"a", b"b"]:
        time.sleep(0.01)


def test_stages_of_two_cells_are_not_committed_together(flying: Client) -> None:
    topics = [topic_of(0), topic_of(1)]
    stages = [flying.put({"writer": "w", "epoch": 1, "topic": topic}, rows(b"x"))["stage"] for topic in topics]
    with refused("E1704", "could not be atomic"):
        flying.act("stage_commit", writer="w", epoch=1, stages=stages, rows=2)
    assert flying.act("fence", writer="w")["epoch"] == -1
    assert flying.act("topics", topics=topics)["topics"] == [] or not any(map(flying.values, topics))
    with refused("E1101", "there is no stage"):
        flying.act("stage_commit", writer="w", epoch=1, stages=["9:x"], rows=1)
    with refused("E1704"):
        flying.put({"writer": "w", "epoch": 1}, rows(b"x", topic=pa.array([topics[1]])))
    flying.act("stage_abort", stages=stages)


@pytest.mark.parametrize("cell", range(CELLS))
def test_rights_are_judged_in_the_cell_of_the_topic(server: Server, flying: Client, cell: int) -> None:
    topic, name = topic_of(cell), f"gästin{cell}"
    flying.put(topic, rows(b"x"))
    manage(server.fly, lambda m: m.create_user(name, "a password", ["guest"]))
    with Client(server.ports["flight"], name, "a password") as guest:
        assert guest.act("topics", topics=[topic])["missing"] == [topic]
        for call in (lambda: guest.values(topic), lambda: guest.put(topic, rows(b"y"))):
            with refused("E1201"):
                call()
        with refused("E1201"):
            guest.flight.get_flight_info(flight.FlightDescriptor.for_path(topic), guest.options)
        manage(server.fly, lambda m: m.update_user(name, ["producer", "consumer"], True))
        assert guest.values(topic) == [b"x"]
        manage(server.fly, lambda m: m.delete_user(name))
        with refused("E1200"):
            guest.values(topic)


def test_a_client_that_dies_half_way_publishes_nothing_elsewhere(server: Server, flying: Client) -> None:
    topic, place = topic_of(1), f"grpc://127.0.0.1:{server.ports['flight']}"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", HALF_A_PUT, place, topic], check=False)
    flying.put(topic, rows(b"whole"))
    while any((server.folder / "data").glob("**/stages/*")):
        time.sleep(0.01)
    assert flying.values(topic) == [b"whole"]


def test_a_killed_cell_is_named_and_comes_back(server: Server, flying: Client) -> None:
    topics = [topic_of(0), topic_of(1)]
    for topic in topics:
        flying.put(topic, rows(b"x"))
    os.kill(children(server)[1], signal.SIGKILL)
    deadline, refusals = time.monotonic() + WAIT_S, 0
    while True:
        assert flying.values(topics[0]) == [b"x"], "the other goes on"
        try:
            assert flying.values(topics[1]) == [b"x"]
            break
        except flight.FlightUnavailableError as error:
            assert "cell 1 of this broker" in str(error)
            refusals += 1
            assert time.monotonic() < deadline, "it did not come back"
    with quintet.sync.connect(server.fly, wait=WAIT_S) as bus:
        bus.publish(topics[1], b"y")
    assert flying.values(topics[1]) == [b"x", b"y"]
