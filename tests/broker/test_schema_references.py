"""References inside a JSON Schema: one resolver, and the validator, the comparison and Spark's columns agree on it."""

import ast
import json
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from quintet.broker import schemas
from quintet.broker.schemas.compatibility_json import Comparison
from quintet.broker.schemas.json_schema import JsonSchema
from quintet.broker.schemas.references import ANCHORS, References
from quintet.model.errors import SchemaInvalid
from quintet.model.json_value import Json, JsonObject
from quintet.spark.typed import decoder

NUMBER: JsonObject = {"type": "integer"}
PARTS: JsonObject = {
    "plain": NUMBER, "a/b~c d": NUMBER, "caf\u00e9": NUMBER, "anchored": {**NUMBER, "$anchor": "here"},
    "moving": {**NUMBER, "$dynamicAnchor": "there"}, "list": {"anyOf": [True, NUMBER]},
}  # fmt: skip
SOUND = [
    "#/$defs/plain", "#/$defs/a~1b~0c%20d", "#/$defs/caf%C3%A9", "#here", "#there",
    "#/$defs/list/anyOf/1",
]  # fmt: skip
BROKEN = [
    "#/$defs/none", "#nowhere", "#/$defs/list/anyOf/2", "#/$defs/list/anyOf/-1", "#/$defs/list/anyOf/x", "#/$defs/plain/type/a",
    "#/$defs/list/anyOf/" + "9" * 5_000, "other.json#/$defs/plain",
]  # fmt: skip


def schema(reference: str) -> JsonObject:
    return {"$defs": PARTS, "type": "object", "properties": {"a": {"$ref": reference}}}


@pytest.mark.parametrize("reference", SOUND)
def test_all_readers_follow_a_reference_to_the_same_place(reference: str) -> None:
    definition = schema(reference)
    raw = json.dumps(definition).encode()
    assert References(definition).find(reference) in (NUMBER, PARTS["anchored"], PARTS["moving"])
    validator = JsonSchema(raw)
    assert validator.check(b'{"a": 1}') == []
    assert validator.check(b'{"a": "x"}') != []
    written_out: Json = {"type": "object", "properties": {"a": NUMBER}}
    assert Comparison(definition, written_out).reasons == Comparison(written_out, definition).reasons == []
    assert Comparison(definition, {"type": "object", "properties": {"a": {"type": "string"}}}).reasons != []
    assert decoder("json", raw.decode()).schema.field("a").type == pa.int64()


@pytest.mark.parametrize("reference", BROKEN, ids=lambda reference: reference[:30])
def test_a_reference_to_nothing_is_refused_by_all_readers(reference: str) -> None:
    assert References(schema(reference)).find(reference) is None
    raw = json.dumps(schema(reference)).encode()
    with pytest.raises(SchemaInvalid):
        JsonSchema(raw)
    with pytest.raises(SchemaInvalid, match="is not inside the definition"):
        decoder("json", raw.decode())


def test_a_reference_may_begin_with_the_id_of_the_root() -> None:
    root: Json = {"$id": "http://x/y", "$defs": PARTS}
    assert References(root).find("http://x/y#/$defs/plain") is NUMBER
    assert References(root).find("http://x/y") is root
    assert References(root).find("http://x/z#/$defs/plain") is None
    assert References(True).find("#") is True
    assert References(True).find("#/a") is None


def test_no_other_module_looks_for_anchors() -> None:
    root = Path(schemas.__file__).parent.parent.parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare | ast.For | ast.Call)
        and any(isinstance(part, ast.Constant) and part.value in ANCHORS for part in ast.iter_child_nodes(node))
    }
    assert found == set(), "they are listed once, in references.py"
