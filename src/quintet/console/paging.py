"""Cuts lists into pages: walks what there is in slices, keeps what has a text in it, and gives one page with the total."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from quintet.broker.slices import Steps, in_order
from quintet.console.call import Call
from quintet.model.errors import BadRequest

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500
FILTER_CHARS_MAX: Final = 1_000

Row = dict[str, Any]  # goes to JSON as it is
T = TypeVar("T")


class List(msgspec.Struct, forbid_unknown_fields=True):
    """A page of a list; `filter` is a part of one of its words, in any case."""

    filter: str = ""
    skip: int = 0
    limit: int = PAGE_DEFAULT


def page(skip: int, limit: int) -> tuple[int, int]:
    """(first, last) of a page; BadRequest if it is none."""
    if skip < 0 or not 1 <= limit <= PAGE_MAX:
        raise BadRequest(f"skip is {skip} and limit {limit}: skip is 0 or more, limit 1 to {PAGE_MAX}")
    return skip, skip + limit


def bounded(text: str) -> str:
    """A filter; BadRequest if it is too long."""
    if len(text) > FILTER_CHARS_MAX:
        raise BadRequest(f"the filter has {len(text)} characters; the limit is {FILTER_CHARS_MAX}")
    return text


def folded(text: str) -> str:
    """A filter as it is compared."""
    return bounded(text).casefold()


def has(wanted: str, words: Iterable[str]) -> bool:
    """Whether a folded filter is in one of these words."""
    return not wanted or any(wanted in word.casefold() for word in words)


def arranged(items: Sequence[T], key: Callable[[T], Any], *, down: bool = False) -> Steps[list[T]]:
    """The same in order, in steps: sorting a million at once would keep the loop for a second."""
    found: list[T] = []
    for item in in_order(items, key):
        if item is not None:
            found.append(item)
        yield
    if down:
        found.reverse()
    return found


async def listed(
    call: Call, ask: List, rows: Iterable[Row | None], words: tuple[str, ...], order: Callable[[Row], Any] | None = None
) -> Row:
    """One page of these rows: those whose fields `words` have the filter in them. None among them is a pause and no row."""
    first, last = page(ask.skip, ask.limit)
    wanted = folded(ask.filter)

    def steps() -> Steps[list[Row]]:
        found = []
        for row in rows:
            if row is not None and has(wanted, (str(row[word]) for word in words)):
                found.append(row)
            yield
        return found if order is None else (yield from arranged(found, order))

    found = await call.sliced(steps())
    return {"total": len(found), "skip": first, "rows": found[first:last]}
