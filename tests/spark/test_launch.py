"""The virtual machine starts with, without and despite an archive, and ends when its Python does."""

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintet.spark.sessions import java, launch, start
from tests.spark.machines import QUICK

FLAGS = ("-Xmx256m", *QUICK.split(), *start.logging_flags())
GONE_S = 60  # until a machine has written its archive and is gone, on a busy computer


def begin(cache: Path) -> launch.Machine:
    environment = {**start.machine_environment({}), "XDG_CACHE_HOME": str(cache)}
    return launch.launch(java.find(), start.spark_home(), FLAGS, ["--master", "local[1]"], environment)


def stem(cache: Path) -> Path:
    classes = launch.classpath(start.spark_home(), start.machine_environment({}))
    return cache / "quintet" / "spark" / launch.key(java.find(), start.spark_home(), (*launch.FLAGS, *FLAGS, classes))


def end(machine: launch.Machine) -> int:
    machine.end()
    return machine.process.wait(GONE_S)


def test_one_writes_the_archive_the_next_uses_it(tmp_path: Path) -> None:
    first = begin(tmp_path)
    second = begin(tmp_path)  # while the first holds the lock
    assert (first.recording, second.recording) == (True, False)
    assert (end(second), end(first)) == (0, 0)
    part, ready = stem(tmp_path).with_suffix(".part"), stem(tmp_path).with_suffix(".jsa")
    assert launch.sound(part)
    third = begin(tmp_path)
    mapped = Path(f"/proc/{third.process.pid}/maps")
    assert not part.exists()
    assert str(ready) in mapped.read_text() if mapped.exists() else launch.sound(ready)
    assert not third.recording
    assert end(third) == 0


@pytest.mark.parametrize("broken", ["cut", "damaged"])
def test_a_broken_archive_costs_only_time(tmp_path: Path, broken: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`damaged`: as long as its lock says, and no archive behind its first bytes. `cut`: shorter than that."""
    file = stem(tmp_path).with_suffix(".jsa")
    file.parent.mkdir(parents=True)
    file.write_bytes(struct.pack("=I", launch.MAGIC[1]) + bytes(2_000_000))
    size = file.stat().st_size + (broken == "cut")
    file.with_suffix(".lock").write_text(str(size))
    machine = begin(tmp_path)
    assert machine.port > 0
    assert machine.recording == (broken == "cut"), "one that is known to be broken is written anew"
    machine.process.kill()
    end(machine)
    assert capfd.readouterr().err == ""


def test_a_folder_of_the_users_on_the_class_path_costs_no_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Java writes no archive for a folder that has files, and would say so when it ends; one that has only settings is no part
    of the path."""
    home, folder = start.spark_home(), tmp_path / "conf"
    folder.mkdir()
    (folder / "spark-defaults.conf").touch()
    (folder / "log4j2.properties.template").touch()
    environment = {**start.machine_environment({}), "XDG_CACHE_HOME": str(tmp_path), "SPARK_CONF_DIR": str(folder)}
    assert str(folder) not in launch.classpath(home, environment)
    (folder / "core-site.xml").write_text("<configuration/>")
    assert launch.classpath(home, environment).startswith(str(folder))
    machine = launch.launch(java.find(), home, FLAGS, ["--master", "local[1]"], environment)
    assert not machine.recording
    assert end(machine) == 0
    assert capfd.readouterr().err == ""


def test_old_archives_go(tmp_path: Path) -> None:
    for age in range(6):
        for suffix in (".jsa", ".lock"):
            file = tmp_path / f"key{age}{suffix}"
            file.touch()
            os.utime(file, (age, age))
    launch.sweep(tmp_path, "key0")
    assert sorted(file.name for file in tmp_path.glob("*.jsa")) == ["key0.jsa", "key3.jsa", "key4.jsa", "key5.jsa"]


def test_a_java_that_fails_says_so(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    broken = java.Java(tmp_path, "17", "PATH", frozenset())
    with pytest.raises(launch.JavaFailed, match="exit code 7 before Spark was ready"):
        launch.launch(broken, start.spark_home(), FLAGS, [], {**os.environ, "XDG_CACHE_HOME": str(tmp_path)})


def test_the_machine_ends_with_a_killed_python(tmp_path: Path) -> None:
    """And a cache that cannot be written costs no start."""
    (tmp_path / "quintet").write_text("a file where the folder would be")
    code = "from tests.spark.test_launch import begin; import pathlib, sys, time\n" + (
        "machine = begin(pathlib.Path(sys.argv[1])); assert not machine.recording\n"
        "print(machine.process.pid, flush=True); time.sleep(600)"
    )
    python = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with python:
        assert python.stdout is not None
        pid = int(python.stdout.readline())
        os.kill(pid, 0)
        python.send_signal(signal.SIGKILL)
    until = time.monotonic() + GONE_S
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # one that nobody collects is gone all the same
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
