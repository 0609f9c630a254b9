"""The schema registry on a simulated disk: versions, ids, modes, durability, what a restart keeps."""

import json
from random import Random

import pytest

from quintet.broker.schemas import registry
from quintet.broker.schemas.registry import ALL, Schema, SchemaRow, Schemas
from quintet.broker.slices import Slices, unless_unwanted
from quintet.broker.table import Table
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.errors import (
    BadName,
    LimitExceeded,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    SchemaRejected,
)
from quintet.model.tasks import start
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler

V1 = b'{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}'
V2 = b'{"type":"object","properties":{"id":{"type":"integer"},"note":{"type":"string"}},"required":["id"]}'
V3 = b'{"type":"object","properties":{"id":{"type":"integer"},"note":{"type":"string"}},"required":["id","note"]}'


class Place:
    """A registry on a disk that can lose power."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.start()

    def start(self) -> None:
        self.scheduler = SimScheduler()
        self.log = EmbeddedLog(DATA, self.disk, self.scheduler, lambda _event, _fields: None)
        self.log.recover()
        table = Table(self.log, *registry.SCHEMAS_TABLE, SchemaRow)
        table.load()
        self.schemas = Schemas(table, Slices(self.scheduler))

    def cut_power(self, seed: int = 1) -> None:
        self.log.abandon()
        self.disk.crash(Random(seed))
        self.start()

    def register(self, name: str, definition: bytes, type: str = "json", mode: str | None = None) -> Schema:
        told: list[tuple[Schema | None, Exception | None]] = []
        start(self.schemas.register(name, type, definition, mode)).then(lambda *found: told.append(found))
        self.scheduler.run_until_idle()
        [(schema, error)] = told
        if error is not None:
            raise error
        assert schema is not None
        return schema

    def delete(self, name: str, version: int) -> int:
        told: list[tuple[int | None, Exception | None]] = []
        start(self.schemas.delete(name, version)).then(lambda *found: told.append(found))
        self.scheduler.run_until_idle()
        [(count, error)] = told
        if error is not None:
            raise error
        assert count is not None
        return count


@pytest.fixture
def place() -> Place:
    return Place()


def test_versions_count_up_and_are_found_by_number_name_and_id(place: Place) -> None:
    first = place.register("orders", V1)
    assert first == Schema("orders", "orders-v1", 1, "json", V1, "backward")
    assert place.register("orders", V2).version == 2
    assert place.schemas.get("orders").version == 2
    assert place.schemas.get("orders", 1) == first
    assert place.schemas.find("orders").version == 2
    assert place.schemas.find("orders-v1") == first
    assert [schema.id for schema in place.schemas.list()] == ["orders-v1", "orders-v2"]
    assert place.schemas.list("nothing") == []
    assert len(place.schemas) == 2


def test_a_subject_called_like_an_id_comes_first(place: Place) -> None:
    place.register("a", V1)
    assert place.schemas.find("a-v1").name == "a"
    place.register("a-v1", V2)
    assert place.schemas.find("a-v1").name == "a-v1"


def test_the_latest_definition_again_is_the_same_version(place: Place) -> None:
    place.register("orders", V1)
    assert place.register("orders", V1).version == 1
    place.register("orders", V2)
    assert place.register("orders", V1).version == 3, "an older definition is a new version"


def test_an_incompatible_version_is_refused_and_leaves_no_trace(place: Place) -> None:
    place.register("orders", V2)
    with pytest.raises(SchemaIncompatible, match="note: it is required") as refused:
        place.register("orders", V3)
    assert refused.value.reasons == ("new cannot read old: note: it is required, and the writer may leave it out",)
    assert place.schemas.get("orders").version == 1
    assert place.register("orders", V2, mode="none").version == 1, "the mode alone is changed"
    assert place.register("orders", V3).version == 2


def test_a_given_mode_is_used_and_kept(place: Place) -> None:
    place.register("orders", V2, mode="forward")
    assert place.register("orders", V3).compatibility == "forward"
    with pytest.raises(SchemaIncompatible, match="old cannot read new"):
        place.register("orders", V2)
    assert place.register("orders", V3, mode="full").compatibility == "full"
    place.cut_power()
    assert place.schemas.get("orders").compatibility == "full"


def test_the_type_of_a_subject_changes_only_without_compatibility(place: Place) -> None:
    place.register("orders", V1)
    with pytest.raises(SchemaIncompatible, match="the type of the schema changed"):
        place.register("orders", b'"string"', type="avro")
    assert place.register("orders", b'"string"', type="avro", mode="none").type == "avro"


def test_proto_is_an_alias(place: Place) -> None:
    assert place.register("p", b'syntax = "proto3"; message A { string a = 1; }', type="proto").type == "protobuf"


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_keeps_everything_that_was_answered(place: Place, seed: int) -> None:
    place.register("orders", V1)
    place.register("orders", V2, mode="full")
    place.register("avro", b'{"type":"array","items":"long"}', type="avro")
    place.delete("orders", 2)
    before = place.schemas.list()
    place.cut_power(seed)
    assert place.schemas.list() == before
    assert place.schemas.get("orders").compatibility == "full"
    assert place.register("orders", V2).version == 3, "a number is not given out again"
    assert place.schemas.validate("avro", 0, b"\x00") == []


def test_numbers_of_deleted_versions_are_gone_for_good(place: Place) -> None:
    place.register("orders", V1)
    place.register("orders", V2)
    assert place.delete("orders", ALL) == 2
    assert place.schemas.list() == []
    with pytest.raises(SchemaNotFound, match="there is no schema 'orders'"):
        place.schemas.get("orders")
    place.cut_power()
    assert place.register("orders", V3).version == 3
    with pytest.raises(SchemaNotFound):
        place.delete("orders", 1)
    with pytest.raises(SchemaNotFound):
        place.delete("nobody", ALL)


def test_a_version_is_seen_when_it_is_durable_and_not_before(place: Place) -> None:
    place.scheduler.held = True
    told: list[int] = []
    for _ in range(2):
        verb = place.schemas.register("orders", "json", V1, None)
        start(verb).then(lambda schema, _: told.append(schema.version if schema else 0))
    assert told == []
    with pytest.raises(SchemaNotFound):
        place.schemas.get("orders")
    with pytest.raises(SchemaNotFound):
        place.schemas.validate("orders", 0, b"{}")
    assert place.schemas.list() == []
    place.scheduler.held = False
    place.scheduler.run_until_idle()
    assert told == [1, 1], "who registers the same waits for the same"
    assert place.schemas.get("orders").version == 1


def test_messages_are_judged_by_the_version_named(place: Place) -> None:
    place.register("orders", V2)
    place.register("orders", V3, mode="none")
    assert place.schemas.validate("orders", 1, b'{"id":1}') == []
    assert place.schemas.validate("orders", 0, b'{"id":1}') == ['the message: "note" is a required property']
    assert place.schemas.require("orders-v1", b'{"id":1}').version == 1
    with pytest.raises(SchemaRejected, match='does not fit schema orders-v2: the message: "note" is a required'):
        place.schemas.require("orders", b'{"id":1}')
    with pytest.raises(SchemaNotFound, match="version 9 of schema 'orders'"):
        place.schemas.validate("orders", 9, b"{}")
    with pytest.raises(SchemaNotFound):
        place.schemas.find("orders-v9")


@pytest.mark.parametrize(
    ("name", "type", "mode", "error"),
    [
        ("", "json", None, BadName),
        ("__schemas", "json", None, BadName),
        ("a", "xml", None, SchemaInvalid),
        ("a", "json", "sideways", SchemaInvalid),
    ],
)
def test_bad_requests(place: Place, name: str, type: str, mode: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        place.register(name, V1, type, mode)
    assert place.schemas.list() == []


def test_the_registry_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SUBJECTS_MAX", 2)
    monkeypatch.setattr(registry, "VERSIONS_MAX", 2)
    monkeypatch.setattr(registry, "COMPILED_MAX", 1)
    place.register("a", V1)
    place.register("b", V1)
    with pytest.raises(LimitExceeded, match="2 subjects"):
        place.register("c", V1)
    place.register("a", V2)
    with pytest.raises(LimitExceeded, match="2 versions"):
        place.register("a", V1)
    for name in ("a", "b", "a"):
        assert place.schemas.validate(name, 0, b'{"id":1}') == []
    monkeypatch.setattr(registry, "DEFINITIONS_BYTES_MAX", 3 * len(V2))
    with pytest.raises(LimitExceeded, match="all definitions together"):
        place.register("b", V2)
    place.delete("a", ALL)
    assert place.register("b", V2).version == 2


def test_a_definition_over_its_limit_is_refused(place: Place) -> None:
    with pytest.raises(SchemaInvalid, match="the limit is 262144"):
        place.register("a", json.dumps({"description": "x" * 300_000}).encode())


def large(mark: str) -> bytes:
    """A definition that takes some thousand steps to compile."""
    properties = {f"field{number}": {"type": "string", "description": mark} for number in range(900)}
    return json.dumps({"properties": properties}).encode()


def test_a_large_schema_is_compiled_in_slices_and_in_order() -> None:
    registry = Place()
    told: list[tuple[str, int | str]] = []

    def register(mark: str, definition: bytes, mode: str | None = None) -> None:
        def done(schema: Schema | None, error: Exception | None) -> None:
            told.append((mark, schema.version if schema is not None else type(error).__name__))

        start(registry.schemas.register("orders", "json", definition, mode)).then(done)

    register("first", large("a"))
    register("second", large("b"), "full")
    register("third", b'{"type": "string"}')  # compared with the second, which is not there yet
    register("fourth", large("b"))
    turns = 0
    while len(told) < 4:
        registry.scheduler.turn()
        turns += 1
    assert dict(told) == {"first": 1, "second": 2, "third": "SchemaIncompatible", "fourth": 2}
    assert turns > 5
    registry.cut_power()
    reasons: list[list[str] | None] = []
    start(registry.schemas.judge("orders", 2, b'{"field1": 1}')).then(lambda found, _error: reasons.append(found))
    assert reasons == [], "it is compiled again, and not within the call"
    registry.scheduler.run_until_idle()
    assert reasons == [['field1: 1 is not of type "string"']]
    start(registry.schemas.judge("orders", 2, b'{"field1": "a"}')).then(lambda found, _error: reasons.append(found))
    assert reasons[1:] == [[]]


def test_nothing_is_compiled_for_a_caller_that_has_gone() -> None:
    registry = Place()
    registry.register("orders", large("a"))
    registry.cut_power()
    here = True
    told: list[object] = []
    verdict = registry.schemas.judge("orders", 1, b"{}", lambda: here)
    start(verdict).then(unless_unwanted(lambda *found: told.append(found)))
    here = False
    registry.scheduler.run_until_idle()
    assert told == []
    assert len(registry.schemas._slices) == 0
