"""Makes what many partitions wrote durable with few syncs: segments in one pack by one, many files by one call for the file system.

Ten thousand topics that outgrow their packs in the same second each seal a segment and begin a file. By themselves that is five syncs
each, one behind the other; in step with each other it is five for all of them. The order within a partition is the same.

Everything here runs in a disk thread. What a sync that failed means is the writer's business (writer.py).
"""

from collections.abc import Sequence
from typing import Final

from quintet.log.embedded.files.disk import SyncFailed
from quintet.log.embedded.files.packs import place_of
from quintet.log.embedded.files.segment import Segment
from quintet.log.embedded.partitions.roles import Outcome, SegmentSync, Steps
from quintet.model import limits

JOBS_AT_ONCE: Final = 2  # under way; what more is wanted gathers for the next one
JOBS_MAX: Final = 1024  # partitions whose writes are one job: whoever is in it waits for all
JOINED_BYTES_MAX: Final = 1 * limits.MIB  # of one partition: more has a job of its own, and holds nobody up
# Files from which on one call may sync the whole file system: 3 ms for 8 and 14 for 64, where by themselves it was 7 and 50.
FILES_MIN: Final = 8

Job = tuple[SegmentSync, Steps]
Failure = OSError | SyncFailed | None


def write_together(jobs: Sequence[Job], files_min: int) -> list[Outcome | BaseException]:
    """Run the steps of all, each up to where it wants a sync, then sync what they want, and so on. How each ended."""
    outcomes: list[Outcome | BaseException] = [SyncFailed("it did not end")] * len(jobs)
    wanted: dict[int, Segment] = {}

    def advance(number: int, failure: Failure) -> None:
        steps = jobs[number][1]
        try:
            wanted[number] = steps.throw(failure) if failure is not None else next(steps)
        except StopIteration as end:
            outcomes[number] = end.value
        except BaseException as error:  # of one partition: the others go on
            outcomes[number] = error

    for number in range(len(jobs)):
        advance(number, None)
    while wanted:
        stopped, wanted = wanted, {}
        failures = sync_together([(jobs[number][0], segment) for number, segment in stopped.items()], files_min)
        for number, failure in zip(stopped, failures, strict=True):
            advance(number, failure)
    return outcomes


def sync_together(work: Sequence[tuple[SegmentSync, Segment]], files_min: int) -> list[Failure]:
    """Make segments durable, with their names. For each why it is not, or None."""
    files = [segment for _, segment in work if not segment.packed]
    whole = len(files) >= files_min and work[0][0].sync_whole(files)
    packs: dict[str, Failure] = {}
    failures: list[Failure] = []
    for writer, segment in work:
        place = place_of(segment.path) if segment.packed else None
        if place is not None and place.pack in packs:
            failure = packs[place.pack]
        else:
            failure = None if whole and place is None else _sync(writer, segment)
        if place is not None:
            packs[place.pack] = failure
        segment.named = segment.named or failure is None
        failures.append(failure)
    return failures


def _sync(writer: SegmentSync, segment: Segment) -> Failure:
    try:
        writer.sync_segment(segment)
    except (OSError, SyncFailed) as error:
        return error
    return None
