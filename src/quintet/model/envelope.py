"""The peerbus envelope over bytes: its canonical form, its signature, and the one way to read it.

Broker and clients share this file: what one signs the other must be able to verify, byte for byte. Pure functions; the
secret, the time and the id are parameters. Who may send what to whom is not decided here.

An envelope is one JSON object with exactly nine members, or (ours) eleven: `headers` and `headers_hmac` behind them. The signature covers eight of them, in this order:

    {"protocol_version":S,"id":S,"from":S,"to":S,"ts":S,"source":S,"kind":S,"body":RAW}

    S    a string as Go's encoder writes it: UTF-8 as it is, but " \\ and the controls escaped (\\b \\f \\n \\r \\t, else \\u00xx),
         and < > & U+2028 U+2029 as \\u003c \\u003e \\u0026 \\u2028 \\u2029
    RAW  the body's own text: never decoded and encoded again, only without blanks between its tokens and with the same
         five code points escaped. Those can only be inside strings, so the text means what it meant before.

The members may come in any order, with blanks, and with any spelling of their strings: the signature is over the form
above. Each must be there once, its name written plainly; a second `id` would let two readers see two messages.

That is what published clients sign. The document says "verbatim", and a client written from it signs texts as they stand in the
frame. So whoever verifies takes these, too: each text in its canonical form or as it stands, the body also without blanks only.
All of them are spellings of the one envelope, so none means anything else.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Final, NamedTuple

import msgspec
from msgspec import json

from quintet.model.errors import ProtocolError

Header = tuple[bytes, bytes | None]  # as model/batch.py has it

VERSION: Final = "v1"
SOURCE: Final = "peer-bus"
EVERYONE: Final = "*"  # `to` of a broadcast
MESSAGE: Final = "msg"
BROADCAST: Final = "broadcast"
SIGNED: Final = ("protocol_version", "id", "from", "to", "ts", "source", "kind", "body")
MEMBERS: Final = (*SIGNED, "hmac")
OPTIONAL: Final = ("headers", "headers_hmac")  # ours: both or none
HMAC_DIGITS: Final = 64
SECRET_BYTES_MIN: Final = 32  # what the reference broker asks of its operator, too

_ESCAPES: Final = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "<>&\u2028\u2029")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HEX: Final = frozenset("0123456789abcdef")
_RAWS: Final = json.Decoder(dict[str, msgspec.Raw])
_STRING: Final = json.Decoder(str)


class Envelope(NamedTuple):
    """A message as its sender signed it. `body` is in its canonical form; `sender` is the member "from"."""

    protocol_version: str
    id: str
    sender: str
    to: str
    ts: str
    source: str
    kind: str
    body: bytes
    hmac: str = ""
    headers: bytes = b""  # one JSON text, see `headers_text`; empty: it has none
    headers_hmac: str = ""


class _Plain(msgspec.Struct, rename={"sender": "from"}, forbid_unknown_fields=True, gc=False):
    protocol_version: str
    id: str
    sender: str
    to: str
    ts: str
    source: str
    kind: str
    body: msgspec.Raw
    hmac: str
    headers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    headers_hmac: str | msgspec.UnsetType = msgspec.UNSET


_PLAIN: Final = json.Decoder(_Plain)


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


_HEADERS: Final = json.Decoder(list[tuple[str, str | _Base64 | None]])


def string(value: str) -> bytes:
    """A JSON string as Go's encoder writes it."""
    return _escaped(_encoded(value))


def text(data: bytes) -> bytes:
    """One JSON text in its canonical form: no blanks between tokens, the five code points escaped. Nothing is null."""
    if not data:
        return b"null"
    return _escaped(_compact(data))


def canonical(envelope: Envelope) -> bytes:
    """The bytes that are signed. The body must be compact already, as `parse` and `text` give it."""
    version, id, sender, to, ts, source, kind, body, *_ = envelope
    members = {
        "protocol_version": version,
        "id": id,
        "from": sender,
        "to": to,
        "ts": ts,
        "source": source,
        "kind": kind,
        "body": msgspec.Raw(body or b"null"),
    }
    return _escaped(_encoded(members))


def signature(envelope: Envelope, secret: bytes) -> str:
    """The hmac of an envelope: 64 lowercase hexadecimal digits. Whatever `envelope.hmac` says does not matter."""
    return digest(secret, canonical(envelope), sha256).hex()


