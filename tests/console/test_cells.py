"""The console of a broker of two processes: topics of both cells are listed, shown and changed. Real sockets."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

import quintet
from quintet.cli.terminal.common import manage
from tests.client.server import Server, running_cells
from tests.console.conftest import Browser
from tests.crash.test_cell_processes import children
from tests.interop.test_cells import topic_of

CELLS = 2
WAIT_S = 60.0
SETTINGS = {"QUINTET_LISTENERS__CONSOLE__ENABLED": "true"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS, SETTINGS) as found:
        yield found


@pytest.fixture
def person(server: Server) -> Browser:
    made = Browser(server.console)
    assert made.post("/api/login", name="admin", password="admin").status_code == 200
    return made


def filled(server: Server, count: int = 3) -> list[str]:
    """A topic of each cell, with messages and a group."""
    topics = [topic_of(cell) for cell in range(CELLS)]
    with quintet.sync.connect(server.fly) as bus:
        for number, topic in enumerate(topics):
            for value in range(count + number):
                bus.publish(topic, str(value))
            bus.request("COMMIT", topic=topic, group=f"g-{topic}", partition=0, offset=1)
    return topics


def test_lists_have_topics_and_readers_of_both_cells(server: Server, person: Browser) -> None:
    topics = filled(server)
    rows = person.ask("/api/topics", filter="cells.", limit=500)["rows"]
    names = [row["name"] for row in rows]
    assert set(topics) <= set(names) and names == sorted(names)
    most = person.ask("/api/topics", filter="cells.", sort="records", limit=1)
    assert most["rows"][0]["records"] == max(row["records"] for row in rows) and most["total"] == len(rows)
    second = person.ask("/api/topics", filter="cells.", skip=1, limit=1)["rows"]
    assert [row["name"] for row in second] == names[1:2]
    readers = person.ask("/api/readers", filter="g-cells.", limit=500)["rows"]
    assert set(topics) <= {row["topic"] for row in readers}


@pytest.mark.parametrize("cell", range(CELLS))
def test_one_topic_its_messages_and_its_groups_are_shown(server: Server, person: Browser, cell: int) -> None:
    topic = filled(server)[cell]
    assert person.ask("/api/topic", topic=topic)["name"] == topic
    page = person.ask("/api/messages", topic=topic)
    assert sorted(row["value"]["text"] for row in page["rows"]) == [str(number) for number in range(3 + cell)]
    found = person.ask("/api/group", topic=topic, group=f"g-{topic}")
    assert [row["lag"] for row in found["partitions"]] == [2 + cell]
    assert person.get("/api/message/value", topic=topic, partition=0, offset=0).content == b"0"


@pytest.mark.parametrize("cell", range(CELLS))
def test_a_topic_is_made_filled_and_deleted_in_its_cell(person: Browser, cell: int) -> None:
    topic = topic_of(cell)
    assert person.post("/api/topic/create", topic=topic, partitions=2).json() == {"topic": topic, "new": True}
    assert person.post("/api/publish", topic=topic, value="x").status_code == 200
    assert person.post("/api/topic/delete", topic=topic, typed="other").status_code == 400
    assert person.post("/api/topic/delete", topic=topic, typed=topic).status_code == 200
    answer = person.get("/api/topic", topic=topic)
    assert answer.status_code == 404 and answer.json()["code"] == "E1301"


@pytest.mark.parametrize("cell", range(CELLS))
def test_rights_count_in_every_cell(server: Server, cell: int) -> None:
    topic, name = filled(server)[cell], f"guest{cell}"
    manage(server.fly, lambda m: m.create_user(name, "a password", ["guest"]))
    guest = Browser(server.console)
    assert guest.post("/api/login", name=name, password="a password").status_code == 200
    assert guest.ask("/api/topics")["rows"] == []
    assert guest.get("/api/messages", topic=topic).status_code == 403
    assert guest.post("/api/publish", topic=topic, value="x").status_code == 403


def test_a_stream_of_another_cell_is_refused_with_a_sentence(server: Server, person: Browser) -> None:
    topic = filled(server)[1]
    said = person.get("/api/tail", topic=topic).text
    assert f"topic '{topic}' belongs to cell 1 of this broker" in said.replace('\\"', "'")


def test_a_killed_cell_is_named_and_comes_back(server: Server, person: Browser) -> None:
    topics = filled(server)
    os.kill(children(server)[1], signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while (answer := person.get("/api/topic", topic=topics[1])).status_code != 200:
        assert answer.status_code in (503, 429) and time.monotonic() < deadline
        if answer.status_code == 503:
            assert answer.json()["error"] == "cell 1 of this broker does not answer"
        time.sleep(0.1)
    assert person.ask("/api/topic", topic=topics[0])["name"] == topics[0]
