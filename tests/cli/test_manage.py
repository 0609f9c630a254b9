"""The commands that manage a broker, against a real one: what people see, what scripts get, and what goes wrong."""

import asyncio
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintet.cli.manage.group import Sample, trend
from quintet.cli.terminal import common
from quintet.cli.terminal.common import duration_ms, lasting, moment_ms, now_ms, shown
from quintet.client.bus import Bus, connect
from tests.cli.conftest import Commands
from tests.client.server import Server


def ask(quintet: Commands, operation: str, **fields: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with connect(quintet.url) as bus:
            return await bus.request(operation, **fields)

    return asyncio.run(run())


def produce(quintet: Commands, topic: str, *values: str, key: str = "", partition: int = -1) -> None:
    async def run() -> None:
        async with connect(quintet.url) as bus:
            for value in values:
                fields: dict[str, Any] = {"key": key.encode(), "value": value.encode(), "partition": partition}
                await bus.request("PRODUCE", topic=topic, **fields)

    asyncio.run(run())


# -- topics -----------------------------------------------------------------------------------------------------------


def test_topics(quintet: Commands, topic: str) -> None:
    assert quintet("topic", "create", topic, "--partitions", "3", "--retention", "7d").out == (
        f"{topic}: created with 3 partitions\n"
    )
    assert quintet("topic", "create", topic, "--partitions", "3", "--json").json == {
        "topic": topic,
        "created": False,
        "partitions": 3,
    }
    assert quintet("topic", "create", topic).out == f"{topic}: was there already, with 3 partitions, and is as it was\n"
    produce(quintet, topic, "a", "b", partition=1)
    assert re.search(rf"{topic} +3 +2\b", quintet("topic", "list").out)
    found = next(row for row in quintet("topic", "list", "--json").json if row["name"] == topic)
    assert (found["messages"], found["partitions"][1]) == (2, {"id": 1, "oldest": 0, "newest": 2})
    described = quintet("topic", "describe", topic)
    assert described.lines[0] == f"{topic}: 2 messages in 3 partitions"
    assert re.search(r"^ +1 +0 +2 +2 *$", described.out, re.MULTILINE)
    assert quintet("topic", "describe", topic, "--json").json == found
    assert quintet("topic", "delete", topic, "--yes").out == f"{topic}: deleted\n"
    assert f"there is no topic '{topic}'" in quintet("topic", "delete", topic, "--yes", code=1).err


def test_topic_errors(quintet: Commands, topic: str) -> None:
    assert f"topic not found: {topic}" in quintet("topic", "describe", topic, code=1).err
    assert "add --yes" in quintet("topic", "delete", topic, code=2).err
    assert "1<=x<=1000" in quintet("topic", "create", topic, "--partitions", "0", code=2).err
    assert "'tomorrow' is not a duration" in quintet("topic", "create", topic, "--retention", "tomorrow", code=2).err
    assert "'1 parsec' is not a size" in quintet("topic", "create", topic, "--retention-bytes", "1 parsec", code=2).err
    quintet("topic", "create", topic)
    there = quintet("topic", "create", topic, "--partitions", "2", code=1).err
    assert "exists with 1 partitions" in there
    assert there.endswith(" (partitions are fixed when a topic is made: delete it first, or choose another name)")


@pytest.mark.parametrize("command", [("topic", "list"), ("user", "list"), ("tail", "x"), ("audit",), ("dlq", "list")])
def test_the_wrong_door_the_wrong_password_and_nobody_there(quintet: Commands, command: tuple[str, ...]) -> None:
    assert (
        "This command needs FlyMQ, and the URL is of blipmq"
        in quintet(*command, url="blipmq://:k@127.0.0.1:1", code=2).err
    )
    assert "known schemes" in quintet(*command, url="http://127.0.0.1", code=2).err
    wrong = quintet(*command, url=quintet.url.replace(":admin@", ":guess@"), code=1)
    assert "invalid user name or password" in wrong.err
    assert "quintet serve --dev" in quintet(*command, url="flymq://a:b@127.0.0.1:1", code=1).err


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic, "--partitions", "2")
    produce(quintet, topic, *"abcdef", partition=0)
    ask(quintet, "COMMIT", topic=topic, group=topic, partition=0, offset=2)
    assert re.search(rf"{topic} +{topic} +0 +1\b", quintet("group", "list").out)
    row = next(row for row in quintet("group", "list", "--json").json if row["group"] == topic)
    assert row["offsets"] == [{"partition": 0, "offset": 2}]

    lag = quintet("group", "lag", topic)
    assert re.search(rf"{topic} +{topic} +0 +2 +6 +4 +\d+(\.\d)? (s|min)", lag.out)
    assert re.search(rf"{topic} +{topic} +all +4", lag.out)
    assert re.search(rf"{topic} +{topic} +all +4", quintet("group", "lag").out)
    rows = quintet("group", "lag", topic, "--json").json
    assert [(row["partition"], row["lag"]) for row in rows] == [(0, 4), (1, 0)]
    assert rows[0]["lag_ms"] >= 0

    described = quintet("group", "describe", topic)
    assert described.lines[0].startswith(f"{topic} on {topic}: empty, generation")
    assert "owned by admin" in described.lines[0]
    assert quintet("group", "describe", topic, "--json").json["owner"] == "admin"

    assert quintet("group", "delete", topic, "--yes").out == f"{topic} on {topic}: deleted\n"
    assert "there is no group" in quintet("group", "delete", topic, "--yes", code=1).err


