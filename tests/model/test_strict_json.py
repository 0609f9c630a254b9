"""How deep JSON may be nested: counted in one place, and every door, schema and reader hands in its own bound."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from quintet import kernel
from quintet.broker.identity import jose
from quintet.broker.schemas import validators
from quintet.broker.schemas.avro import AvroSchema
from quintet.broker.schemas.json_schema import JsonSchema
from quintet.broker.topics.filters import PATH_VALUES_MAX
from quintet.broker.topics.filters import compile as compile_filter
from quintet.kernel import pure
from quintet.model.errors import ProtocolError, SchemaInvalid
from quintet.model.strict_json import NotStrictJson, StrictJson, deeper, more_values
from quintet.protocols.felix import codec as felix
from quintet.protocols.felix.frames import JSON_DEPTH_MAX
from quintet.protocols.peerbus import codec as peerbus
from quintet.protocols.peerbus import frames
from quintet.protocols.peerbus.mapping import body_of
from quintet.spark.typed import json_rows
from quintet.spark.typed.columns import DEPTH_MAX

SOURCE = Path(kernel.__file__).parent.parent


def nested(depth: int) -> bytes:
    """An object with arrays in it, so many within each other; brackets in strings do not count."""
    return b'{"a[{":' + b"[" * (depth - 1) + b'"]{[\\"["' + b"]" * (depth - 1) + b"}"


def refused(error: type[Exception], read: Callable[[bytes], object]) -> Callable[[bytes], bool]:
    def takes(data: bytes) -> bool:
        try:
            read(data)
        except error:
            return False
        return True

    return takes


def in_avro(data: bytes) -> object:
    return AvroSchema(b'{"type":"record","name":"r","fields":[],"doc":' + data + b"}")


def in_json_schema(data: bytes) -> object:
    return JsonSchema(b'{"default":' + data + b"}")


# The module, how deep a text may be there, and whether it takes one.
USERS: dict[str, tuple[str, int, Callable[[bytes], bool]]] = {
    "a token": ("broker/identity/jose.py", jose.JSON_DEPTH_MAX, lambda data: jose.json_object(data) is not None),
    "a JSON Schema": (
        "broker/schemas/json_schema.py", validators.DEFINITION_DEPTH_MAX - 1, refused(SchemaInvalid, in_json_schema),
    ),
    "an Avro schema": ("broker/schemas/avro.py", validators.DEFINITION_DEPTH_MAX - 1, refused(SchemaInvalid, in_avro)),
    "a message with a schema": (
        "broker/schemas/validators.py", validators.MESSAGE_DEPTH_MAX, lambda data: not JsonSchema(b"{}").check(data),
    ),
    "a body of peerbus": (
        "protocols/peerbus/codec.py", frames.BODY_DEPTH_MAX, refused(ProtocolError, peerbus.check_depth),
    ),
    "a record as a body of peerbus": (
        "protocols/peerbus/mapping.py", frames.BODY_DEPTH_MAX, lambda data: body_of(data) == data,
    ),
    "a row in Spark": (
        "spark/typed/json_rows.py", DEPTH_MAX, lambda data: not json_rows._unreadable(pa.array([data], pa.binary())),
    ),
    "a message of Felix": (
        "protocols/felix/codec.py", JSON_DEPTH_MAX, lambda data: felix.type_of(b'{"type":"x",' + data[1:]) == "x",
    ),
}  # fmt: skip
COUNTS_VALUES = {"broker/topics/filters.py"}
ASKS_THE_KERNEL = {"model/strict_json.py"}  # for the shape; Felix's two ask for the fault, with the bound
FELIX = {"protocols/felix/codec.py", "protocols/felix/long_json.py"}


@pytest.mark.parametrize("user", USERS)
def test_each_reader_of_json_takes_its_bound_and_no_level_more(user: str) -> None:
    _, most, takes = USERS[user]
    assert takes(nested(most)), most
    for depth in (most + 1, most + 2, 200_000):
        assert not takes(nested(depth)), depth
    assert takes(nested(1).replace(b'"]{', b'"' + b"[" * 1_000 + b"]{")), "brackets in a string are no nesting"


def test_every_module_that_asks_for_depth_or_values_is_walked_above() -> None:
    importing, shapes, faults = set(), set(), set()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text()
        if name.startswith("kernel/") or not re.search("strict_json|json_(?:shape|fault|head)", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "quintet.model.strict_json":
                importing.add(name)
            elif isinstance(node, ast.Attribute) and node.attr == "json_shape":
                shapes.add(name)
            elif isinstance(node, ast.Attribute) and node.attr in {"json_fault", "json_head"}:
                faults.add(name)
    assert importing == {module for module, _, _ in USERS.values()} - FELIX | COUNTS_VALUES
    assert shapes == ASKS_THE_KERNEL
    assert faults == FELIX


@pytest.mark.parametrize("k", [kernel, pure], ids=["native", "pure"])
def test_the_count_looks_at_each_byte_once(k: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.model.strict_json.kernel", k)
    assert deeper(b"[" * 9 + b'"' + b'\\"' * 500_000, 8), "a string that does not end"
    assert not deeper(b'{"a":"' + b"[" * 20 + b'"}', 8)
    assert deeper(b'{"a":"\\"' + b"[" * 20 + b'","b":' + b"[" * 8, 8)
    assert deeper(b"[" * 1_000 + b'"[[["' + b"]" * 1_000, 999)
    assert not deeper(b"[" * 1_000 + b'"[[["' + b"]" * 1_000, 1_000)
    assert not deeper(b"[" + b"[]," * 1_000 + b"{}]", 2)
    assert deeper(b"]" * 100 + b"[[[", 2), "what was closed too often does not pay for what is opened"


def test_values_are_counted_only_where_there_may_be_too_many() -> None:
    text = json.dumps([1] * 9).encode()
    assert more_values(text, 9) == 10
    assert more_values(text, 10) == more_values(text, 10_000) == 0
    wide = b'{"a":0,"b":[' + b",".join([b"0"] * (PATH_VALUES_MAX - 3)) + b"]}"
    assert compile_filter(b"$.a").matches(b"", wide)
    assert not compile_filter(b"$.a").matches(b"", wide.replace(b"]}", b",0]}"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"a":1,"a":2}', "the key 'a' is there twice in one object"),
        (b"NaN", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"1e400", "the number 1e400 does not fit a double"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b" ", "it is empty"),
        (b"[1] 2", "not JSON: Extra data at line 1, column 5"),
        (b"[[[]]]", "nested deeper than 2 levels"),
        (b"[1,2,3]", "it has up to 4 values, the limit is 3"),
        (b'"\\ud800"', "a string has half of a surrogate pair"),
        (b"9" * 5_000, "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits"),
    ],
)
def test_what_two_readers_could_see_differently_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(NotStrictJson, match=re.escape(says)):
        StrictJson(2, 3).read(data)


def test_a_reader_may_take_half_pairs_and_refuse_numbers() -> None:
    def small(text: str) -> int:
        if len(text) > 2:
            raise NotStrictJson("a large number")
        return int(text)

    reader = StrictJson(2, parse_int=small, half_pairs=True)
    assert reader.read(b'["\\ud800", 12]') == ["\ud800", 12]
    with pytest.raises(NotStrictJson, match="a large number"):
        reader.read(b"[123]")
