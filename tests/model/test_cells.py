"""Which cell a topic belongs to: written down, because it must stay so as long as a folder lives."""

import pytest

from quintet.model.cells import CellMap, NamePlace, parse_place
from quintet.model.errors import ConfigError
from quintet.model.keys import fnv1a

# name: its cell of 2, of 3, of 64
VECTORS = {
    "orders": (1, 1, 47),
    "demo": (0, 1, 18),
    "a": (0, 1, 18),
    "grün": (0, 0, 50),
    "shop/eu": (1, 1, 17),
    "t0": (1, 0, 39),
    "t1": (0, 1, 18),
    "t2": (0, 0, 62),
}
SUFFIX = "-dlq"
SPREAD_NAMES = 1_000


@pytest.mark.parametrize("name", VECTORS)
def test_a_name_belongs_to_the_cell_that_is_written_down(name: str) -> None:
    assert tuple(CellMap(count).cell_of(name.encode()) for count in (2, 3, 64)) == VECTORS[name]


def test_a_number_of_fast_says_the_same_cell_as_its_name() -> None:
    cells = CellMap(7, (), SUFFIX)
    for number in range(SPREAD_NAMES):
        name = f"queue-{number}".encode()
        assert cells.cell_of_number(fnv1a(name)) == cells.cell_of(name)


def test_names_are_spread_over_all_cells() -> None:
    cells = CellMap(4)
    counts = [0] * 4
    for number in range(SPREAD_NAMES):
        counts[cells.cell_of(f"topic-{number}".encode())] += 1
    assert min(counts) > SPREAD_NAMES / 4 * 0.75


@pytest.mark.parametrize("name", ["acme/shop/orders", "peerbus/ann", "cache/a/b/c", "__audit"])
def test_names_of_doors_that_are_not_shared_out_are_in_cell_0(name: str) -> None:
    assert {CellMap(count).cell_of(name.encode()) for count in range(2, 65)} == {0}


def test_dead_letters_are_where_their_topic_is() -> None:
    cells = CellMap(64, (NamePlace("far.", 9),), SUFFIX)
    for name in ("orders", "far.away", "a/b/c"):
        assert cells.cell_of((name + SUFFIX).encode()) == cells.cell_of(name.encode())


def test_the_longest_place_counts_before_the_hash() -> None:
    cells = CellMap(4, (NamePlace("acme/", 1), NamePlace("acme/shop/", 2), NamePlace("x", 3)))
    found = {name: cells.cell_of(name.encode()) for name in ("acme/a/b", "acme/shop/b", "x1", "peerbus/x")}
    assert found == {"acme/a/b": 1, "acme/shop/b": 2, "x1": 3, "peerbus/x": 0}


def test_numbers_of_subscriptions_say_their_cell() -> None:
    assert [CellMap(3).cell_of_subscription(id) for id in (1, 2, 3, 4)] == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders", "is not PREFIX=CELL"),
        ("=1", "is not PREFIX=CELL"),
        ("a=b", "is not PREFIX=CELL"),
        ("peerbus/=1", "always in cell 0"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_place(text)


def test_cells_that_are_not_there_are_refused() -> None:
    assert parse_place("a=b=1") == NamePlace("a=b", 1)
    for count in (1, 65):
        with pytest.raises(ConfigError, match="2 to 64 are possible"):
            CellMap(count)
    with pytest.raises(ConfigError, match="no such cell"):
        CellMap(2, (NamePlace("a", 2),))