@pytest.mark.parametrize(
    ("to", "offset"),
    [("earliest", 0), ("latest", 4), ("3", 3), ("offset 3", 3), ("offset:3", 3), ("-1h", 0), ("9999999999999", None)],
)
def test_group_reset(quintet: Commands, topic: str, to: str, offset: int | None) -> None:
    produce(quintet, topic, *"abcd")
    ask(quintet, "COMMIT", topic=topic, group=topic, partition=0, offset=1)
    if offset is None:
        for more in ((), ("--dry-run",)):
            assert "partition 0 of" in quintet("group", "reset", topic, "--to", to, *more, code=2).err
        return
    planned = quintet("group", "reset", topic, "--to", to, "--dry-run", "--json").json
    where = {"topic": topic, "partition": 0, "from": 1, "to": offset}
    assert planned == {"group": topic, "dry_run": True, "partitions": [where]}
    assert ask(quintet, "GET_OFFSET", topic=topic, group=topic, partition=0) == {"offset": 1}
    moved = quintet("group", "reset", topic, "--to", to)
    assert re.search(rf"{re.escape(topic)} +0 +1 +{offset} +\{offset - 1:+d}", moved.out)
    assert ask(quintet, "GET_OFFSET", topic=topic, group=topic, partition=0) == {"offset": offset}


def test_group_reset_to_a_time(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, "before")
    later = ask(quintet, "PRODUCE", topic=topic, key=b"", value=b"after", partition=0)["timestamp_ms"] + 1
    ask(quintet, "COMMIT", topic=topic, group=topic, partition=0, offset=0)
    moved = quintet("group", "reset", topic, "--to", f"timestamp {later}", "--json").json["partitions"]
    assert moved[0]["to"] == 2, "the end: there is nothing at or after that time"


def test_a_group_on_two_topics_must_be_chosen(quintet: Commands, topic: str) -> None:
    for name in (f"{topic}-1", f"{topic}-2"):
        produce(quintet, name, "x")
        ask(quintet, "COMMIT", topic=name, group=topic, partition=0, offset=0)
    wrong = quintet("group", "reset", topic, "--to", "latest", code=2)
    assert f"{topic} exists on {topic}-1, {topic}-2: choose one with --topic" in wrong.err
    quintet("group", "reset", topic, "--topic", f"{topic}-2", "--to", "latest")
    lags = {row["topic"]: row["lag"] for row in quintet("group", "lag", topic, "--json").json}
    assert lags == {f"{topic}-1": 1, f"{topic}-2": 0}
    assert [row["topic"] for row in quintet("group", "lag", topic, "--topic", f"{topic}-1", "--json").json] == [
        f"{topic}-1"
    ]


def test_a_group_is_moved_on_all_partitions_or_none(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic, "--partitions", "2")
    produce(quintet, topic, *"abc", partition=0)
    ask(quintet, "COMMIT", topic=topic, group=topic, partition=0, offset=1)
    refused = quintet("group", "reset", topic, "--to", "2", code=2)
    assert f"partition 1 of {topic} ends at 0, 2 is behind it" in refused.err
    assert ask(quintet, "GET_OFFSET", topic=topic, group=topic, partition=0)["offset"] == 1
    quintet("group", "reset", topic, "--to", "2", "--partition", "0")
    assert ask(quintet, "GET_OFFSET", topic=topic, group=topic, partition=0)["offset"] == 2


