"""`quintet backup` and `quintet restore`, with a broker that runs: what a backup holds, and what is said of one that is not whole."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintet.cli.folder.stores import FolderStore
from quintet.log.embedded.backup import create as creating
from quintet.log.embedded.backup import cut, manifest, restore
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.recovery import checkpoint
from quintet.model.errors import BackupError
from tests.cli.conftest import Commands
from tests.client.server import Server, running

WAIT_S = 60
NEVER = 1 << 62  # microseconds


@contextmanager
def serving(folder: Path) -> Iterator[Commands]:
    """Commands to a broker in this data folder."""
    server = Server(folder.parent, {})
    assert folder == server.folder / "data", "Server has its data there"
    try:
        server.start()
        yield Commands(server.fly)
    finally:
        server.kill()


def wait_until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def values(quintet: Commands, topic: str) -> list[str]:
    found = quintet("tail", topic, "--from", "earliest", "--json")
    return [json.loads(line)["value"] for line in found.lines]


class Clock:
    """Wall time that a test sets; nothing waits."""

    def __init__(self, now: int) -> None:
        self.wall, self.steady = now, 1_000_000

    @property
    def clocks(self) -> cut.Clocks:
        return cut.Clocks(lambda: self.wall, lambda: self.steady, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.wall += int(seconds * 1e6)
        self.steady += int(seconds * 1e6)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def live(server: Server) -> Commands:
    return Commands(server.fly)


@pytest.fixture
def data(server: Server) -> Path:
    return server.folder / "data"


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "backups")


def test_a_backup_is_restored_verified_and_served(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str
) -> None:
    live("topic", "create", topic, "--partitions", "3")
    for number in range(5):
        live("pub", topic, f"m{number}", "--key", str(number))
    made = live("backup", "create", place, "--data", str(data), "--json").json
    live("pub", topic, "later")
    target = tmp_path / "restored" / "data"
    said = live("restore", place, "--data", str(target)).out
    assert made["id"] in said
    assert "sound" in live("log", "verify", str(target)).out
    assert live("audit", "verify", "--data", str(target)).out.startswith("sound")
    assert not (data / "backup" / "links").exists(), "the links are gone with the backup"
    with serving(target) as restored:
        assert sorted(values(restored, topic)) == [f"m{number}" for number in range(5)]
        restored("pub", topic, "goes on")


def test_a_later_backup_stores_what_is_new_and_both_restore(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str
) -> None:
    live("pub", topic, "x" * 200_000)
    first = live("backup", "create", place, "--data", str(data), "--json").json
    live("pub", topic, "small")
    second = live("backup", "create", place, "--data", str(data), "--json").json
    assert second["bytes"] > first["bytes"]
    assert second["stored_bytes"] < 100_000 < first["stored_bytes"]
    assert [one["id"] for one in live("backup", "list", place, "--json").json] == [first["id"], second["id"]]
    for one, count in ((first, 1), (second, 2)):
        target = tmp_path / one["id"]
        live("restore", place, "--id", one["id"], "--data", str(target))
        assert len(live("log", "dump", str(target), "--topic", topic).lines) == count
    live("backup", "prune", place, "--keep", "1", "--yes")
    assert live("backup", "verify", place).out == f"{second['id']}: sound\n", "what it shares with the first one stays"
    assert first["id"] in live("restore", place, "--id", first["id"], "--data", str(tmp_path / "none"), code=1).err


def test_a_file_in_many_pieces_is_stored_again_as_one(
    live: Commands, data: Path, place: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "PIECES_MAX", 2)
    monkeypatch.setattr(manifest, "BUNDLE_BYTES", 1 << 20)  # so that a backup has several bundles, too
    live("pub", topic, "y" * 900_000)
    live("pub", topic, "y" * 900_000)
    pieces = []
    for number in range(4):
        live("pub", topic, str(number))
        made = live("backup", "create", place, "--data", str(data), "--json").json
        store = FolderStore(Path(place))
        parts = manifest.load(store, made["id"]).parts
        pieces.append(max(len(part.pieces) for part in parts))
        assert all(size <= 1 << 20 for size in store.names("bundles/").values())
    assert max(pieces) <= 4, f"{pieces}: pieces must not add up for ever"
    live("backup", "verify", place)


def test_a_backup_that_was_cut_short_is_not_restored(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live("pub", topic, "hello")
    whole = FolderStore.put

    def full(self: FolderStore, name: str, content: bytes) -> None:
        if name.startswith(manifest.MANIFESTS):
            raise BackupError("No space left on device")
        whole(self, name, content)

    monkeypatch.setattr(FolderStore, "put", full)
    assert "No space left" in live("backup", "create", place, "--data", str(data), code=1).err
    monkeypatch.undo()
    [broken] = live("backup", "list", place, "--json").json
    assert broken["state"] == "cut short, or being made"
    target = tmp_path / "restored"
    assert "was cut short" in live("restore", place, "--data", str(target), code=1).err
    assert "was cut short" in live("restore", place, "--id", broken["id"], "--data", str(target), code=1).err
    assert not target.exists()
    good = live("backup", "create", place, "--data", str(data), "--json").json
    assert good["id"] in live("restore", place, "--data", str(target)).out
    live("backup", "prune", place, "--keep", "1", "--yes")
    assert [one["id"] for one in live("backup", "list", place, "--json").json] == [good["id"]]
    assert [bundle for bundle in (Path(place) / "bundles").iterdir() if broken["id"] in bundle.name] == []


@pytest.mark.parametrize("what", ["bundles", "backups"])
def test_a_damaged_byte_is_found_and_nothing_startable_is_left(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str, what: str
) -> None:
    live("pub", topic, "hello")
    live("backup", "create", place, "--data", str(data))
    [path] = (Path(place) / what).iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "damaged" in live("backup", "verify", place, code=1).out
    target = tmp_path / "restored"
    assert "is damaged" in live("restore", place, "--data", str(target), code=1).err
    assert not (target / "format").exists()


def test_any_damage_of_a_manifest_is_found() -> None:
    made = manifest.Manifest(1, "1", "", 3, "0", 0, 0, 0, 0, 0, 0, [(16, 0, 0, 512, 0)] * 50, [], [])
    whole = manifest.pack(made)
    assert manifest.parse("1", whole) == made
    found = 0
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            try:
                assert manifest.parse("1", bytes(damaged)) == made, (
                    "a bit that means nothing: the time in gzip's header"
                )
            except BackupError:
                found += 1
    assert found > 7 * len(whole)
    for end in range(len(whole)):
        with pytest.raises(BackupError, match="is damaged"):
            manifest.parse("1", whole[:end])


def test_a_missing_bundle_is_found_and_the_next_backup_does_not_need_it(
    live: Commands, data: Path, place: str, topic: str
) -> None:
    live("pub", topic, "hello")
    live("backup", "create", place, "--data", str(data))
    shutil.rmtree(Path(place) / "bundles")
    assert "is missing" in live("backup", "verify", place, code=1).out
    made = live("backup", "create", place, "--data", str(data), "--json").json
    live("backup", "verify", place, made["id"])


def transact(live: Commands, tmp_path: Path, topics: tuple[str, str], value: str) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"topic": one, "value": value}) + "\n" for one in topics))
    live("txn", "run", str(lines))


def between(monkeypatch: pytest.MonkeyPatch, path: str, call: Callable[[], None]) -> None:
    """Let something happen when this partition was copied and the next ones were not."""
    whole = creating._Copy.partition

    def partition(self: creating._Copy, pinned: cut.Pinned) -> None:
        whole(self, pinned)
        if pinned.path == path:
            call()

    monkeypatch.setattr(creating._Copy, "partition", partition)


def folder_of(live: Commands, data: Path, topic: str) -> str:
    [row] = [
        json.loads(json.loads(line)["value"])
        for line in live("log", "dump", str(data), "--topic", "__topics", "--format", "json").lines
        if json.loads(line)["key"] == topic
    ]
    return f"topics/{row['id']:08d}/0"


@pytest.mark.parametrize("honest", [True, False], ids=["", "sabotaged"])
def test_a_transaction_is_in_a_backup_whole_or_not_at_all(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str, honest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commits while the backup is between its two topics. The control has no cut: it copies what it finds."""
    topics = (f"{topic}-a", f"{topic}-b")
    for one in topics:
        live("topic", "create", one, "--partitions", "1")
    transact(
        live, tmp_path, topics, "before" * 600
    )  # more than goes into a pack, so that it is read while it is copied
    between(monkeypatch, folder_of(live, data, topics[0]), lambda: transact(live, tmp_path, topics, "meanwhile"))
    if not honest:
        whole = cut.Snapshot.__enter__

        def enter(self: cut.Snapshot) -> cut.Snapshot:
            whole(self)
            self.cut = NEVER
            return self

        monkeypatch.setattr(cut.Snapshot, "__enter__", enter)
    live("backup", "create", place, "--data", str(data))
    target = tmp_path / "restored"
    live("restore", place, "--data", str(target))
    counts = [len(live("log", "dump", str(target), "--topic", one).lines) for one in topics]
    assert (counts == [1, 1]) == honest, counts


