"""Compares two JSON Schemas keyword by keyword: does everything that fits the writer's fit the reader's?

    reader has            it is compatible if the writer has
    type                  no type that the reader lacks (integer is a number)
    enum, const           an enum or const with no other values
    required              each of these names required
    properties            for each name: a schema that the reader's reads. A name the writer does not list is taken as not
                          written, unless additionalProperties or patternProperties of the writer give it a schema
    additionalProperties  nothing it would refuse: closed needs every name of the writer known, and the writer closed
    items, prefixItems    schemas that the reader's read, item by item
    limits                limits at least as narrow (minimum, maxLength, minItems ...); multipleOf a multiple
    pattern, format       the same
    uniqueItems           uniqueItems
    anyOf                 each alternative of the writer, or the writer itself, read by one of the reader's
    allOf                 each part of the reader reads the writer
    anything else         the very same (oneOf, not, if, contains, dependentSchemas, unevaluatedProperties ...)

Annotations (title, description, default, examples ...) do not matter. Local references are followed; a pair of schemas
that is being compared is taken as compatible when it comes up inside itself. The check is one-sided in one place, the
unlisted properties: strictly, an open writer could have written anything there, and then no field could ever be added.
"""

import json
import re

from quintet.broker.schemas.references import REFERENCES, References
from quintet.model.json_value import Json, JsonObject, list_of, object_of, texts_of

COMPARISONS_MAX = 3_000  # pairs of subschemas looked at; about 10 us each
NAMES_PER_COMPARISON = 20  # names of properties that cost as much as a pair
REFERENCES_MAX = 64  # one after the other
VALUES_COMPARED_MAX = 100  # of a writer's enum by name; larger ones as a set

TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))
LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
        "id", "$defs", "definitions", "$anchor", "$dynamicAnchor", "contentEncoding", "contentMediaType", "contentSchema",
        "$recursiveAnchor", "$vocabulary",
    )
)  # fmt: skip
COMPARED = frozenset(
    (
        "type", "enum", "const", "required", "properties", "patternProperties", "additionalProperties", "items",
        "prefixItems", "additionalItems", "uniqueItems", "anyOf", "allOf", "$ref", "multipleOf", *LOWER, *UPPER,
    )
)  # fmt: skip


class _TooMuch(Exception):
    """The budget of a comparison is spent."""