def test_group_errors(quintet: Commands, topic: str) -> None:
    assert "there is no group 'nobody'" in quintet("group", "lag", "nobody", code=1).err
    assert "earliest, latest, an offset" in quintet("group", "reset", "x", "--to", "sometime", code=2).err
    produce(quintet, topic, "x")
    ask(quintet, "COMMIT", topic=topic, group=topic, partition=0, offset=0)
    for more in ((), ("--dry-run",)):
        wrong = quintet("group", "reset", topic, "--to", "latest", "--partition", "7", *more, code=2)
        assert "partitions 0 to 0" in wrong.err


def test_lag_watch(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, "x", "y")
    ask(quintet, "COMMIT", topic=topic, group=topic, partition=0, offset=1)
    watch = ("group", "lag", topic, "--watch", "--count", "2", "--every", "10ms")
    rows = [json.loads(line) for line in quintet(*watch, "--json").lines]
    assert [row["lag"] for row in rows] == [1, 1]
    assert (rows[0]["in_per_s"], rows[1]["in_per_s"], rows[1]["eta_s"]) == (None, 0.0, None)
    assert re.search(rf"{topic} +{topic} +1 .* steady +not at this rate", quintet(*watch).out)


def test_trend() -> None:
    assert trend([Sample(0.0, 0, 10, 10, 1.0)]) is None
    shrinking = trend([Sample(0.0, 0, 100, 100, 1.0), Sample(10.0, 60, 110, 50, 1.0)])
    assert shrinking is not None
    assert (shrinking.rate_in, shrinking.rate_out, shrinking.eta_s) == (1.0, 6.0, 10.0)
    assert shrinking.word == "shrinking 5.0/s"
    growing = trend([Sample(0.0, 0, 0, 0, 0.0), Sample(2.0, 0, 10, 10, 2.0)])
    assert growing is not None
    assert (growing.eta_s, growing.word) == (None, "growing 5.0/s")
    done = trend([Sample(0.0, 0, 5, 5, 1.0), Sample(1.0, 5, 5, 0, 0.0)])
    assert done is not None
    assert done.eta_s == 0.0


# -- schemas ----------------------------------------------------------------------------------------------------------

ORDER = '{"type":"object","required":["total"],"properties":{"total":{"type":"integer"}}}'
STRICTER = '{"type":"object","required":["total","x"],"properties":{"total":{"type":"integer"}}}'


