"""Compiles JSON Schema definitions, bounds what a message may cost, and names the reasons against a message.

jsonschema-rs judges. Around it, because it cannot be interrupted:

- References stay inside the definition (`#`, `#/pointer`, `#anchor`); no URL or file is ever opened. Only the root has `$id`.
- Patterns run on an engine that is linear in the text (no backreferences, no look-around), with a bounded program.
- The work is bounded before it is done. A value of a message is looked at by every subschema that applies to it, and
  recursion with alternatives multiplies that at each level. `_Graph` knows, for each depth of a message, the most that
  can apply to one value there. If that times the number of values is over CHECKS_MAX, the message's own keys are followed
  to get the exact sum, and if that is over it too, the message is refused and told why.

Formats (`date-time`, `email`, ...) are checked. The draft is the one `$schema` names, 2020-12 if it names none.
"""

import re
from collections.abc import Iterable, Iterator

import jsonschema_rs

from quintet.broker.schemas.references import REFERENCES, References
from quintet.broker.schemas.validators import (
    DEFINITION_DEPTH_MAX,
    MESSAGE_DEPTH_MAX,
    bounded,
    clip,
    read_definition,
    read_message,
    short_path,
    too_large,
)
from quintet.broker.slices import Steps, finish
from quintet.model.errors import SchemaInvalid
from quintet.model.json_value import Json, JsonObject, list_of, object_of
from quintet.model.strict_json import NotStrictJson

SUBSCHEMAS_MAX = 1_000  # per definition, references counted once
LINKS_MAX = 5_000  # pairs of subschemas where one leads to the other, references and combinations written out
IN_PLACE_MAX = 500  # subschemas that apply to one value, references and combinations written out
PATTERN_CHARS_MAX = 512  # of one regular expression
PATTERN_PROGRAM_BYTES_MAX = 64 * 1024  # of one compiled regular expression
PATTERN_CACHE_BYTES_MAX = 1024 * 1024  # of its lazily built automaton
CHECKS_MAX = 500_000  # keyword evaluations per message; about 15 ns each
TEXT_STEPS_MAX = 1_000_000  # pattern states times characters per message; about 7 ns each
LISTED_CHECKS_MAX = 400  # evaluations up to which all errors are listed, not only the first; 8 to 20 us per error
STEPS_MAX = 5_000  # of following a message's keys to count exactly; about 1 us each

# How a keyword's subschemas apply: to the same value, or to its children.
IN_PLACE_ONE = ("not", "if", "then", "else")
IN_PLACE_MANY = ("allOf", "anyOf", "oneOf")
IN_PLACE_NAMED = ("dependentSchemas", "dependencies")
CHILD_ONE = (
    "additionalProperties",
    "unevaluatedProperties",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "items",
)
CHILD_MANY = ("prefixItems", "items")
CHILD_NAMED = ("properties", "patternProperties")
KEPT_APART = ("$defs", "definitions")  # only reached through references
SUBSCHEMA_KEYWORDS = frozenset(
    (
        *IN_PLACE_ONE,
        *IN_PLACE_MANY,
        *IN_PLACE_NAMED,
        *CHILD_ONE,
        *CHILD_MANY,
        *CHILD_NAMED,
        *KEPT_APART,
        "propertyNames",
    )
)
ANY_KEY = ""  # a key no `properties` names, or the position of an item

_PATTERN_OPTIONS = jsonschema_rs.RegexOptions(
    size_limit=PATTERN_PROGRAM_BYTES_MAX, dfa_size_limit=PATTERN_CACHE_BYTES_MAX
)


