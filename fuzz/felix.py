"""Felix: the codec of the kernel, and live connections (felix_live.py).

Codec: only ValueError; consumed is whole frames; every chunking gives what the bytes say (tests/wire/felix.py); what is wrong
with a text is what the json module says; native == pure. The planted fault: an unacknowledged batch right behind another is
taken for the other's stream.
"""

import random
from typing import Any

from fuzz.driver import BrokenError, Fuzzer, Half, TwinCodec, compare_deliveries, cuts, mutated
from fuzz.felix_live import NEW_BROKER_EVERY_FRAMES, Live

from quintet import kernel
from quintet.kernel import pure
from tests.kernel import felix_frames
from tests.kernel.felix_frames import DEPTH, FRAME_MAX, KNOWN, NOW, ORIGIN, Fields
from tests.wire import felix

FRAMES_PER_READ = 40
MAX_CUTS = 6
MAX_RECORDS = 1 << 20
GROUP_BYTES_MAX = 32 << 20
FATALS = {"": 0, "maybe": 0, "magic": 1, "version": 2, "length": 3}
MALFORMED = {"short": 1, "count": 2, "long": 3, "mode": 4, "text": 5}  # the kernel's numbers; 6 and 7 are its bounds


class Sabotaged:
    """The native twin with the planted fault."""

    rows = staticmethod(kernel.rows)

    @staticmethod
    def felix_split(*args: Any) -> tuple[list[Fields], int, int]:
        split, consumed, fatal = kernel.felix_split(*args)
        items: list[Fields] = list(split)
        for i in range(1, len(items)):
            if items[i][0] == items[i - 1][0] == 1 and items[i][4] == items[i - 1][4] == -1:
                items[i] = (1, items[i - 1][1], *items[i][2:])
        return items, consumed, fatal


def batch(payload: bytes, acked: bool, keyed: bool) -> list[Fields]:
    """What a batch says: its records, the whole of it if it is acknowledged, or what is wrong."""
    try:
        found = felix.read_batch(payload, acked, keyed)
    except felix.Malformed as error:
        return [(2, MALFORMED[error.reason], error.request)]
    if len(found.values) > MAX_RECORDS:
        return [(2, 6, found.request)]
    if sum(map(len, found.values)) + len(found.key or b"") * len(found.values) > GROUP_BYTES_MAX:
        return [(2, 7, found.request)]
    if acked:
        return [(1, found.target, found.values, found.request, found.mode, found.key)]
    return [("record", found.target, value, found.key) for value in found.values]


def plainly(data: bytes, known: int, strict: bool) -> tuple[list[Fields], int, int, int]:
    """(what it says, consumed, fatal, frames) of a read, one frame after the other."""
    frames, rest, wrong = felix.read_frames(data, FRAME_MAX)
    out: list[Fields] = []
    for flags, payload in frames:
        meant = flags if strict else flags & known
        kind = meant & ~felix_frames.KEY_FLAG
        if meant & ~known or (meant and kind not in (1, 9, 0x41, 0x49)):
            out.append((3, flags, felix_frames.acked_id(flags, payload)))
        elif kind in (1, 9):
            out += batch(payload, kind == 9, kind != meant)
        else:
            out.append((0, payload) if meant == 0 else (4, meant, payload))
    return out, len(data) - len(rest), FATALS[wrong], len(frames)


def check_read(twin: Any, data: bytes, r: random.Random) -> int:
    """The frames of a read whose split held what it owes, in one piece and in some."""
    known, strict = r.choice((KNOWN, KNOWN, 0x003F, 0x0001)), r.random() < 0.7
    *want, frames = plainly(data, known, strict)
    for chunking in ([], cuts(r, len(data), MAX_CUTS)):
        try:
            got = felix_frames.read_all(twin, data, chunking, known, strict)
        except Exception as error:
            raise BrokenError(f"felix_split raised {type(error).__name__}: {error}") from error
        if list(got) != want:
            raise BrokenError(f"cut at {chunking}, known {known:#x}, the split differs from what the bytes say")
    return frames


