"""`quintet pub` and `quintet sub` over FlyMQ: keys, partitions, delays, schemas, groups, filters."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from quintet.cli.messages.pubsub import _broker
from tests.cli.conftest import Commands

WAIT_S = 60


def tail(quintet: Commands, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in quintet("tail", topic, "--from", "earliest", "--json").lines]


def test_where_it_went(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic, "--partitions", "4")
    assert quintet("pub", topic, "x", "--partition", "3").out == f"1 message to {topic}: durable at 3@0\n"
    found = quintet("pub", topic, "y", "--key", "k", "--json").json
    assert {"topic": topic, "count": 1, "durable": True}.items() <= found.items()
    again = quintet("pub", topic, "z", "--key", "k", "--json").json
    assert (again["partition"], again["offset"]) == (found["partition"], found["offset"] + 1)
    assert quintet("pub", topic, "a", "b", "--key", "k").out == f"2 messages to {topic}: durable\n"
    assert [row["key"] for row in tail(quintet, topic)].count("k") == 4


def test_lines_with_a_key(quintet: Commands, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quintet", "pub", topic, "--key", "k", "--ttl", "3600"],
        input=b"one\ntwo\n",
        env=os.environ | {"QUINTET_URL": quintet.url},
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    rows = tail(quintet, topic)
    assert [(row["key"], row["value"]) for row in rows] == [("k", "one"), ("k", "two")]
    assert all(row["expiry_ms"] > row["timestamp_ms"] for row in rows)


def test_delays(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic)
    said = quintet("pub", topic, "later", "--delay", "600").out
    assert said.startswith(f"1 message to {topic}: durable, appears in 600 s (--cancel ")
    (handle,) = quintet("pub", topic, "later", "--delay", "600", "--json").json["handles"]
    assert quintet("pub", topic, "--cancel", str(handle)).out == f"{topic}: delayed message {handle} is cancelled\n"
    assert f"no delayed message {handle}" in quintet("pub", topic, "--cancel", str(handle), code=1).err
    assert tail(quintet, topic) == []
    quintet("pub", topic, "now", "--delay", "0.001")
    assert quintet("sub", topic, "--from", "earliest", "--count", "1", "--timeout", "30").out == "now\n"


def test_schemas(quintet: Commands, topic: str) -> None:
    schema = '{"type": "object", "required": ["n"]}'
    quintet("schema", "register", topic, "-", "--type", "json", data=schema)
    quintet("pub", topic, '{"n": 1}', '{"n": 2}', "--schema", topic, "--key", "k")
    refused = quintet("pub", topic, "{}", "--schema", topic, code=1)
    assert "schema validation failed" in refused.err
    assert [(row["key"], row["value"]) for row in tail(quintet, topic)] == [("k", '{"n": 1}'), ("k", '{"n": 2}')]


def test_a_group_goes_on(quintet: Commands, topic: str) -> None:
    quintet("pub", topic, "1", "2", "3", "4", "--key", "k")
    first = quintet("sub", topic, "--group", topic, "--count", "3", "--format", "json")
    assert first.err == f"group {topic} on {topic}: partition 0 (go on with --group {topic})\n"
    rows = [json.loads(line) for line in first.lines]
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        (0, 0, "k", "1"),
        (0, 1, "k", "2"),
        (0, 2, "k", "3"),
    ]
    assert quintet("sub", topic, "--group", topic, "--count", "1", "--member", "me").out == "4\n"
    assert [row["lag"] for row in quintet("group", "lag", topic, "--json").json] == [0]
    late = quintet("sub", topic, "--group", topic, "--count", "1", "--timeout", "0.3", code=1)
    assert "0 of 1 messages came in 0.3 s" in late.err


def test_looking_without_consuming(quintet: Commands, topic: str) -> None:
    quintet("pub", topic, "a", "b")
    for _ in range(2):
        seen = quintet("sub", topic, "--group", topic, "--no-ack", "--count", "2")
        assert seen.out == "a\nb\n"


def test_from_and_filter(quintet: Commands, topic: str) -> None:
    quintet("pub", topic, '{"n": 1}', '{"n": 2}')
    seen = quintet("sub", topic, "--from", "earliest", "--filter", "$.n == 2", "--count", "1")
    assert seen.out == '{"n": 2}\n'
    assert seen.err == f"all partitions of {topic}; where it ends is kept with --group only\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("pub", "t", "x", "--qos", "0"), 1, "qos=0"),
        (("pub", "t", "x", "--cancel", "5"), 2, "publishes nothing"),
        (("pub", "t", "x", "--schema", "nowhere"), 1, "there is no schema 'nowhere'"),
        (("pub", "t", "x", "--partition", "7"), 1, "partition 7 out of range"),
        (("pub", "t", "x", "--partition", "-1"), 2, "--partition"),
        (("pub", "t", "x", "--ttl", "1e12"), 2, "ttl is a number of seconds"),
        (("sub", "t", "--resume", "5"), 1, "resumed by its name"),
        (("sub", "t", "--member", "me"), 2, "give group= too"),
        (("sub", "nowhere", "--group", "g", "--count", "1", "--timeout", "0.1"), 1, ""),
    ],
)
def test_errors(quintet: Commands, arguments: tuple[str, ...], code: int, says: str) -> None:
    quintet("topic", "create", "t")
    assert says in quintet(*arguments, code=code).err


@pytest.mark.parametrize(
    ("arguments", "doors"),
    [
        (("pub", "t", "x", "--partition", "1"), "FlyMQ, not for blipmq: --url flymq://"),
        (("pub", "t", "--cancel", "5"), "FlyMQ, not for blipmq: --url flymq://"),
        (("sub", "t", "--group", "g"), "FlyMQ and Felix, not for blipmq: --url 'felix://"),
    ],
)
def test_what_the_other_door_cannot(quintet: Commands, arguments: tuple[str, ...], doors: str) -> None:
    refused = quintet(*arguments, url="blipmq://:k@127.0.0.1:1", code=2)
    assert f"{arguments[-2]} is for {doors}" in refused.err


def test_without_a_url_the_options_choose_the_door() -> None:
    assert _broker(None, {"--key": None, "--delay": None}).startswith("blipmq://")
    assert _broker(None, {"--key": None, "--delay": 0.5}).startswith("flymq://")
    assert _broker("flymq://h", {"--key": "k"}) == "flymq://h"
