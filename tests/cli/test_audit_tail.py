"""`quintet audit tail`: sends, deliveries and acknowledgements in the order of time, out of files that may still be written."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintet import kernel
from quintet.broker.audit.delivery_events import EVERY_US
from quintet.broker.core import BrokerOptions
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.cli.folder.audit_tail import Happened, Tail, line, tail
from quintet.log.embedded.files.segment import HEADER_BYTES, segment_name
from quintet.log.embedded.follow import Follower
from quintet.model.errors import DataDirError, TopicNotFound
from quintet.protocols.blipmq.mapping import tag_of
from quintet.testing.line import DATA, SimBroker
from tests.protocols.blipmq.helpers import publish, ready, subscribed
from tests.protocols.flymq.helpers import Client, make_sim
from tests.wire import blipmq as wire

FOLDER = str(DATA)


def story(sim: SimBroker) -> None:
    """Two records to orders (one with a key), read and settled; one to other."""
    peer = ready(sim, 2)
    id = subscribed(peer, b"orders")
    fly = Client(sim, "bruno")
    sim.advance(EVERY_US)
    fly.produce("orders", b"secret", key=b"k1")
    sim.advance(EVERY_US)
    peer.exchange(publish(b"orders", b"x" * 300))
    peer.exchange(wire.ack(tag_of(0, 0), id))
    sim.advance(2 * EVERY_US)
    fly.produce("other", b"y")
    sim.advance(2 * EVERY_US)


def told(happened: list[Happened]) -> list[tuple[Any, ...]]:
    return [
        (each.fields["event"], each.fields["topic"], each.fields.get("offset", each.fields.get("first")))
        for each in happened
    ]


def test_in_the_order_of_time_and_without_values() -> None:
    sim = make_sim()
    story(sim)
    found = list(Tail(sim.disk, FOLDER).more())
    assert told(found) == [
        ("send", "orders", 0), ("deliver", "orders", 0), ("send", "orders", 1), ("deliver", "orders", 1),
        ("ack", "orders", 0), ("send", "other", 0),
    ]  # fmt: skip
    assert [each.time for each in found] == sorted(each.time for each in found)
    first = found[0].fields
    assert {name: first[name] for name in ("event", "id", "from", "to", "door", "size")} == {
        "event": "send", "id": "k1", "from": "bruno", "to": "orders", "door": "flymq", "size": 6,
    }  # fmt: skip
    assert "secret" not in json.dumps([each.fields for each in found])
    shown = next(iter(Tail(sim.disk, FOLDER, values=True).more())).fields
    assert shown["value"] == "secret"


def test_only_some_topics_and_only_what_is_new() -> None:
    sim = make_sim()
    story(sim)
    reader = Tail(sim.disk, FOLDER, frozenset({"other"}))
    reader.check()
    assert told(list(reader.more())) == [("send", "other", 0)]
    assert list(reader.more()) == []
    fly = Client(sim, "bruno")
    fly.produce("other", b"z")
    fly.produce("orders", b"z")
    assert fly.values("other") == [b"y", b"z"]
    sim.advance(2 * EVERY_US)
    assert told(list(reader.more())) == [("send", "other", 1), ("deliver", "other", 0)]
    with pytest.raises(TopicNotFound, match="no topic 'nobody'; on disk are: orders, other"):
        Tail(sim.disk, FOLDER, frozenset({"nobody"})).check()


def test_a_topic_made_while_it_is_followed_has_its_name() -> None:
    sim = make_sim()
    reader = Tail(sim.disk, FOLDER)
    assert list(reader.more()) == []
    Client(sim, "admin").produce("later", b"a")
    assert told(list(reader.more())) == [("send", "later", 0)]


def test_lines_for_people() -> None:
    send = {"event": "send", "id": "k\x1b[2J", "from": "bruno", "to": "t", "door": "flymq", "topic": "t", "partition": 0,
            "offset": 4, "size": 6, "time": 0}  # fmt: skip
    assert line(Happened(0, send)).endswith("send    t/0@4 id=k\\x1b[2J from=flymq:bruno to=t 6 bytes")
    many = {"event": "deliver", "door": "fast", "who": "ann", "topic": "t", "partition": 1, "first": 3, "last": 9}
    assert line(Happened(0, many)).endswith("deliver t/1@3-8 to=fast:ann")
    one = many | {"event": "ack", "last": 4, "group": "g", "door": "flymq"}
    assert line(Happened(0, one)).endswith("ack     t/1@3 by=flymq:ann group=g")
    binary = {name: value for name, value in send.items() if name != "id"} | {"id_base64": "/w==", "value": None}
    assert line(Happened(0, binary)).endswith("id=base64:/w== from=flymq:bruno to=t 6 bytes value=-")


def unpack(sim: SimBroker, folder: Path) -> None:
    """The simulated disk as real files."""
    for path, data in sim.disk.snapshot().items():
        target = folder / path.lstrip("/")
        if data is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def test_the_command(tmp_path: Path) -> None:
    sim = make_sim()
    story(sim)
    unpack(sim, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    data = ["--data", str(tmp_path / FOLDER.lstrip("/"))]
    run = CliRunner().invoke(tail, [*data, "--json"])
    assert run.exit_code == 0, run.output
    rows = [json.loads(each) for each in run.output.splitlines()]
    assert [row["event"] for row in rows] == ["send", "deliver", "send", "deliver", "ack", "send"]
    last = CliRunner().invoke(tail, [*data, "-n", "2", "--topic", "orders"])
    assert [each.split()[2] for each in last.output.splitlines()] == ["deliver", "ack"]
    since = str(rows[-1]["time"] // 1000)
    assert len(CliRunner().invoke(tail, [*data, "--since", since]).output.splitlines()) == 1
    assert len(CliRunner().invoke(tail, [*data, "-n", "0"]).output.splitlines()) == 6
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    wrong = CliRunner().invoke(tail, ["--data", str(tmp_path)])
    assert isinstance(wrong.exception, DataDirError)


def segment(sim: SimBroker, name: bytes) -> str:
    topic = sim.broker.topics.get(name)
    assert topic is not None
    return f"{FOLDER}/topics/{topic.spec.id:08d}/0/{segment_name(0)}"


def test_a_follower_waits_for_a_batch_in_writing_and_skips_a_damaged_one() -> None:
    sim = make_sim()
    client = Client(sim, "admin")
    for number in range(4):
        client.produce("t", b"v%d" % number * 1_000)  # too long for a pack
    path = segment(sim, b"t")
    whole = sim.disk.read_file(path) or b""
    follower = Follower(sim.disk, path.rsplit("/", 1)[0])
    entries, _, _ = kernel.walk(whole, HEADER_BYTES, len(whole), 0, False)
    assert len(entries) == 4
    for cut in (entries[1][0], entries[1][0] + 30, entries[2][0] - 1):
        sim.disk.damage(path, whole[:cut] + bytes(len(whole) - cut))
        assert [batch.base_offset for batch in follower.more()] == ([0] if cut == entries[1][0] else [])
    damaged = bytearray(whole)
    damaged[entries[2][0] + 70] ^= 1
    sim.disk.damage(path, bytes(damaged))
    assert [batch.base_offset for batch in follower.more()] == [1, 3]
    sim.disk.damage(path, whole)
    assert list(follower.more()) == []


def test_a_follower_changes_segments_and_misses_what_was_removed() -> None:
    sim = make_sim(BrokerOptions(topics=TopicPolicy([TopicRule("*", segment_bytes=64 << 10)])))
    client = Client(sim, "admin")
    for number in range(6):
        client.produce("t", b"%d" % number * 30_000)
    client.produce("t", b"x" * (5 << 20))  # longer than what is read at a time
    directory = segment(sim, b"t").rsplit("/", 1)[0]
    bases = [int(name[:-4]) for name in sim.disk.listdir(directory) if name.endswith(".seg")]
    assert bases == [0, 2, 4, 6]
    follower = Follower(sim.disk, directory)
    read = follower.more()
    assert [next(read).base_offset for _ in range(2)] == [0, 1]
    sim.disk.unlink(f"{directory}/{segment_name(2)}")
    assert [batch.base_offset for batch in read] == [4, 5, 6]
    client.produce("t", b"y")
    assert [batch.base_offset for batch in follower.more()] == [7]
