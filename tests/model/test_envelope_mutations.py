"""Signed envelopes that were tampered with: bits, bytes, members, pieces of other envelopes. Whatever still verifies, at a
client or at the broker's door, says to every reader exactly what was signed."""

import os
from random import Random

import pytest

from quintet.model import envelope
from quintet.model.errors import ProtocolError
from quintet.protocols.peerbus import codec

LONG = "QUINTET_TEST_LONG"  # set: a million mutations instead of some thousands
ROUNDS = 1_000_000 if os.environ.get(LONG) else 5_000
SECRET = b"0123456789abcdef0123456789abcdef"
BODIES = (
    b"null", b"-0", b"1E5", b'{"a":1,"a":2}', b'{"hello":"world","n":[1,2.5e3,null,true]}',
    '{"t":"a<b & c>d \u2028 \u00e9 \\u00e9 \\n","":{}}'.encode(), b'"\\u003c\\u003C"', b'["*",{"id":"m2","to":"*","hmac":"0"}]',
)  # fmt: skip
NAMES = ("amy", "bob", "*", "\u00c5sa", "a<b", 'q"', "back\\slash")
JSON_BYTES = b'"\\{}[]:,0123456789abcdefu-+.eE \t\r\nntrflsAF<>&\x00\x7f\x80\xc2\xe2\xff'


def made(random: Random) -> bytes:
    return envelope.sign(
        SECRET,
        id=f"m{random.randrange(1_000)}",
        sender=random.choice(NAMES),
        to=random.choice(NAMES),
        ts="2026-05-18T12:00:00Z",
        body=random.choice(BODIES),
    )


def flip(random: Random, data: bytearray, other: bytes) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def put(random: Random, data: bytearray, other: bytes) -> None:
    data[random.randrange(len(data))] = random.choice(JSON_BYTES)


def insert(random: Random, data: bytearray, other: bytes) -> None:
    data.insert(random.randrange(len(data) + 1), random.choice(JSON_BYTES))


def cut(random: Random, data: bytearray, other: bytes) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randrange(1, 20)]


def double(random: Random, data: bytearray, other: bytes) -> None:
    at = random.randrange(len(data))
    piece = data[at : at + random.randrange(1, 60)]
    data[at:at] = piece


def swap(random: Random, data: bytearray, other: bytes) -> None:
    one, two = random.randrange(len(data)), random.randrange(len(data))
    data[one], data[two] = data[two], data[one]


def graft(random: Random, data: bytearray, other: bytes) -> None:
    """A member of another envelope, which is genuine itself, instead of its own or beside it."""
    name = b'"%b":' % random.choice(envelope.MEMBERS).encode()
    start = other.find(name)
    member = other[start : (other.find(b',"', start) + 1) or len(other) - 1].rstrip(b",")
    mine = data.find(name)
    end = data.find(b',"', mine)
    if random.random() < 0.5 and mine > 0 and end > 0:
        data[mine:end] = member
    else:
        data[1:1] = member + b","


def respell(random: Random, data: bytearray, other: bytes) -> None:
    """One letter as an escape: in a value it is the same text, in a name of a member it is none."""
    at = random.randrange(len(data))
    if chr(data[at]).isalnum() and data[at] < 128:
        data[at : at + 1] = b"\\u%04x" % data[at]


KINDS = (flip, put, insert, cut, double, swap, graft, respell)


def at_the_door(data: bytes) -> envelope.Envelope | None:
    """As the broker judges it; the envelope it takes it for."""
    try:
        frame = codec.decode(data)
        codec.check_envelope(frame, data)
        found = envelope.parse(data, strict=False)
    except ProtocolError:
        return None
    assert (frame.id or "", frame.to or "", frame.sender or "") == (found.id, found.to, found.sender)
    return found if envelope.genuine(found, SECRET) else None


@pytest.mark.timeout(3_600)  # the million takes minutes
def test_nothing_that_was_changed_is_accepted_as_something_else() -> None:
    random = Random(3)
    originals = [made(random) for _ in range(200)]
    signed = {envelope.canonical(envelope.parse(one)) for one in originals}
    assert all(envelope.verify(one, SECRET) and at_the_door(one) for one in originals)
    refused = respelled = 0
    for _ in range(ROUNDS):
        data = bytearray(random.choice(originals))
        other = random.choice(originals)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            if data:
                random.choice(KINDS)(random, data, other)
        whole = bytes(data)
        taken = at_the_door(whole)
        if taken is None and not envelope.verify(whole, SECRET):
            refused += 1
            continue
        respelled += 1
        read = taken or envelope.parse(whole)
        assert envelope.canonical(read) in signed, whole
    assert refused > ROUNDS // 2 and respelled > 0
