"""Chooses where a run keeps its checkpoint and what it is called, and locks it against a second run of the same name.

The lock is the kernel's (flock) on a file in the checkpoint's directory, so one that a killed process left behind holds nobody
up; the number of the process is in it for people. A checkpoint that is not on this machine (s3a://, hdfs://) is locked beside
the default ones: two machines can still meet there, and then Spark's own log of batches lets only one of them commit.
"""

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from quintet.model.errors import ConfigError, QuintetError
from quintet.spark.source.options import without_file

NAME_CHARS_MAX: Final = 100
LOCK: Final = "quintet.lock"
# The options that say what a pipeline reads: the default name is made of them.
TOPICS: Final = ("topics", "topic", "left", "right", "pattern")
_PLAIN: Final = re.compile(r"[^\w.,+=@-]")


class InUse(QuintetError, RuntimeError):
    """A pipeline of this name runs already."""

    code = "E2103"


def default_name(kind: str, given: Mapping[str, Any]) -> str:
    """archive-orders, join-clicks-orders."""
    found = [given[key] for key in TOPICS if given.get(key)]
    topics = [",".join(map(str, each)) if isinstance(each, list | tuple) else str(each) for each in found]
    return "-".join([kind.rpartition(".")[2], *topics])[:NAME_CHARS_MAX]


def check_name(name: str) -> str:
    """A name people can type and the broker takes."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(
            f"a name has 1 to {NAME_CHARS_MAX} characters that can be printed", hint="choose one with --name"
        )
    return name


def state_folder(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """Where a run of this name keeps what it must remember, unless told otherwise. No two names share one."""
    environment = os.environ if environment is None else environment
    root = environment.get("XDG_STATE_HOME", "")
    base = Path(root) if Path(root).is_absolute() else Path.home() / ".local" / "state"
    plain = _PLAIN.sub("_", name)
    if plain != name or not plain.strip("."):
        plain = f"{plain.strip('.') or '_'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return base / "quintet" / "pipelines" / plain


@contextlib.contextmanager
def locked(name: str, checkpoint: str) -> Iterator[None]:
    """Hold the checkpoint for this process; InUse names the one that has it."""
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
