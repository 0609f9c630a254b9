"""Prints FlyMQ frames in hexadecimal: every byte with its position, its field's name and its value.

The layouts are compiled by codec.py, which is also the one decoder; here is only which layout a frame has, and how it is
printed. Used by `quintet tail --hex` and `quintet protocol flymq --decode`.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import click

from quintet.model.errors import BadRequest, QuintetError
from quintet.protocols.flymq import codec, frames
from quintet.protocols.flymq.codec import Span

Kind = Literal["request", "reply", "reply (sdk)"]

ROW_BYTES: Final = 16  # of a printed line
FIELD_BYTES_SHOWN: Final = 64  # of one field; the rest is counted
VALUE_CHARS_SHOWN: Final = 60
_DUMP_PLACE: Final = re.compile(r"^\s*(?:0x)?[0-9a-fA-F]{4,}[:|]\s|^[0-9a-fA-F]{6,8}\s\s")
_DUMP_TEXT: Final = re.compile(r"(?:\s\s+\S.*|\s+\|.*\|)\s*$")
_FILLING: Final = re.compile(r"0x|[\s,:;]|\\x")


@dataclass(frozen=True, slots=True)
class Dissection:
    """One frame, or what there is of it."""

    kind: Kind
    name: str
    data: bytes  # the header and the payload, without its compression: what the places of the spans count in
    size: int  # bytes it has on the wire
    spans: list[Span]
    error: str = ""  # why the reading stops
    others: tuple[Kind, ...] = ()  # readings that fit as well
    inflated: str = ""  # the compression that was taken off

    @property
    def rest(self) -> bytes:
        """Bytes that belong to no field."""
        return self.data[self.spans[-1].end if self.spans else 0 :]


def from_hex(text: str) -> bytes:
    """Pasted hex: with or without blanks, commas, 0x, or as a dump with places before and letters behind."""
    digits = ""
    for line in text.splitlines():
        place = _DUMP_PLACE.match(line)
        digits += _FILLING.sub("", _DUMP_TEXT.sub("", line[place.end() :]) if place else line)
    try:
        return bytes.fromhex(digits)
    except ValueError:
        wrong = re.search(r"[^0-9a-fA-F]", digits)
        why = f"{wrong.group()!r} is no hex digit" if wrong else "a digit is missing: their number is odd"
        raise BadRequest(f"this is not hex: {why}", hint="paste bytes such as AF 01 08 01 00 00 00 00") from None


def dissect_all(data: bytes, kind: Kind | None = None) -> Iterator[Dissection]:
    """Frame after frame."""
    while data:
        found = dissect(data, kind)
        yield found
        data = data[found.size :]


def dissect(data: bytes, kind: Kind | None = None) -> Dissection:
    """The first frame in `data`, read as what is asked for, or as what it fits best."""
    name = frames.NAMES.get(data[2], "unknown") if len(data) > 2 else "unknown"
    header = list(_header(data, name))
    if len(data) < frames.HEADER_BYTES:
        error = f"a header has {frames.HEADER_BYTES} bytes, here are {len(data)}"
        return Dissection(kind or "request", name, data, len(data), header, error)
    magic, version, code, flags, length = frames.HEADER.unpack_from(data)
    whole = data[: frames.HEADER_BYTES + length]
    payload = whole[frames.HEADER_BYTES :]
    inflated = ""
    try:
        if magic != frames.MAGIC or version != frames.VERSION:
            raise BadRequest(f"a frame begins with {frames.MAGIC:02x} {frames.VERSION:02x}: this is none")
        layouts = {each: texts for each, texts in _layouts(code).items() if kind in (None, each)}
        if not layouts:
            raise BadRequest(f"0x{code:02x} is no {kind or 'operation'} of FlyMQ")
        if compression := (flags & frames.COMPRESSION_MASK) >> frames.COMPRESSION_SHIFT:
            payload = codec.inflate(compression, payload, frames.FRAME_BYTES_MAX)
            inflated = frames.CODECS[compression]
    except QuintetError as refused:
        return Dissection(kind or "request", name, whole, len(whole), header, str(refused))
    read = {each: _read(texts, payload) for each, texts in layouts.items()}
    fitting = [each for each, (_, wrong) in read.items() if not wrong]
    chosen = fitting[0] if fitting else max(read, key=lambda each: len(read[each][0]))
    spans, error = read[chosen]
    if len(payload) < length and not inflated:
        error = f"{length} bytes of payload are announced, {len(payload)} are there"
    shown = whole[: frames.HEADER_BYTES] + payload
    return Dissection(chosen, name, shown, len(whole), header + spans, error, tuple(fitting[1:]), inflated)


def _header(data: bytes, name: str) -> Iterator[Span]:
    flags = [] if len(data) < 4 or not data[3] & frames.BINARY else ["binary"]
    if len(data) > 3:
        compression = (data[3] & frames.COMPRESSION_MASK) >> frames.COMPRESSION_SHIFT
        accepts = (data[3] & frames.ACCEPT_MASK) >> frames.ACCEPT_SHIFT
        flags += [f"payload is {frames.CODECS.get(compression, compression)}"] if compression else []
        flags += [f"accepts {frames.CODECS.get(accepts, accepts)}"] if accepts else []
    rows = (
        (0, 1, "magic", "FlyMQ" if data[:1] == bytes([frames.MAGIC]) else f"not 0x{frames.MAGIC:02x}"),
        (1, 2, "version", data[1] if len(data) > 1 else None),
        (2, 3, "operation", name),
        (3, 4, "flags", ", ".join(flags) or "none"),
        (4, 8, "length", int.from_bytes(data[4:8], "big")),
    )
    for start, end, field, value in rows:
        if end <= len(data):
            yield Span(start, end, field, value)


def _layouts(code: int) -> dict[Kind, tuple[str, ...]]:
    """The texts a frame of this code may have, likeliest first."""
    if code == frames.ERROR:
        return {"reply": (frames.ERROR_LAYOUT["document"],), "reply (sdk)": (frames.ERROR_LAYOUT["sdk"],)}
    found: dict[Kind, tuple[str, ...]] = {}
    if code in frames.OPERATIONS:
        found["request"] = frames.OPERATIONS[code].asks
    for operation in frames.OPERATIONS.values():
        if operation.answer_code == code:
            found["reply"] = (operation.answer,)
            if operation.answer_sdk != operation.answer:
                found["reply (sdk)"] = (operation.answer_sdk,)
    return found


def _read(texts: tuple[str, ...], payload: bytes) -> tuple[list[Span], str]:
    """(fields, why it does not fit) of the first layout that fits, or of the one that gets furthest."""
    best: tuple[list[Span], str] | None = None
    for text in texts:
        spans: list[Span] = []
        end = 0
        error = ""
        try:
            for start, end, name, value in codec.layout(text).spans(memoryview(payload), 0, {}, ""):
                spans.append(Span(frames.HEADER_BYTES + start, frames.HEADER_BYTES + end, name, value))
            if end < len(payload):
                error = f"{len(payload) - end} bytes too many at its end"
        except codec.Malformed as wrong:
            error = str(wrong)
        if not error:
            return spans, ""
        if best is None or len(spans) > len(best[0]):
            best = spans, error
    assert best is not None, "every operation has a layout"
    return best


# -- printing ---------------------------------------------------------------------------------------------------------


def as_json(found: Dissection) -> dict[str, object]:
    """Values that are bytes are text, or hex where they are not UTF-8."""
    fields = [
        {"offset": s.start, "hex": found.data[s.start : s.end].hex(), "name": s.name, "value": _plain(s.value)}
        for s in found.spans
    ]
    return {
        "operation": found.name,
        "kind": found.kind,
        "fields": fields,
        "error": found.error or None,
        "rest_hex": found.rest.hex(),
        "fits_also": list(found.others),
        "inflated": found.inflated or None,
    }


def _plain(value: object) -> object:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def lines(found: Dissection) -> Iterator[str]:
    """The frame as coloured lines; `show` removes the colours when the output is not a terminal."""
    title = f"{found.name} {found.kind}, {found.size} bytes"
    if found.inflated:
        title += f"; the payload was {found.inflated}, {len(found.data) - frames.HEADER_BYTES} bytes inflated"
    if found.others:
        title += f" (fits {' and '.join(found.others)} too: --as says which)"
    yield click.style(title, bold=True)
    width = max((len(span.name) for span in found.spans), default=0)
    for span in found.spans:
        yield from _field(span, found.data, width)
    if found.error:
        yield click.style(f"  {found.error}", fg="red")
    if found.rest:
        end = len(found.data)
        yield from _field(Span(end - len(found.rest), end, "not read", None), found.data, width)


def _field(span: Span, whole: bytes, width: int) -> Iterator[str]:
    colour = "blue" if span.start < frames.HEADER_BYTES else "green"
    raw = whole[span.start : span.end]
    shown = raw[:FIELD_BYTES_SHOWN]
    for at in range(0, len(shown), ROW_BYTES):
        place = click.style(f"{span.start + at:06x}", dim=True)
        digits = f"{shown[at : at + ROW_BYTES].hex(' '):{ROW_BYTES * 3 - 1}}"
        line = f"  {place}  {click.style(digits, fg=colour)}"
        if at == 0:
            line += f"  {click.style(f'{span.name:{width}}', fg='cyan')}  {_shown(span)}"
        yield line.rstrip()
    if len(raw) > len(shown):
        yield f"          ... {len(raw) - len(shown):,} bytes more"


def _shown(span: Span) -> str:
    if span.value is None:
        return ""
    value = _plain(span.value)
    if isinstance(value, bool) or not isinstance(value, str) or span.start < frames.HEADER_BYTES:
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = repr(value) if isinstance(span.value, str) or value.encode() == span.value else f"0x{value}"
    return text if len(text) <= VALUE_CHARS_SHOWN else f"{text[:VALUE_CHARS_SHOWN]}..."


def show(text: str) -> None:
    """A coloured line, plain in a pipe or when NO_COLOR is set."""
    click.echo(text, color=False if os.environ.get("NO_COLOR") else None)