class JsonSchema:
    """A compiled JSON Schema."""

    schema: JsonObject | bool
    _graph: "_Graph"
    _validator: "jsonschema_rs.Validator"

    def __init__(self, definition: bytes) -> None:
        finish(self.build(definition))

    def build(self, definition: bytes) -> Steps[None]:
        """What the constructor does, in steps."""
        try:
            schema = read_definition(definition)
        except NotStrictJson as error:
            raise SchemaInvalid(f"the JSON Schema is refused: {error}") from error
        if not isinstance(schema, dict | bool):
            raise SchemaInvalid("a JSON Schema is an object, true or false")
        yield
        self.schema = schema
        self._graph = _Graph(schema)
        yield from self._graph.build()
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, pattern_options=_PATTERN_OPTIONS, validate_formats=True, offline=True
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise SchemaInvalid(clip(f"the JSON Schema is refused: {_say(error)}")) from error

    def check(self, message: bytes) -> list[str]:
        if reasons := too_large(message):
            return reasons
        try:
            value = read_message(message)
        except NotStrictJson as error:
            return [clip(f"the message is refused: {error}")]
        # Every value but the root stands after a comma, a colon or an opening bracket.
        values = 1 + message.count(b",") + message.count(b"[") + message.count(b"{")
        checks = values * self._graph.checks_per_value
        if checks > CHECKS_MAX or len(message) * self._graph.states_per_value > TEXT_STEPS_MAX:
            counted = self._graph.count(value)
            if isinstance(counted, str):
                return [clip(f"the message is refused: {counted}; make the schema simpler or the message smaller")]
            checks = counted
        if self._validator.is_valid(value):
            return []
        if checks <= LISTED_CHECKS_MAX:
            return bounded(list(dict.fromkeys(_reason(error) for error in self._validator.iter_errors(value))))
        if self._graph.has_alternatives:  # the error would hold all errors of all alternatives
            return [
                "the message does not fit the schema; it is too large to say where, since the schema has alternatives"
            ]
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return bounded([_reason(error)])
        raise AssertionError("jsonschema-rs calls a message both valid and invalid")


def compile_steps(definition: bytes) -> Steps[JsonSchema]:
    """A JsonSchema, made in steps."""
    made = JsonSchema.__new__(JsonSchema)
    yield from made.build(definition)
    return made


def _reason(error: jsonschema_rs.ValidationError) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path).lstrip(".")
    kind = error.kind
    what = error.message
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        options = [option[0] for option in kind.context[:3] if option]
        what = "fits none of the alternatives: " + "; ".join(option.message[:60] for option in options)
    elif len(what) > 160:  # it quotes the value: the end, which says what was expected, is the part to keep
        what = f"{what[:40]}...{what[-100:]}"
    return f"{short_path(where) or 'the message'}: {what}"


def _say(error: Exception) -> str:
    if isinstance(error, jsonschema_rs.ValidationError):
        where = "/".join(str(part) for part in error.instance_path)
        return f"at #/{where}: {error.message}" if where else error.message
    return str(error)


class _Node:
    """One subschema: what it costs by itself, what applies with it, and what applies to the children of its value."""

    __slots__ = ("named", "only_reference", "others", "place", "same", "states", "weight")

    def __init__(self, place: str) -> None:
        self.place = place
        self.weight = 1
        self.only_reference = False
        self.states = 0
        self.same: list[_Node] = []
        self.named: dict[str, list[_Node]] = {}
        self.others: list[_Node] = []  # apply to children of any name


