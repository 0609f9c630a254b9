"""The Flight door as a plain Arrow client sees it: finding the way, reading, writing, and what is refused."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from pyarrow import flight

import quintet
from quintet.cli.terminal.common import manage
from quintet.client.manage_access import Asked
from quintet.flight import wire
from tests.abuse.process import Broker as Process
from tests.abuse.process import config
from tests.client.server import Server, running
from tests.flight.client import Client, basic, refused, rows

STALLED_S = 1.0  # after this the broker has sent all that a reader who takes nothing has room for


def publish(server: Server, topic: str, *values: str, key: str | None = None) -> None:
    with quintet.sync.connect(server.fly) as bus:
        for value in values:
            bus.publish(topic, value, key=key)


# -- finding ----------------------------------------------------------------------------------------------------------


def test_what_is_published_over_flymq_is_read_as_columns(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "one", "two", "three", key="k")
    found = client.read(topic)
    assert tuple(found.schema.names) == wire.COLUMNS
    assert found.column("value").to_pylist() == [b"one", b"two", b"three"]
    assert found.column("key").to_pylist() == [b"k"] * 3
    assert found.column("offset").to_pylist() == [0, 1, 2]
    assert found.column("topic").to_pylist() == [topic] * 3
    assert found.column("partition").to_pylist() == [0] * 3
    assert found.column("headers").to_pylist() == [[], [], []]
    assert set(found.column("origin").to_pylist()) == {"flymq:admin"}
    assert str(found.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"


def test_a_range_some_columns_and_small_batches(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, *(str(n) for n in range(50)))
    assert client.values(topic, first=10, last=13) == [b"10", b"11", b"12"]
    assert client.values(topic, first=50) == []
    narrow = client.read(topic, columns=["offset", "value"], first=48)
    assert narrow.to_pydict() == {"offset": [48, 49], "value": [b"48", b"49"]}
    reader = client.open(topic, rows_per_batch=10)
    assert sum(chunk.data.num_rows for chunk in reader) == 50


def test_a_plain_client_finds_its_way(broker: Server, client: Client, topic: str) -> None:
    manage(broker.fly, lambda m: m.create_topic(topic, 3))
    client.put(topic, rows(b"a", b"b", b"c", partition=pa.array([0, 1, 2], pa.int32())))
    info = client.flight.get_flight_info(flight.FlightDescriptor.for_path(topic), client.options)
    assert info.total_records == 3
    assert [endpoint.locations for endpoint in info.endpoints] == [[], [], []]
    parts = [client.flight.do_get(endpoint.ticket, client.options).read_all() for endpoint in info.endpoints]
    assert pa.concat_tables(parts).column("value").to_pylist() == [b"a", b"b", b"c"]
    assert info.schema == parts[0].schema
    schema = client.flight.get_schema(flight.FlightDescriptor.for_path(topic), client.options).schema
    assert schema == info.schema
    command = flight.FlightDescriptor.for_command(json.dumps({"pattern": f"{topic}.*"}).encode())
    assert len(client.flight.get_flight_info(command, client.options).endpoints) == 3
    listed = [each.descriptor.path for each in client.flight.list_flights(topic.encode(), client.options)]
    assert listed == [[topic.encode()]]
    actions = {action.type for action in client.flight.list_actions(client.options)}
    assert actions == set(wire.ACTIONS)


def test_topics_by_name_and_by_pattern(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "x")
    publish(broker, f"{topic}-2", "x", "y")
    found = client.act("topics", topics=[topic, "nowhere"])
    assert found["missing"] == ["nowhere"]
    assert [part["end"] for part in found["topics"][0]["partitions"]] == [1]
    assert found["topics"][0]["durability"] == "fsync"
    named = [each["name"] for each in client.act("topics", pattern=f"{topic}(-2)?")["topics"]]
    assert named == [topic, f"{topic}-2"]
    assert client.act("topics", pattern=topic[:-1])["topics"] == []
    with refused("E1101", "RE2"):
        client.act("topics", pattern="(")
    with refused("E1402"):
        client.act("topics", pattern="a" * 2000)
    with refused("E1101", "RE2"):  # Spark's subscribePattern comes this way
        client.act("topics", pattern="((a{1,1000}){1,1000}){1,1000}")
    assert topic in [each["name"] for each in client.act("topics", pattern="(.*)*")["topics"]]  # linear, and bounded


def test_offsets_for_a_time(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "x", "y")
    moment = client.read(topic).column("timestamp").cast(pa.int64()).to_pylist()[1]
    assert client.act("offsets_for_time", topic=topic, at_us=moment)["offsets"] in ([0], [1])
    assert client.act("offsets_for_time", topic=topic, at_us=moment + 1)["offsets"] == [2]
    assert client.act("offsets_for_time", topic=topic, at_us=0)["offsets"] == [0]


def test_many_partitions(broker: Server, client: Client, topic: str) -> None:
    manage(broker.fly, lambda m: m.create_topic(topic, 1000))
    client.put(topic, rows(b"x", b"y", partition=pa.array([0, 999], pa.int32())))
    offsets = client.act("offsets_for_time", topic=topic, at_us=1 << 62)["offsets"]
    assert (len(offsets), offsets[0], offsets[1], offsets[999]) == (1000, 1, 0, 1)
    client.act("group_commit", group="g", offsets={topic: {str(n): 0 for n in range(1000)}})
    assert len(client.act("groups", topic=topic)["positions"]) == 1000
    located = client.act("locate", topic=topic, ranges=[[n, 0, 1] for n in range(1000)])
    assert [len(files) for files in located["files"]] == [1, *[0] * 998, 1]


def test_the_files_of_a_range_are_where_the_door_says(broker: Server, client: Client, topic: str) -> None:
    for _ in range(4):  # a segment has 64 KiB, or one batch
        client.put(topic, rows(*[b"x" * 1000] * 50))
    located = client.act("locate", topic=topic, ranges=[[0, 0, 200], [0, 199, 200]])
    lock = Path(located["machine"]["lock_path"]).stat()
    assert (lock.st_dev, lock.st_ino) == (located["machine"]["lock_device"], located["machine"]["lock_inode"])
    whole, end = located["files"]
    assert len(whole) > 1
    assert [file["next_offset"] for file in whole[:-1]] == [file["base"] for file in whole[1:]]
    assert end == [whole[-1] | {"position": end[0]["position"]}]
    assert all(Path(file["path"]).is_file() for file in whole)


def test_a_topic_in_memory(broker: Server, client: Client, topic: str) -> None:
    with quintet.sync.connect(broker.url) as bus:
        for n in range(10):
            bus.publish(topic, str(n), qos=0)
        bus.ping()
    assert client.act("topics", topics=[topic])["topics"][0]["durability"] == "memory"
    assert client.values(topic, first=2) == [str(n).encode() for n in range(2, 10)]
    located = client.act("locate", topic=topic, ranges=[[0, 0, 10]])
    assert located["files"] == [[]]


def test_expired_records_are_not_handed_out(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "stays")
    with quintet.sync.connect(broker.fly) as bus:
        bus.request("PRODUCE_WITH_TTL", topic=topic, data=b"goes", ttl_ms=1)
        bus.publish(topic, "stays, too")
    assert client.values(topic) == [b"stays", b"stays, too"]


# -- losing -----------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_an_error_or_passed_over(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "x")
    with refused("E1305", "the topic ends at 1"):
        client.read(topic, last=5)
    with refused("E1305"):
        client.read(topic, first=7)
    assert client.values(topic, last=5, fail_on_data_loss=False) == [b"x"]
    assert client.values(topic, first=7, last=9, fail_on_data_loss=False) == []


def test_what_retention_took(broker: Server, client: Client, topic: str) -> None:
    manage(broker.fly, lambda m: m.create_topic(topic, 1, retention_bytes=65536))
    for _ in range(8):
        client.put(topic, rows(*[b"x" * 1000] * 100))
    first = 0
    while first == 0:  # retention is looked after once a second
        first = client.act("topics", topics=[topic])["topics"][0]["partitions"][0]["first"]
    with refused("E1305", "the first that is kept"):
        client.read(topic)
    offsets = client.read(topic, fail_on_data_loss=False).column("offset").to_pylist()
    assert offsets == list(range(offsets[0], 800))
    assert offsets[0] >= first


def test_a_topic_deleted_while_it_is_read(broker: Server, client: Client, topic: str) -> None:
    with quintet.sync.connect(broker.url) as bus:
        for _ in range(20):  # more than gRPC keeps on its way
            bus.publish(topic, "x" * 1_000_000, qos=0)
        bus.ping()
    stream = client.open(topic, rows_per_batch=1)
    stream.read_chunk()
    manage(broker.fly, lambda m: m.delete_topic(topic))
    client.put(topic, rows(b"another"))
    with refused("E1301", "deleted while"):
        stream.read_all()
    assert client.values(topic) == [b"another"]


def test_many_segments_and_readers_while_publishing(broker: Server, client: Client, topic: str) -> None:
    client.put(topic, rows(b"-1"))
    found: list[list[bytes | None]] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            with Client(broker.ports["flight"], header=client.token) as other:
                while len(found[-1] if found else []) < 3001:
                    found.append(other.values(topic))
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for each in readers:
        each.start()
    for n in range(30):
        client.put(topic, rows(*[str(n).encode() * 20] * 100))
    for each in readers:
        each.join()
    assert not failed
    wanted = [b"-1", *(str(n).encode() * 20 for n in range(30) for _ in range(100))]
    assert all(seen == wanted[: len(seen)] for seen in found)
    assert wanted in found


# -- writing ----------------------------------------------------------------------------------------------------------


def test_what_is_put_is_read_by_flymq(broker: Server, client: Client, topic: str) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    put = client.put(topic, rows(b"one", None, key=pa.array([b"k", None], pa.binary()), headers=headers))
    assert (put["rows"], put["stage"] != "") == (2, True)
    with quintet.sync.connect(broker.fly) as bus:
        found = [bus.request("CONSUME", topic=topic, partition=0, offset=n) for n in range(2)]
    assert [(each["key"], each["value"]) for each in found] == [(b"k", b"one"), (b"", b"")]
    read = client.read(topic)
    assert read.column("value").to_pylist() == [b"one", None]
    assert read.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], []]
    assert set(read.column("origin").to_pylist()) == {"flight:admin"}


def test_rows_name_their_topics(client: Client, topic: str) -> None:
    names = pa.array([f"{topic}-a", f"{topic}-b", f"{topic}-a"])
    staged = client.put({"writer": topic, "epoch": 0}, rows(b"1", b"2", b"3", topic=names))
    assert client.act("topics", pattern=f"{topic}.*")["topics"][0]["partitions"][0]["end"] == 0
    done = client.act("stage_commit", writer=topic, epoch=0, stages=[staged["stage"]], rows=3)
    assert done == {"fresh": True, "rows": 3}
    assert (client.values(f"{topic}-a"), client.values(f"{topic}-b")) == ([b"1", b"3"], [b"2"])
    with refused("E1101", "no column `topic`"):
        client.put({"writer": topic, "epoch": 1}, rows(b"1"))
    with refused("E1101", "null in some rows"):
        client.put({"writer": topic, "epoch": 1}, rows(b"1", topic=pa.array([None], pa.string())))


def test_a_batch_is_published_once(client: Client, topic: str) -> None:
    assert client.act("fence", writer=topic)["epoch"] == -1
    for _ in range(2):
        stages = [
            client.put({"writer": topic, "epoch": 7, "topic": topic}, rows(b"x", b"y"))["stage"] for _ in range(2)
        ]
        client.act("stage_commit", writer=topic, epoch=7, stages=stages, rows=4)
    assert client.values(topic) == [b"x", b"y"] * 2
    assert client.act("fence", writer=topic)["epoch"] == 7
    stage = client.put({"writer": topic, "epoch": 8, "topic": topic}, rows(b"z"))["stage"]
    assert client.act("stage_abort", stages=[stage]) == {}
    with refused("E1330", "no stage"):
        client.act("stage_commit", writer=topic, epoch=8, stages=[stage], rows=1)


def test_a_put_that_fails_publishes_nothing(client: Client, topic: str) -> None:
    client.put(topic, rows(b"there"))
    with refused("E1101", "partition"):
        client.put(topic, rows(b"a", b"b", partition=pa.array([0, 9], pa.int32())))
    with refused("E1300"):
        client.put("x" * 300, rows(b"a"))
    with refused("E1201", "__topics"):
        client.put("__topics", rows(b"a"))
    with refused("E1402", "the limit is"):
        client.put(topic, rows(b"v" * (33 << 20)))
    assert client.values(topic) == [b"there"]
    staged = client.put(topic, rows())
    assert (staged["stage"], staged["rows"], staged["bytes"]) == ("", 0, 0)


HALF_A_PUT = """
import os, sys
import pyarrow as pa
from pyarrow import flight
client = flight.FlightClient(sys.argv[1])
options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("admin", "admin")])
batch = pa.record_batch([pa.array([b"x"] * 100)], names=["value"])
writer, _ = client.do_put(flight.FlightDescriptor.for_path(sys.argv[2]), batch.schema, options)
for _ in range(5):
    writer.write_batch(batch)
