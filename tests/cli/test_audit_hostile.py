"""`quintet audit` on hostile input: times that senders choose, files that cannot be read, text that is not ours."""

import json
from pathlib import Path
from typing import Any

import pytest

from quintet import kernel
from quintet.cli.folder.audit_tail import Tail
from quintet.log import anchors
from quintet.log.anchors import pack_line
from quintet.log.base import TopicSpec
from quintet.log.embedded.files.disk import OsDisk
from tests.cli.conftest import Commands
from tests.log.support import TOPIC, Harness

YEAR_US = 365 * 86_400_000_000


@pytest.fixture
def commands() -> Commands:
    return Commands("")


def grown(folder: Path) -> Harness:
    harness = Harness(OsDisk(), folder, anchor_file=str(folder / "anchors"))
    harness.write(harness.open(TopicSpec(TOPIC, "orders")), 3)
    harness.close()
    return harness


def test_a_sender_who_chooses_times_does_not_choose_where_it_is_told() -> None:
    """The record's own time may be anything; when it was appended is the broker's word."""
    harness = Harness()
    first, second = harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=2))
    now = harness.scheduler.now()
    for number, partition in enumerate([first, second, first, second]):
        harness.scheduler.advance(1000)
        stamp = now + (YEAR_US if number % 2 else -YEAR_US) + number
        partition.append(kernel.build([b"%d" % number], timestamps=[stamp], origin=b"test:1"), None)
        harness.scheduler.run_until_idle()
    found = [each for each in Tail(harness.disk, "/data", values=True).more()]
    assert [each.fields["value"] for each in found] == ["0", "1", "2", "3"]
    assert [each.time - now for each in found] == [1000, 2000, 3000, 4000]
    assert [each.fields["time"] for each in found] == [each.time for each in found]
    assert found[1].fields["stamped"] == now + YEAR_US + 1
    harness.scheduler.advance(1000)
    first.append(kernel.build([b"plain"], origin=b"test:1"), None)
    harness.scheduler.run_until_idle()
    last = list(Tail(harness.disk, "/data").more())[-1]
    assert "stamped" not in last.fields


def test_what_cannot_be_read_cannot_be_checked(commands: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    grown(folder)
    kept = (folder / "anchors").rename(folder / "kept")
    (folder / "anchors").mkdir()
    said = commands("audit", "verify", "--data", str(folder), code=2)
    assert "Is a directory" in said.out
    (folder / "anchors").rmdir()
    kept.rename(folder / "anchors")
    (folder / "topics" / f"{TOPIC:08d}" / "0" / f"{3:020d}.seg").mkdir()
    assert "Is a directory" in commands("audit", "verify", "--data", str(folder), code=2).out
    assert json.loads(commands("audit", "verify", "--data", str(folder), "--json", code=2).out)["cannot"]


@pytest.mark.parametrize(
    "odd", [{"key": b"k" * 32, "key_name": "\x1b]0;x\x07"}, {"heads": [(TOPIC, 0, 9, "\x1b]0;x\x07")]}]
)
def test_nothing_of_the_files_reaches_the_terminal_as_it_is(
    commands: Commands, tmp_path: Path, odd: dict[str, Any]
) -> None:
    folder = tmp_path / "data"
    grown(folder)
    found = anchors.load(OsDisk(), str(folder / "anchors"), {})
    assert found is not None
    fields: dict[str, Any] = {"seq": found.seq + 1, "time": 1, "heads": [], "gone": [], "prev": found.prev}
    line, _ = pack_line(**(fields | odd))
    with (folder / "anchors").open("ab") as file:
        file.write(line)
    said = commands("audit", "verify", "--data", str(folder), code=2 if "key" in odd else 1)
    assert "\x1b" not in said.out + said.err


def test_a_head_that_is_none_is_not_printed(commands: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    grown(folder)
    line = {"seq": 7, "time": 1, "heads": [], "gone": [], "prev": "", "hash": "\x1b]0;x\x07"}
    (folder / "anchors").write_text(json.dumps(line) + "\n")
    said = commands("audit", "head", "--data", str(folder), code=1)
    assert "\x1b" not in said.out + said.err


def test_thousands_of_partitions_need_one_open_file_at_a_time() -> None:
    harness = Harness()
    for partition in harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=20)):
        harness.write(partition, 3)
    harness.close()
    disk = harness.sim
    opened, plain_open, plain_close = 0, disk.open, disk.close
    most = 0

    def open_(*arguments: Any, **options: Any) -> int:
        nonlocal opened, most
        handle = plain_open(*arguments, **options)
        opened += 1
        most = max(most, opened)
        return handle

    def close(handle: int) -> None:
        nonlocal opened
        opened -= 1
        plain_close(handle)

    disk.open, disk.close = open_, close  # type: ignore[method-assign]
    assert len(list(Tail(disk, "/data").more())) == 60
    assert (most, opened) == (1, 0)
