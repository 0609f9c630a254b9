"""Filters of a fetch: what each form passes, what is refused, and that no text costs more than it should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet import kernel
from quintet.broker.topics.filters import FILTER_BYTES_MAX, MATCH_BYTES_MAX, SLOW_BYTES_MAX, compile
from quintet.model.errors import BadRequest

JSON = b'{"a": {"b": [1, {"c": "x"}], "n": null, "t": true, "f": 5.0}, "with space": 2, "k-1": 3}'

PASSES = [
    (b"", b"k", b"anything", True),
    (b"$.a", b"", JSON, True),
    (b"$.a.b[0]", b"", JSON, True),
    (b"$.a.b[2]", b"", JSON, False),
    (b"$.a.b[1].c", b"", JSON, True),
    (b"$.a.n", b"", JSON, True),
    (b"$.a.b.c", b"", JSON, False),
    (b"$.k-1", b"", JSON, True),
    (b'$.a["b"][1]["c"] == "x"', b"", JSON, True),
    (b'$.a.b[1].c = "x"', b"", JSON, True),
    (b'$.a.b[1].c="y"', b"", JSON, False),
    (b"$.a.b[0] == 1", b"", JSON, True),
    (b"$.a.t == 1", b"", JSON, False),
    (b"$.a.t == true", b"", JSON, True),
    (b"$.a.n == null", b"", JSON, True),
    (b"$.a.x == null", b"", JSON, False),
    (b"$.a.f == 5", b"", JSON, True),
    (b"$.a", b"", b"not json", False),
    (b"$.a", b"", b"[1]", False),
    (b"$.a", b"", None, False),
    (b"key:order-7", b"order-7", b"", True),
    (b"key:order-7", b"order-77", b"", False),
    (b"key:", None, b"x", True),
    (b"text:NeedLe", b"", b"a needle in", True),
    (b"text:needle", b"THE NEEDLE", b"", True),
    (b"text:n.*le", b"", b"needle", False),
    (b"text:STRASSE", b"", "die Straße".encode(), False),
    ("text:ÄRGER".encode(), b"", "viel ärger".encode(), True),
    ("text:ä".encode(), b"", b"\xff\xfe", False),
    (b"regex:^a.c$", b"", b"abc", True),
    (b"regex:^a.c$", b"abc", b"", True),
    (b"regex:^a.c$", b"", b"ABC", False),
    (b"regex:(?i)^a.c$", b"", b"ABC", True),
    (b"needle", b"", b"a NEEDLE", True),
    (b"^n.*e$", b"", b"needle", True),
    (b"(broken", b"", b"is (Broken here", True),
    (b"(broken", b"", b"broken", False),
    (b"a+b", b"", b"1 A+B 2", True),
    (b"a+b", b"", b"aaab", True),
    (b"\\d{3}", b"123", b"", True),
    (b"$x", b"", b"costs $X", True),
]


@pytest.mark.parametrize(("text", "key", "value", "passes"), PASSES)
def test_forms(text: bytes, key: bytes | None, value: bytes | None, passes: bool) -> None:
    found = compile(text)
    assert found.matches(key, value) is passes
    assert found.empty is (text == b"")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"x" * (FILTER_BYTES_MAX + 1), "at most 1024 bytes"),
        (b"x" * (64 << 10), "at most 1024 bytes"),
        (b"\xff", "UTF-8"),
        (b"regex:(", "not valid"),
        (b"regex:(?=look)", "not valid"),
        (b"regex:(a)\\1", "not valid"),
        (b"regex:a{1000}{1000}", "not valid"),
        (b"$.", "not valid at character 1"),
        (b"$..a", "not valid"),
        (b"$.a[*]", "not valid at character 3"),
        (b"$.a > 5", "not valid"),
        (b"$.a == x", "not JSON"),
        (b"$.a ==", "not JSON"),
        (b"$" + b".a" * 33, "not valid"),
        (b"$.a == " + b"[" * 1000, "not JSON"),
    ],
)
def test_what_is_refused_says_why(text: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        compile(text)


@given(st.binary(max_size=64), st.binary(max_size=64), st.binary(max_size=64))
def test_any_text_is_a_filter_or_a_bad_request(text: bytes, key: bytes, value: bytes) -> None:
    for prefix in (b"", b"regex:", b"$.", b"text:", b"key:"):
        try:
            found = compile(prefix + text)
        except BadRequest as error:
            assert str(error)
            continue
        assert found.matches(key, value) in (True, False)


HOSTILE = [
    (b"regex:(a+)+$", b"a" * 500_000 + b"!"),
    (b"(a+)+$", b"a" * 500_000 + b"!"),
    (b"regex:(.*a){1,30}b", b"a" * 500_000),
    (b"regex:(x+x+)+y", b"x" * 500_000),
    (b"regex:(a|b)*a[ab]{30}c", b"ab" * 50_000),
    (b"text:" + b"a" * 1000 + b"b", b"a" * MATCH_BYTES_MAX),
    (b"$.a", b'{"a":' * 200_000),
    (b"$.a", b"[" * SLOW_BYTES_MAX),
    (b"$.a", b'{"a":' + b"9" * (SLOW_BYTES_MAX - 10) + b"}"),
    (b"$.a", b"[" + b"{}," * (SLOW_BYTES_MAX // 3 - 2) + b"{}]"),
]


@pytest.mark.parametrize(("text", "value"), HOSTILE)
def test_hostile_texts_end(text: bytes, value: bytes) -> None:
    """Python's own `re` would take years for the first of them, and a parser without a bound its whole stack."""
    assert compile(text).matches(b"!", value) is False


