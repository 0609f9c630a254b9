"""The JSON of Felix in pure Python: runs of cache_get frames, and what is wrong with a text. As the native twin.

A get that is anything but plain (an escape, an unknown field) is left to the session, so the reader here is small. No I/O,
no clock, and nothing of a cache but the memory that is handed in.
"""

import json
import re
from binascii import b2a_base64
from typing import Final, NamedTuple

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import view_of
from quintet.kernel.pure_blip import MAX_U64
from quintet.kernel.pure_cache import CacheMemory
from quintet.kernel.pure_felix import HEADER_BYTES, frame, frame_fits, next_frame

# -- gets of a cache --------------------------------------------------------------------------------------------------

#  One field of a flat object and what is behind it: name, text or whole number, `,` or `}`. No escapes.
FIELD = re.compile(
    rb"[ \t\n\r]*+\"([^\"\\\x00-\x1f]*+)\"[ \t\n\r]*+:[ \t\n\r]*+"
    rb"(?:\"([^\"\\\x00-\x1f]*+)\"|(0|[1-9][0-9]*+))[ \t\n\r]*+([,}])"
)
SPACES = re.compile(rb"[ \t\n\r]*+")
SCOPE = (b"tenant_id", b"namespace", b"cache")
ECHOED = (*SCOPE, b"key")
FIELDS = frozenset((b"type", *ECHOED, b"request_id"))
MAX_U64_DIGITS = 20

# The places of an entry.
VALUE: Final = 0
EXPIRES: Final = 1
ENTRY_VERSION: Final = 3


class Get(NamedTuple):
    scope: bytes
    key: bytes
    fields: dict[bytes, bytes]  # as they are echoed


def flat_object(text: bytes, names: frozenset[bytes]) -> dict[bytes, bytes] | None:
    """The fields of an object that has only some of these, each once, as they are written: strings without escapes in their quotes; only
    request_id may be a number, below 2**64. None if it is anything else."""
    opened = SPACES.match(text)
    at = opened.end() if opened else 0
    if text[at : at + 1] != b"{":
        return None
    at += 1
    fields: dict[bytes, bytes] = {}
    more = True
    while more:
        found = FIELD.match(text, at)
        if found is None:
            return None
        name, word, number, behind = found.groups()
        if name not in names or name in fields:
            return None
        if number is not None:
            if name != b"request_id" or len(number) > MAX_U64_DIGITS or int(number) > MAX_U64:
                return None
            fields[name] = number
        else:
            fields[name] = b'"' + word + b'"'
        at, more = found.end(), behind == b","
    closed = SPACES.match(text, at)
    if closed is None or closed.end() != len(text):
        return None
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return fields


def _parse_get(text: bytes) -> Get | None:
    """The cache_get in text, or None if it is not a plain one."""
    fields = flat_object(text, FIELDS)
    if fields is None:
        return None
    scope = [fields[name][1:-1] for name in SCOPE if name in fields]
    if fields.get(b"type") != b'"cache_get"' or b"key" not in fields or len(scope) not in (0, len(SCOPE)):
        return None
    return Get(b"\0".join(scope), fields[b"key"][1:-1], fields)


def _value_of(got: Get, value: bytes, version: int | None) -> bytes:
    parts = [b'{"type":"cache_value"']
    parts += (b',"' + name + b'":' + got.fields[name] for name in ECHOED if name in got.fields)
    parts.append(b',"value":' + value)
    if b"request_id" in got.fields:
        parts.append(b',"request_id":' + got.fields[b"request_id"])
    if version is not None:
        parts.append(b',"version":%d' % version)
    return b"".join((*parts, b"}"))


def felix_gets(
    data: Buffer,
    start: int,
    frame_bytes_max: int,
    scopes: dict[bytes, CacheMemory],
    now: int,
    bytes_max: int,
    versions: bool,
) -> tuple[bytes, int, int, int]:
    view = view_of(data)
    if not 0 <= start <= len(view):
        raise ValueError("start is outside the buffer")
    frame_fits(frame_bytes_max)
    if bytes_max < 1:
        raise ValueError("bytes_max must be at least 1 byte")
    reply = bytearray()
    pos, hits, misses = start, 0, 0
    while len(reply) < bytes_max:
        end, flags, _ = next_frame(view, pos, frame_bytes_max)
        got = _parse_get(bytes(view[pos + HEADER_BYTES : end])) if end and not flags else None
        if got is None or got.scope not in scopes:
            break
        entry = scopes[got.scope].get(got.key)
        if entry is not None and 0 < entry[EXPIRES] <= now:
            entry = None
        if entry is None:
            answer = _value_of(got, b"null", None)
        else:
            text = b'"' + b2a_base64(entry[VALUE], newline=False) + b'"'
            answer = _value_of(got, text, entry[ENTRY_VERSION] if versions else None)
        if len(answer) > frame_bytes_max:
            break
        if entry is None:
            misses += 1
        else:
            scopes[got.scope].set_used(got.key, True)
            hits += 1
        reply += frame(0, answer)
        pos = end
    return bytes(reply), pos, hits, misses


# -- what is wrong with a text ----------------------------------------------------------------------------------------