def test_schemas(quintet: Commands, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(ORDER)
    assert quintet("schema", "register", topic, str(file)).out == f"{topic}: version 1 (json)\n"
    again = quintet("schema", "register", topic, "-", "--type", "json", "--json", data=ORDER)
    assert again.json == {"name": topic, "type": "json", "version": 1}
    assert quintet("schema", "get", topic).lines == [ORDER]
    found = quintet("schema", "get", topic, "--version", "1", "--json").json
    assert (found["id"], found["compatibility"], found["definition"]) == (f"{topic}-v1", "backward", ORDER)
    assert re.search(rf"{topic}-v1 +json +1", quintet("schema", "list").out)
    assert quintet("schema", "list", topic, "--json").json == [{"id": f"{topic}-v1", "type": "json", "version": 1}]

    mixed = quintet("schema", "validate", topic, '{"total": 5}', '{"total": "x"}', code=1)
    assert mixed.lines == ['message 2: total: "x" is not of type "integer"', f"1 of 2 fit {topic}"]
    assert quintet("schema", "validate", topic, data='{"total": 5}\n\n{"total": 6}\n').out == f"2 of 2 fit {topic}\n"
    file.write_text('{"total": 5}')
    assert quintet("schema", "validate", f"{topic}-v1", "--file", str(file), "--json").json == [
        {"valid": True, "errors": []}
    ]

    assert quintet("schema", "compat", topic).out == f"{topic}: backward\n"
    refused = quintet("schema", "register", topic, "-", "--type", "json", data=STRICTER, code=1)
    assert "is not backward compatible with version 1" in refused.err
    assert quintet("schema", "compat", topic, "none", "--json").json == {"name": topic, "compatibility": "none"}
    assert quintet("schema", "register", topic, "-", "--type", "json", data=STRICTER).out.endswith("version 2 (json)\n")

    assert quintet("schema", "delete", topic, "--version", "1", "--yes").out == f"version 1 of {topic}: deleted\n"
    quintet("schema", "delete", topic, "--yes")
    assert "there is no schema" in quintet("schema", "get", topic, code=1).err


def test_schema_errors(quintet: Commands, topic: str, tmp_path: Path) -> None:
    missing = tmp_path / "nothing.json"
    assert "cannot be read: No such file" in quintet("schema", "register", topic, str(missing), code=2).err
    assert "json, avro or protobuf" in quintet("schema", "register", topic, "-", code=2).err
    assert "quintet: " in quintet("schema", "register", topic, "-", "--type", "avro", data="{", code=1).err
    assert f"no schema '{topic}'; `quintet schema register {topic} FILE`" in quintet("schema", "list", topic).err


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters(quintet: Commands, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert quintet("dlq", "list", topic).err == f"{topic} has no dead letters\n"
    produce(quintet, topic, "zero", "one", "two", "three", key="k")
    for offset in range(4):
        sent = quintet("dlq", "send", topic, "0", str(offset), "--error", "no such customer")
        assert sent.out == f"{topic} 0@{offset}: is a dead letter now\n"
    assert quintet("dlq", "send", topic, "0", "0", "--json").json["new"] is False
    assert {"topic": topic, "dead_letters": 4} in quintet("dlq", "list", "--json").json
    assert re.search(rf"{topic} +4 ", quintet("dlq", "list").out)
    table = quintet("dlq", "list", topic).out
    assert re.search(r"0-0 .* rejected by a consumer +1 +no such customer +k +zero", table)
    rows = quintet("dlq", "list", topic, "-n", "2", "--json").json
    assert [(row["id"], row["value"], row["partition"], row["offset"]) for row in rows] == [
        ("0-0", "zero", 0, 0),
        ("0-1", "one", 0, 1),
    ]
    shown_letter = quintet("dlq", "show", topic, "0-1").out
    assert "was       partition 0, offset 1" in shown_letter
    assert shown_letter.endswith("value     3 bytes\none\n")
    assert quintet("dlq", "show", topic, "0-1", "--json").json == rows[1]

    dry = quintet("dlq", "replay", topic, "--all", "--dry-run")
    assert dry.lines == [
        "0-0  zero",
        "0-1  one",
        "0-2  two",
        "0-3  three",
        f"4 of 4 dead letters of {topic} would be replayed",
    ]
    assert quintet("dlq", "replay", topic, "0-0").out == f"1 of 1 dead letters of {topic} replayed\n"
    quintet("dlq", "replay", topic, "0-1", "--value", "ONE")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf TWO > "$1"\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))
    assert quintet("dlq", "replay", topic, "0-2", "--edit", "--json").json["letters"] == [
        {"id": "0-2", "replayed": True, "value": "TWO"}
    ]
    gone = quintet("dlq", "replay", topic, "0-2", "0-3", "--rate", "1000", code=1)
    assert gone.out == f"1 of 2 dead letters of {topic} replayed\n"
    assert f"quintet: 0-2: {topic} has no dead letter 0-2: unknown, replayed or purged" in gone.err
    values = [json.loads(line)["value"] for line in quintet("tail", topic, "--from", "4", "--json").lines]
    assert values == ["zero", "ONE", "TWO", "three"]


def test_dead_letters_are_purged(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, "x", "y")
    for offset in ("0", "1"):
        quintet("dlq", "send", topic, "0", offset)
    assert "add --yes" in quintet("dlq", "purge", topic, code=2).err
    assert quintet("dlq", "purge", topic, "--yes").out == f"{topic}: 2 forgotten\n"
    assert quintet("dlq", "list", topic, "--json").json == []


def test_a_dead_letter_does_not_steer_the_terminal(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, "two\nlines", "\x1b[2Jgone", key="\x1b[0m")
    for offset in ("0", "1"):
        quintet("dlq", "send", topic, "0", offset, "--error", "\x1b[31mred")
    assert quintet("dlq", "show", topic, "0-0").out.endswith("two\nlines\n")
    assert quintet("dlq", "show", topic, "0-1").out.endswith("value     8 bytes\n\\x1b[2Jgone\n")
    for command in (("list", topic), ("show", topic, "0-0"), ("replay", topic, "--all", "--dry-run")):
        assert "\x1b" not in quintet("dlq", *command).out


def test_dead_letter_errors(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, "x")
    assert "Give the IDs to replay, or --all" in quintet("dlq", "replay", topic, code=2).err
    assert "needs exactly one ID" in quintet("dlq", "replay", topic, "--all", "--value", "x", code=2).err
    assert "ids look like 0-17" in quintet("dlq", "show", topic, "seventeen", code=2).err
    assert "has no dead letter 0-17" in quintet("dlq", "show", topic, "0-17", code=1).err
    assert "17" in quintet("dlq", "send", topic, "0", "17", code=1).err