def wire(envelope: Envelope) -> bytes:
    """The whole object as it goes over the wire, in the order of the canonical form."""
    whole = b'%b,"hmac":%b' % (canonical(envelope)[:-1], string(envelope.hmac))
    if envelope.headers:
        whole += b',"headers":%b,"headers_hmac":%b' % (envelope.headers, string(envelope.headers_hmac))
    return whole + b"}"


def headers_text(headers: Iterable[Header]) -> bytes:
    """Headers as the member `headers` has them: [[name, value], ...], a value as text, as null, or as {"base64": ...}."""
    pairs: list[tuple[str, object]] = []
    for name, value in headers:
        try:
            said: object = None if value is None else value.decode()
        except UnicodeDecodeError:
            said = {"base64": b64encode(value or b"").decode()}
        pairs.append((name.decode(errors="replace"), said))
    return _escaped(_encoded(pairs))


def headers_of(text: bytes) -> tuple[Header, ...]:
    """The headers in such a text. ProtocolError if it is another."""
    try:
        return tuple((name.encode(), _value_of(said)) for name, said in _HEADERS.decode(text))
    except (msgspec.MsgspecError, UnicodeError, ValueError):
        raise ProtocolError("the member headers is a list of [name, value], value a text, null or {base64}") from None


def _value_of(said: "str | _Base64 | None") -> bytes | None:
    return said.encode() if isinstance(said, str) else said.base64 if said is not None else None


def headers_signature(envelope: Envelope, secret: bytes) -> str:
    """What `headers_hmac` is: over the signed bytes of the envelope and, behind them, the text of its headers. So headers belong to
    one envelope, and a reader that does not know them verifies the rest as ever."""
    return digest(secret, canonical(envelope) + envelope.headers, sha256).hex()


def sign(
    secret: bytes,
    *,
    id: str,
    sender: str,
    to: str,
    ts: str,
    body: bytes,
    source: str = SOURCE,
    kind: str = "",
    kid: str = "",
    headers: Sequence[Header] = (),
) -> bytes:
    """A signed envelope, ready for the wire. `body` is one JSON text; kind follows from `to` where it is not given. An
    empty secret leaves the hmac empty: nobody who verifies will take it. `kid` names a key of the sender's own and stands
    before the signature: only a broker that has that key verifies it."""
    kind = kind or (BROADCAST if to == EVERYONE else MESSAGE)
    envelope = Envelope(VERSION, id, sender, to, ts, source, kind, text(body))
    hmac = signature(envelope, secret) if secret else ""
    if headers:
        envelope = envelope._replace(headers=headers_text(headers))
        envelope = envelope._replace(headers_hmac=headers_signature(envelope, secret) if secret else "")
    return wire(envelope._replace(hmac=f"{kid}:{hmac}" if kid and hmac else hmac))


def parse(data: bytes, *, strict: bool = True) -> Envelope:
    """The envelope in these bytes. ProtocolError says what is wrong with them, never what they hold.

    strict: exactly the nine members. Otherwise, as the reference broker reads it: others are ignored, and one that is
    missing is empty. A member that is there twice, or whose name is written with escapes, is refused in either case."""
    return _plainly(data) or _anyhow(data, strict)


def _plainly(data: bytes) -> Envelope | None:
    """An envelope that is written the way most are: in order and without blanks. It is recognised by writing it again,
    which costs less than looking; whatever else it is, `_anyhow` says so."""
    try:
        found = _PLAIN.decode(data)
        if json.encode(found) != data:
            return None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    body = _escaped(_compact(bytes(found.body)))
    said = _escaped(_compact(bytes(found.headers))) if found.headers is not msgspec.UNSET else b""
    return Envelope(
        found.protocol_version, found.id, found.sender, found.to, found.ts, found.source, found.kind, body, found.hmac,
        said, found.headers_hmac or "",
    )  # fmt: skip


def _anyhow(data: bytes, strict: bool) -> Envelope:
    """An envelope in any order and spelling, member by member."""
    compact = _compact(data)
    if compact[:1] != b"{":
        raise ProtocolError("an envelope is a JSON object")
    try:
        raws = {name: bytes(raw) for name, raw in _RAWS.decode(compact).items()}
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ProtocolError(f"an envelope that cannot be read: {error}") from None
    # Braces and one colon and comma for each member: any byte more is a name twice, or one that is spelled otherwise.
    plain = 1 + sum(len(name.encode()) + 2 + 1 + len(raw) + 1 for name, raw in raws.items())
    if len(compact) != plain + (not raws):
        raise ProtocolError("an envelope names a member twice, or writes its name with escapes")
    if strict and raws.keys() - set(OPTIONAL) != set(MEMBERS):
        raise ProtocolError(f"an envelope has exactly the members {', '.join(MEMBERS)}; this one {_other(raws)}")
    version, id, sender, to, ts, source, kind, hmac = (_text_of(raws, name) for name in MEMBERS if name != "body")
    body, said = _escaped(raws.get("body", b"null")), _escaped(raws.get("headers", b""))
    return Envelope(version, id, sender, to, ts, source, kind, body, hmac, said, _text_of(raws, "headers_hmac"))


