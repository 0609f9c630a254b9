"""The canonical form of a peerbus envelope: the known digests, a second implementation that goes character by
character, and everything that must not verify.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from hmac import digest
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quintet.model import envelope
from quintet.model.envelope import MEMBERS, Envelope, canonical, parse, sign, verify, wire
from quintet.model.errors import ProtocolError

SECRET = b"0123456789abcdef0123456789abcdef"
LONG = "QUINTET_TEST_LONG"  # set: a million envelopes instead of some thousands
ROUNDS = 1_000_000 if os.environ.get(LONG) else 3_000


def signed(body: bytes, id: str = "01HZ0000000000000000000000", to: str = "bob", sender: str = "alice") -> bytes:
    return sign(SECRET, id=id, sender=sender, to=to, ts="2026-05-18T12:00:00Z", body=body)


# -- a second implementation, from the rules alone ---------------------------------------------------------------------

SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
FIVE = "<>&\u2028\u2029"


def plain_string(value: str) -> str:
    out = '"'
    for character in value:
        if character in SHORT:
            out += SHORT[character]
        elif ord(character) < 0x20 or character in FIVE:
            out += "\\u" + format(ord(character), "04x")
        else:
            out += character
    return out + '"'


def plain_body(raw: str) -> str:
    out, inside, escaped = "", False, False
    for character in raw:
        if inside:
            out += "\\u" + format(ord(character), "04x") if character in FIVE else character
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character not in " \t\r\n":
            out += character
            inside = character == '"'
    return out or "null"


def plain(strings: dict[str, str], body: str) -> bytes:
    out = "{"
    for name in ("protocol_version", "id", "from", "to", "ts", "source", "kind"):
        out += f'"{name}":{plain_string(strings[name])},'
    return (out + f'"body":{plain_body(body)}}}').encode()


# -- random JSON text, in every spelling that the grammar allows -------------------------------------------------------

ALPHABET = 'aZ09 "\\/\b\f\n\r\t\x00\x1f\x7f<>&\u2028\u2029\u00e9\u4e16\U0001f600\ufffd\u00a0\u0085'
NUMBERS = ("0", "-0", "1", "-12.50", "1e5", "1E+05", "2.5e-300", "9" * 40, "1E400")


def spelled(random: Random, value: str) -> str:
    """A JSON string of this value, each character written in one of the ways it may be."""
    out = '"'
    for character in value:
        units = character.encode("utf-16-be").hex()
        long = "".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4))
        ways = [long, long.upper().replace("\\U", "\\u")]
        if character in SHORT:
            ways.append(SHORT[character])
        elif ord(character) >= 0x20:
            ways += [character] * 3
        if character == "/":
            ways.append("\\/")
        out += random.choice(ways)
    return out + '"'


def word(random: Random) -> str:
    return "".join(random.choices(ALPHABET, k=random.randrange(8)))


def blank(random: Random) -> str:
    return random.choice(("", "", "", " ", "\n", "\t \r\n"))


def some_json(random: Random, depth: int = 4) -> str:
    kind = random.randrange(4 if depth == 0 else 6)
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice(("true", "false", "null"))
    if kind < 4:
        return spelled(random, word(random))
    parts = [some_json(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 4:
        return "[" + blank(random) + ",".join(blank(random) + part + blank(random) for part in parts) + "]"
    names = [blank(random) + spelled(random, word(random)) + blank(random) for _ in parts]
    pairs = [f"{name}:{blank(random)}{part}{blank(random)}" for name, part in zip(names, parts, strict=True)]
    return "{" + blank(random) + ",".join(pairs) + "}"


def object_of(random: Random, strings: dict[str, str], body: str, hmac: str) -> str:
    """An envelope on the wire as anybody may write it: members in any order, blanks, spellings."""
    members = [(name, spelled(random, value)) for name, value in strings.items()]
    members += [("body", body), ("hmac", f'"{hmac}"')]
    random.shuffle(members)
    pairs = [f'{blank(random)}"{name}"{blank(random)}:{blank(random)}{value}{blank(random)}' for name, value in members]
    return blank(random) + "{" + ",".join(pairs) + "}" + blank(random)


def same(random: Random) -> None:
    """One random envelope: both implementations make the same bytes of it, and what is signed is verified."""
    strings = {name: word(random) for name in ("protocol_version", "id", "from", "to", "ts", "source", "kind")}
    body = some_json(random)
    expected = plain(strings, body)
    whole = object_of(random, strings, body, "0" * 64).encode()
    seen = parse(whole)
    assert canonical(seen) == expected
    assert canonical(parse(wire(seen))) == expected
    hmac = envelope.signature(seen, SECRET)
    assert verify(object_of(random, strings, body, hmac).encode(), SECRET)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_both_implementations_agree(seed: int) -> None:
    same(Random(seed))


@pytest.mark.timeout(3_600)  # the million takes some minutes
def test_both_implementations_agree_many_times() -> None:
    random = Random(5)
    for _ in range(ROUNDS):
        same(random)


TEXT = st.text(max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(value=JSON, ascii=st.booleans(), indent=st.sampled_from([None, 0, 2]), names=st.tuples(TEXT, TEXT, TEXT))
@example(value="<>&\u2028\u2029", ascii=False, indent=None, names=("<", "&", "\u2028"))
def test_what_another_language_writes(value: object, ascii: bool, indent: int | None, names: tuple[str, ...]) -> None:
    """The way there and back through an encoder that knows nothing of the rules."""
    body = json.dumps(value, ensure_ascii=ascii, indent=indent)
    id, sender, to = names
    whole = sign(SECRET, id=id, sender=sender, to=to, ts="", body=body.encode())
    assert verify(whole, SECRET)
    assert json.loads(whole)["body"] == value
    assert json.loads(whole)["from"] == sender
    seen = parse(whole)
    assert wire(seen) == whole
    strings = {name: json.loads(whole)[name] for name in MEMBERS if name not in ("body", "hmac")}
    assert canonical(seen) == plain(strings, body)


# -- known digests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "id", "to", "digest"),
    [
        (b'{"hello":"world"}', "", "bob", "1032da80b2c65cd7e436dcd68744a7cee37107d0aebb7fbff3985c729cc3f143"),
        (b"null", "", "bob", "1377f8a9b9474a78bed9c114527871bd47c26b7e0458529bcb9866d7c440de48"),
        (b"", "", "bob", "1377f8a9b9474a78bed9c114527871bd47c26b7e0458529bcb9866d7c440de48"),
        (b'{"t":"a<b & c>d"}', "", "bob", "714db9ae29972f3f80a37f93f0605263d5e7a80c956996fde9afb9adf2c5aad5"),
        (b' {\n"t" :\t"a<b & c>d"} ', "", "bob", "714db9ae29972f3f80a37f93f0605263d5e7a80c956996fde9afb9adf2c5aad5"),
        (b'{"n":1}', "b1", "*", "6bc89e017f36844a5d87aaf8870d927d4dde31327071c47b3f63b750a2ee9c9d"),
    ],
)
def test_known_digests(body: bytes, id: str, to: str, digest: str) -> None:
    whole = signed(body, id=id or "01HZ0000000000000000000000", to=to)
    assert parse(whole).hmac == digest
    assert verify(whole, SECRET)


def test_a_body_that_was_signed_without_escapes_is_not_genuine() -> None:
    """Go verifies over the escaped body; whoever signs it verbatim made a digest that no Go peer accepts, and neither
    do we."""
    verbatim = "1fb48a4feff75398f9d19e5a306e2837e6f1efddc74ff08d66029c2cd199f917"
    whole = signed(b'{"t":"a<b & c>d"}').replace(parse(signed(b'{"t":"a<b & c>d"}')).hmac.encode(), verbatim.encode())
    assert parse(whole).hmac == verbatim
    assert not verify(whole, SECRET)


def test_how_go_writes_strings() -> None:
    assert envelope.string('a"\\/\b\f\n\r\t\x00\x1f\x7f<>&\u2028\u2029\u00e9') == (
        b'"a\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\\u003c\\u003e\\u0026\\u2028\\u2029\xc3\xa9"'
    )


# -- what must not verify ----------------------------------------------------------------------------------------------

SEVERAL = [
    signed(b'{"hello":"world","n":[1,2.5e3,null,true]}'),
    signed(b"null", to="*"),
    signed('{"t":"a<b & c>d \u2028 \u00e9 \\u00e9 \\n","":{}}'.encode()),
    signed(b'"' + b"x" * 300 + b'"', sender="\u00c5sa"),
]


@pytest.mark.parametrize("whole", SEVERAL)
def test_no_flipped_bit_is_accepted(whole: bytes) -> None:
    assert verify(whole, SECRET)
    accepted = 0
    for at in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[at // 8] ^= 1 << at % 8
        accepted += verify(bytes(changed), SECRET)
    assert accepted == 0


def test_a_flip_that_only_respells_a_member_changes_nothing() -> None:
    """\\u003c and \\u003C in a name are one string: it verifies, and it says the same. In the body they are two texts."""
    whole = signed(b"1", sender="a<b")
    respelled = whole.replace(b"\\u003c", b"\\u003C")
    assert respelled != whole
    assert verify(respelled, SECRET)
    assert parse(respelled) == parse(whole)
    body = signed(b'"a<b"')
    assert not verify(body.replace(b"\\u003c", b"\\u003C"), SECRET)


@pytest.mark.parametrize("whole", SEVERAL)
def test_every_byte_that_is_cut_or_doubled_is_noticed(whole: bytes) -> None:
    for at in range(len(whole)):
        assert not verify(whole[:at] + whole[at + 1 :], SECRET), at
        assert not verify(whole[:at], SECRET)
    assert not verify(whole + whole, SECRET)
    assert not verify(whole + b"0", SECRET)


def test_members_that_change_places_do_not_verify() -> None:
    whole = signed(b'"b"')
    names = [name for name in MEMBERS if name not in ("body", "hmac")]
    values = json.loads(whole)
    for one in names:
        for other in names:
            if one != other:
                swapped = values | {one: values[other], other: values[one]}
                assert not verify(json.dumps(swapped).encode(), SECRET), (one, other)
    assert verify(json.dumps(values).encode(), SECRET), "the control: the same members unswapped"


@pytest.mark.parametrize(
    "data",
    [
        signed(b"1").replace(b'{"protocol', b'{"id":"01HZ0000000000000000000000","protocol'),
        signed(b"1").replace(b'{"protocol', b'{"to":"mallory","protocol'),
        signed(b"1").replace(b'"hmac"', b'"to":"mallory","hmac"'),
        signed(b"1").replace(b'"hmac"', b'"\\u0074o":"mallory","hmac"'),
        signed(b"1").replace(b'"to"', b'"\\u0074o"'),
        signed(b"1").replace(b'"to"', b'"To"'),
        signed(b"1").replace(b'"hmac"', b'"To":"mallory","hmac"'),
        signed(b"1").replace(b'"hmac"', b'"body":2,"hmac"'),
        signed(b"1").replace(b'"hmac"', b'"extra":0,"hmac"'),
        signed(b"1").replace(b',"body":1', b""),
        signed(b"null").replace(b',"body":null', b""),
        signed(b"1").replace(b'"to":"bob"', b'"to":["bob"]'),
        signed(b"1").replace(b'"to":"bob"', b'"to":null'),
        b"[" + signed(b"1") + b"]",
        b"{}",
        b"",
        b"null",
        b"\xef\xbb\xbf" + signed(b"1"),
        signed(b"1").replace(b"alice", b"al\xffce"),
        signed(b"1").replace(b"alice", b"al\\ud800ice"),
        signed(b"1").replace(b'"body":1', b'"body":01'),
        signed(b"1").replace(b'"body":1', b'"body":1,'),
        signed(b"1").replace(b'"body":1', b'"body":1.0'),
        signed(b"1").replace(b'"body":1', b'"body":"1"'),
        signed(b'"\\u00e9"').replace(b"\\u00e9", "\u00e9".encode()),
        signed(b'{"a":1,"b":2}').replace(b'"a":1,"b":2', b'"b":2,"a":1'),
    ],
)
def test_tricks_do_not_verify(data: bytes) -> None:
    assert not verify(data, SECRET)


def test_the_hmac_is_64_lowercase_digits() -> None:
    whole = signed(b"1")
    hmac = parse(whole).hmac.encode()
    for wrong in (hmac.upper(), hmac[:-1], hmac + b"0", b"", b" " + hmac, hmac[:-2] + "\u0661".encode(), b"0" * 64):
        assert wrong != hmac
        assert not verify(whole.replace(hmac, wrong), SECRET)
    assert not verify(whole, b""), "without a secret nothing is genuine"
    assert not verify(whole, SECRET + b"x")
    unsigned = sign(b"", id="1", sender="a", to="b", ts="", body=b"1")
    assert parse(unsigned).hmac == ""
    assert not verify(unsigned, b"")


def test_depth_is_refused_and_not_a_crash() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(ProtocolError, match="nested too deeply"):
        signed(deep)
    assert not verify(signed(b"1").replace(b'"body":1', b'"body":' + deep), SECRET)


def test_a_lenient_reader_ignores_what_it_does_not_know() -> None:
    assert parse(b'{"id":"1","new":[{}],"to":"bob"}', strict=False) == Envelope("", "1", "", "bob", "", "", "", b"null")
    assert parse(b"{}", strict=False) == Envelope("", "", "", "", "", "", "", b"null")
    for bad in (b'{"id":"1","id":"2"}', b'{"\\u0069d":"1"}', b'{"id":1}', b'{"new":1,"new":1}', b"[]"):
        with pytest.raises(ProtocolError):
            parse(bad, strict=False)


def test_errors_never_repeat_what_was_sent() -> None:
    for data in (b'{"id":"hush-hush"}', b'{"hush-hush":1}', signed(b"1").replace(b'"bob"', b'["hush-hush"]')):
        with pytest.raises(ProtocolError) as raised:
            parse(data)
        assert "hush-hush" not in str(raised.value)
    with pytest.raises(ProtocolError, match="not Unicode"):
        sign(SECRET, id="\ud800", sender="", to="", ts="", body=b"")
    with pytest.raises(ProtocolError, match="not one JSON text"):
        signed(b"hello")


def test_times_are_written_as_go_does() -> None:
    assert envelope.rfc3339(1_779_105_600_000_000) == "2026-05-18T12:00:00Z"
    assert envelope.rfc3339(1_779_105_600_123_400) == "2026-05-18T12:00:00.1234Z"
    assert envelope.rfc3339(0) == "1970-01-01T00:00:00Z"


# -- signed as the document says: verbatim ------------------------------------------------------------------------------

ID = "01HZ0000000000000000000000"


def verbatim(body: str, sender: str = "alice", spell: Callable[[str], str] = json.dumps) -> bytes:
    """An envelope whose sender signs the texts as it writes them, blanks, <, & and U+2028 included."""
    strings = {"protocol_version": "v1", "id": ID, "from": sender, "to": "bob", "ts": "2026-05-18T12:00:00Z"}
    strings |= {"source": "peer-bus", "kind": "msg"}
    texts = [f'"{name}":{spell(value)}' for name, value in strings.items()]
    text = "{" + ",".join([*texts, f'"body":{body}'])
    hmac = digest(SECRET, (text + "}").encode(), "sha256").hex()
    return f'{text},"hmac":"{hmac}"}}'.encode()


def test_the_known_digest_of_a_verbatim_body_is_taken() -> None:
    made = verbatim('{"t":"a<b & c>d"}')
    assert made.endswith(b'"hmac":"1fb48a4feff75398f9d19e5a306e2837e6f1efddc74ff08d66029c2cd199f917"}')
    assert verify(made, SECRET)


@pytest.mark.parametrize("sender", ["alice", "a<b&c", "\u00e9t\u00e9", "line\u2028separator"])
@pytest.mark.parametrize(
    "body", ['"<&>"', '"\u2028\u2029"', '{ "a" : [ 1 ,\t2 ] }', '{\n  "a": "<"\n}', "null", '"\\u003c"']
)
@pytest.mark.parametrize("ascii", [True, False])
def test_texts_signed_as_they_stand_are_taken(body: str, sender: str, ascii: bool) -> None:
    made = verbatim(body, sender, partial(json.dumps, ensure_ascii=ascii))
    assert verify(made, SECRET) and not verify(made, SECRET[::-1])
    found = parse(made)
    assert (found.sender, found.body) == (sender, plain_body(body).encode()), "what is handed on is canonical"


def test_strings_of_published_clients_with_a_verbatim_body_are_taken() -> None:
    assert verify(verbatim('{ "x": "<" }', "a<b", plain_string), SECRET)


def test_no_flipped_bit_of_a_verbatim_envelope_is_accepted() -> None:
    made = verbatim('{ "t": "a<b & c>d" }', "a&b")
    for bit in range(8 * len(made)):
        changed = bytearray(made)
        changed[bit // 8] ^= 1 << bit % 8
        if bytes(changed) != made:
            assert not verify(bytes(changed), SECRET), bit
