"""What the broker remembers of pipelines: the last report of each, for a day, and orders to stop."""

from dataclasses import fields, replace

import pytest

from quintet.broker.doors import pipelines
from quintet.broker.doors.pipelines import FORGET_US, PIPELINES_MAX, PIPELINES_OF_OWNER_MAX, Pipelines, Report
from quintet.flight import wire
from quintet.model.errors import BadName, BadRequest, LimitExceeded

RUNNING = Report("copy", "archive", "running", started_us=5)


def test_a_report_has_the_fields_of_the_wire() -> None:
    assert tuple(field.name for field in fields(Report)) == wire.PipelineReport.__struct_fields__


def test_the_last_report_counts_and_is_forgotten_after_a_day() -> None:
    known = Pipelines()
    known.report("ann", RUNNING, 1)
    known.report("ann", replace(RUNNING, rows_in=3), 10)
    known.report("bob", replace(RUNNING, name="other"), 20)
    assert [(s.owner, s.report.rows_in, s.heard_us) for s in known.seen("ann", False, 20)] == [("ann", 3, 10)]
    assert [s.owner for s in known.seen("ann", True, 20)] == ["ann", "bob"]
    assert [s.owner for s in known.seen("", True, 10 + FORGET_US)] == ["bob"]
    assert known.seen("", True, 20 + FORGET_US) == []
    assert len(known) == 0


def test_an_order_to_stop_is_told_until_it_is_followed() -> None:
    known = Pipelines()
    assert not known.report("ann", RUNNING, 1)
    known.stop("ann", False, "copy", 2)
    assert known.report("ann", RUNNING, 3)
    assert known.report("ann", replace(RUNNING, state="restarting"), 4)
    assert not known.report("ann", replace(RUNNING, state="stopped"), 5)
    known.stop("ann", False, "copy", 6)  # it does not run: nothing to stop
    assert not known.report("ann", replace(RUNNING, started_us=9), 7)
    known.stop("ann", False, "copy", 8)
    assert not known.report("ann", replace(RUNNING, started_us=10), 9)  # begun anew meanwhile


def test_only_the_owner_or_an_administrator_stops() -> None:
    known = Pipelines()
    known.report("ann", RUNNING, 1)
    known.report("bob", RUNNING, 1)
    with pytest.raises(BadRequest, match="no pipeline"):
        known.stop("eve", False, "copy", 2)
    known.stop("bob", True, "copy", 2)
    assert (known.report("ann", RUNNING, 3), known.report("bob", RUNNING, 3)) == (False, True)
    known.stop("eve", True, "copy", 4)
    assert known.report("ann", RUNNING, 5)


def test_there_is_room_for_so_many() -> None:
    known = Pipelines()
    for number in range(PIPELINES_OF_OWNER_MAX):
        known.report("ann", replace(RUNNING, name=str(number)), 1)
    with pytest.raises(LimitExceeded, match="PIPELINES_OF_OWNER_MAX"):
        known.report("ann", RUNNING, 1)
    known.report("ann", replace(RUNNING, name="0"), 1)
    for number in range(PIPELINES_MAX - PIPELINES_OF_OWNER_MAX):
        known.report(f"user-{number}", RUNNING, 1)
    with pytest.raises(LimitExceeded, match="PIPELINES_MAX"):
        known.report("one more", RUNNING, 1)
    known.report("one more", RUNNING, 1 + FORGET_US)


def test_what_ended_makes_room_for_what_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "PIPELINES_MAX", 3)
    monkeypatch.setattr(pipelines, "PIPELINES_OF_OWNER_MAX", 2)
    known = Pipelines()
    known.report("ann", replace(RUNNING, name="a", state="failed"), 1)
    for name in ("b", "c"):
        known.report("ann", replace(RUNNING, name=name), 2)
    known.report("ben", replace(RUNNING, name="d", state="finished"), 3)
    known.report("eve", replace(RUNNING, name="e"), 4)
    assert [status.report.name for status in known.seen("", True, 5)] == ["b", "c", "e"]
    with pytest.raises(LimitExceeded, match="PIPELINES_MAX"):
        known.report("ben", RUNNING, 6)


@pytest.mark.parametrize(
    ("report", "error"),
    [
        (replace(RUNNING, name=""), BadName),
        (replace(RUNNING, name="x" * (pipelines.NAME_BYTES_MAX + 1)), BadName),
        (replace(RUNNING, kind="a\nb"), BadName),
        (replace(RUNNING, state="dancing"), BadRequest),
        (replace(RUNNING, detail="x" * (pipelines.DETAIL_BYTES_MAX + 1)), BadRequest),
        (replace(RUNNING, lag=-1), BadRequest),
        (replace(RUNNING, rows_per_second=float("nan")), BadRequest),
        (replace(RUNNING, batch_ms=float("inf")), BadRequest),
    ],
)
def test_reports_that_make_no_sense(report: Report, error: type[Exception]) -> None:
    with pytest.raises(error):
        Pipelines().report("ann", report, 1)