# -- transactions -----------------------------------------------------------------------------------------------------


def values_of(quintet: Commands, topic: str) -> list[str]:
    return [json.loads(line)["value"] for line in quintet("tail", topic, "--from", "earliest", "--json").lines]


def test_transaction_step_by_step(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic)
    id = quintet("txn", "begin", "--timeout", "1m").out.strip()
    assert quintet("txn", "produce", id, topic, "hello", "--key", "k").out == (
        f"1 message to {topic}, partition 0: waits for the commit\n"
    )
    assert values_of(quintet, topic) == []
    assert quintet("txn", "commit", id).out == f"{id}: committed\n"
    assert quintet("txn", "commit", id, "--json").json == {"txn_id": id, "committed": True}, "it may be repeated"
    assert values_of(quintet, topic) == ["hello"]
    other = quintet("txn", "begin", "--json").json["txn_id"]
    quintet("txn", "produce", other, topic, "never", "--partition", "0", "--json")
    assert quintet("txn", "rollback", other).out == f"{other}: rolled back\n"
    assert "transaction not found" in quintet("txn", "commit", other, code=1).err
    assert values_of(quintet, topic) == ["hello"]


def test_transaction_of_a_file(quintet: Commands, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    a, b = f"{topic}-a", f"{topic}-b"
    rows: list[dict[str, Any]] = [
        {"topic": a, "value": "text", "key": "k"},
        {"topic": b, "value": {"n": 1}},
        {"topic": a, "value_base64": "/w==", "partition": 0},
    ]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert quintet("txn", "run", str(file)).out == f"3 messages to {a}, {b}: committed together\n"
    found = [json.loads(line) for line in quintet("tail", a, "--json").lines]
    assert [(row.get("value"), row.get("value_base64"), row["key"]) for row in found] == [
        ("text", None, "k"),
        (None, "/w==", None),
    ]
    assert values_of(quintet, b) == ['{"n":1}']
    assert quintet("txn", "run", "-", "--json", data=json.dumps(rows[1])).json["messages"] == 1


def test_offsets_in_a_transaction(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, "a", "b")
    rows: list[dict[str, Any]] = [
        {"topic": f"{topic}-out", "value": "made of a and b"},
        {"topic": topic, "group": topic, "partition": 0, "offset": 2},
    ]
    lines = "\n".join(map(json.dumps, rows))
    assert quintet("txn", "run", "-", data=lines).out == (
        f"1 message to {topic}-out and 1 offset: committed together\n"
    )
    assert ask(quintet, "GET_OFFSET", topic=topic, group=topic, partition=0) == {"offset": 2}
    past = lines.replace('"offset": 2', '"offset": 99')
    assert "nothing was published" in quintet("txn", "run", "-", data=past, code=1).err
    assert values_of(quintet, f"{topic}-out") == ["made of a and b"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"topic": "t", "group": "g", "partition": 0}', "'offset' is missing"),
        ('{"topic": "t", "group": "g", "partition": 0, "offset": -1}', "numbers from 0 on"),
        ('{"topic": "t", "group": "g", "partition": 0, "offset": 1, "value": 1}', "'value' is not known"),
        ('{"topic": "t"}', "'value' is missing"),
        ('{"topic": "t", "value": "x", "partion": 1}', "'partion' is not known"),
        ('{"topic": "t", "value": "x", "partition": true}', "partition a number from 0 on"),
        ('{"topic": "t", "value_base64": "?"}', "line 2"),
        ("[]", "a line is a JSON object"),
        ("{", "line 2"),
    ],
)
def test_a_wrong_line_publishes_nothing(quintet: Commands, topic: str, line: str, says: str) -> None:
    wrong = quintet("txn", "run", "-", data=f'{{"topic": "{topic}", "value": 1}}\n{line}\n', code=1)
    assert says in wrong.err
    assert "nothing was published" in wrong.err
    assert f"topic not found: {topic}" in quintet("tail", topic, code=1).err


def test_a_refused_message_rolls_all_back(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic)
    lines = f'{{"topic": "{topic}", "value": 1}}\n{{"topic": "__internal", "value": 2}}\n'
    assert "nothing was published" in quintet("txn", "run", "-", data=lines, code=1).err
    assert values_of(quintet, topic) == []
    assert "no messages" in quintet("txn", "run", "-", data="\n", code=1).err


# -- users, rules, roles, audit ---------------------------------------------------------------------------------------


