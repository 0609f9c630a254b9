"""Native and pure must be one kernel for Fast TCP too: equal results on valid, mutated and cut packets in any chunking.

What a split owes is also compared with the fields the packets were made from, so that the twins cannot be wrong alike.
The environment variable QUINTET_DIFF_CASES multiplies the number of cases. The seed is fixed and named in a failure.
"""

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.kernel import pure
from tests.kernel import fast_packets, generate
from tests.kernel.fast_packets import NOW, PAYLOAD_MAX, SAMES, TOPICS
from tests.kernel.frames import native_twin
from tests.kernel.test_differential import CASES, EXAMPLES, REFUSED, SEED, same, valid_batch
from tests.wire import fast

MAX_CUTS = 6
KNOWN = {jwt: fast_packets.origin_of(jwt) for jwt in fast_packets.TOKENS}


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


def cuts_of(r: random.Random, length: int) -> list[int]:
    return sorted(r.randrange(length + 1) for _ in range(r.randrange(MAX_CUTS)))


def reads(native: ModuleType, r: random.Random) -> None:
    fields = fast_packets.requests(r, r.randrange(1, 40))
    data = b"".join(map(fast.request, fields))
    same_as = r.choice(SAMES)
    whole = fast_packets.expected(fields, same_as), len(data), 0
    assert fast_packets.read_all(native, data, cuts_of(r, len(data)), same_as) == whole
    some = {jwt: origin for jwt, origin in KNOWN.items() if r.random() < 0.8}
    for text in (data, generate.mutated(r, data), data[r.randrange(len(data)) :]):
        start, most = r.choice((0, 0, r.randrange(len(text) + 1))), r.choice((PAYLOAD_MAX, PAYLOAD_MAX, 60))
        got = same(native, "fast_split", text, start, most, some, TOPICS, NOW, same_as)
        assert (got[4] is None) is (same_as is None)
        assert start <= got[1] <= len(text) and got[2] in (0, 1, 2) and not (got[2] and got[3] is not None)
        same(native, "fast_received", text, start, most)
        whole = fast_packets.read_all(pure, text, [], same_as)
        assert fast_packets.read_all(native, text, cuts_of(r, len(text)), same_as) == whole


def replies(native: ModuleType, r: random.Random) -> None:
    data = b"".join(fast_packets.replies(r, r.randrange(1, 30)))
    assert same(native, "fast_received", data, 0, PAYLOAD_MAX)[1:] == (len(data), 0)
    for text in (generate.mutated(r, data), data[r.randrange(len(data)) :]):
        same(native, "fast_received", text, r.choice((0, r.randrange(len(text) + 1))), r.choice((PAYLOAD_MAX, 60)))
        same(native, "fast_split", text, 0, PAYLOAD_MAX, KNOWN, TOPICS, NOW, r.choice(SAMES))


def messages(native: ModuleType, r: random.Random) -> None:
    batch = bytes(valid_batch(native, r))
    for data in (batch, generate.mutated(r, batch), r.randbytes(r.randrange(200))):
        first = r.randrange(3)
        topic_id, last = r.choice(fast_packets.TOPIC_IDS), first + r.randrange(4)
        got = same(native, "fast_deliver", topic_id, data, first, last, r.choice((0, 50, 100, NOW)))
        if got != REFUSED:
            items, consumed, fatal = same(native, "fast_received", got[0], 0, PAYLOAD_MAX)
            assert (sum(len(item[2]) for item in items), consumed, fatal) == (got[1], len(got[0]), 0)
    jwt, values = r.choice((*fast_packets.TOKENS, bytes(256))), [generate.blob(r) for _ in range(r.randrange(5))]
    sent = same(native, "fast_publish", jwt, topic_id, values)
    if sent != REFUSED:
        assert sent == b"".join(fast.publish(jwt, topic_id, value) for value in values)


@pytest.mark.parametrize("kind", [reads, replies, messages])
def test_twins_agree_on_seeded_input(native: ModuleType, kind: Callable[[ModuleType, random.Random], None]) -> None:
    for number in range(CASES // 2):
        try:
            kind(native, random.Random(SEED + number))
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} with seed {SEED + number}: {error}") from error