class Comparison:
    """One reader against one writer; `reasons` is the answer."""

    def __init__(self, reader: Json, writer: Json) -> None:
        self._reader_references, self._writer_references = References(reader), References(writer)
        self._open: set[tuple[int, int]] = set()
        self._compared = 0
        self._value_sets: dict[int, frozenset[str]] = {}
        self._subsets: dict[tuple[int, int], bool] = {}
        # Schemas made of others, by what they are made of: a recursive pair must come up as the same two objects again.
        self._made: dict[tuple[str, int, int], tuple[Json, Json, JsonObject]] = {}
        self._kept: list[object] = []  # so that an id() stays theirs
        try:
            self.reasons = self._compare(reader, writer, "")
        except _TooMuch:
            self.reasons = [f"more than {COMPARISONS_MAX} pairs of subschemas to compare: too much to be shown"]

    def _compare(self, reader: Json, writer: Json, path: str) -> list[str]:
        self._spend(1)
        if reader is True or reader == {} or writer is False or reader is writer:
            return []
        if reader is False:
            return [f"{_at(path)}: the reader takes nothing here"]
        pair = (id(reader), id(writer))
        if pair in self._open:
            return []
        self._open.add(pair)
        reader, writer = self._resolve(reader, self._reader_references), self._resolve(writer, self._writer_references)
        if reader is True or writer is False:
            found: list[str] = []
        elif not isinstance(reader, dict):
            found = [f"{_at(path)}: the reader takes nothing here"]
        else:
            found = self._schemas(reader, writer if isinstance(writer, dict) else {}, path)
        self._open.discard(pair)
        return found

    def _resolve(self, schema: Json, references: References) -> Json:
        """A schema with its reference followed, and merged with what stands beside it."""
        for _ in range(REFERENCES_MAX):
            if not isinstance(schema, dict) or not isinstance(reference := schema.get("$ref"), str):
                return schema
            beside = {
                keyword: value for keyword, value in schema.items() if keyword != "$ref" and keyword not in ANNOTATIONS
            }
            target = references.find(reference)
            if beside:
                made: JsonObject = {**beside, "allOf": [*list_of(beside.get("allOf")), target]}
                return self._once("ref", schema, target, made)
            schema = target
        return schema

    def _spend(self, count: int) -> None:
        self._compared += count
        if self._compared > COMPARISONS_MAX:
            raise _TooMuch

    def _equal(self, reader: Json, writer: Json, open: frozenset[str] = frozenset()) -> bool:
        """The same words, and the same behind every reference."""
        self._spend(1)
        if isinstance(reader, dict) and isinstance(writer, dict):
            mine, theirs = reader.keys() - ANNOTATIONS, writer.keys() - ANNOTATIONS
            return mine == theirs and all(
                self._equal_reference(reader[keyword], writer[keyword], open)
                if keyword in REFERENCES
                else self._equal(reader[keyword], writer[keyword], open)
                for keyword in mine
            )
        if isinstance(reader, list) and isinstance(writer, list):
            return len(reader) == len(writer) and all(map(self._equal, reader, writer, [open] * len(reader)))
        return _same(reader, writer)

    def _equal_reference(self, reader: Json, writer: Json, open: frozenset[str]) -> bool:
        if reader != writer or not isinstance(reader, str):
            return False
        mine, theirs = self._reader_references.find(reader), self._writer_references.find(reader)
        return reader in open or self._equal(mine, theirs, open | {reader})

    def _schemas(self, reader: JsonObject, writer: JsonObject, path: str) -> list[str]:
        writer = self._flatten(writer)
        self._spend((_size(reader) + _size(writer)) // NAMES_PER_COMPARISON)
        chosen = [self._both(writer, option) for option in list_of(writer["anyOf"])] if "anyOf" in writer else [writer]
        if "anyOf" in writer and "anyOf" not in reader:
            return [reason for both in chosen for reason in self._compare(reader, both, path)]
        found = _types(reader, writer, path) + self._values(reader, writer, path) + _limits(reader, writer, path)
        found += self._objects(reader, writer, path) + self._arrays(reader, writer, path)
        for part in list_of(reader.get("allOf")):
            found += self._compare(part, writer, path)
        if "anyOf" in reader and not self._equal(reader["anyOf"], writer.get("anyOf")):
            for both in chosen:
                if all(self._compare(choice, both, path) for choice in list_of(reader["anyOf"])):
                    found.append(f"{_at(path)}: what the writer allows fits none of the reader's alternatives (anyOf)")
        for keyword, value in reader.items():
            if keyword in COMPARED or keyword in ANNOTATIONS:
                continue
            if keyword not in writer or not self._equal({keyword: value}, {keyword: writer[keyword]}):
                found.append(f"{_at(path)}: {keyword} differs, and that cannot be shown to be compatible")
        return found

    def _once(self, how: str, first: Json, second: Json, made: JsonObject) -> JsonObject:
        """The schema that was made of these two before, or this one from now on."""
        return self._made.setdefault((how, id(first), id(second)), (first, second, made))[2]

    def _both(self, writer: JsonObject, option: Json) -> Json:
        """A writer's schema with one of its alternatives chosen."""
        rest = {keyword: value for keyword, value in writer.items() if keyword != "anyOf"}
        if rest.keys() <= ANNOTATIONS:
            return option
        made: JsonObject = {**rest, "allOf": [*list_of(rest.get("allOf")), option]}
        return self._once("both", writer, option, made)

    def _flatten(self, writer: JsonObject) -> JsonObject:
        """A writer's allOf as one schema where no keyword is said twice; what is said twice stays in allOf, unused."""
        parts = list_of(writer.get("allOf"))
        if not parts:
            return writer
        merged = {keyword: value for keyword, value in writer.items() if keyword != "allOf"}
        for part in parts[:REFERENCES_MAX]:
            part = self._resolve(part, self._writer_references)
            for keyword, value in object_of(part).items():
                if keyword == "required":
                    merged["required"] = [*list_of(merged.get("required")), *list_of(value)]
                elif keyword == "properties":
                    merged["properties"] = {**object_of(value), **object_of(merged.get("properties"))}
                else:
                    merged.setdefault(keyword, value)
        return self._once("flat", writer, writer, merged)

    def _values(self, reader: JsonObject, writer: JsonObject, path: str) -> list[str]:
        found = []
        written = _listed(writer)
        for keyword in ("enum", "const"):
            if keyword not in reader:
                continue
            taken = list_of(reader["enum"]) if keyword == "enum" else [reader["const"]]
            if written is None:
                found.append(f"{_at(path)}: the reader takes only {len(taken)} values ({keyword}), the writer any")
                continue
            known = self._value_set(taken)
            if len(written) > VALUES_COMPARED_MAX:
                gone = [] if self._contains(taken, written) else ["some of the writer's values"]
            else:
                gone = [repr(value)[:30] for value in written if _canonical(value) not in known]
            if gone:
                found.append(f"{_at(path)}: the reader's {keyword} has no {', '.join(gone[:5])}")
        return found

    def _contains(self, taken: list[Json], written: list[Json]) -> bool:
        pair = (id(taken), id(written))
        if pair not in self._subsets:
            self._subsets[pair] = self._value_set(written) <= self._value_set(taken)
        return self._subsets[pair]

    def _value_set(self, values: list[Json]) -> frozenset[str]:
        known = self._value_sets.get(id(values))
        if known is None:
            known = frozenset(map(_canonical, values))
            self._kept.append(values)
            self._value_sets[id(values)] = known
        return known

    def _objects(self, reader: JsonObject, writer: JsonObject, path: str) -> list[str]:
        if "object" not in _type_set(writer):
            return []
        written = object_of(writer.get("properties"))
        required = set(texts_of(writer.get("required")))
        found = [
            f"{_at(f'{path}.{name}')}: it is required, and the writer may leave it out"
            for name in texts_of(reader.get("required"))
            if name not in required
        ]
        known = object_of(reader.get("properties"))
        for name, schema in known.items():
            if name in written:
                found += self._compare(schema, written[name], f"{path}.{name}")
            else:
                for other in _unlisted(writer, name):
                    found += self._compare(schema, other, f"{path}.{name}")
        patterns = object_of(reader.get("patternProperties"))
        if patterns and not self._equal(patterns, writer.get("patternProperties")):
            found.append(f"{_at(path)}: patternProperties differ, and that cannot be shown to be compatible")
        rest = reader.get("additionalProperties", True)
        if rest is True or rest == {}:
            return found
        for name, schema in written.items():
            if name not in known and not patterns:
                if rest is False and schema is not False:
                    found.append(f"{_at(f'{path}.{name}')}: the reader has no such property and takes no others")
                elif rest is not False:
                    found += self._compare(rest, schema, f"{path}.{name}")
        others = writer.get("additionalProperties", True)
        if rest is False and others is not False:
            found.append(f"{_at(path)}: the reader takes no other properties (additionalProperties), the writer does")
        elif rest is not False:
            found += self._compare(rest, others, f"{path}.*")
        if rest is False and not patterns and writer.get("patternProperties"):
            found.append(f"{_at(path)}: the reader takes no other properties, the writer has patternProperties")
        return found

    def _arrays(self, reader: JsonObject, writer: JsonObject, path: str) -> list[str]:
        if "array" not in _type_set(writer):
            return []
        first, rest = _items(reader)
        written_first, written_rest = _items(writer)
        found = []
        for number in range(max(len(first), len(written_first))):
            mine = first[number] if number < len(first) else rest
            theirs = written_first[number] if number < len(written_first) else written_rest
            found += self._compare(mine, theirs, f"{path}[{number}]")
        found += self._compare(rest, written_rest, f"{path}[]")
        if reader.get("uniqueItems") and not writer.get("uniqueItems"):
            found.append(f"{_at(path)}: the reader wants unique items, the writer may repeat them")
        return found


def _at(path: str) -> str:
    return path.lstrip(".") or "the schema"


def _size(schema: JsonObject) -> int:
    """How many names, and schemas of allOf and anyOf, there are to look at."""
    lists = sum(len(list_of(schema[keyword])) for keyword in ("required", "allOf", "anyOf") if keyword in schema)
    return lists + len(object_of(schema.get("properties")))


def _type_set(schema: JsonObject) -> frozenset[str]:
    types = schema.get("type")
    if types is None:
        values = _listed(schema)
        # A long enum is taken as of any type: a wider answer is a safe one, and this is asked often.
        return TYPES if values is None or len(values) > VALUES_COMPARED_MAX else frozenset(map(_type_of, values))
    return frozenset((types,) if isinstance(types, str) else texts_of(types))


def _listed(schema: JsonObject) -> list[Json] | None:
    """The only values that a schema allows, if it lists them."""
    if "enum" in schema:
        return list_of(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def _type_of(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _types(reader: JsonObject, writer: JsonObject, path: str) -> list[str]:
    if "type" not in reader:
        return []
    taken = _type_set({"type": reader["type"]})
    if "number" in taken:
        taken |= {"integer"}
    gone = _type_set(writer) - taken
    if not gone:
        return []
    wrote = "any type" if _type_set(writer) == TYPES else ", ".join(sorted(gone))
    return [f"{_at(path)}: the writer has {wrote}, the reader takes {', '.join(sorted(taken))}"]


def _same(first: object, second: object) -> bool:
    """Equal as JSON: true is not 1."""
    return first == second and isinstance(first, bool) == isinstance(second, bool)


def _canonical(value: object) -> str:
    """One text for one JSON value: 1.0 is 1, and true is not."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _number(value: Json) -> int | float | None:
    return value if isinstance(value, int | float) else None


def _limits(reader: JsonObject, writer: JsonObject, path: str) -> list[str]:
    types = _type_set(writer)
    found = []
    for keywords, sign in ((LOWER, 1), (UPPER, -1)):
        for keyword in keywords:
            if keyword not in reader:
                continue
            limit, other = _number(reader[keyword]), _number(writer.get(keyword))
            if (
                limit is None
                or not types & _applies_to(keyword)
                or (keyword in ("minLength", "minItems", "minProperties") and limit == 0)
            ):
                continue
            if isinstance(limit, bool) or isinstance(other, bool):  # draft 4: exclusiveMinimum is a flag
                if limit and not other:
                    found.append(f"{_at(path)}: {keyword} is new")
            elif other is None or sign * limit > sign * other:
                was = "none" if other is None else other
                found.append(f"{_at(path)}: {keyword} is {limit} for the reader, {was} for the writer")
    if "multipleOf" not in reader:
        return found
    step, other = _number(reader["multipleOf"]), _number(writer.get("multipleOf"))
    if step is not None and types & {"number", "integer"} and (other is None or other % step):
        found.append(
            f"{_at(path)}: multipleOf is {step} for the reader, {'none' if other is None else other} for the writer"
        )
    return found


def _applies_to(keyword: str) -> frozenset[str]:
    kinds = {"Length": "string", "Items": "array", "Properties": "object"}
    for ending, kind in kinds.items():
        if keyword.endswith(ending):
            return frozenset((kind,))
    return frozenset(("number", "integer"))


def _items(schema: JsonObject) -> tuple[list[Json], Json]:
    """(schemas of the first items, schema of the rest), in the words of any draft."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return list_of(schema.get("prefixItems")), items


def _unlisted(writer: JsonObject, name: str) -> list[Json]:
    """The schemas a writer gives to a property that it does not list."""
    found = [
        schema for pattern, schema in object_of(writer.get("patternProperties")).items() if _may_match(pattern, name)
    ]
    others = writer.get("additionalProperties")
    if not found and isinstance(others, dict) and others:
        found.append(others)
    return found


def _may_match(pattern: str, name: str) -> bool:
    """If a plain `^prefix` cannot match, no; every other pattern may."""
    plain = re.match(r"\^([A-Za-z0-9_-]+)", pattern)
    return plain is None or name.startswith(plain[1][:-1])