def test_a_long_pattern_is_tried_on_few_bytes_and_a_longer_one_not_at_all() -> None:
    short, long = compile(b"regex:a.c"), compile(b"regex:[ab]*a[ab]{300}c")
    assert 25_000 < short.scan_bytes_max <= MATCH_BYTES_MAX
    assert 2_000 <= long.scan_bytes_max < 10_000
    assert short.matches(b"", b"abc" + bytes(25_000))
    assert not short.matches(b"", b"abc" + bytes(short.scan_bytes_max))
    assert short.matches(b"abc", b"abc" + bytes(short.scan_bytes_max))
    too_large = b"((a|b){0,30}){0,30}c"  # four milliseconds per KiB of "abab..."
    with pytest.raises(BadRequest, match="too large"):
        compile(b"regex:" + too_large)
    assert compile(too_large).matches(b"", b"text that has " + too_large)


def test_values_over_the_bounds_do_not_match() -> None:
    assert compile(b"text:end").matches(b"", bytes(MATCH_BYTES_MAX - 3) + b"end")
    assert not compile(b"text:end").matches(b"", bytes(MATCH_BYTES_MAX) + b"end")
    assert compile(b"text:end").matches(b"the end", bytes(MATCH_BYTES_MAX) + b"end")
    assert not compile(b"$.a").matches(b"", b'{"a":"' + b"x" * SLOW_BYTES_MAX + b'"}')
    assert not compile("text:é".encode()).matches(b"", "é".encode() * SLOW_BYTES_MAX)
    assert compile(b"$.a").scan_bytes_max < compile(b"a").scan_bytes_max


SHORT = st.binary(max_size=6) | st.sampled_from([b"ab", b"a b", b"AB", b"b\n", b"", "\u00e4".encode()])
TEXTS = [
    "ab",
    "A",
    "regex:a.?b",
    "regex:[ab]+",
    "regex:(?i)a|b",
    "regex:^a",
    "regex:a$",
    "regex:\\bb",
    "key:ab",
    "a+b",
    "(b",
    "text:\u00c4",
]


@given(st.lists(st.tuples(SHORT, SHORT), min_size=1, max_size=5), st.sampled_from(TEXTS))
def test_a_batch_that_is_passed_over_has_no_record_that_matches(records: list[tuple[bytes, bytes]], text: str) -> None:
    keys, values = [key for key, _ in records], [value for _, value in records]
    headers = [((key, value),) for key, value in records]
    filter = compile(text.encode())
    data = bytes(kernel.build(list(values), list(keys), list(headers)))
    matched = any(filter.matches(key, value) for key, value in records)
    assert filter.may_be_in(data) or not matched


def test_most_filters_are_quick_and_those_that_look_around_are_not() -> None:
    quick = {text: compile(text.encode()).quick for text in TEXTS}
    assert [text for text, found in quick.items() if not found] == ["regex:^a", "regex:a$", "regex:\\bb", "text:\u00c4"]
    assert not compile(b"needle").may_be_in(b"hay" * 100) and compile(b"needle").may_be_in(b"a NEEDLE")
    assert not compile(b"$.a == 5").quick and compile(b"$.a == 5").may_be_in(b"")