tokens = st.just(b"") | st.sampled_from(fast_packets.TOKENS) | st.binary(max_size=255)
sames = st.sampled_from(SAMES) | st.none() | st.binary(max_size=255)
ids = st.sampled_from(fast_packets.TOPIC_IDS)
names = st.sampled_from(fast_packets.NAMES) | st.binary(max_size=255)
byte = st.integers(0, 255)
one_request: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just(3), tokens, ids, st.binary(max_size=40)),
    st.tuples(st.sampled_from((2, 5)), tokens, ids),
    st.tuples(st.just(1), tokens, names, byte),
    st.tuples(st.just(7), tokens, ids, names),
    st.tuples(st.just(0x70), byte),
)
runs = st.lists(st.tuples(one_request, st.integers(1, 4)), max_size=8)


@settings(max_examples=EXAMPLES, deadline=None)
@given(made=runs, cuts=st.lists(st.integers(0, 2000), max_size=MAX_CUTS), same_as=sames)
def test_valid_packets_in_any_chunking(native: ModuleType, made: Any, cuts: list[int], same_as: bytes | None) -> None:
    fields = [one for one, times in made for _ in range(times)]
    data = b"".join(map(fast.request, fields))
    inside = sorted(cut for cut in cuts if cut <= len(data))
    for twin in (native, pure):
        whole = fast_packets.expected(fields, same_as), len(data), 0
        assert fast_packets.read_all(twin, data, inside, same_as) == whole


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    made=runs,
    wrong=st.lists(st.tuples(st.integers(0, 2000), byte), max_size=4),
    cut=st.integers(0, 2000),
    start=st.integers(-1, 300),
    same_as=sames | st.just(bytes(256)),
)
def test_twins_agree_on_mutated_and_cut_packets(
    native: ModuleType, made: Any, wrong: list[tuple[int, int]], cut: int, start: int, same_as: bytes | None
) -> None:
    data = bytearray(b"".join(fast.request(one) * times for one, times in made)[:cut])
    for at, value in wrong:
        if at < len(data):
            data[at] = value
    for tokens in (KNOWN, {}):
        same(native, "fast_split", data, start, PAYLOAD_MAX, tokens, TOPICS, NOW, same_as)
    same(native, "fast_received", data, start, PAYLOAD_MAX)
    text = bytes(data)
    cuts, begun = [cut // 2] if cut // 2 <= len(text) else [], (same_as or b"")[:255]
    assert fast_packets.read_all(native, text, cuts, begun) == fast_packets.read_all(pure, text, [], begun)


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.binary(max_size=300), start=st.integers(-1, 301), same_as=sames)
def test_twins_agree_on_any_read(native: ModuleType, data: bytes, start: int, same_as: bytes | None) -> None:
    same(native, "fast_split", data, start, PAYLOAD_MAX, KNOWN, TOPICS, NOW, same_as)
    same(native, "fast_received", data, start, PAYLOAD_MAX)


def test_a_lost_or_moved_record_would_be_seen(native: ModuleType) -> None:
    fields = [(3, b"t", 1, b"a"), (3, b"t", 1, b"b"), (3, b"t", 2, b"c")]
    whole = fast_packets.expected(fields)
    assert fast_packets.expected([fields[2], *fields[:2]]) == whole
    for wrong in (fields[1:], [fields[1], fields[0], fields[2]]):
        data = b"".join(map(fast.request, wrong))
        assert fast_packets.read_all(native, data, [])[0] != whole


def test_a_token_taken_for_another_would_be_seen(native: ModuleType) -> None:
    fields = [(3, b"t", 1, b"a"), (3, b"", 1, b"b")]
    data = b"".join(map(fast.request, fields))
    for one in SAMES:
        seen = [
            other
            for other in SAMES
            if fast_packets.read_all(native, data, [], one)[0] == fast_packets.expected(fields, other)
        ]
        assert (None in seen) is (one is None)
