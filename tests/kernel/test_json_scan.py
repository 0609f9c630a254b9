"""What the kernel says of a JSON text before anybody parses it: its bounds, its type, and how much there is to read."""

from types import ModuleType

import pytest


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"a":[' + b"1," * 49_997 + b"1]}", 0),
        (b'{"a":[' + b"1," * 49_998 + b"1]}", 5),
        (b'{"a":"' + b"\\n" * 500_000 + b'"}', 0),
        (b'{"a":"' + b"\\n" * 500_001 + b'"}', 5),
        (b'{"a":"' + b"\\ud83d\\ude00" * 250_001 + b'"}', 5),
        (b'{"' + b"\\n" * 500_001 + b'":1}', 5),
    ],
)
def test_more_values_and_escapes_than_any_message_has(k: ModuleType, data: bytes, fault: int) -> None:
    assert k.json_fault(data, 3) == fault


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (b'{"type":"ping"}', (0, b"ping")),
        (b' {"a":[{"type":"x"}],"t\\u0079pe":"p\\u0069ng"}', (0, b"ping")),
        (b'{"type":7}', (0, b"")),
        (b'{"type":{"type":"x"}}', (0, b"")),
        (b'{"type":"' + b"x" * 64 + b'"}', (0, b"x" * 64)),
        (b'{"type":"' + b"x" * 65 + b'"}', (0, b"")),
        (b'{"type":"ping"', (1, b"")),
        (b'{"type":"a","type":"b"}', (2, b"")),
    ],
)
def test_json_head_tells_the_type_of_a_sound_object(k: ModuleType, data: bytes, head: tuple[int, bytes]) -> None:
    assert k.json_head(data, 3) == head


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (b"", (1, 0)),
        (b"[1,2,3]", (4, 1)),
        (b'{"a":{"b":[1]}}', (4, 3)),
        (b'["[,{","\\"[,"]', (3, 1)),
        (b'["[,[,', (2, 1)),
        (b'"\\', (1, 0)),
        (b"]]][[", (3, 2)),
        (b"[" + b"{}," * 100_000 + b"{}]", (200_003, 2)),
    ],
)
def test_json_shape_counts_outside_of_strings(k: ModuleType, data: bytes, shape: tuple[int, int]) -> None:
    assert k.json_shape(data) == shape
