"""Patterns of topic names: what matches, what never does, and what is refused."""

import re
from fnmatch import translate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.broker.slices import finish
from quintet.broker.topics import patterns
from quintet.broker.topics.patterns import (
    MATCHES_MAX,
    PATTERN_BYTES_MAX,
    PATTERN_STARS_MAX,
    PATTERNS_MAX,
    compiled,
    matching,
)
from quintet.model.errors import BadRequest, LimitExceeded, QuintetError, TooLarge

DEAD = ".dlq"


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        ("shop.*", "shop. shop.orders shop.a.b", "shop shopping xshop.a"),
        ("*", "a a.b a/b/c", "__topics cache/a/b/c peerbus/bob reply/x a.dlq"),
        ("*.dlq", "a.dlq", "a __x.dlq cache/a/b/c.dlq"),
        ("a*b*c", "abc axbxc abbcc", "ab acb abcx"),
        ("cache/*", "cache/a/b/c", "a cachex"),
        ("peerbus/*", "peerbus/bob", "a"),
        ("orders", "orders", "order orders2"),
        ("shop.dlq", "shop.dlq", "shop"),
        (r"regex:shop\.\d+", "shop.1 shop.42", "shop.x xshop.1 shop.1x shopx1"),
        (r"regex:.*\.dlq", "a.dlq", "a"),
        ("regex:(a|b)c?", "a b ac bc", "c abc"),
        ("a.*", "a.b", "axb"),
    ],
)
def test_what_matches(pattern: str, matches: str, does_not: str) -> None:
    test = compiled(pattern, DEAD)
    assert [name for name in matches.split() if not test(name)] == []
    assert [name for name in does_not.split() if test(name)] == []


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=8))
def test_a_star_is_that_of_the_shell(pattern: str, name: str) -> None:
    assert compiled(pattern, DEAD)(name) == bool(re.fullmatch(translate(pattern), name))


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("", TooLarge),
        ("a" * (PATTERN_BYTES_MAX + 1), TooLarge),
        ("*" * (PATTERN_STARS_MAX + 2), BadRequest),
        ("*" * 1_000, BadRequest),
        ("a*" * 500, BadRequest),
        ("regex:(", BadRequest),
        ("regex:", TooLarge),
        ("regex:" + "((a{1,1000}){1,1000}){1,1000}", BadRequest),
        ("regex:(?=a)", BadRequest),
        ("regex:" + "a" * (PATTERN_BYTES_MAX + 1), TooLarge),
    ],
)
def test_bombs_and_nonsense_are_refused(pattern: str, error: type[QuintetError]) -> None:
    with pytest.raises(error):
        compiled(pattern, DEAD)


def test_what_takes_others_exponential_time_is_linear_here() -> None:
    name = "a" * 255
    assert not compiled("regex:(a*)*b", DEAD)(name)
    assert not compiled("*a" * (PATTERN_STARS_MAX - 1) + "*b", DEAD)(name)


def topics(*names: str) -> Any:
    return [SimpleNamespace(name=name) for name in names]


def test_rights_are_asked_for_each_topic() -> None:
    asked: list[str] = []

    def may_see(name: str) -> bool:
        asked.append(name)
        return name != "shop.secret"

    found = finish(matching(["shop.*", "b"], topics("shop.b", "shop.secret", "b", "c", "shop.a"), may_see, DEAD))
    assert found == ["b", "shop.a", "shop.b"]
    assert sorted(asked) == ["b", "shop.a", "shop.b", "shop.secret"]


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MATCHES_MAX", 100)
    many = topics(*(f"t{number}" for number in range(101)))
    with pytest.raises(LimitExceeded, match="narrower"):
        finish(matching(["t*"], many, lambda _: True, DEAD))
    assert len(finish(matching(["t*"], many[:100], lambda _: True, DEAD))) == 100
    with pytest.raises(BadRequest, match="101 patterns"):
        finish(matching(["a"] * (PATTERNS_MAX + 1), many, lambda _: True, DEAD))
    assert MATCHES_MAX == 10_000
