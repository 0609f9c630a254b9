"""`quintet log repair`: shows what the broker lost of its own tables in a data folder, and accepts the loss when told to.

The work is done by quintet.broker.repair; this file opens the folder, asks and prints. docs/DAMAGE.md says what each line means.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from quintet.cli.terminal.output import echo
from quintet.model.errors import DataDirError
from quintet.model.scheduler import LoneRead, Write

if TYPE_CHECKING:
    from quintet.broker.repair import Found
    from quintet.log.embedded.engine import EmbeddedLog

T = TypeVar("T")
ANCHORS = "anchors"  # where the broker keeps them unless the configuration says otherwise


class Inline:
    """A scheduler without a loop: everything is done here, in its order, when `run_all` is called."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self.lone_read = LoneRead()  # there are no reads

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    def soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        """Nothing here takes long enough for what is done later."""

    def offload(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def run() -> None:
            try:
                result: T | BaseException = work()
            except Exception as error:
                result = error
            done(result)

        self._calls.append(run)

    def write(self, work: Write, done: Callable[[BaseException | None], None]) -> None:
        self.offload(work, done)

    def write_at_once(self, work: Write) -> float | None:
        return None

    def may_write_at_once(self) -> bool:
        return False

    def wrote_at_once(self, seconds: float) -> None: ...

    def run_all(self) -> None:
        while self._calls:
            self._calls.popleft()()


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--accept-loss", is_flag=True, help="Accept the loss, and recreate the rows of topics.")
@click.option("--anchors", type=click.Path(path_type=Path), help="The file of anchors, if it is not DIR/anchors.")
@click.pass_context
def repair(ctx: click.Context, folder: Path, accept_loss: bool, anchors: Path | None) -> None:
    """Report what is lost of the broker's own tables in DIR; with --accept-loss, let it start without that.

    Stop the broker and copy DIR first: an accepted loss is final. Exit code 1 if something was found and not
    accepted.

    \b
    quintet log repair /var/lib/quintet
    quintet log repair /var/lib/quintet --accept-loss
    """
    from quintet.broker.repair import look, write_rows

    if not (folder / "format").is_file():
        raise DataDirError(f"{folder} is not a data folder of Quintet: there is no file 'format' in it")
    scheduler = Inline()
    log = _open(folder, scheduler, str(anchors or folder / ANCHORS))
    try:
        found = look(log)
        found.journals = list(log.damaged_journals)
        show(found, accept_loss)
        if accept_loss:
            log.accept_losses([loss.topic_id for loss in found.losses])
    finally:
        log.abandon()
    if accept_loss and found.rows:
        log = _open(folder, scheduler, "")
        write_rows(log, found.rows)
        scheduler.run_all()
        log.close(lambda: None)
        scheduler.run_all()
    ctx.exit(0 if found.sound or (accept_loss and not found.nameless) else 1)


def _open(folder: Path, scheduler: Inline, anchors: str) -> "EmbeddedLog":
    from quintet.log.embedded.engine import EmbeddedLog
    from quintet.log.embedded.files.disk import OsDisk

    log = EmbeddedLog(folder, OsDisk(), scheduler, lambda kind, fields: None, chain="off", anchor_file=anchors)
    log.recover()
    return log


def show(found: "Found", accepted: bool) -> None:
    """What is lost and what that means, what is made again, and what to do."""
    if found.sound:
        echo("sound: nothing of the broker's own is lost")
        return
    for loss in found.losses:
        echo(f"lost: {loss.name}: {loss.means}")
        for line in loss.ranges:
            echo(f"  {line}")
    for name in found.journals:
        echo(
            f"lost: {name}: a journal that did not check out. If the power failed, the last rows of any table and the last"
            " records of any topic may be lost; after a mere crash of the broker nothing is"
        )
    for row in found.rows:
        echo(
            f"row made again: topic {row.name!a}, number {row.id}, {row.partitions} partitions: its durability is now fsync, it"
            " keeps everything (no retention), and if it was a queue of Fast it has no key and is made anew with CREATE. If it was"
            f" deleted, remove topics/{row.id:08d} instead"
        )
    for topic_id in found.nameless:
        echo(f"unknown: topics/{topic_id:08d}: no header in it checks out: move it away, then the broker starts")
    if accepted:
        echo("accepted: the broker starts without what is lost. The damaged files were left as they are")
    else:
        echo("nothing was changed: make a copy, then `quintet log repair DIR --accept-loss` does what is said above")