FINE, NOT_JSON, DUPLICATE_KEY, TOO_DEEP, TOO_MANY_KEYS, TOO_MANY_VALUES = range(6)
KEYS_MAX = 1024  # of one object: no message has more than a few
MAX_DEPTH = 10_000
VALUES_MAX = 50_000  # of one text
ESCAPES_MAX = 500_000  # in the strings of one text
TYPE_BYTES_MAX = 64  # of a type that is worth telling

BLANK = re.compile(r"[ \t\n\r]*+")
STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"')
ESCAPE = re.compile(r"\\.")
PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null")

# What may come next.
VALUE_NEXT, VALUE_OR_END, KEY_NEXT, KEY_OR_END, COMMA_OR_END = range(5)


def _unescaped(token: str) -> str | None:
    """The text of a string in quotes; None if it has half of a surrogate pair."""
    if "\\" not in token:
        return token[1:-1]
    text: str = json.loads(token)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


class _Scan:
    """One text on its way to the verdict. `open` holds the keys of each open object, None for each open array."""

    def __init__(self, text: str, depth_max: int) -> None:
        self.text = text
        self.depth_max = depth_max
        self.at = 0
        self.open: list[set[str] | None] = []
        self.next = VALUE_NEXT
        self.values = self.escapes = 0
        self.at_type = False
        self.kind = b""

    def blank(self) -> str:
        """The next character that is no white space; "" at the end."""
        found = BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.text[self.at : self.at + 1]

    def string(self) -> str | None:
        found = STRING.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        self.escapes += len(ESCAPE.findall(found.group()))
        return _unescaped(found.group())

    def key(self) -> int:
        name = self.string()
        if name is None:
            return NOT_JSON
        if self.escapes > ESCAPES_MAX:
            return TOO_MANY_VALUES
        self.at_type = len(self.open) == 1 and name == "type"
        keys = self.open[-1]
        if keys is None or name in keys:
            return DUPLICATE_KEY
        keys.add(name)
        if len(keys) > KEYS_MAX:
            return TOO_MANY_KEYS
        if self.blank() != ":":
            return NOT_JSON
        self.at += 1
        self.next = VALUE_NEXT
        return FINE

    def value(self, first: str) -> int:
        self.next = COMMA_OR_END
        self.values += 1
        if self.values > VALUES_MAX:
            return TOO_MANY_VALUES
        at_type, self.at_type = self.at_type, False
        if first in ("{", "["):
            if len(self.open) == self.depth_max:
                return TOO_DEEP
            self.at += 1
            self.open.append(set() if first == "{" else None)
            self.next = KEY_OR_END if first == "{" else VALUE_OR_END
            return FINE
        if first == '"':
            text = self.string()
            if text is not None and at_type and len(text.encode()) <= TYPE_BYTES_MAX:
                self.kind = text.encode()
            return NOT_JSON if text is None else TOO_MANY_VALUES if self.escapes > ESCAPES_MAX else FINE
        found = PLAIN.match(self.text, self.at)
        if found is None:
            return NOT_JSON
        self.at = found.end()
        return FINE

    def step(self) -> int:
        first = self.blank()
        if first == "":
            return NOT_JSON
        inside = self.open[-1] is not None
        if first == ("}" if inside else "]") and self.next in (VALUE_OR_END, KEY_OR_END, COMMA_OR_END):
            self.at += 1
            self.open.pop()
            self.next = COMMA_OR_END
            return FINE
        if self.next == COMMA_OR_END:
            self.at += 1
            self.next = KEY_NEXT if inside else VALUE_NEXT
            return FINE if first == "," else NOT_JSON
        return self.key() if self.next in (KEY_NEXT, KEY_OR_END) else self.value(first)

    def run(self, first: str) -> int:
        """The first fault of a text that begins with this character."""
        fault = self.value(first)
        while self.open and not fault:
            fault = self.step()
        return fault or (FINE if self.blank() == "" else NOT_JSON)


def json_head(data: Buffer, depth_max: int) -> tuple[int, bytes]:
    view = view_of(data)
    if not 1 <= depth_max <= MAX_DEPTH:
        raise ValueError("depth_max must be 1 to 10,000")
    try:
        text = bytes(view).decode()
    except UnicodeDecodeError:
        return NOT_JSON, b""
    scan = _Scan(text, depth_max)
    fault = scan.run("{") if scan.blank() == "{" else NOT_JSON
    return fault, b"" if fault else scan.kind


def json_fault(data: Buffer, depth_max: int) -> int:
    return json_head(data, depth_max)[0]


def is_sound(text: str, depth_max: int) -> bool:
    """Is this one sound value of any kind?"""
    scan = _Scan(text, depth_max)
    return scan.run(scan.blank()) == FINE


# -- how much there is to read ----------------------------------------------------------------------------------------

# Possessive, and an open string runs to the end of the text: each character is looked at once, whatever the text is.
TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
BRACKETS = re.compile(rb"[\[\]{}]")


def json_shape(data: Buffer) -> tuple[int, int]:
    bare = TEXTS.sub(b"", bytes(view_of(data)))
    depth = deepest = 0
    for found in BRACKETS.finditer(bare):
        if found[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(depth - 1, 0)
    return 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{"), deepest
