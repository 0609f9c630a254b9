"""Compiles the filter a client sends with a fetch into a yes or no for each record, at a bounded cost.

| text | a record passes if |
|---|---|
| empty | always |
| `$.a.b[0]` | its value is JSON and has that place |
| `$.a.b == 5`, `$.a = "x"` | and what is there equals this JSON value |
| `key:TEXT` | its key is TEXT |
| `text:TEXT` | TEXT is in its value or key, in any case |
| `regex:PATTERN` | PATTERN (RE2) is found in its value or key; a bad pattern is refused |
| anything else | as `text:`, or as `regex:` if it is a good pattern: what published clients send |

Patterns run in time linear in the record (RE2) and in bounded memory, but a record's byte may cost as much as the pattern
is long: some 3 ns per instruction of its program. So a long pattern is tried on fewer bytes (PATTERN_STEPS_MAX), and
on no value longer than that. JSON deeper than Python's stack allows, larger than SLOW_BYTES_MAX, or with more values than
PATH_VALUES_MAX, does not match. No pattern of Python's `re` may come from a client.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec
import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from quintet.broker.topics.patterns import re2_reason
from quintet.model.errors import BadRequest
from quintet.model.strict_json import more_values

FILTER_BYTES_MAX: Final = 1 << 10
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 20  # of one compiled pattern
PATTERN_PROGRAM_MAX: Final = 2_000  # instructions, forwards and backwards
PATTERN_STEPS_MAX: Final = 2_000_000  # bytes times instructions of one fetch: some 15 ms at worst
PATH_STEPS_MAX: Final = 32
SCAN_BYTES_MAX: Final = 4 << 20  # of one fetch with a filter that costs little
MATCH_BYTES_MAX: Final = 2 << 20  # of one value: a longer one does not match a text or a pattern
PATH_VALUES_MAX: Final = 50_000  # in one value that a path is looked for in: about 0.1 us each
SLOW_BYTES_MAX: Final = (
    1 << 20
)  # the same for paths and texts beyond ASCII, which cost ten times as much; also of one fetch

_STEP: Final = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d{1,9})\]|\[\"([^\"\\]*)\"\]")
_META: Final = frozenset(r"\.+*?()|[]{}^$")
_MISSING: Final = object()

Test = Callable[[bytes, bytes], bool]  # (key, value)
Prefilter = Callable[[bytes], bool]


class Filter:
    """A compiled filter. `empty` ones pass everything; `scan_bytes_max` is what one fetch may put through it."""

    __slots__ = ("_prefilter", "_test", "scan_bytes_max", "text")

    def __init__(
        self, text: bytes, test: Test | None, scan_bytes_max: int = SCAN_BYTES_MAX, prefilter: Prefilter | None = None
    ) -> None:
        self.text = text
        self._prefilter = prefilter
        self.scan_bytes_max = scan_bytes_max
        self._test = test

    @property
    def empty(self) -> bool:
        return self._test is None

    @property
    def quick(self) -> bool:
        """Whether `may_be_in` can say no."""
        return self._prefilter is not None

    def may_be_in(self, data: bytes) -> bool:
        """False: no record whose key, value and headers lie in this data can match. One look at a whole batch costs as much as
        a few records of it."""
        return self._prefilter is None or len(data) > self.scan_bytes_max or self._prefilter(data)

    def matches(self, key: bytes | None, value: bytes | None) -> bool:
        if self._test is None:
            return True
        if value is None or len(value) > MATCH_BYTES_MAX:
            value = b""
        return self._test(key or b"", bytes(value))  # it may be a view of its batch


def compile(text: bytes) -> Filter:
    """From a client's text, or BadRequest with the reason."""
    if len(text) > FILTER_BYTES_MAX:
        raise BadRequest(f"a filter has at most {FILTER_BYTES_MAX} bytes, this one has {len(text)}")
    if not text:
        return Filter(text, None)
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        raise BadRequest("a filter is UTF-8") from error
    if words.startswith("$."):
        return Filter(text, _path(words), SLOW_BYTES_MAX)
    if words.startswith("key:"):
        wanted = text[4:]
        return Filter(text, lambda key, _: key == wanted, prefilter=lambda data: wanted in data)
    if words.startswith("text:"):
        return Filter(text, *_contains(words[5:]))
    if words.startswith("regex:"):
        return Filter(text, *_pattern(text[6:]))
    contains, room, seen = _contains(words)
    if not _META.intersection(words):  # then a pattern would find no more
        return Filter(text, contains, room, seen)
    try:
        found, less, patterned = _pattern(text)
    except BadRequest:
        return Filter(text, contains, room, seen)
    return Filter(
        text,
        lambda key, value: contains(key, value) or found(key, value),
        min(room, less),
        None if seen is None or patterned is None else lambda data: seen(data) or patterned(data),
    )