os._exit(1)
"""


def test_a_client_that_dies_half_way_publishes_nothing(broker: Server, client: Client, topic: str) -> None:
    """For gRPC its rows end as if it had sent all of them."""
    place = f"grpc://127.0.0.1:{broker.ports['flight']}"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", HALF_A_PUT, place, topic], check=False)
    client.put(topic, rows(b"whole"))
    data = broker.folder / "data"
    while any(data.glob("**/stages/*")):  # until the last of them was noticed and thrown away
        time.sleep(0.01)
    assert client.values(topic) == [b"whole"]


def test_an_empty_batch_moves_the_fence(client: Client, topic: str) -> None:
    staged = client.put({"writer": topic, "epoch": 3, "topic": topic}, rows())
    assert (staged["stage"], staged["rows"], staged["bytes"]) == ("", 0, 0)
    for fresh in (True, False):
        done = client.act("stage_commit", writer=topic, epoch=3, stages=["", ""], rows=0)
        assert done == {"fresh": fresh, "rows": 0}
    assert client.act("fence", writer=topic) == {"epoch": 3, "log": staged["log"]}


def test_every_answer_says_which_log_and_topic_it_is_of(client: Client, topic: str) -> None:
    staged = client.put({"writer": topic, "epoch": 0, "topic": topic}, rows(b"a"))
    found = client.act("topics", topics=[topic, "__audit"])
    log = found["log"]
    identities = {info["name"]: info["identity"] for info in found["topics"]}
    assert len(log) == 32
    assert identities == {topic: staged["identity"], "__audit": f"{log}/__audit"}
    assert staged["identity"].startswith(f"{log}/")
    assert client.act("locate", topic=topic, ranges=[])["identity"] == staged["identity"]
    assert client.act("fence", writer=topic)["log"] == staged["log"] == log
    commit = {"writer": topic, "epoch": 0, "stages": [staged["stage"]], "rows": 1}
    other = "0" * 32
    with refused("E1333", f"was staged in the log {other}, this broker has the log {log}"):
        client.act("stage_commit", log=other, **commit)
    assert client.values(topic) == [], "nothing of it was published"
    assert client.act("stage_commit", log=log, **commit) == {"fresh": True, "rows": 1}
    with refused("E1333"):  # a batch that was committed here is not taken for one that was committed there
        client.act("stage_commit", log=other, **commit)


# -- who --------------------------------------------------------------------------------------------------------------


def test_credentials(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "x")
    port = broker.ports["flight"]
    for good in (basic("admin", "admin"), "Bearer dev-key", client.token, client.token.replace("Bearer", "bearer")):
        with Client(port, header=good) as other:
            assert other.values(topic) == [b"x"]
    for bad in (
        "",
        basic("admin", "wrong"),
        basic("nobody", "admin"),
        "Bearer wrong",
        "Bearer flight-00",
        "Basic x",
        "x",
    ):
        with Client(port, header=bad) as other, refused("E1200"):
            other.values(topic)
        with Client(port, header=bad) as other, refused("E1200"):
            other.act("topics")
        with Client(port, header=bad) as other, refused("E1200"):
            other.put(topic, rows(b"x"))
    with refused("E1200", "invalid user name or password"):
        Client(port, "admin", "wrong")
    events, _ = manage(broker.fly, lambda m: m.audit(Asked(types=["auth.failure"])))
    assert events[0].client_ip.startswith("127.0.0.1:") or events[0].user == "admin"


def test_rights_are_those_of_the_other_doors_and_end_at_once(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "x")
    manage(broker.fly, lambda m: m.create_user(topic, "a password", ["guest"]))
    with Client(broker.ports["flight"], topic, "a password") as guest:
        assert guest.act("topics", topics=[topic, "nowhere"])["missing"] == [topic, "nowhere"]
        for call in (
            guest.values,
            lambda name: guest.act("locate", topic=name, ranges=[]),
            lambda name: guest.act("offsets_for_time", topic=name, at_us=0),
            lambda name: guest.act("group_commit", group="g", offsets={name: {"0": 0}}),
            lambda name: guest.act("reject", topic=name, rejects=[[0, 0, "e"]]),
            lambda name: guest.act("redrive", topic=name, ids=["0-0"]),
            lambda name: guest.act("dead", topic=name),
            lambda name: guest.act("topic_create", topic=name, partitions=2),
            lambda name: guest.act("schema", subject=name),
            lambda name: guest.put(name, rows(b"x")),
            lambda name: guest.flight.get_flight_info(flight.FlightDescriptor.for_path(name), guest.options),
        ):
            for name in (topic, f"{topic}-unknown", "__groups", "__users"):
                with refused("E1201"):
                    call(name)
        manage(broker.fly, lambda m: m.update_user(topic, ["consumer"], True))
        assert guest.values(topic) == [b"x"]
        with refused("E1301"):
            guest.values(f"{topic}-unknown")
        with refused("E1201"):
            guest.put(topic, rows(b"x"))
        manage(broker.fly, lambda m: m.delete_user(topic))
        with refused("E1200"):
            guest.values(topic)
    with Client(broker.ports["flight"], header=basic(topic, "a password")) as gone, refused("E1200"):
        gone.act("topics")


def test_the_brokers_own_topics(broker: Server, client: Client, topic: str) -> None:
    client.put(topic, rows(b"x"))
    client.act("group_commit", group="own", offsets={topic: {"0": 1}})
    assert client.read("__groups").num_rows > 0
    assert client.read("__audit").num_rows > 0
    assert len(client.act("topics", topics=["__groups", "__audit"])["topics"]) == 2
    for name in ("__users", "__credentials", "__topics", "__nothing"):
        with refused("E1201"):
            client.read(name)
        assert client.act("topics", topics=[name])["missing"] == [name]
    assert not [each for each in client.act("topics")["topics"] if each["name"].startswith("__")]


def test_too_many_failed_logins_are_refused_for_a_while(tmp_path: Path) -> None:
    text = config(rest="[limits]\nauth_failures_per_minute_max = 3\n").replace(
        "[listeners.flight]\nenabled = false", "[listeners.flight]\nport = 0"
    )
    with Process(tmp_path, text) as server:
        port = int(server.listeners["flight"].rpartition(":")[2])
        codes = []
        for _ in range(20):  # the minute may turn once
            with Client(port, header="Bearer wrong") as client, pytest.raises(flight.FlightError) as caught:
                client.act("topics")
            codes.append(json.loads(caught.value.extra_info)["code"])
        assert codes[0] == "E1200"
        assert "E1403" in codes


# -- what is not understood -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ticket", [
    b"", b"{}", b"null", b"[]", b"\xff\xfe", b"{" * 10_000, b'{"topic": 1, "partition": 0}',
    b'{"topic": "t", "partition": 0, "frist": 1}', b'{"topic": "t", "partition": "0"}',
    b'{"topic": "t", "partition": 0, "columns": []}', b'{"topic": "t", "partition": 0, "columns": ["valeu"]}',
    b'{"topic": "t", "partition": 0, "columns": ["key", "key"]}', b'{"topic": "t", "partition": 0, "rows_per_batch": 0}',
    b'{"topic": "t", "partition": 0, "rows_per_batch": 99999999}', b'{"topic": "t", "partition": 0, "first": -1}',
    b'{"topic": "t", "partition": 0, "last": -2}', b'{"topic": "t", "partition": 0, "first": 9223372036854775808}',
])  # fmt: skip
def test_bad_tickets(client: Client, ticket: bytes) -> None:
    with refused("E1101"):
        client.flight.do_get(flight.Ticket(ticket), client.options).read_all()


def test_bad_requests(client: Client, topic: str) -> None:
    client.put(topic, rows(b"x"))
    with refused("E1101", "unknown action", "topics"):
        client.act("tpoics")
    for body in (b"x", b"[]", b'{"topics": 1}', b'{"tpoics": []}', b"\xff"):
        with refused("E1101"):
            client.act_raw("topics", body)
    with refused("E1402", "the limit is"):
        client.act_raw("topics", b" " * (5 << 20))
    with refused("E1402"):
        client.flight.do_get(flight.Ticket(b" " * (5 << 20)), client.options).read_all()
    with refused("E1400"):
        client.act("topics", topics=["t"] * 20_000)
    for partition in (-1, 1, 1 << 40):
        with refused("E1303"):
            client.read(topic, partition)
    with refused("E1301"):
        client.read(f"{topic}-nowhere")
    with refused("E1101"):
        client.flight.get_flight_info(flight.FlightDescriptor.for_path("a", "b"), client.options)
    with refused("E1101"):
        client.put({"writer": "w"}, rows(b"x"))
    with refused("E1300"):
        client.put({"writer": "", "epoch": 0, "topic": topic}, rows(b"x"))
    with refused("E1101", "no column `value`"):
        client.put(topic, pa.table({"key": [b"x"]}))
    with refused("E1101", "no column 'valeu'"):
        client.put(topic, pa.table({"value": [b"x"], "valeu": [b"x"]}))


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "x\ny", "caf\u00e9", "\U0001f984", "%s", "'; --"])
def test_hostile_names_are_names(client: Client, name: str) -> None:
    client.put(name, rows(b"x"))
    assert client.values(name) == [b"x"]
    assert [each["name"] for each in client.act("topics", topics=[name])["topics"]] == [name]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256])
def test_names_that_are_none(client: Client, name: str) -> None:
    with pytest.raises(flight.FlightError):
        client.put(name, rows(b"x"))
    with pytest.raises(flight.FlightError):
        client.read(name)


# -- groups, schemas, dead letters, pipelines -------------------------------------------------------------------------


def test_groups_show_position_and_lag(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "a", "b", "c")
    assert client.act("group_commit", group="g", offsets={topic: {"0": 1}}) == {}
    (position,) = client.act("groups", topic=topic)["positions"]
    assert {key: position[key] for key in ("group", "topic", "partition", "offset", "end", "lag")} == {
        "group": "g", "topic": topic, "partition": 0, "offset": 1, "end": 3, "lag": 2,
    }  # fmt: skip
    assert position["lag_us"] >= 0
    assert client.act("groups", topic=topic, group="other")["positions"] == []
    with refused("E1101", "which ends at 3"):
        client.act("group_commit", group="g", offsets={topic: {"0": 9}})
    with refused("E1301"):
        client.act("group_commit", group="g", offsets={f"{topic}-nowhere": {"0": 0}})


def test_schemas(broker: Server, client: Client, topic: str) -> None:
    definition = '{"type": "object"}'
    manage(broker.fly, lambda m: m.register_schema(topic, "json", definition.encode()))
    assert client.act("schema", subject=topic) == {
        "subject": topic, "id": f"{topic}-v1", "version": 1, "type": "json", "definition": definition,
    }  # fmt: skip
    with refused("E1311"):
        client.act("schema", subject=topic, version=2)


def test_dead_letters_are_rejected_shown_and_sent_again(broker: Server, client: Client, topic: str) -> None:
    publish(broker, topic, "a", "b", "c")
    assert client.act("dead", topic=topic)["open"] == []
    rejects = [[0, 0, "bad"], [0, 1, "bad"], [0, 2, "bad"]]
    assert client.act("reject", topic=topic, rejects=rejects) == {"fresh": 3}
    assert client.act("reject", topic=topic, rejects=rejects) == {"fresh": 0}
    letters = client.act("dead", topic=topic)
    assert letters["open"] == [[[0, 3]]]
    assert client.values(letters["topic"]) == [b"a", b"b", b"c"]
    assert client.act("redrive", topic=topic, ids=["0-1", "0-9"]) == {"sent": 1, "missing": ["0-9"]}
    assert client.act("dead", topic=topic)["open"] == [[[0, 1], [2, 3]]]
    assert client.values(topic) == [b"a", b"b", b"c", b"b"]
    with refused("E1304"):
        client.act("reject", topic=topic, rejects=[[0, 99, "bad"]])


def test_pipelines_report_and_are_stopped(broker: Server, client: Client, topic: str) -> None:
    report: dict[str, Any] = {"name": topic, "kind": "archive", "state": "running", "started_us": 5, "rows_in": 9}
    assert client.act("pipeline_report", **report) == {"stop": False}
    found = [each for each in client.act("pipelines")["pipelines"] if each["report"]["name"] == topic]
    assert (found[0]["owner"], found[0]["report"]["rows_in"]) == ("admin", 9)
    client.act("pipeline_stop", name=topic)
    assert client.act("pipeline_report", **report) == {"stop": True}
    assert client.act("pipeline_report", **report | {"state": "stopped"}) == {"stop": False}
    with refused("E1101", "no pipeline"):
        client.act("pipeline_stop", name=f"{topic}-other")
    with refused("E1101", "not a state"):
        client.act("pipeline_report", **report | {"state": "dancing"})


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["idle", "stalled"])
def test_the_broker_stops_with_a_reader_connected(reader: str) -> None:
    """A reader that takes nothing of its stream does not hold it up; stop() would report that it had to be killed."""
    with running() as server, Client(server.ports["flight"], "admin", "admin") as client:
        client.put("t", rows(*[b"x" * 10_000] * 3000))  # more than gRPC keeps on its way
        stream = client.open("t", rows_per_batch=100)
        stream.read_chunk()
        if reader == "idle":
            stream.cancel()
        else:
            time.sleep(STALLED_S)
        assert server.stop() == 0


def test_a_stream_that_the_broker_left_says_so() -> None:
    with running() as server, Client(server.ports["flight"], "admin", "admin") as client:
        client.put("t", rows(*[b"x" * 10_000] * 3000))
        stream = client.open("t", rows_per_batch=100)
        stream.read_chunk()
        server.stop()
        with pytest.raises((flight.FlightUnavailableError, flight.FlightInternalError, pa.ArrowException)):
            stream.read_all()
