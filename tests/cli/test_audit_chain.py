"""`quintet audit verify` and `quintet audit head`: exit codes, the one sentence, and a broker that runs meanwhile."""

import struct
from pathlib import Path

import pytest

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.chain import derive_key
from quintet.log.embedded.files.disk import OsDisk
from tests.cli.conftest import Commands
from tests.client.server import Server
from tests.log.support import TOPIC, Harness

SECRET = "a secret of more than thirty-two bytes"
SPEC = TopicSpec(TOPIC, "orders")


@pytest.fixture
def commands() -> Commands:
    return Commands("")


def grown(folder: Path, key: bytes = b"", rows: int = 5) -> Harness:
    """A data folder with some records, stopped cleanly."""
    harness = Harness(OsDisk(), folder, anchor_file=str(folder / "anchors"), chain_key=key)
    harness.write(harness.open(SPEC), rows)
    harness.close()
    return harness


def segment(folder: Path) -> Path:
    return folder / "topics" / f"{TOPIC:08d}" / "0" / f"{0:020d}.seg"


def edited(folder: Path) -> None:
    """One byte of the third record, with a right checksum."""
    data = bytearray(segment(folder).read_bytes())
    seed, at = struct.unpack_from("<I", data, 16)[0], 512
    for _ in range(2):
        at += struct.unpack_from("<I", data, at + 8)[0]
    length = struct.unpack_from("<I", data, at + 8)[0]
    batch = data[at : at + length]
    batch[-40] ^= 1
    kernel.reseal(batch, seed)
    data[at : at + length] = batch
    segment(folder).write_bytes(data)


def test_sound_broken_and_cannot_be_checked(commands: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    grown(folder)
    head = commands("audit", "head", "--data", str(folder)).out.strip()
    assert head.startswith("0:")
    assert commands("audit", "head", "--data", str(folder), "--json").json["hash"] == head[2:]
    said = commands("audit", "verify", "--data", str(folder)).out
    assert said.startswith("sound: 5 records in 1 partitions follow from each other and agree with anchor 0; ")
    assert "--head" in said
    assert "--head" not in commands("audit", "verify", "--data", str(folder), "--head", head).out
    edited(folder)
    said = commands("audit", "verify", "--data", str(folder), code=1).out
    assert said.startswith(f"broken: edited: offset 2 in {segment(folder)} at byte ")
    assert said.count("\n") == 1
    facts = commands("audit", "verify", "--data", str(folder), "--json", code=1).json
    assert (facts["status"], facts["broken"]["kind"], facts["broken"]["first_offset"]) == ("broken", "edited", 2)
    assert commands("audit", "verify", "--data", str(tmp_path), code=2).err.count("not a Quintet data folder") == 1
    commands("audit", "verify", "--data", str(folder), "--anchors", str(tmp_path / "none"), code=2)


def test_what_only_the_anchors_and_a_head_show(commands: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    grown(folder)
    kept = (folder / "anchors").read_bytes()
    older = commands("audit", "head", "--data", str(folder)).out.strip()
    grown(folder)
    newer = commands("audit", "head", "--data", str(folder)).out.strip()
    for head in (older, newer):
        commands("audit", "verify", "--data", str(folder), "--head", head)
    wrong = newer[:-1] + ("0" if newer[-1] != "0" else "1")
    assert (
        "not the one that was kept" in commands("audit", "verify", "--data", str(folder), "--head", wrong, code=1).out
    )
    assert "no head" in commands("audit", "verify", "--data", str(folder), "--head", "what", code=2).out
    data = segment(folder).read_bytes()
    segment(folder).write_bytes(data[: 512 + (len(data) - 512) // 10 * 7])
    assert "truncated: offsets 7 to 9" in commands("audit", "verify", "--data", str(folder), code=1).out
    (folder / "anchors").write_bytes(kept)  # the anchors are rolled back, too
    commands("audit", "verify", "--data", str(folder))
    assert "anchor 1 is gone" in commands("audit", "verify", "--data", str(folder), "--head", newer, code=1).out
    (folder / "anchors").unlink()
    assert "there are no anchors" in commands("audit", "verify", "--data", str(folder)).out
    commands("audit", "verify", "--data", str(folder), "--head", newer, code=1)
    assert "nothing is anchored" in commands("audit", "head", "--data", str(folder), code=1).err


def test_a_key(commands: Commands, tmp_path: Path) -> None:
    folder, file, other = tmp_path / "data", tmp_path / "chain.key", tmp_path / "other.key"
    grown(folder, derive_key(SECRET.encode()))
    for path, text in ((file, SECRET), (other, SECRET + "!")):
        path.write_text(text)
        path.chmod(0o600)
    commands("audit", "verify", "--data", str(folder), "--key-file", str(file))
    commands("audit", "verify", "--data", str(folder), "--key-file", str(other), "--key-file", str(file))
    assert "made with the key" in commands("audit", "verify", "--data", str(folder), code=2).out
    commands("audit", "verify", "--data", str(folder), "--key-file", str(other), code=2)
    file.write_text("short")
    assert "needs 32" in commands("audit", "verify", "--data", str(folder), "--key-file", str(file), code=2).err
    assert SECRET not in commands("audit", "verify", "--data", str(folder), "--key-file", str(other), code=2).out


def test_beside_a_running_broker(broker: Server, quintet: Commands, topic: str) -> None:
    quintet("topic", "create", topic)
    for number in range(3):
        quintet("pub", topic, *[f"message {number} {row}" for row in range(5)])
        facts = quintet("audit", "verify", "--data", str(broker.folder / "data"), "--json").json
        rows = {each["topic"]: each["next_offset"] for each in facts["partitions"]}
        assert rows[topic] == 5 * number + 5
        assert facts["status"] == "sound"


def test_the_group_still_lists_and_names_its_commands(quintet: Commands) -> None:
    assert {"verify", "head"} <= set(quintet("audit", "--help").out.split())
    quintet("audit", "-n", "1")
