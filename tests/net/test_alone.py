"""A read that is alone is written, synced and answered by the kernel before any Python runs (ADR 51, kernel/src/alone.rs).

What it cannot do, or what goes wrong, is done as if it had never tried: rolls, several partitions in one read, a full disk, a failed sync.
The disk fails by another file that is put in place of the segment's: /dev/full takes nothing, /dev/null cannot be synced.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from quintet import kernel
from quintet.config import DEV_FAST_MASTER_SECRET
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.partitions.lone import LoneLending
from quintet.model import limits
from quintet.net.disk_writes import LoneWrites
from quintet.server import Server
from tests.crash import reader
from tests.net.test_sockets import BLIP_LOGIN, Client, connected, serving
from tests.wire import blipmq, fast, flymq

pytestmark = pytest.mark.skipif(kernel.Sockets is None, reason="only the native kernel has sockets, on Linux")

TOPIC: Final = "alone"
MESSAGES: Final = 80  # with fsync a partition is lent after 16 turns of its own
JWT: Final = fast.token("d1", "k", "publish", "subscribe", secret=DEV_FAST_MASTER_SECRET.encode())
SAY: Final[
    dict[str, Any]
] = {  # how a door is logged in to, and how it publishes so that an answer says that it is kept
    "blipmq": (blipmq.split, [BLIP_LOGIN], lambda value: blipmq.publish(7, TOPIC.encode(), value, 1) + blipmq.ping(8)),
    "flymq": (flymq.split, [(flymq.auth("admin", "admin"), 1)], lambda value: flymq.produce(TOPIC, value, partition=0)),
    "fast": (
        fast.split,
        [(fast.extend(1), 1), (fast.create(JWT, TOPIC.encode(), 1), 1)],
        lambda value: fast.publish(JWT, fast.topic_id(TOPIC.encode()), value),
    ),
}


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of reads that the kernel tried to write: "wrote" or "unwritten" for each. However long syncs take, they are made at once."""
    found: list[str] = []

    def count(name: str, real: Any) -> None:
        def counted(lending: LoneLending, *given: Any) -> None:
            found.append(name)
            real(lending, *given)

        monkeypatch.setattr(LoneLending, name, counted)

    count("wrote", LoneLending.wrote)
    count("unwritten", LoneLending.unwritten)
    monkeypatch.setattr(LoneWrites, "allow_small", lambda *_: True)
    return found


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def partition(server: Server) -> Any:
    topic = server.broker.topics.find(TOPIC.encode())
    assert topic is not None
    return topic.partitions[0]


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("door", SAY)
async def test_what_a_lone_read_brought_is_in_its_file_when_it_is_answered(
    door: str, durability: str, tmp_path: Path, outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    split, login, publish = SAY[door]
    values = [b"value %d" % number for number in range(MESSAGES)]
    async with (
        serving(tmp_path, "kernel", monkeypatch, **{"topics.durability": durability}) as server,
        connected(server, door, split, *login) as client,
    ):
        for number, value in enumerate(values, 1):
            await client.say(publish(value), number)
            if outcomes:  # before, small partitions are in packs and journals, which the reader reads only as a whole
                assert value in content(partition(server).segments[-1].path)
                assert partition(server).visible == number
    assert set(outcomes) == {"wrote"} and len(outcomes) > MESSAGES // 2
    assert list(reader.read(tmp_path)[TOPIC].values.values()) == values


async def test_a_segment_without_room_is_followed_by_the_next(
    tmp_path: Path, outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {"topics.durability": "fsync", "topics.segment_bytes": limits.SEGMENT_BYTES_MIN}
    values = [b"%d " % number + bytes(500) for number in range(4 * limits.SEGMENT_BYTES_MIN // 500)]
    split, login, publish = SAY["blipmq"]
    async with (
        serving(tmp_path, "kernel", monkeypatch, **topics) as server,
        connected(server, "blipmq", split, *login) as client,
    ):
        for number, value in enumerate(values, 1):
            await client.say(publish(value), number)
        assert len(partition(server).segments) > 3
    assert outcomes.count("wrote") > 50
    files = reader.read(tmp_path)[TOPIC]
    assert not files.wrong and list(files.values.values()) == values


async def test_several_topics_in_one_read_are_kept_and_visible(
    tmp_path: Path, outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory topic beside the one in files, and a second one in files."""
    split, login, publish = SAY["blipmq"]
    beside = blipmq.publish(1, b"memory", b"x", 0), blipmq.publish(1, b"other", b"y", 1)
    async with (
        serving(tmp_path, "kernel", monkeypatch, **{"topics.durability": "os"}) as server,
        connected(server, "blipmq", split, *login) as client,
    ):
        for number in range(MESSAGES):
            await client.say(beside[0] + publish(b"v"), number + 1)
        memory = server.broker.topics.find(b"memory")
        assert memory is not None
        assert outcomes
        assert memory.partitions[0].visible == MESSAGES
        for number in range(MESSAGES):
            await client.say(beside[0] + beside[1] + publish(b"v"), MESSAGES + number + 1)
        assert memory.partitions[0].visible == 2 * MESSAGES
    files = reader.read(tmp_path)
    assert len(files[TOPIC].values) == 2 * MESSAGES and len(files["other"].values) == MESSAGES


@contextlib.contextmanager
def replaced(handle: int, path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file of this handle is another one, until the broker cuts it back to its last good end."""
    real, broken = os.dup(handle), os.open(path, os.O_RDWR)
    cut = OsDisk.truncate

    def truncate(disk: OsDisk, which: int, size: int) -> None:
        if which == handle:
            os.dup2(real, handle)
        cut(disk, which, size)

    monkeypatch.setattr(OsDisk, "truncate", truncate)
    os.dup2(broken, handle)
    try:
        yield
    finally:
        os.dup2(real, handle)
        os.close(real)
        os.close(broken)


async def publish_one(client: Client, value: bytes) -> bool:
    """By BlipMQ: is it kept? A refusal comes before the PONG."""
    first = len(client.answers)
    await client.say(SAY["blipmq"][2](value), first + 1)
    while client.answers[-1].kind != blipmq.PONG:
        await client.say(b"", len(client.answers) + 1)
    return len(client.answers) == first + 1


@pytest.mark.parametrize(
    ("durability", "broken", "heals"),
    [("os", "/dev/full", True), ("fsync", "/dev/full", True), ("fsync", "/dev/null", False)],
)
async def test_a_disk_that_fails_is_told_and_costs_nothing_that_was_answered(
    durability: str, broken: str, heals: bool, tmp_path: Path, outcomes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytes] = []
    flags = {"topics.durability": durability}
    async with (
        serving(tmp_path, "kernel", monkeypatch, **flags) as server,
        connected(server, "blipmq", blipmq.split, BLIP_LOGIN) as client,
    ):
        for number in range(MESSAGES):
            kept.append(b"before %d" % number)
            assert await publish_one(client, kept[-1])
        wrote = -1
        while len(outcomes) != wrote:  # until the session has had its one read of sixteen: the next is the kernel's
            wrote = len(outcomes)
            kept.append(b"%d written" % wrote)
            assert await publish_one(client, kept[-1])
        assert wrote
        with replaced(partition(server).segments[-1].handle, broken, monkeypatch):
            for number in range(16):  # one of sixteen reads goes to the session
                value = b"broken %d" % number
                if not await publish_one(client, value):
                    break
                kept.append(value)
        assert "unwritten" in outcomes
        refused = [answer for answer in client.answers if answer.kind == blipmq.NACK]
        assert refused and b"publish failed" in cast(bytes, refused[0].payload)
        while heals and not await publish_one(client, b"after"):  # the broker looks for space every second or so
            await asyncio.sleep(0.05)
        kept += [b"after"] * heals
        assert await publish_one(client, b"last") is heals
        kept += [b"last"] * heals
    async with serving(tmp_path, "kernel", monkeypatch, **flags) as server:
        assert partition(server).failure is None
    files = reader.read(tmp_path)[TOPIC]
    assert not files.wrong
    found = list(files.values.values())
    assert [value for value in found if value in set(kept)] == kept, "lost, doubled or out of order"
    assert len(found) - len(kept) <= 1, "only what a failed sync may have left"