class _Graph:
    """The subschemas of a definition and how they lead to each other."""

    def __init__(self, schema: JsonObject | bool) -> None:
        self._references = References(schema)
        self._nodes: dict[int, _Node] = {}
        self._open: list[tuple[_Node, JsonObject]] = []
        self._closures: dict[_Node, dict[_Node, int]] = {}
        self._links = 0
        self._costs: dict[_Node, tuple[int, int]] = {}
        self.has_alternatives = False
        self.root = self._node(schema, "#")
        self._flat: dict[_Node, dict[str, dict[_Node, int]]] = {}
        self.checks_per_value = self.states_per_value = 0

    def build(self) -> Steps[None]:
        """Look at all subschemas, one after the other."""
        while self._open:
            self._fill(*self._open.pop())
            yield
        for node in list(self._nodes.values()):
            self._closure(node, [])
            yield
        self.checks_per_value, self.states_per_value = yield from self._per_value()

    # -- building --------------------------------------------------------------------------------------------------

    def _node(self, schema: object, place: str) -> _Node:
        if id(schema) in self._nodes and isinstance(schema, dict):
            return self._nodes[id(schema)]
        node = _Node(place)
        if isinstance(schema, dict):
            if len(self._nodes) >= SUBSCHEMAS_MAX:
                raise SchemaInvalid(f"the JSON Schema has more than {SUBSCHEMAS_MAX} subschemas")
            self._nodes[id(schema)] = node
            self._open.append((node, schema))
        elif not isinstance(schema, bool):
            raise SchemaInvalid(clip(f"the JSON Schema is refused: {place} is not a schema (an object, true or false)"))
        return node

    def _fill(self, node: _Node, schema: JsonObject) -> None:
        place = node.place
        for keyword in ("$id", "id"):
            if place != "#" and isinstance(schema.get(keyword), str):
                raise SchemaInvalid(clip(f"{place}/{keyword}: only the root of a definition may have an {keyword}"))
        node.only_reference = len(schema) == 1 and "$ref" in schema
        self.has_alternatives |= "anyOf" in schema or "oneOf" in schema
        for keyword in REFERENCES:
            if keyword in schema:
                node.same.append(self._follow(schema[keyword], f"{place}/{keyword}"))
        for keyword in IN_PLACE_ONE:
            if keyword in schema:
                node.same.append(self._node(schema[keyword], f"{place}/{keyword}"))
        for keyword in IN_PLACE_MANY:
            node.same += [self._node(s, f"{place}/{keyword}/{n}") for n, s in enumerate(list_of(schema.get(keyword)))]
        for keyword in IN_PLACE_NAMED:
            for name, sub in object_of(schema.get(keyword)).items():
                if isinstance(sub, dict | bool):
                    node.same.append(self._node(sub, f"{place}/{keyword}/{name}"))
        for keyword in CHILD_ONE:
            if isinstance(schema.get(keyword), dict | bool):
                node.others.append(self._node(schema[keyword], f"{place}/{keyword}"))
        for keyword in CHILD_MANY:
            node.others += [self._node(s, f"{place}/{keyword}/{n}") for n, s in enumerate(list_of(schema.get(keyword)))]
        for name, sub in object_of(schema.get("properties")).items():
            node.named.setdefault(name, []).append(self._node(sub, f"{place}/properties/{name}"))
        for pattern, sub in object_of(schema.get("patternProperties")).items():
            node.others.append(self._node(sub, f"{place}/patternProperties/{pattern}"))
            node.states += _states(pattern, f"{place}/patternProperties")
        if "propertyNames" in schema:
            node.others.append(self._node(schema["propertyNames"], f"{place}/propertyNames"))
        if isinstance(schema.get("pattern"), str):
            node.states += _states(str(schema["pattern"]), f"{place}/pattern")
        own = (value for keyword, value in schema.items() if keyword not in SUBSCHEMA_KEYWORDS)
        node.weight = 1 + sum(1 for _ in _scalars(own)) + len(object_of(schema.get("patternProperties")))

    def _follow(self, reference: Json, place: str) -> _Node:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaInvalid(
                clip(f"{place}: {reference!r} is outside of the definition; nothing is ever fetched"),
                hint="copy what it refers to into $defs, and refer to it as #/$defs/name",
            )
        target = self._references.find(reference)
        if not isinstance(target, dict | bool):
            raise SchemaInvalid(clip(f"{place}: there is no schema at {reference!r}"))
        return self._node(target, reference)

    def _closure(self, node: _Node, path: list[_Node]) -> dict[_Node, int]:
        """Everything that applies to a value when `node` does, with how often."""
        if node in path:
            raise SchemaInvalid(clip(f"{node.place}: its references lead back to it without going into the message"))
        if len(path) > DEFINITION_DEPTH_MAX:
            raise SchemaInvalid(clip(f"{node.place}: more than {DEFINITION_DEPTH_MAX} references in a row"))
        known = self._closures.get(node)
        if known is None:
            known = {node: 1}
            path.append(node)
            for other in node.same:
                for member, times in self._closure(other, path).items():
                    known[member] = known.get(member, 0) + times
            path.pop()
            if sum(known.values()) > IN_PLACE_MAX:
                raise SchemaInvalid(
                    clip(
                        f"{node.place}: more than {IN_PLACE_MAX} subschemas apply to one value (allOf, anyOf, $ref ...)"
                    )
                )
            self._closures[node] = known
            self._linked(len(known) - 1)
        return known

    def _linked(self, more: int) -> None:
        self._links += more
        if self._links > LINKS_MAX:
            raise SchemaInvalid(
                f"the subschemas of the JSON Schema lead to each other in more than {LINKS_MAX} ways",
                hint="fewer combinations (allOf, anyOf, oneOf, $ref) that apply to the same value",
            )

    def _children(self, node: _Node) -> dict[str, dict[_Node, int]]:
        """What applies to the child of each name; ANY_KEY stands for all names that are not in the dict."""
        known = self._flat.get(node)
        if known is None:
            closure = self._closures.get(node) or {node: 1}
            others: dict[_Node, int] = {}
            named: dict[str, dict[_Node, int]] = {}
            for member, times in closure.items():
                _add(others, member.others, times)
                for name, subs in member.named.items():
                    _add(named.setdefault(name, {}), subs, times)
            self._linked(len(closure) + len(others) * (1 + len(named)) + sum(map(len, named.values())))
            for applies in named.values():
                for other, times in others.items():
                    applies[other] = applies.get(other, 0) + times
            known = named
            known[ANY_KEY] = others
            self._flat[node] = known
        return known

    def _own(self, node: _Node) -> tuple[int, int]:
        """Checks and pattern states of all that applies to a value when `node` does."""
        known = self._costs.get(node)
        if known is None:
            closure = self._closures.get(node) or {node: 1}
            checks = sum(member.weight * times for member, times in closure.items())
            states = sum(member.states * times for member, times in closure.items())
            known = self._costs[node] = (checks, states)
        return known

    # -- what a message costs --------------------------------------------------------------------------------------

    def _per_value(self) -> Steps[tuple[int, int]]:
        """The most checks, and pattern states, that can apply to one value at any depth of a message."""
        found = {self.root}
        reached = [self.root]
        for node in reached:  # grows while it is walked
            for applies in self._children(node).values():
                reached += applies.keys() - found
                found |= applies.keys()
            yield
        own = {node: self._own(node) for node in reached}
        now = own
        checks, states = own[self.root]
        for _ in range(MESSAGE_DEPTH_MAX):
            deeper: dict[_Node, tuple[int, int]] = {}
            for node in reached:
                best = (0, 0)
                for applies in self._children(node).values():
                    a = sum(now[child][0] * times for child, times in applies.items())
                    b = sum(now[child][1] * times for child, times in applies.items())
                    best = (max(best[0], a), max(best[1], b))
                deeper[node] = (min(best[0], CHECKS_MAX), min(best[1], TEXT_STEPS_MAX))
                yield
            if deeper == now:
                break
            now = deeper
            checks, states = max(checks, now[self.root][0]), max(states, now[self.root][1])
        return checks, states

    def count(self, value: Json) -> int | str:
        """How many checks this very message takes, or why that is too many."""
        checks = text = steps = 0
        waiting: list[tuple[Json, dict[_Node, int]]] = [(value, {self.root: 1})]
        while waiting:
            value, applies = waiting.pop()
            items: Iterable[tuple[str, Json]] = ()
            length = 0
            if isinstance(value, str):
                length = len(value)
            elif isinstance(value, dict):
                items = value.items()
                length = sum(map(len, value))
            elif isinstance(value, list):
                items = ((ANY_KEY, item) for item in value)
            for node, times in applies.items():
                weight, states = self._own(node)
                checks += weight * times
                text += states * times * length
            for name, child in items:
                below: dict[_Node, int] = {}
                for node, times in applies.items():
                    children = self._children(node)
                    for sub, more in (children.get(name) or children[ANY_KEY]).items():
                        below[sub] = below.get(sub, 0) + more * times
                        steps += 1
                waiting.append((child, below))
                steps += 1
                if steps > STEPS_MAX:
                    return f"it has too many values for a schema with so much to check: over {STEPS_MAX} together"
            if checks > CHECKS_MAX:
                return f"it takes over {CHECKS_MAX} checks: the schema tries several alternatives at each level"
            if text > TEXT_STEPS_MAX:
                return f"its strings are too long for the patterns of the schema: over {TEXT_STEPS_MAX} steps"
        return checks