def test_a_topic_that_is_made_after_the_cut_is_left_out(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is dated after the cut: with its empty segment the restored folder would not start."""
    live("pub", topic, "before")
    whole = cut.Snapshot._copy_again

    def copy_again(self: cut.Snapshot) -> None:
        live("pub", f"{topic}-later", "x")
        whole(self)

    monkeypatch.setattr(cut.Snapshot, "_copy_again", copy_again)
    live("backup", "create", place, "--data", str(data))
    target = tmp_path / "restored" / "data"
    live("restore", place, "--data", str(target))
    with serving(target) as restored:
        assert values(restored, topic) == ["before"]


def test_files_that_are_removed_meanwhile_are_in_the_backup(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention, compaction and the deletion of a topic remove files by name; the links keep them."""
    live("pub", topic, "hello" * 600)  # in a file of its own: a small segment has none (ADR 31)
    folder = data / folder_of(live, data, topic)
    assert list(folder.glob("*.seg"))

    def delete() -> None:
        live("topic", "delete", topic, "--yes")

    between(monkeypatch, "topics/00000001/0", delete)
    live("backup", "create", place, "--data", str(data))
    wait_until(lambda: not list(folder.glob("*.seg")))
    target = tmp_path / "restored" / "data"
    live("restore", place, "--data", str(target))
    with serving(target) as restored:
        assert values(restored, topic) == ["hello" * 600]


def test_a_clock_that_is_set_back_meanwhile_stops_the_backup(
    live: Commands, data: Path, place: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live("pub", topic, "hello")
    clock = Clock(now=NEVER // 4)

    def back() -> None:
        clock.wall -= 5_000

    between(monkeypatch, "topics/00000001/0", back)
    with pytest.raises(BackupError, match=r"set back by 0\.005 s"):
        creating.create(data, FolderStore(Path(place)), OsDisk(), clock.clocks, "1")


def test_what_is_dated_ahead_of_the_clock_is_in_the_backup(
    live: Commands, data: Path, place: str, tmp_path: Path, topic: str
) -> None:
    """The clock was years ahead when it was published, and was set back before the backup began."""
    live("pub", topic, "hello")
    store, clock = FolderStore(Path(place)), Clock(now=1_000_000_000_000_000)
    made = creating.create(data, store, OsDisk(), clock.clocks, "1")
    restore.restore(store, made, tmp_path / "restored", OsDisk())
    assert len(live("log", "dump", str(tmp_path / "restored"), "--topic", topic).lines) == 1


def test_the_cut_waits_until_dates_ahead_are_reached(live: Commands, data: Path, place: str, topic: str) -> None:
    """The clock was set back by half a minute: until then the broker dates batches as the last one."""
    live("pub", topic, "hello")
    clock = Clock(time.time_ns() // 1000 - 30_000_000)
    last = time.time_ns() // 1000
    number = int((data / folder_of(live, data, topic)).parent.name)
    wait_until(lambda: (number, 0) in checkpoint.load(OsDisk(), str(data)).marks)  # so that nothing is above the mark
    with cut.Snapshot(data, OsDisk(), clock.clocks) as snapshot:
        assert last - 10_000_000 < snapshot.cut <= last


def test_a_killed_brokers_folder_of_the_format_before_restores(tmp_path: Path, place: str) -> None:
    data = tmp_path / "one" / "data"
    data.parent.mkdir()
    with serving(data) as quintet:
        for number in range(8):
            quintet("pub", f"topic-{number}", "hello")
    (data / "format").write_text("quintet-data 2\n")
    (data / "identity").unlink()  # there was none, either
    stopped = Commands("")
    made = stopped("backup", "create", place, "--data", str(data), "--json").json
    assert made["format"] == 2
    target = tmp_path / "two" / "data"
    stopped("restore", place, "--data", str(target))
    assert (target / "format").read_text() == "quintet-data 2\n"
    with serving(target) as restored:
        assert [values(restored, f"topic-{number}") for number in range(8)] == [["hello"]] * 8


def test_a_backup_of_a_later_version_is_refused(live: Commands, data: Path, place: str, tmp_path: Path) -> None:
    made = live("backup", "create", place, "--data", str(data), "--json").json
    store = FolderStore(Path(place))
    found = manifest.load(store, made["id"])
    later = manifest.Manifest(**{name: getattr(found, name) for name in found.__struct_fields__} | {"version": 2})
    store.put(manifest.MANIFESTS + made["id"], manifest.pack(later))
    assert "version 2" in live("restore", place, "--data", str(tmp_path / "restored"), code=1).err


def test_wrong_places_are_refused_clearly(live: Commands, data: Path, place: str, tmp_path: Path) -> None:
    inside = str(data / "backups")
    assert "inside of the data folder" in live("backup", "create", inside, "--data", str(data), code=2).err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not a data folder" in live("backup", "create", place, "--data", str(empty), code=1).err
    missing = str(tmp_path / "missing")
    assert "there is no such folder" in live("restore", missing, "--data", str(tmp_path / "r"), code=1).err
    assert "no complete backup" in live("restore", str(empty), "--data", str(tmp_path / "r"), code=1).err
    live("backup", "create", place, "--data", str(data))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    assert "is not empty" in live("restore", place, "--data", str(tmp_path / "full"), code=1).err
    assert "there is no backup 7" in live("restore", place, "--id", "7", "--data", str(tmp_path / "r"), code=1).err
    with cut.Snapshot(data, OsDisk(), Clock(os.stat(data).st_mtime_ns // 1000).clocks):
        assert "another backup" in live("backup", "create", place, "--data", str(data), code=1).err
    assert [one["state"] for one in live("backup", "list", place, "--json").json] == ["complete"]


@pytest.mark.parametrize("path", ["../outside", "/etc/outside", "topics/../../outside", "other/file"])
def test_a_manifest_that_names_files_outside_is_refused(tmp_path: Path, place: str, path: str) -> None:
    made = manifest.Manifest(1, "1", "", 3, "0", 0, 0, 0, 0, 0, 0, [], [manifest.Part(path, [])], [])
    with pytest.raises(BackupError, match="outside of a data folder"):
        restore.restore(FolderStore(Path(place)), made, tmp_path / "restored", OsDisk())
