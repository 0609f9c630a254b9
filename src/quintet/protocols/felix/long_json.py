"""Decodes JSON messages that would keep the loop: the kernel scans them in another thread, base64 is decoded in slices.

The result is that of codec.decode. What costs more than its bytes (values, escapes) is bounded by the scan, so that what is
left for the loop takes about half a millisecond for each MiB.
"""

import binascii
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.slices import Steps, unless_unwanted
from quintet.model.errors import BadRequest
from quintet.model.tasks import Done, start
from quintet.protocols.felix import codec
from quintet.protocols.felix.frames import JSON_DEPTH_MAX

JSON_HERE_BYTES_MAX: Final = 256 << 10  # of a message that is read at once: up to 10 ns a byte
BASE64_STEP_BYTES: Final = 1 << 20  # about a millisecond; whole groups of four characters


class Unreadable(BadRequest):
    """The kernel found a fault: neither the type nor the id of the message can be told."""


def decode(
    payload: bytes, decoders: codec.Decoders, broker: Broker, wanted: Callable[[], bool], done: Done[msgspec.Struct]
) -> None:
    """done(message, error), never within the call, and not at all if `wanted()` says no before."""
    scan, steps = partial(kernel.json_head, payload, JSON_DEPTH_MAX), partial(decode_steps, payload, decoders)
    start(broker.elsewhere.scan(scan, broker.slices, steps, wanted)).then(unless_unwanted(done))


class _LongPublish(codec.Publish, kw_only=True, tag="publish"):
    payload: msgspec.Raw


class _LongPublishBatch(codec.PublishBatch, kw_only=True, tag="publish_batch"):
    payloads: list[msgspec.Raw]  # type: ignore[assignment]


class _LongCachePut(codec.CachePut, kw_only=True, tag="cache_put"):
    value: msgspec.Raw


class _LongCachePutOurs(codec.CachePutOurs, kw_only=True, tag="cache_put"):
    value: msgspec.Raw


# What a long message is first read as, and the field of it that is base64.
_LONG: Final[dict[type, tuple[msgspec.json.Decoder[msgspec.Struct], str]]] = {
    codec.Publish: (msgspec.json.Decoder(_LongPublish), "payload"),
    codec.PublishBatch: (msgspec.json.Decoder(_LongPublishBatch), "payloads"),
    codec.CachePut: (msgspec.json.Decoder(_LongCachePut), "value"),
    codec.CachePutOurs: (msgspec.json.Decoder(_LongCachePutOurs), "value"),
}


def decode_steps(payload: bytes, decoders: codec.Decoders, head: tuple[int, bytes]) -> Steps[msgspec.Struct]:
    """As codec.decode_by, of a message longer than JSON_HERE_BYTES_MAX, in steps. `head` is what kernel.json_head found in it."""
    fault, type = head
    if fault:
        raise Unreadable(codec.FAULTS[fault])
    kind = type.decode()
    decoder = decoders.get(kind)
    if decoder is None:
        raise codec.UnknownType(kind)
    try:
        long = _LONG.get(decoder.type)
        if long is None:
            return decoder.decode(payload)
        message = long[0].decode(payload)
        yield
        fields = {name: getattr(message, name) for name in decoder.type.__struct_fields__}
        raw = fields[long[1]]
        if isinstance(raw, list):
            values: list[bytes] = []
            for one in raw:
                values.append((yield from _base64_steps(one)))
                yield
            return decoder.type(**fields | {long[1]: values})
        return decoder.type(**fields | {long[1]: (yield from _base64_steps(raw))})
    except (msgspec.DecodeError, RecursionError, binascii.Error) as error:
        raise BadRequest(f"{kind}: {error}") from error


def _base64_steps(raw: msgspec.Raw) -> Steps[bytes]:
    """The bytes of a JSON string."""
    view = memoryview(raw)
    if len(view) <= BASE64_STEP_BYTES:
        return msgspec.json.decode(raw, type=bytes)
    if view[0] != ord('"'):
        raise msgspec.DecodeError("Expected `bytes`")
    out, rest = bytearray(), b""
    for at in range(1, len(view) - 1, BASE64_STEP_BYTES):
        text = rest + bytes(view[at : min(at + BASE64_STEP_BYTES, len(view) - 1)])
        last = at + BASE64_STEP_BYTES >= len(view) - 1
        if b"\\" in text:  # some write \/ for /; whoever writes others needs no speed
            text = text.replace(b"\\/", b"/")
            if b"\\" in text[:-1]:
                return msgspec.json.decode(raw, type=bytes)
        whole = len(text) if last else (len(text) - text.endswith(b"\\")) // 4 * 4
        text, rest = text[:whole], text[whole:]
        if b"=" in text and not last:
            raise binascii.Error("Invalid base64 encoded string")
        out += binascii.a2b_base64(text, strict_mode=True)
        yield
    return bytes(out)