def test_users(quintet: Commands, tmp_path: Path) -> None:
    created = quintet("user", "create", "ann", "--role", "producer", data="a-long-secret\n")
    assert created.out == "ann: created, roles producer\n"
    ann = quintet.url.replace("admin:admin", "ann:{}")
    assert quintet("topic", "list", "--json", url=ann.format("a-long-secret")).code == 0
    assert "needs an administrator" in quintet("user", "list", url=ann.format("a-long-secret"), code=1).err
    assert re.search(r"ann +producer +yes", quintet("user", "list").out)

    assert quintet("user", "update", "ann", "--role", "consumer", "--role", "guest").out == (
        "ann: enabled, roles consumer, guest\n"
    )
    file = tmp_path / "secret"
    file.write_text("another-secret\nignored\n")
    changed = quintet("user", "password", "ann", "--password-file", str(file), "--json")
    assert changed.json == {"user": "ann", "changed": True}
    own = quintet("user", "password", url=ann.format("another-secret"), data="third-secret")
    assert own.out == "ann: has a new password; connections with the old one end\n"
    found = quintet("user", "update", "ann", "--disable", "--json").json
    assert (found["roles"], found["enabled"]) == (["consumer", "guest"], False)
    assert "invalid user name or password" in quintet("topic", "list", url=ann.format("third-secret"), code=1).err
    assert quintet("user", "update", "ann", "--enable", "--no-roles").out == "ann: enabled, roles none\n"
    assert quintet("user", "delete", "ann", "--yes").out == "ann: deleted\n"


def test_user_errors(quintet: Commands) -> None:
    assert "8 to 1024 bytes" in quintet("user", "create", "bob", data="short", code=1).err
    assert "it is empty" in quintet("user", "create", "bob", code=2).err
    assert "no role 'king'" in quintet("user", "create", "bob", "--role", "king", data="long-enough", code=1).err
    assert "Nothing to change" in quintet("user", "update", "bob", code=2).err
    assert "exclude each other" in quintet("user", "update", "bob", "--role", "guest", "--no-roles", code=2).err
    assert "user not found: bob" in quintet("user", "update", "bob", "--disable", code=1).err
    assert "cannot be read" in quintet("user", "create", "bob", "--password-file", "nowhere", code=2).err
    assert "no such option" in quintet("user", "create", "bob", "--password", "x", code=2).err.lower()


def test_quotas(quintet: Commands) -> None:
    said = quintet(
        "quota", "set", "user", "slow", "--publish-rate", "64KiB", "--connections", "2", "--storage", "1GiB"
    ).out
    assert said == "user slow: publish 64KiB/s, 2 connections, storage 1GiB\n"
    changed = quintet("quota", "set", "user", "slow", "--connections", "none", "--tenant", "acme", "--json").json
    assert (changed["publish_bytes_per_second_max"], changed["connections_max"], changed["tenant"]) == (
        65_536,
        0,
        "acme",
    )
    quintet("quota", "set", "tenant", "acme", "--topics", "7")
    assert re.search(r"user slow \(acme\) +64KiB +- +0 of - +0 of - +0 of 1GiB", quintet("quota", "show").out)
    assert [row["name"] for row in quintet("quota", "show", "tenant", "--json").json] == ["acme"]
    assert "Nothing to change" in quintet("quota", "set", "user", "slow", code=2).err
    assert "it is 1024 to" in quintet("quota", "set", "user", "slow", "--read-rate", "5", code=1).err
    assert "is not a size" in quintet("quota", "set", "user", "slow", "--storage", "much", code=2).err
    assert quintet("quota", "clear", "user", "slow", "--yes").out == "user slow: cleared, no limits\n"
    quintet("quota", "clear", "tenant", "acme", "--yes", "--json")
    assert "no quota is set for user 'slow'" in quintet("quota", "clear", "user", "slow", "--yes", code=1).err
    assert "no quotas" in quintet("quota", "show").err


