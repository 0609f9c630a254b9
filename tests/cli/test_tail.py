"""`quintet tail`: what is in a topic, from where, which of it, and the frames themselves; nobody's position moves."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from quintet.client.bus import connect
from quintet.model.errors import QuintetError
from quintet.protocols.flymq import frames
from tests.cli.conftest import Commands, Result
from tests.client.server import Server

WAIT_S = 60


def produce(quintet: Commands, topic: str, *messages: tuple[int, bytes, bytes]) -> None:
    """(partition, key, value) each, in milliseconds of their own as far as the order between partitions shows."""

    async def run() -> None:
        async with connect(quintet.url) as bus:
            for partition, key, value in messages:
                await bus.request("PRODUCE", topic=topic, key=key, value=value, partition=partition)
                if len(messages) < 100:
                    await asyncio.sleep(0.002)

    asyncio.run(run())


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.lines]


def places(result: Result) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows(result)]


@pytest.fixture
def filled(quintet: Commands, topic: str) -> str:
    """Two partitions with twelve messages each, made in turn."""
    quintet("topic", "create", topic, "--partitions", "2")
    produce(quintet, topic, *((n % 2, f"k{n % 3}".encode(), b'{"n": %d}' % n) for n in range(24)))
    return topic


def test_what_people_see(quintet: Commands, filled: str) -> None:
    lines = quintet("tail", filled, "-n", "2").lines
    assert re.fullmatch(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +0@11  flymq    k1  \{"n": 22\}', lines[0])
    assert lines[1].endswith('1@11  flymq    k2  {"n": 23}')


def test_what_scripts_get(quintet: Commands, filled: str) -> None:
    found = rows(quintet("tail", filled, "-n", "1", "--json"))[0]
    assert found.pop("timestamp_ms") > 0
    assert found == {
        "partition": 1,
        "offset": 11,
        "key": "k2",
        "value": '{"n": 23}',
        "origin": "flymq:admin",
        "expiry_ms": None,
        "headers": [],
    }


def test_from_where(quintet: Commands, filled: str) -> None:
    assert len(quintet("tail", filled).lines) == 20, "the last ten of each partition"
    assert len(quintet("tail", filled, "--from", "latest").lines) == 20
    assert len(quintet("tail", filled, "--from", "earliest").lines) == 24
    assert len(quintet("tail", filled, "--from", "-1h").lines) == 24
    assert places(quintet("tail", filled, "--from", "10", "--json")) == [(0, 10), (1, 10), (0, 11), (1, 11)]
    assert places(quintet("tail", filled, "--partition", "1", "--from", "3", "-n", "2", "--json")) == [(1, 3), (1, 4)]
    assert quintet("tail", filled, "--from", "99").out == ""


def test_from_a_time(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, (0, b"", b"old"))
    produce(quintet, topic, (0, b"", b"new"))
    times = [row["timestamp_ms"] for row in rows(quintet("tail", topic, "--json"))]
    moment = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    assert [row["value"] for row in rows(quintet("tail", topic, "--from", moment, "--json"))] == ["new"]
    assert quintet("tail", topic, "--from", "2999-01-01T00:00").out == ""


def test_the_last_ones_of_all_partitions(quintet: Commands, filled: str) -> None:
    assert places(quintet("tail", filled, "-n", "3", "--json")) == [(1, 10), (0, 11), (1, 11)]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [("$.n == 7", [7]), ("key:k1", [1, 4, 7, 10, 13, 16, 19, 22]), ("regex:\\b2[01]\\b", [20, 21]), ("text:23", [23])],
)
def test_filters(quintet: Commands, filled: str, chosen: str, found: list[int]) -> None:
    seen = rows(quintet("tail", filled, "--filter", chosen, "--json"))
    assert [json.loads(row["value"])["n"] for row in seen] == found
    assert len(rows(quintet("tail", filled, "--filter", chosen, "--json", "-n", "1"))) == 1


def test_values_that_are_not_text(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, (0, b"", b"\xff\x00"), (0, b"\xfe", b"line\n\x1b[2Jline"))
    assert [line.split("flymq    ")[1] for line in quintet("tail", topic).lines] == [
        "-  0xff00",
        "0xfe  line\\n\\x1b[2Jline",
    ]
    found = rows(quintet("tail", topic, "--json"))
    assert (found[0]["value_base64"], found[0]["key"], found[1]["key_base64"]) == ("/wA=", None, "/g==")


def test_other_doors_and_expiry_are_seen(quintet: Commands, broker: Server, topic: str) -> None:
    async def publish() -> None:
        async with connect(broker.url) as bus:
            await bus.publish(topic, "from BlipMQ", ttl=3600)

    asyncio.run(publish())
    assert re.search(r"0@0  blipmq   -  from BlipMQ  expires \d{4}-", quintet("tail", topic).out)
    assert rows(quintet("tail", topic, "--json"))[0]["expiry_ms"] > 0


def test_nobody_moves(quintet: Commands, filled: str) -> None:
    async def committed() -> tuple[int, list[dict[str, Any]]]:
        async with connect(quintet.url) as bus:
            groups = (await bus.request("LIST_GROUPS"))["groups"]
            return len(groups), (await bus.request("METADATA", topic=filled))["partitions"]

    before = asyncio.run(committed())
    quintet("tail", filled, "--from", "earliest")
    quintet("tail", filled, "--from", "-1h", "--hex")
    assert asyncio.run(committed()) == before


def test_more_than_one_page(quintet: Commands, topic: str) -> None:
    produce(quintet, topic, *((0, b"", b"%d" % n) for n in range(1_203)))
    assert [row["value"] for row in rows(quintet("tail", topic, "--from", "earliest", "--json"))] == [
        str(n) for n in range(1_203)
    ]
    assert [row["value"] for row in rows(quintet("tail", topic, "-n", "600", "--json"))] == [
        str(n) for n in range(603, 1_203)
    ]


# -- frames -----------------------------------------------------------------------------------------------------------


def test_hex(quintet: Commands, filled: str) -> None:
    text = quintet("tail", filled, "--hex", "--partition", "1", "--from", "3", "-n", "1").out
    assert text.startswith("FETCH reply, 46 bytes\n")
    assert re.search(r"000010  6b 31 +messages\[0\]\.key +'k1'\n", text)
    assert re.search(r"00 00 00 00 00 00 00 03 +messages\[0\]\.offset +3\n", text)
    assert re.search(r"00 00 00 00 00 00 00 04 +next_offset +4\n", text)
    lines = quintet("tail", filled, "--hex", "--from", "earliest", "--json").lines
    found = [json.loads(line) for line in lines]
    assert {each["operation"] for each in found} == {"FETCH"}
    names = [field["name"] for each in found for field in each["fields"]]
    assert sum(bool(re.fullmatch(r"messages\[\d+\]\.offset", name)) for name in names) == 24
    for each in found:
        whole = bytes.fromhex("".join(field["hex"] for field in each["fields"]))
        assert whole[:3] == bytes([frames.MAGIC, frames.VERSION, frames.FETCH])
        assert int.from_bytes(whole[4:8], "big") == len(whole) - frames.HEADER_BYTES


def test_hex_of_the_other_dialect_and_compressed(quintet: Commands, broker: Server, topic: str) -> None:
    produce(quintet, topic, *((0, b"", b"x" * 600) for _ in range(4)))
    text = quintet("tail", topic, "--hex", url=f"{broker.fly_sdk}&compression=gzip").out
    assert re.match(r"FETCH reply \(sdk\), \d+ bytes; the payload was gzip, 2\d{3} bytes inflated\n", text)
    assert "flags" in text
    assert "... 536 bytes more" in text


# -- following --------------------------------------------------------------------------------------------------------


def test_follow_and_leave(quintet: Commands, topic: str) -> None:
    """It waits for the topic, shows what comes, and Ctrl-C is a good end."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "quintet", "tail", topic, "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"QUINTET_URL": quintet.url},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == f"{topic} is not there yet, waiting for it\n".encode()
    for value in (b"one", b"two"):
        produce(quintet, topic, (0, b"", value))
        assert json.loads(process.stdout.readline())["value"] == value.decode()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, errors) == (0, b"")


