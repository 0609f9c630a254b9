"""Long work in slices: one slice of one job per turn, errors and results told once, nothing for who has gone."""

import pytest

from quintet.broker import slices as module
from quintet.broker.slices import STEPS_AT_ONCE_MAX, Elsewhere, Slices, Steps, Unwanted, finish, unless_unwanted
from quintet.model.errors import Busy
from quintet.model.tasks import start
from quintet.testing.sim import SimScheduler


def counting(until: int, seen: list[int], error: Exception | None = None) -> Steps[int]:
    for number in range(until):
        seen.append(number)
        yield
    if error is not None:
        raise error
    return until


def test_short_work_is_done_within_the_call() -> None:
    told: list[object] = []
    Slices(SimScheduler()).finish(counting(5, [])).then(lambda result, error: told.append((result, error)))
    assert told == [(5, None)]
    assert finish(counting(7, [])) == 7


def test_one_slice_of_one_job_runs_per_turn() -> None:
    scheduler = SimScheduler()
    slices = Slices(scheduler)
    told: list[str] = []
    first, second = list[int](), list[int]()
    most = STEPS_AT_ONCE_MAX
    slices.finish(counting(3 * most, first)).then(lambda result, error: told.append(f"first {result} {error}"))
    slices.finish(counting(2 * most, second)).then(lambda result, error: told.append(f"second {result} {error}"))
    sizes = []
    while len(slices):
        scheduler.turn()
        sizes.append((len(first) // most, len(second) // most))
    assert sizes == [(2, 1), (2, 2), (3, 2), (3, 2), (3, 2)]
    assert told == [f"second {2 * most} None", f"first {3 * most} None"]


def test_a_slice_ends_when_its_time_is_over() -> None:
    scheduler = SimScheduler()
    slices = Slices(scheduler)
    seen: list[int] = []

    def slow() -> Steps[None]:
        for number in range(10):
            scheduler.time += module.SLICE_US
            seen.append(number)
            yield

    slices.finish(slow())
    assert seen == [0]
    scheduler.turn()
    assert seen == [0, 1]


def test_an_error_is_told_and_the_next_job_goes_on() -> None:
    scheduler = SimScheduler()
    slices = Slices(scheduler)
    told: list[object] = []
    failure = ValueError("planted")
    slices.finish(counting(STEPS_AT_ONCE_MAX + 1, [], failure)).then(lambda *found: told.append(found))
    slices.finish(counting(STEPS_AT_ONCE_MAX + 1, [])).then(lambda *found: told.append(found))
    scheduler.run_until_idle()
    assert told == [(None, failure), (STEPS_AT_ONCE_MAX + 1, None)]


def test_nothing_is_done_for_who_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SimScheduler()
    slices = Slices(scheduler)
    told: list[object] = []
    seen: list[int] = []
    job = slices.finish(counting(10 * STEPS_AT_ONCE_MAX, seen), lambda: False)
    job.then(unless_unwanted(lambda *found: told.append(found)))
    scheduler.run_until_idle()
    assert (told, len(seen), len(slices)) == ([], STEPS_AT_ONCE_MAX, 0)
    monkeypatch.setattr(module, "JOBS_MAX", 0)
    with pytest.raises(Busy, match="the limit is 0"):
        slices.finish(counting(1, []))


def test_who_waits_for_an_unwanted_job_is_told_and_the_caller_is_not() -> None:
    scheduler = SimScheduler()
    slices, elsewhere = Slices(scheduler), Elsewhere(scheduler)
    ended: list[str] = []
    told: list[object] = []

    async def verb(name: str) -> None:
        try:
            if name == "slices":
                await slices.finish(counting(10 * STEPS_AT_ONCE_MAX, []), lambda: False)
            else:
                await elsewhere.finish(lambda: 1, lambda: False)
        except Unwanted:
            ended.append(name)
            raise

    for name in ("slices", "elsewhere"):
        start(verb(name)).then(unless_unwanted(lambda *found: told.append(found)))
    scheduler.run_until_idle()
    assert (sorted(ended), told) == (["elsewhere", "slices"], [])


def test_work_elsewhere_returns_or_raises_where_it_is_awaited() -> None:
    scheduler = SimScheduler()
    slices, elsewhere = Slices(scheduler), Elsewhere(scheduler)
    told: list[tuple[object, Exception | None]] = []

    async def verb(divisor: int) -> int:
        return await elsewhere.scan(lambda: 6 // divisor, slices, lambda found: counting(found, []), lambda: True)

    for divisor in (2, 0):
        start(verb(divisor)).then(lambda *found: told.append(found))
    scheduler.run_until_idle()
    assert told[0] == (3, None)
    assert isinstance(told[1][1], ZeroDivisionError)