def test_rules(quintet: Commands) -> None:
    made = quintet("acl", "set", "ledger", "--user", "ann", "--role", "guest")
    assert (made.out, "there is no user 'ann' yet" in made.err) == ("ledger: for ann, role guest\n", True)
    assert (
        quintet("acl", "set", "ledger", "--user", "ann", "--user", "admin", "--role", "guest").err.count("no user") == 1
    )
    rule = {"topic": "logs.*", "public": True, "users": [], "roles": []}
    assert quintet("acl", "set", "logs.*", "--public", "--json").json == rule
    assert re.search(r"ledger +no +ann, admin +guest", quintet("acl", "list").out)
    assert rule in quintet("acl", "list", "--json").json
    assert quintet("acl", "get", "logs.*", "--json").json == rule
    assert re.search(r"ledger +no +ann, admin +guest", quintet("acl", "get", "ledger").out)
    assert quintet("acl", "delete", "ledger", "--yes").out == "ledger: rule deleted\n"
    quintet("acl", "delete", "logs.*", "--yes", "--json")
    assert "there is no rule for 'ledger'" in quintet("acl", "get", "ledger", code=1).err
    assert "there is no access rule" in quintet("acl", "delete", "ledger", "--yes", code=1).err
    assert "no role 'king'" in quintet("acl", "set", "x", "--role", "king", code=1).err


def test_keys(quintet: Commands, broker: Server) -> None:
    quintet("user", "create", "kim", "--role", "producer", data="a-long-secret\n")
    kim = quintet.url.replace("admin:admin", "kim:a-long-secret")
    made = quintet("user", "key", "add", "kim", "--name", "laptop", "--expires", "90d")
    secret = made.out.strip()
    id = secret.rpartition("_")[0]
    assert (
        re.fullmatch(r"qk_[0-9a-f]{8}_[0-9a-f]{64}", secret) and f"{id} of kim" in made.err and secret not in made.err
    )
    assert re.search(rf"{id} +kim +laptop +\S+ \S+ +20", quintet("user", "key", "list", "kim").out)
    blip = broker.url.replace("dev-key", secret)
    assert "durable" in quintet("pub", "of-kim", "hello", url=blip).out
    own = quintet("user", "key", "add", "--json", url=kim).json
    assert {"id", "user", "name", "created_s", "expires_s", "configured", "secret"} == set(own) and own["user"] == "kim"
    assert {row["id"] for row in quintet("user", "key", "list", "--json", url=kim).json} == {id, own["id"]}
    everyone = quintet("user", "key", "list", "--all").out
    assert "(configured)" in everyone and id in everyone
    assert "may not see the keys of everyone" in quintet("user", "key", "list", "--all", url=kim, code=1).err
    assert "may not use the keys" in quintet("user", "key", "add", "admin", url=kim, code=1).err
    assert quintet("user", "key", "remove", own["id"], "--yes", url=kim).out == f"{own['id']}: revoked\n"
    gone = quintet("user", "key", "remove", id, "--yes", "--json").json
    assert gone == {"id": id, "user": "kim", "removed": True}, "an administrator need not say whose it is"
    assert "invalid API key" in quintet("pub", "of-kim", "x", url=blip, code=1).err
    assert "has no key" in quintet("user", "key", "remove", id, "--user", "kim", "--yes", code=1).err
    quintet("user", "delete", "kim", "--yes")


def test_explain(quintet: Commands) -> None:
    quintet("user", "create", "eva", "--role", "producer", data="a-long-secret\n")
    quintet("acl", "set", "vault", "--user", "admin")
    yes = quintet("acl", "explain", "eva", "publish", "orders")
    assert yes.lines[0] == "yes: the user eva may publish on orders"
    assert "by the role producer" in yes.out and "no access rule names it" in yes.out
    no = quintet("acl", "explain", "eva", "publish", "vault", "--json", code=1).json
    assert (no["allowed"], no["steps"][-1]["rule"], no["steps"][-1]["outcome"]) == (False, "access rule", "no")
    assert "administer" in quintet("acl", "explain", "eva", "admin", "orders", code=1).lines[0]
    assert "the key dev may" in quintet("acl", "explain", "dev", "subscribe", "orders").lines[0]
    assert "the subject worker may" in quintet("acl", "explain", "worker", "publish", "orders").lines[0]
    assert "no user 'worker'" in quintet("acl", "explain", "user:worker", "publish", "orders", code=2).err
    assert (
        "needs an administrator"
        in quintet(
            "acl", "explain", "eva", "publish", "x", url=quintet.url.replace("admin:admin", "eva:a-long-secret"), code=2
        ).err
    )
    quintet("acl", "explain", "eva", "fly", "x", code=2)
    quintet("acl", "delete", "vault", "--yes")
    quintet("user", "delete", "eva", "--yes")


def test_roles(quintet: Commands) -> None:
    assert re.search(r"admin +read, write, admin", quintet("role", "list").out)
    assert {role["name"] for role in quintet("role", "list", "--json").json} == {
        "admin", "producer", "consumer", "guest",
    }  # fmt: skip


