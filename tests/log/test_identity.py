"""The identity of a log: made once, kept over crashes, stops and repairs; another log has another one."""

import contextlib
import shutil
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from quintet import kernel
from quintet.cli.folder.log import log as log_commands
from quintet.log.embedded import inspect
from quintet.log.embedded.files import identity
from quintet.log.embedded.files.disk import OsDisk
from quintet.model.errors import DataDirError
from quintet.testing.sim import SimDisk
from tests.log.support import DATA, TOPIC, Harness

FILE = f"{DATA}/{identity.NAME}"


def test_a_log_keeps_its_identity_and_another_has_another(tmp_path: Path) -> None:
    harness = Harness(OsDisk(), tmp_path / "data")
    made = harness.log.identity
    assert len(made) == identity.DIGITS
    harness.close()
    harness.start()
    assert harness.log.identity == made, "after a clean stop"
    harness.log.abandon()
    harness.start()
    assert harness.log.identity == made, "after a crash"
    harness.close()
    for accept in ((), ("--accept-loss",)):
        assert CliRunner().invoke(log_commands, ["repair", str(tmp_path / "data"), *accept]).exit_code == 0
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    copy = Harness(OsDisk(), tmp_path / "copy")
    assert copy.log.identity == made, "a restored copy is the same log"
    other = Harness(OsDisk(), tmp_path / "other")
    assert other.log.identity != made
    for one in (copy, other):
        one.log.abandon()


def test_power_lost_at_every_call_of_the_first_start_leaves_one_identity() -> None:
    for calls in range(1, 100):
        disk, first = SimDisk(seed=calls), ""
        disk.stop_at = calls
        with contextlib.suppress(OSError, DataDirError):
            first = Harness(disk).log.identity
        disk.crash(Random(calls))
        found = Harness(disk).log.identity
        assert len(found) == identity.DIGITS
        if first:
            assert found == first, "whoever was told the first one can count on it"
            return
    pytest.fail("the first start never ended")


def test_an_old_directory_gets_an_identity_and_a_damaged_one_is_refused() -> None:
    harness = Harness()
    harness.close()
    made = harness.sim.read_file(FILE)
    assert made is not None
    harness.sim.unlink(FILE)
    harness.start()
    assert identity.parse(harness.sim.read_file(FILE) or b"") == harness.log.identity
    harness.close()
    for number in range(len(made)):
        damaged = bytearray(made)
        damaged[number] ^= 1
        harness.sim.unlink(FILE)
        harness.sim.append_file(FILE, bytes(damaged))
        with pytest.raises(DataDirError, match="does not hold the identity of a log"):
            harness.start()
        harness.log.abandon()
        assert harness.sim.read_file(FILE) == bytes(damaged)
    found = [finding for finding in inspect.verify(harness.sim, str(DATA), inspect.Summary()) if finding.corrupt]
    assert [finding.file for finding in found] == [FILE], "and `quintet log verify` names it"


def test_a_stage_of_another_log_is_kept_and_not_offered() -> None:
    one, two = Harness(), Harness()
    stage = one.log.stages.open("5e", "spark", "query", 0)
    stage.append(TOPIC, 0, kernel.build([b"a"], origin=b"test:1"), 1)
    stage.finish()
    assert [found.id for found in one.log.stages.load()] == ["5e"]
    path = f"{DATA}/stages/5e.stage"
    two.sim.mkdir(f"{DATA}/stages")
    two.sim.append_file(path, one.sim.read_file(path) or b"")
    assert two.log.stages.load() == []
    ((kind, fields),) = two.reports
    assert kind == "stage_damaged"
    assert f"it was handed to the log {one.log.identity}, this is {two.log.identity}" in str(fields["error"])