def genuine(envelope: Envelope, secret: bytes, data: bytes = b"") -> bool:
    """Whether an envelope that was parsed from `data` carries the signature of this secret: over its canonical form, or over
    its texts as they stand there. Compared in constant time; without a secret, or with an hmac that is not 64 lowercase
    hexadecimal digits, it does not."""
    hmac = envelope.hmac
    if not secret or len(hmac) != HMAC_DIGITS or not _HEX.issuperset(hmac):
        return False
    if envelope.headers and not compare_digest(
        envelope.headers_hmac.encode(), headers_signature(envelope, secret).encode()
    ):
        return False
    return any(compare_digest(hmac, digest(secret, form, sha256).hex()) for form in _forms(envelope, data))


def _forms(envelope: Envelope, data: bytes) -> Iterator[bytes]:
    """The bytes that may have been signed, each once, the canonical ones first."""
    first = canonical(envelope)
    yield first
    raws = _raws(data)
    if raws is None:
        return
    given = {first}
    version, id, sender, to, ts, source, kind, *_ = envelope
    own = [string(text) for text in (version, id, sender, to, ts, source, kind)]
    verbatim = [raws[name] for name in SIGNED[:-1]]
    for texts in (own, verbatim):
        for body in (envelope.body, _compact(raws["body"]), raws["body"]):
            form = b"{%b}" % b",".join(
                b'"%b":%b' % (name.encode(), raw) for name, raw in zip(SIGNED, (*texts, body), strict=True)
            )
            if form not in given:
                given.add(form)
                yield form


def _raws(data: bytes) -> dict[str, bytes] | None:
    """The texts of the members as they stand; None if one is missing."""
    try:
        raws = {name: bytes(raw) for name, raw in _RAWS.decode(data).items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return raws if raws.keys() >= set(SIGNED) else None


def verify(data: bytes, secret: bytes) -> bool:
    """Whether these bytes are an envelope, whole and as its sender signed it."""
    try:
        return genuine(parse(data), secret, data)
    except ProtocolError:
        return False


def rfc3339(us: int) -> str:
    """A time in microseconds since 1970 as the wire writes it: UTC, without trailing zeros."""
    seconds, fraction = divmod(us, 1_000_000)
    digits = f".{fraction:06d}".rstrip("0").rstrip(".")
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{digits}Z"


def microseconds(ts: str) -> int:
    """A time as the wire writes it in microseconds since 1970; 0 if it is none."""
    try:
        moment = datetime.fromisoformat(ts)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        return 0
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _compact(data: bytes) -> bytes:
    """Without blanks between tokens. It reads every byte, so a text that is no JSON ends here; how deep it may be nested
    is bounded by the interpreter's own limit of recursion."""
    try:
        data.decode()
        return json.format(data, indent=-1)
    except RecursionError:
        raise ProtocolError("a JSON text that is nested too deeply") from None
    except UnicodeDecodeError:
        raise ProtocolError("a text that is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not one JSON text: {error}") from None


def _escaped(data: bytes) -> bytes:
    if b"<" in data or b">" in data or b"&" in data or b"\xe2\x80" in data:  # the last begins U+2028 and U+2029
        for character, escape in _ESCAPES:
            data = data.replace(character, escape)
    return data


def _encoded(value: object) -> bytes:
    try:
        return json.encode(value)
    except UnicodeEncodeError as error:
        raise ProtocolError(f"a text is not Unicode: {error.reason}") from None


def _text_of(raws: dict[str, bytes], name: str) -> str:
    try:
        return _STRING.decode(raws[name]) if name in raws else ""
    except (msgspec.MsgspecError, UnicodeError):
        raise ProtocolError(f"the member {name} of an envelope is a string") from None


def _other(names: Iterable[str]) -> str:
    missing, extra = sorted(set(MEMBERS) - set(names)), len(set(names) - set(MEMBERS) - set(OPTIONAL))
    return f"lacks {', '.join(missing)}" if missing else f"has {extra} more"