def _contains(words: str) -> tuple[Test, int, Prefilter | None]:
    """How to look for it in any case, in how many bytes of one fetch, and in a whole batch: bytes are enough for ASCII, everything
    else is compared as text."""
    if words.isascii():
        small = words.lower().encode()

        def found_small(key: bytes, value: bytes) -> bool:
            return small in value.lower() or small in key.lower()

        return found_small, SCAN_BYTES_MAX, lambda data: small in data.lower()
    folded = words.casefold()

    def found(key: bytes, value: bytes) -> bool:
        texts = (text for text in (value, key) if len(text) <= SLOW_BYTES_MAX)
        return any(folded in text.decode(errors="replace").casefold() for text in texts)

    return found, SLOW_BYTES_MAX, None


def _pattern(pattern: bytes) -> tuple[Test, int, Prefilter | None]:
    """How to look for it, in how many bytes of one fetch, and in a whole batch: a pattern that says nothing of what is around it
    is found in the batch if it is found in a record of it."""
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        hint = "RE2 syntax: no look-around, no back-references"
        raise BadRequest(f"the pattern of the filter is not valid: {re2_reason(error)}", hint=hint) from error
    program = compiled.programsize + compiled.reverseprogramsize
    if program > PATTERN_PROGRAM_MAX:
        raise BadRequest(
            f"the pattern of the filter is not valid: it is too large ({program} instructions, the limit is "
            f"{PATTERN_PROGRAM_MAX})",
            hint="repeat less: x{1,500} counts as 500 times x",
        )
    room = min(PATTERN_STEPS_MAX // max(program, 1), MATCH_BYTES_MAX)
    search = compiled.search

    def found(key: bytes, value: bytes) -> bool:
        return any(len(text) <= room and search(text) is not None for text in (value, key))

    around = re.search(rb"[\^$\\]", pattern) is not None  # anchors and escapes: some look at their neighbours
    return found, room, None if around else lambda data: search(data) is not None


def _path(words: str) -> Test:
    """`$` and its steps, and perhaps `==` or `=` and a JSON value."""
    steps: list[str | int] = []
    position = 1
    while (step := _STEP.match(words, position)) is not None:
        name, index, quoted = step.groups()
        steps.append(int(index) if index is not None else name if name is not None else quoted)
        position = step.end()
    rest = words[position:].strip()
    if not steps or len(steps) > PATH_STEPS_MAX or (rest and not rest.startswith("=")):
        raise BadRequest(
            f"the path of the filter is not valid at character {position}",
            hint=f'as in $.a.b[0] or $.a.b == "x", with at most {PATH_STEPS_MAX} steps',
        )
    if not rest:
        return lambda _, value: _place(value, steps) is not _MISSING
    wanted = _literal(rest.lstrip("=") if rest.startswith("==") else rest[1:])
    return lambda _, value: _same(_place(value, steps), wanted)


def _literal(text: str) -> object:
    try:
        wanted: object = msgspec.json.decode(text.strip().encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(
            f"the value of the filter is not JSON: {error}", hint='quote texts: $.a == "x"; numbers: $.a == 5'
        ) from error
    return wanted


def _place(value: bytes, steps: list[str | int]) -> object:
    if len(value) > SLOW_BYTES_MAX or more_values(value, PATH_VALUES_MAX):
        return _MISSING
    try:
        found: object = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # the last for text that is not UTF-8
        return _MISSING
    for step in steps:
        if isinstance(step, str):
            found = found.get(step, _MISSING) if isinstance(found, dict) else _MISSING
        else:
            found = found[step] if isinstance(found, list) and step < len(found) else _MISSING
    return found


def _same(found: object, wanted: object) -> bool:
    """Equal as JSON: true is not 1."""
    return found is not _MISSING and isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)
