"""What a whole broker does with damage in its own data (ADR 15), and with folders that were mixed up: it refuses in one line,
or is repaired by `quintet log repair`, and never serves in silence what is wrong.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from quintet import kernel
from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import Acl
from quintet.cli.folder.repair import Inline, repair
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.files.packs import PACKED_BYTES
from quintet.log.embedded.files.segment import HEADER_BYTES
from quintet.model.errors import DataDirError, TableDamaged
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.broker.test_keys import made, remove
from tests.broker.test_users import acl_set, create, login, sim, update

__all__ = ["sim"]  # the fixture


def last_batch(data: bytes) -> range:
    """The bytes of the last batch of a segment."""
    starts = [found.start() for found in re.finditer(b"QRB1", data) if found.start() % 8 == 0]
    return range(starts[-1], len(data.rstrip(b"\0")))


def flip(data: bytes, bit: int) -> bytes:
    broken = bytearray(data)
    broken[bit >> 3] ^= 1 << (bit & 7)
    return bytes(broken)


def shut_out(sim: SimBroker) -> None:
    acl_set(sim, Acl("orders", users=("nobody",)))


def revoke(sim: SimBroker) -> None:
    create(sim, "ann", "producer")
    remove(sim, made(sim).info.id)


def disable(sim: SimBroker) -> None:
    create(sim, "eve", "admin")
    update(sim, "eve", enabled=False)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("number", "change"), [(5, shut_out), (2, revoke), (4, disable)])
def test_rights_that_were_taken_away_do_not_come_back(
    sim: SimBroker, number: int, change: Callable[[SimBroker], None], clean: bool
) -> None:
    change(sim)
    if clean:
        sim.stop()
    sim.disk.kill()
    image = sim.disk.snapshot()
    path = f"/data/topics/{number:08d}/0/{0:020d}.seg"
    whole = image[path] or b""
    places = last_batch(whole)
    for bit in range(8 * places.start, 8 * places.stop, 61):
        sim.disk.restore(image | {path: flip(whole, bit)})
        with pytest.raises(TableDamaged) as refused:
            sim.start()
        assert refused.value.hint.endswith("`quintet log repair /data`")
        assert sim.reports[-1][0] == "table_damaged"
    sim.disk.restore(image)
    sim.start()
    if number == 4:
        assert login(sim, "eve").error is not None


# -- on a real folder, with the command ----------------------------------------------------------------------------------


class Life:
    """One broker after another on a real folder."""

    def __init__(self, folder: Path, packs: bool = False) -> None:
        self.folder = folder
        self.packs = packs
        self.reports: list[str] = []
        self.start()

    def start(self) -> None:
        self.scheduler = Inline()
        anchors = str(self.folder / "anchors")
        options = {"anchor_file": anchors, "packs": self.packs}
        self.log = EmbeddedLog(self.folder, OsDisk(), self.scheduler, self.report, **options)  # type: ignore[arg-type]
        self.log.recover()
        try:
            self.broker = Broker(self.log, self.scheduler, BrokerOptions(entropy=Random(1).randbytes), self.report)
        except BaseException:
            self.log.abandon()
            raise
        self.scheduler.run_all()

    def report(self, kind: str, fields: dict[str, object]) -> None:
        self.reports.append(kind)

    def publish(self, name: str, values: list[bytes]) -> None:
        topic = self.broker.topics.ensure(name.encode(), True)
        for value in values:
            topic.publish(kernel.build([value], origin=b"test:1"), 1, True, None)
            self.scheduler.run_all()

    def read(self, name: str) -> list[bytes]:
        partition = self.broker.topics.find(name.encode()).partitions[0]
        offset, found = partition.start, []
        while offset < partition.visible:
            for batch in partition.read_now(offset):
                found += [row[3] or b"" for row in batch.rows()]
                offset = batch.next_offset
        return found

    def stop(self) -> None:
        closed: list[bool] = []
        self.broker.drain(lambda: closed.append(True))
        self.scheduler.run_all()
        assert closed

    def topic(self, name: str) -> Path:
        return self.folder / "topics" / f"{self.broker.topics.find(name.encode()).spec.id:08d}"

    def repair(self, *options: str) -> tuple[int, str]:
        done = CliRunner().invoke(repair, [str(self.folder), *options])
        return done.exit_code, done.output or str(done.exception)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """With a file for every segment: most of what is done here is done to files."""
    return Life(tmp_path / "data")


@pytest.fixture(params=[False, True], ids=["files", "packs"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Life:
    return Life(tmp_path / "data", request.param)


@pytest.fixture
def packed(tmp_path: Path) -> Life:
    return Life(tmp_path / "data", packs=True)


TEN = [b"%d" % number for number in range(10)]


def test_a_flipped_bit_in_topics_is_repaired_from_the_headers(either: Life) -> None:
    life = either
    life.publish("orders", TEN)
    life.stop()
    table = life.folder / f"topics/00000001/0/{0:020d}.seg"
    whole = table.read_bytes()
    table.write_bytes(flip(whole, 8 * last_batch(whole).stop - 60))
    with pytest.raises(TableDamaged):
        life.start()
    status, said = life.repair()
    assert status == 1
    assert "lost: __topics" in said
    assert "row made again: topic 'orders'" in said
    with pytest.raises(TableDamaged):
        life.start()  # nothing was changed
    assert life.repair("--accept-loss")[0] == 0
    assert life.repair() == (0, "sound: nothing of the broker's own is lost\n")
    for _ in range(3):  # what is accepted stays so, also when the table has grown since
        life.start()
        assert life.read("orders")[:10] == TEN
        life.publish("orders", [b"more"])
        life.publish("another", [b"x"])
        life.stop()
    assert any(json.loads(line).get("accepted") for line in (life.folder / "quarantine.jsonl").read_text().splitlines())


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_without_the_table_of_topics_nothing_starts_until_it_is_rebuilt(either: Life, with_checkpoints: bool) -> None:
    life = either
    life.publish("orders", TEN)
    life.stop()
    table = life.folder / f"topics/00000001/0/{0:020d}.seg"
    table.unlink()
    if not with_checkpoints:
        for file in life.folder.glob("checkpoint.*"):
            file.unlink()
    with pytest.raises(TableDamaged if with_checkpoints else DataDirError, match="__topics"):
        life.start()
    assert life.repair("--accept-loss")[0] == 0
    life.start()
    assert life.read("orders") == TEN
    life.stop()


def test_an_older_table_of_topics_is_refused(either: Life) -> None:
    life = either
    life.publish("first", [b"1"])
    life.stop()
    table = life.folder / f"topics/00000001/0/{0:020d}.seg"
    checkpoints = {file: file.read_bytes() for file in life.folder.glob("checkpoint.*")}
    older = table.read_bytes()
    life.start()
    life.publish("orders", TEN)
    life.stop()
    table.write_bytes(older)
    for file in life.folder.glob("checkpoint.*"):
        file.write_bytes(checkpoints[file]) if file in checkpoints else file.unlink()
    with pytest.raises(DataDirError, match=r"1 topics have files and no row in __topics.*'orders' \(number 17\)"):
        life.start()
    assert life.reports[-1] == "topics_without_row"
    assert life.repair("--accept-loss")[0] == 0
    life.start()
    assert (life.read("first"), life.read("orders")) == ([b"1"], TEN)
    life.stop()


@pytest.mark.parametrize("header", ["synced", "never synced", "never written"])
def test_what_a_deletion_left_behind_is_not_taken_for_a_lost_topic(life: Life, header: str) -> None:
    life.publish("orders", TEN)
    life.publish("kept", TEN)
    folder = life.topic("orders")
    segment = next(folder.rglob("*.seg"))
    content = segment.read_bytes()
    if header != "synced":
        content = bytes(len(content)) if header == "never synced" else b""
    life.broker.topics.delete(b"orders")
    life.scheduler.run_all()
    life.stop()
    assert not folder.exists()
    (life.folder / "anchors").unlink()  # they would say that it was deleted
    segment.parent.mkdir(parents=True)
    segment.write_bytes(content)  # as if the power had gone before its files were removed
    life.start()
    assert "deletion_finished" in life.reports
    assert not folder.exists()
    assert life.read("kept") == TEN
    life.stop()


def test_records_without_a_row_and_a_header_are_not_removed(life: Life) -> None:
    life.publish("orders", TEN)
    folder = life.topic("orders")
    segment = next(folder.rglob("*.seg"))
    content = segment.read_bytes()
    life.broker.topics.delete(b"orders")
    life.scheduler.run_all()
    life.stop()
    (life.folder / "anchors").unlink()
    segment.parent.mkdir(parents=True)
    segment.write_bytes(bytes(HEADER_BYTES) + content[HEADER_BYTES:])
    with pytest.raises(DataDirError, match=r"1 topics have files and no row in __topics"):
        life.start()
    assert segment.exists()


def test_what_a_deletion_left_in_a_pack_is_removed_and_not_taken_for_lost(packed: Life) -> None:
    packed.publish("orders", TEN[:3])
    packed.publish("kept", TEN[:3])
    pack = packed.folder / "packs" / "00000000.0"
    before = pack.read_bytes()
    packed.broker.topics.delete(b"orders")
    packed.scheduler.run_all()
    packed.stop()
    (packed.folder / "anchors").unlink()  # they would say that it was deleted
    pack.write_bytes(before)  # as if the power had gone before its room was given up
    packed.start()
    assert "deletion_finished" in packed.reports
    assert packed.read("kept") == TEN[:3]
    room = pack.read_bytes()[16 * PACKED_BYTES :][:PACKED_BYTES]
    assert room.rstrip(b"\0") == b"QNTG"
    packed.stop()


def test_room_of_a_pack_copied_over_another_topics_is_refused(packed: Life) -> None:
    packed.publish("orders", TEN[:3])
    packed.publish("payroll", [b"secret"])
    packed.stop()
    pack = packed.folder / "packs" / "00000000.0"
    data = bytearray(pack.read_bytes())
    data[16 * PACKED_BYTES : 17 * PACKED_BYTES] = data[17 * PACKED_BYTES :].ljust(PACKED_BYTES, b"\0")
    pack.write_bytes(data)
    with pytest.raises(
        DataDirError, match=r"it is of topic number 17 \('payroll'\), partition 0, and lies in the folder"
    ):
        packed.start()


def test_a_folder_copied_over_another_topics_is_refused(life: Life) -> None:
    life.publish("orders", TEN)
    life.publish("payroll", [b"secret"])
    orders, payroll = life.topic("orders"), life.topic("payroll")
    life.stop()
    for file in (orders / "0").iterdir():
        file.unlink()
    for file in (payroll / "0").iterdir():
        (orders / "0" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(
        DataDirError, match=r"it is of topic number 17 \('payroll'\), partition 0, and lies in the folder"
    ):
        life.start()
    status, said = life.repair("--accept-loss")
    assert status == 0, said  # nothing of the broker's own is lost: this is for the operator to put right
    with pytest.raises(DataDirError):
        life.start()


def test_a_folder_made_again_by_another_is_left_alone_by_a_stop(life: Life) -> None:
    life.publish("orders", TEN)
    for partition in life.broker.topics.find(b"orders").partitions:
        partition.rest(False)  # type: ignore[attr-defined]  # closed: it would be opened again by its name
    shutil.rmtree(life.folder)
    other = Life(life.folder)
    other.publish("others", TEN)
    before = {file: file.read_bytes() for file in life.folder.rglob("*") if file.is_file()}
    life.broker.tick()
    life.scheduler.run_all()
    with pytest.raises(DataDirError, match="removed or replaced"):
        life.publish("orders", [b"more"])
    life.publish("another", [])
    life.stop()
    assert life.reports.count("directory_replaced") == 1
    assert {file: file.read_bytes() for file in life.folder.rglob("*") if file.is_file()} == before
    other.stop()
    other.start()
    assert other.read("others") == TEN
    other.stop()


def test_a_folder_that_is_gone_is_not_made_again_by_a_stop(life: Life) -> None:
    life.publish("orders", TEN)
    shutil.rmtree(life.folder)
    life.stop()
    assert not life.folder.exists()
    assert "directory_replaced" in life.reports


def test_groups_and_subscriptions_learn_of_a_topics_older_folder(life: Life) -> None:
    life.publish("orders", TEN[:3])
    folder = life.topic("orders")
    life.stop()
    older = {file: file.read_bytes() for file in folder.rglob("*.seg")}
    life.start()
    life.publish("orders", TEN[3:])
    topic = life.broker.topics.find(b"orders")
    start(life.broker.groups.offsets.commit("ann", True, topic, "g", 0, 10, None, None, door="flymq"))
    life.broker.subscriptions.create("ann", topic, 1, door="blipmq")
    life.scheduler.run_all()
    life.stop()
    for file, data in older.items():
        file.write_bytes(data)
    for file in [*life.folder.glob("checkpoint.*"), life.folder / "anchors"]:
        file.unlink()
    life.start()
    assert {"group_beyond_end", "subscription_beyond_end"} <= set(life.reports)
    life.stop()


def test_a_cache_that_lost_a_row_is_refused_until_that_is_accepted(life: Life) -> None:
    cache = life.broker.caches.open(("a", "b", "c"))
    life.scheduler.run_all()
    topic = cache.topic
    for value in (b"old", b"new"):
        topic.put(kernel.build([value], [b"k"], origin=b"test:1"), 1, lambda offset, error: None)
        life.scheduler.run_all()
    segment = next(life.topic(topic.name).rglob("*.seg"))
    life.stop()
    whole = segment.read_bytes()
    segment.write_bytes(flip(whole, 8 * last_batch(whole).stop - 100))
    with pytest.raises(TableDamaged, match="cache/a/b/c"):
        life.start()
    status, said = life.repair("--accept-loss")
    assert (status, "lost: cache/a/b/c: a cache" in said) == (0, True)
    life.start()
    life.stop()
