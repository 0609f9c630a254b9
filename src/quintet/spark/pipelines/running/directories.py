"""Chooses the name and the checkpoint directory of a run, and locks the directory against a second run.

The lock is flock on a file in the checkpoint's directory, which the kernel releases when a process is killed; the file contains the
process id, for people. For a checkpoint that is not on this machine (s3a://, hdfs://) the lock file is in the default directory of the
name. Two machines may then use one checkpoint at a time, and Spark's own log of batches lets only one of them commit.
"""

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from quintet.model.errors import ConfigError, QuintetError
from quintet.spark.source.options import without_file

NAME_CHARS_MAX: Final = 100
LOCK: Final = "quintet.lock"
# Options that name what a pipeline reads; the default name is made of them.
TOPICS: Final = ("topics", "topic", "left", "right", "pattern")
_PLAIN: Final = re.compile(r"[^\w.,+=@-]")


class InUse(QuintetError, RuntimeError):
    """A pipeline of this name runs already."""

    code = "E2103"


def default_name(kind: str, given: Mapping[str, object]) -> str:
    """Kind and topics: archive-orders, join-clicks-orders."""
    found = [given[key] for key in TOPICS if given.get(key)]
    topics = [",".join(map(str, each)) if isinstance(each, list | tuple) else str(each) for each in found]
    return "-".join([kind.rpartition(".")[2], *topics])[:NAME_CHARS_MAX]


def check_name(name: str) -> str:
    """The name, if the broker accepts it; ConfigError if not."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(
            f"name {name[:NAME_CHARS_MAX]!r}: a name has 1 to {NAME_CHARS_MAX} printable characters",
            hint="choose one with --name",
        )
    return name


def state_folder(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """The default checkpoint directory of a name. No two names share one."""
    environment = os.environ if environment is None else environment
    root = environment.get("XDG_STATE_HOME", "")
    base = Path(root) if Path(root).is_absolute() else Path.home() / ".local" / "state"
    plain = _PLAIN.sub("_", name)
    if plain != name or not plain.strip("."):
        plain = f"{plain.strip('.') or '_'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return base / "quintet" / "pipelines" / plain


@contextlib.contextmanager
def locked(name: str, checkpoint: str) -> Iterator[None]:
    """Lock the checkpoint for this process; InUse names the process that holds it."""
    path = without_file(checkpoint)
    folder = state_folder(name) if "://" in path else Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"the checkpoint {folder} cannot be used: {error.strerror}",
            hint="choose another directory with --checkpoint",
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
            raise InUse(
                f"{name} runs already, as process {holder}, with the checkpoint {folder}",
                hint=f"`quintet pipeline stop {name}` ends it; another --name runs beside it",
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