def test_audit(quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic)
    quintet("topic", "delete", topic, "--yes")
    seen = quintet("audit", "--type", "topic.create", "--type", "topic.delete", "--resource", topic, "--since", "-1h")
    assert re.search(rf"topic\.delete +admin +{topic} +success", seen.lines[2]), "newest first"
    assert re.search(rf"topic\.create +admin +{topic} +success", seen.lines[3])
    rows = quintet("audit", "--user", "admin", "--search", topic, "--result", "success", "--json").json
    assert [row["type"] for row in rows] == ["topic.delete", "topic.create"]
    assert "more match" in quintet("audit", "-n", "1").err
    csv = quintet("audit", "--resource", topic, "--export", "csv").lines
    assert csv[0].startswith("id,ts_ms,type,user")
    assert len(csv) == 3
    assert len(quintet("audit", "--resource", topic, "--export", "json").json) == 2
    assert quintet("audit", "--until", "1000", "--json").json == []
    assert quintet("audit", "--user", "nobody").err == "nothing that matches was written down\n"
    assert "'yesterday' is not a time" in quintet("audit", "--since", "yesterday", code=2).err


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90", 90_000),
        ("500ms", 500),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("7d", 604_800_000),
        ("", None),
        ("1x", None),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms


def test_moments() -> None:
    assert moment_ms("1763208000000") == 1763208000000
    assert moment_ms("2026-11-15T12:00:00+00:00") == 1794744000000
    ago = moment_ms("-10m")
    assert ago is not None
    assert now_ms() - 600_000 - ago <= 60_000
    assert moment_ms("-tomorrow") is None
    assert moment_ms(str(1 << 80)) is None


def test_what_people_see() -> None:
    assert [lasting(seconds) for seconds in (0, 0.25, 59.6, 600, 7200, 864_000)] == [
        "0 s", "0.2 s", "60 s", "10 min", "2 h", "10 d",
    ]  # fmt: skip
    assert shown(b"a\nb") == "a\\nb"
    assert shown("h\u00e4".encode()) == "h\u00e4"
    assert shown(b"\xff\x00") == "0xff00"
    assert shown(b"x" * 100, 10) == "xxxxxxx..."


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(common, "PIPE_COLUMNS", 40)
    common.say_table(("time", ">next offset", "value"), [("2026-11-16 00:38:31.650", 1_234_567, "x" * 30 + " end")], "")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-2] == ["2026-11-16", "1,234,567", "x" * 24]
    assert lines[-1] == ["00:38:31.650", "xxxxxx", "end"]
    common.say_table(("time", ">n"), [("2026-11-16 00:38:31.650", 1)], "")
    assert capsys.readouterr().out.splitlines()[-1].split() == ["2026-11-16", "00:38:31.650", "1"]


@pytest.mark.parametrize("line", ["quintet topic describe wor", "quintet tail wor"])
def test_completion_knows_the_topics(quintet: Commands, line: str) -> None:
    quintet("topic", "create", "words")
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "QUINTET_URL": quintet.url}
    done = subprocess.run(
        [sys.executable, "-m", "quintet"],
        env={**os.environ, "_QUINTET_COMPLETE": "bash_complete", **words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "plain,words" in done.stdout


def test_all_dead_letters_are_counted_and_replayed_in_few_requests(
    quintet: Commands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quintet("pub", topic, *(f"m{n}" for n in range(40)))
    for offset in range(40):
        quintet("dlq", "send", topic, "0", str(offset))
    asked: list[str] = []
    ask = Bus.request

    async def counted(bus: Bus, name: str, **fields: Any) -> Any:
        asked.append(name)
        return await ask(bus, name, **fields)

    monkeypatch.setattr(Bus, "request", counted)
    assert {"topic": topic, "dead_letters": 40} in quintet("dlq", "list", "--json").json
    assert asked == ["LIST_DLQ"]
    asked.clear()
    found = quintet("dlq", "replay", topic, "--all", "--json").json["letters"]
    assert [(row["id"], row["replayed"], row["value"]) for row in found] == [
        (f"0-{n}", True, f"m{n}") for n in range(40)
    ]
    assert asked == ["FETCH_DLQ", "FETCH_DLQ", "REPLAY_DLQ"], "two pages, the second of which is empty"
    assert quintet("dlq", "list", topic, "--json").json == []
    assert quintet("dlq", "replay", topic, "--all").out == f"0 of 0 dead letters of {topic} replayed\n"
