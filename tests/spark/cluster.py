"""A standalone Spark cluster on loopback, from the jars of the installed pyspark: a master, two workers, each its own process.

Its executors run a Python of their own: a virtual environment that holds the packages it is told and nothing else. They are
linked from the environment of the tests, so nothing is fetched and the versions are the locked ones.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
import venv
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from quintet.spark.sessions import java, start
from tests.spark.machines import archived

LOOPBACK = "127.0.0.1"
READY_S = 120  # until a master or a worker says that it is ready, on a busy computer
GONE_S = 60
HEAP = "-Xmx160m"  # of a master and of a worker, whose executors have their own
EXECUTOR_MEMORY = "512m"
FLAGS = archived()
CONF = {  # an executor of one core on each worker, which have room for two drivers
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.executor.extraJavaOptions": FLAGS,
    "spark.driver.extraJavaOptions": FLAGS,
    "spark.driver.memory": "512m",
    "spark.driver.host": LOOPBACK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def link(python: Path, packages: Sequence[str]) -> None:
    """Put installed packages of this Python into a virtual environment."""
    site = next(python.parents[1].glob("lib/python3*/site-packages"))
    for package in packages:
        files = metadata.files(package) or []
        for top in {file.parts[0] for file in files} - {".."}:
            with contextlib.suppress(FileExistsError):
                (site / top).symlink_to(Path(str(files[0].locate())).parents[len(files[0].parts) - 1] / top)


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """The Python of a new virtual environment with these packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    link(python, packages)
    return python


class Service:
    """A master or a worker."""

    def __init__(self, folder: Path, name: str, ready: str, *arguments: str) -> None:
        kind = name.rstrip("0123456789")
        home = start.wrapper(java.find())
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(str(home / "bin" / "java"), HEAP, *FLAGS.split(), "-cp", f"{start.spark_home()}/jars/*"),
                    *(f"org.apache.spark.deploy.{kind}.{kind.title()}", "--host", LOOPBACK, "--port", "0"),
                    *("--webui-port", "0", *arguments),
                ],
                env={
                    "PATH": os.environ["PATH"],
                    "JAVA_HOME": str(home),
                    "SPARK_HOME": str(start.spark_home()),
                    "SPARK_LOCAL_IP": LOOPBACK,
                    "SPARK_SCALA_VERSION": "2.13",  # what load-spark-env.sh says of these jars; a worker looks for a build without
                    "SPARK_LOCAL_DIRS": str(folder / "scratch"),
                },
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._ready = ready

    def wait(self) -> str:
        """What stands in the place of the pattern's group, when the service has said that it is ready."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            found = re.search(self._ready, self.log.read_text(errors="replace"))
            if found:
                return found[1]
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            time.sleep(0.05)
        raise AssertionError(f"{self.log.name} did not say {self._ready!r}:\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """The service and everything that it started, its executors first of all, without a goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(GONE_S)


class Cluster:
    """`master` is its url; executors run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._head = Service(folder, "master", r"Starting Spark master at (spark://\S+)")
        self.master = self._head.wait()
        self.workers = [self._worker(folder, number) for number in (1, 2)]
        for worker in self.workers:
            worker.wait()

    def _worker(self, folder: Path, number: int) -> Service:
        work = folder / f"worker{number}"
        return Service(
            folder, f"worker{number}", r"Successfully registered with master (\S+)",
            "--cores", "4", "--memory", "4g", "--work-dir", str(work), self.master,
        )  # fmt: skip

    def end(self) -> None:
        for service in (*self.workers, self._head):
            service.kill()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = None
    try:
        made = Cluster(folder)
        yield made
    finally:
        if made is not None:
            made.end()
