"""Holds the last report of each pipeline that runs beside the broker: for `status`, /metrics and orders to stop.

A pipeline is a program of its own (a Spark query) that reports every few seconds under a name; the name belongs to who
reports it. Nothing here is durable: what runs reports again soon after a restart of the broker, and what does not report
for a day is forgotten. An order to stop is the answer to the next report, until the pipeline says that it ended, or
begins anew.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from quintet.model.errors import BadName, BadRequest, LimitExceeded

PIPELINES_MAX: Final = 1_000
PIPELINES_OF_OWNER_MAX: Final = 100
NAME_BYTES_MAX: Final = 255
DETAIL_BYTES_MAX: Final = 1_000
FORGET_US: Final = 24 * 3600 * 1_000_000
STATES: Final = ("starting", "running", "restarting", "failed", "stopped", "finished")
ENDED: Final = ("failed", "stopped", "finished")
_FIGURE_MAX: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Report:
    """How a pipeline says it is. Counts are since it began; `lag` is records not yet read."""

    name: str
    kind: str
    state: str
    detail: str = ""
    started_us: int = 0
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_per_second: float = 0.0
    batch_ms: float = 0.0
    lag: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0


class Status(msgspec.Struct):
    """The last report and who sent it when. `stop_of` is the start (started_us) of the run that shall stop."""

    report: Report
    owner: str
    heard_us: int  # by the monotonic clock
    stop_of: int | None = None

    @property
    def up(self) -> bool:
        return self.report.state not in ENDED


class Pipelines:
    """All that reported within the last day, the one silent for longest first."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[tuple[str, str], Status] = OrderedDict()
        self._owned: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_name)

    def report(self, owner: str, report: Report, monotonic: int) -> bool:
        """Take a report; True: it shall stop."""
        _check(report)
        self._forget(monotonic)
        place = (owner, report.name)
        known = self._by_name.get(place)
        if known is None:
            self._check_room(owner)
            known = self._by_name[place] = Status(report, owner, monotonic)
            self._owned[owner] += 1
        known.report, known.heard_us = report, monotonic
        self._by_name.move_to_end(place)
        if known.stop_of is not None and (not known.up or report.started_us != known.stop_of):
            known.stop_of = None
        return known.stop_of is not None

    def seen(self, owner: str, everything: bool, monotonic: int) -> list[Status]:
        """Those of this owner, or all, by owner and name."""
        self._forget(monotonic)
        return [
            status for (whose, _), status in sorted(self._by_name.items(), key=_place) if everything or whose == owner
        ]

    def stop(self, owner: str, everything: bool, name: str, monotonic: int) -> None:
        """Let the pipeline of this name stop: the asker's own; if it has none and may, all of that name."""
        self._forget(monotonic)
        found = [self._by_name[owner, name]] if (owner, name) in self._by_name else []
        if not found and everything:
            found = [status for (_, known), status in self._by_name.items() if known == name]
        if not found:
            raise BadRequest(
                f"there is no pipeline {name[:NAME_BYTES_MAX]!r}", hint="`quintet pipeline status` lists what runs"
            )
        for status in found:
            if status.up:
                status.stop_of = status.report.started_us

    def _check_room(self, owner: str) -> None:
        """Those that ended make room for what begins."""
        if self._owned[owner] >= PIPELINES_OF_OWNER_MAX and not self._give_up(owner):
            raise LimitExceeded(
                f"{owner} has {PIPELINES_OF_OWNER_MAX} pipelines, which is the limit (PIPELINES_OF_OWNER_MAX)"
            )
        if len(self._by_name) >= PIPELINES_MAX and not self._give_up(""):
            raise LimitExceeded(f"there are {PIPELINES_MAX} pipelines, which is the limit (PIPELINES_MAX)")

    def _give_up(self, owner: str) -> bool:
        """Forget the one that ended first, of this owner or (without one) of all. False if all are up."""
        ended = (place for place, status in self._by_name.items() if not status.up and owner in ("", place[0]))
        place = next(ended, None)
        if place is not None:
            self._remove(place)
        return place is not None

    def _forget(self, monotonic: int) -> None:
        while self._by_name:
            place, status = next(iter(self._by_name.items()))
            if monotonic - status.heard_us < FORGET_US:
                return
            self._remove(place)

    def _remove(self, place: tuple[str, str]) -> None:
        del self._by_name[place]
        self._owned[place[0]] -= 1
        if not self._owned[place[0]]:
            del self._owned[place[0]]


def _place(item: tuple[tuple[str, str], Status]) -> tuple[str, str]:
    return item[0]


def _check(report: Report) -> None:
    for what, text in (("name", report.name), ("kind", report.kind)):
        if not 1 <= len(text.encode(errors="replace")) <= NAME_BYTES_MAX or not text.isprintable():
            raise BadName(f"the {what} of a pipeline has 1 to {NAME_BYTES_MAX} bytes, all of them printable")
    if report.state not in STATES:
        raise BadRequest(f"{report.state[:20]!r} is not a state of a pipeline", hint=f"one of {', '.join(STATES)}")
    if len(report.detail.encode(errors="replace")) > DETAIL_BYTES_MAX:
        raise BadRequest(f"the detail of a report has at most {DETAIL_BYTES_MAX} bytes")
    figures = (
        report.started_us, report.batches, report.rows_in, report.rows_out, report.rows_per_second, report.batch_ms,
        report.lag, report.state_rows, report.state_bytes, report.restarts,
    )  # fmt: skip
    if not all(0 <= figure <= _FIGURE_MAX for figure in figures):
        raise BadRequest("the figures of a report are 0 or more, and numbers")
