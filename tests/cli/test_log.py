"""`quintet log verify` and `dump` of a folder with partitions that nothing was ever written to."""

from pathlib import Path

import pytest

from quintet.log.base import TopicSpec
from quintet.log.embedded.files.disk import OsDisk
from tests.cli.conftest import Commands
from tests.log.support import TOPIC, Harness


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Five partitions, of which only the third holds something."""
    harness = Harness(OsDisk(), tmp_path / "data")
    partitions = harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=5))
    harness.write(partitions[2], 4)
    harness.close()
    return str(tmp_path / "data")


def test_partitions_never_written_to_are_sound(folder: str) -> None:
    commands = Commands("")
    assert commands("log", "verify", folder).out.startswith("sound: 1 segments, 4 batches, 4 records")
    lines = commands("log", "dump", folder).lines
    assert [line.split()[0] for line in lines] == [f"#{TOPIC}/2@{offset}" for offset in range(4)]
    assert commands("log", "dump", folder, "--partition", "0").lines == []