def _add(counts: dict[_Node, int], nodes: list[_Node], times: int) -> None:
    for node in nodes:
        # A subschema that is only a reference costs what it refers to: fewer nodes, the same sums.
        while len(node.same) == 1 and node.only_reference:
            node = node.same[0]
        counts[node] = counts.get(node, 0) + times


def _scalars(values: Iterable[Json]) -> Iterator[Json]:
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        else:
            yield value


_ATOM = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
_STATES_OF = {"\\p": 64, "\\P": 64, ".": 4, "[^": 4}  # what may match beyond ASCII is a small automaton over bytes


def _states(pattern: str, place: str) -> int:
    """About how many states the automaton of a pattern has: repetitions written out."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise SchemaInvalid(
            clip(f"{place}: the pattern has {len(pattern)} characters, the limit is {PATTERN_CHARS_MAX}")
        )
    stack = [0]
    last = 0  # states of the atom a repetition would apply to
    for match in _ATOM.finditer(pattern):
        atom = match[0]
        if atom == "(":
            stack.append(0)
            last = 0
            continue
        if atom == ")" and len(stack) > 1:
            last = stack.pop()
        elif match[1] is not None:
            stack[-1] += last * (max(int(match[1][:6]), int((match[2] or "0")[:6]), 1) - 1)
            continue
        else:
            last = _STATES_OF.get(atom[:2], _STATES_OF.get(atom[:1], 1))
        stack[-1] += last
    return 1 + sum(stack)
