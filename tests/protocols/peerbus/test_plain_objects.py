"""What the kernel calls a plain object of peerbus is one that the slow reader takes, too, and reads in the same way."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from quintet import kernel
from quintet.model import envelope
from quintet.protocols.peerbus import codec, frames
from quintet.protocols.peerbus.mapping import is_everyone, is_reserved

BODIES = st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=6)  # fmt: skip


def judge(data: bytes) -> bool:
    """Whether the kernel takes it. If it does, everything that the slow path looks at must be right."""
    found = kernel.peer_object(data)
    if found is None:
        return False
    frame = codec.decode(data)
    if isinstance(found, str):
        assert frame.type == frames.ACK and frame.id == found
        return True
    codec.check_envelope(frame, data)
    id, sender, to, ts = found
    assert (frame.id, frame.sender, frame.to, frame.ts) == (id, sender, to, ts)
    assert (
        codec.is_id(id) and to and frame.protocol_version == frames.VERSION and not is_reserved(id, frame.source or "")
    )
    assert not is_everyone(to, data) and frame.kind != envelope.BROADCAST
    return True


@given(body=BODIES, ascii_only=st.booleans(), seed=st.integers(0, 1 << 32))
def test_what_the_kernel_takes_the_slow_reader_takes_too(body: object, ascii_only: bool, seed: int) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    data = (
        b'{"protocol_version":"v1","id":"m1","from":"amy","to":"bob","ts":"t","source":"s","kind":"msg","body":%b,"hmac":"00"}'
        % text
    )
    judge(data)
    chance, changed = random.Random(seed), bytearray(data)
    for _ in range(10):
        at = chance.randrange(len(changed))
        changed[at : at + chance.randrange(3)] = chance.choice([b'"', b"\\", b",", b"{", b"}", b"[", b"]", b"1", b"e", b".", b"-", b"\xc3\xa9", b"\xff", b" ", b'"a":1,'])  # fmt: skip
        judge(bytes(changed) or b"{")
        if not changed:
            break


def test_what_clients_write_is_plain() -> None:
    signed = envelope.sign(
        b"s" * 32, id="m1", sender="amy", to="bob", ts="2026-11-18T00:00:00Z", body=b'{"text": "caf\xc3\xa9 <b>"}'
    )
    assert judge(signed)
    assert judge(codec.ack("m1")) and judge(codec.ack("m1|bob"))
    assert not judge(codec.ask_peers()) and not judge(codec.register("t", "amy"))
