"""PlaceRows holds what a dict would, in pages: rows of first partitions, of others, deleted ones, and all of them in one piece."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.log.embedded.files.place_rows import PAGE_ROWS, PARTITION_BITS, PlaceRows

SIZE = 5
TOPICS = st.one_of(st.integers(0, 2 * PAGE_ROWS), st.sampled_from([10 * PAGE_ROWS - 1, 10 * PAGE_ROWS, (1 << 32) - 1]))
PLACES = st.builds(
    lambda topic, partition: topic << PARTITION_BITS | partition, TOPICS, st.sampled_from([0, 0, 0, 1, 999])
)
STEPS = st.lists(st.tuples(PLACES, st.one_of(st.none(), st.binary(min_size=SIZE, max_size=SIZE))), max_size=60)


def difference(rows: PlaceRows, model: Mapping[int, bytes]) -> str:
    """What of these rows is not as in the model."""
    joined = rows.joined()
    pieces = sorted(joined[at : at + SIZE] for at in range(0, len(joined), SIZE))
    if dict(rows) != dict(model) or len(rows) != len(model):
        return "rows"
    return "" if pieces == sorted(model.values()) else "joined"


@given(STEPS)
def test_rows_in_pages_are_those_of_a_dict(steps: list[tuple[int, bytes | None]]) -> None:
    rows, model = PlaceRows(SIZE), dict[int, bytes]()
    for place, row in steps:
        if row is None:
            assert rows.pop(place, None) == model.pop(place, None)
        else:
            rows[place] = model[place] = row
        assert rows.find(place) == model.get(place)
        assert rows.find(place + 1) == model.get(place + 1)
    assert difference(rows, model) == ""


def test_a_full_page_is_joined_as_it_lies_there() -> None:
    model = {topic << PARTITION_BITS: topic.to_bytes(SIZE, "big") for topic in range(PAGE_ROWS)}
    rows = PlaceRows(SIZE)
    rows.update(model)
    assert difference(rows, model) == ""
    del rows[7 << PARTITION_BITS], model[7 << PARTITION_BITS]
    assert difference(rows, model) == ""


def test_a_page_goes_with_its_last_row() -> None:
    rows = PlaceRows(SIZE)
    rows[3 << PARTITION_BITS] = rows[4 << PARTITION_BITS] = bytes(SIZE)  # a row of zeros is a row
    del rows[3 << PARTITION_BITS]
    assert rows._pages and rows.find(4 << PARTITION_BITS) == bytes(SIZE)
    del rows[4 << PARTITION_BITS]
    assert not rows._pages and not rows


def test_a_row_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 5 bytes, not 4"):
        PlaceRows(SIZE)[1] = b"four"


def test_the_comparison_notices_a_row_too_many() -> None:
    rows = PlaceRows(SIZE)
    rows[1 << PARTITION_BITS] = b"first"
    assert difference(rows, {}) == "rows"
    assert difference(rows, {1 << PARTITION_BITS: b"other"}) == "rows"