def test_follow_ends_by_count(quintet: Commands, filled: str) -> None:
    assert len(quintet("tail", filled, "--follow", "-n", "5").lines) == 5


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"offset": (1 << 64) - 1}, []),
        ({"since_ms": (1 << 63) - 1}, []),
        ({"since_ms": -(1 << 63)}, [0, 1, 2]),
        ({"max": -(1 << 31)}, [0, 1, 2]),
        ({"max": (1 << 31) - 1}, [0, 1, 2]),
        ({"offset": 1, "max": 1}, [1]),
        ({"filter": "regex:("}, "not valid"),
        ({"filter": "x" * 2_000}, "1024 bytes"),
        ({"partition": -1}, "out of range"),
        ({"partition": (1 << 31) - 1}, "out of range"),
        ({"topic": "nothing"}, "topic not found"),
    ],
)
def test_peek_takes_any_numbers(quintet: Commands, topic: str, fields: dict[str, Any], found: list[int] | str) -> None:
    """The operation behind it: an answer or a clear refusal, and the connection goes on."""
    produce(quintet, topic, *((0, b"", b"%d" % n) for n in range(3)))

    async def run() -> None:
        async with connect(quintet.url) as bus:
            ask: dict[str, Any] = {
                "topic": topic,
                "partition": 0,
                "offset": 0,
                "max": 10,
                "since_ms": 0,
                "filter": "",
            } | fields
            if isinstance(found, str):
                with pytest.raises(QuintetError, match=found):
                    await bus.request("PEEK", **ask)
            else:
                assert [row["offset"] for row in (await bus.request("PEEK", **ask))["messages"]] == found
            assert bus.reconnects == 0
            await bus.request("WHOAMI")

    asyncio.run(run())


def test_errors(quintet: Commands, filled: str) -> None:
    assert "topic not found: nothing" in quintet("tail", "nothing", code=1).err
    assert "partitions 0 to 1, not 7" in quintet("tail", filled, "--partition", "7", code=2).err
    assert "earliest, latest, an offset" in quintet("tail", filled, "--from", "lunch", code=2).err
    assert "quintet: " in quintet("tail", filled, "--filter", "regex:(", code=1).err