def check_replies(data: bytes, r: random.Random) -> None:
    items, consumed, fatal = kernel.felix_received(data, 0, FRAME_MAX)
    if not 0 <= consumed <= len(data) or fatal not in range(6):
        raise BrokenError("felix_received ends outside the read, or with an unknown number")
    cut = r.randrange(len(data) + 1)
    before, position, early = kernel.felix_received(data[:cut], 0, FRAME_MAX)
    behind = ([], position, early) if early else kernel.felix_received(data, position, FRAME_MAX)
    if (items, consumed, fatal) != (before + behind[0], *behind[1:]):
        raise BrokenError(f"cut at {cut}, felix_received gives something else")
    if (items, consumed, fatal) != pure.felix_received(data, 0, FRAME_MAX):
        raise BrokenError("felix_received and its pure twin differ")


def check_text(r: random.Random) -> None:
    data, depth = felix_frames.json_soup(r), r.randrange(1, DEPTH + 2)
    if r.random() < 0.3:
        data = mutated(r, data)
    if kernel.json_fault(data, depth) not in felix_frames.json_faults(data, depth):
        raise BrokenError(f"json_fault and the json module differ about {data!r} of at most {depth}")


def check_gets(r: random.Random) -> None:
    scopes, texts = felix_frames.entries(r), []
    for _ in range(r.randrange(1, 12)):
        odd = r.random() < 0.05
        texts.append(felix_frames.odd_get(r) if odd else felix_frames.get_text(r, felix_frames.get_fields(r)))
    data = b"".join(felix_frames.frame(0, text) for text in texts)
    if r.random() < 0.4:
        data = mutated(r, data)
    ours, other = ({scope: felix_frames.memory(k, rows) for scope, rows in scopes.items()} for k in (kernel, pure))
    args = (NOW, r.choice((1, 1 << 30)), r.random() < 0.5)
    got = kernel.felix_gets(data, 0, FRAME_MAX, ours, *args)
    wanted = pure.felix_gets(data, 0, FRAME_MAX, other, *args)
    alike = all(sorted(memory.items()) == sorted(other[scope].items()) for scope, memory in ours.items())
    if got != wanted or not alike:
        raise BrokenError("felix_gets and its pure twin differ")
    if len(felix.frames_of(got[0])) != got[2] + got[3]:
        raise BrokenError("felix_gets gives more or fewer answers than it counts")


def check_sample(data: bytes, r: random.Random) -> None:
    args = (
        data,
        r.randrange(len(data) + 1),
        r.choice((1, 60, FRAME_MAX)),
        r.choice((KNOWN, 1)),
        r.random() < 0.5,
        ORIGIN,
        NOW,
        r.choice((0, 0x0040, 0x0100)),
    )
    if kernel.felix_split(*args) != pure.felix_split(*args):
        raise BrokenError("felix_split and its pure twin differ")
    most, offsets, keys = r.choice((1, 50, FRAME_MAX)), r.random() < 0.5, r.random() < 0.5

    def deliver(twin: Any, batch: bytes, count: int) -> Any:
        sent = twin.felix_deliver(batch, 0, count, 100, offsets, 5 << 48, most, keys)
        return sent, twin.felix_events(batch, 0, count, 100, b'"stream":"s"', most)

    compare_deliveries("felix_deliver or felix_events", r, deliver)


class Codec(TwinCodec):
    """Random requests, replies, texts and gets through both twins."""

    def make(self, r: random.Random) -> tuple[bytes, bytes]:
        data = b"".join(map(felix_frames.wire, felix_frames.requests(r, r.randrange(1, FRAMES_PER_READ))))
        return data, b"".join(felix_frames.replies(r, r.randrange(1, FRAMES_PER_READ)))

    def judge(self, data: bytes, answer: bytes, r: random.Random) -> int:
        done = check_read(Sabotaged if self.sabotaged else kernel, data, r)
        check_replies(answer, r)
        check_text(r)
        check_gets(r)
        return done

    def compare(self, data: bytes, r: random.Random) -> None:
        check_sample(data, r)


FUZZER = Fuzzer(
    Half(Codec, "an unacknowledged batch behind another is taken for its stream"),
    Half(Live, "the tenant of a token is not compared", NEW_BROKER_EVERY_FRAMES),
)
