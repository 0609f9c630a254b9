"""Reads many Avro values side by side: every step is one numpy operation over all rows, so no row costs Python time.

A cursor is the state of one value: where its next byte is, where it ends, and whether it was valid so far. The values of all rows are
in one buffer:

    data    | row 0 .......... | row 1 .... | row 2 ............... | 16 zeros, so that a number at the end can be read |
    pos       ^ >                ^ >          ^ >                     one per row, always between the row's begin and end

A cursor that finds invalid bytes is marked (`ok` false) and reads on within its row. If the cause is asked for, the reader of single
rows (avro_rows.py) finds it. That reader also decodes what cursors are slow at or cannot do (`again`): long lists, and maps that hold
a key twice.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.typed.columns import Flags, Ints

PADDING_BYTES = 16  # behind the last row: the longest number has 10
VARINT_BYTES_MAX = 10


class Shared:
    """What all cursors of one batch share: the bytes, and how many more list items may be stepped through."""

    def __init__(self, data: npt.NDArray[np.uint8], steps: int) -> None:
        self.data = np.concatenate([data, np.zeros(PADDING_BYTES, np.uint8)])
        self.buffer = pa.py_buffer(self.data)
        self.steps = steps


class RowCursors:
    """Rows of a batch, or some of them; in their order."""

    __slots__ = ("again", "end", "ok", "pos", "shared")

    def __init__(self, shared: Shared, pos: Ints, end: Ints, ok: Flags, again: Flags) -> None:
        self.shared = shared
        self.pos = pos
        self.end = end
        self.ok = ok
        self.again = again

    @classmethod
    def over(cls, values: pa.BinaryArray, steps: int) -> "RowCursors":
        """One cursor per value; `values` has no nulls."""
        _, offsets, data = values.buffers()
        edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        text = np.frombuffer(data or b"", np.uint8)[edges[0] : edges[-1]]
        edges -= edges[0]
        sound = np.ones(len(values), np.bool_)
        return cls(Shared(text, steps), edges[:-1].copy(), edges[1:], sound, ~sound)

    def __len__(self) -> int:
        return len(self.pos)

    def part(self, which: Ints) -> "RowCursors":
        return RowCursors(self.shared, self.pos[which], self.end[which], self.ok[which], self.again[which])

    def back(self, which: Ints, part: "RowCursors") -> None:
        """Take over what `part` has read."""
        self.pos[which] = part.pos
        self.ok[which] = part.ok
        self.again[which] = part.again

    def refuse(self, bad: Flags) -> None:
        self.ok &= ~bad

    def leave(self, which: Ints) -> None:
        """Leave these rows to the reader of single rows."""
        self.ok[which] = False
        self.again[which] = True

    def take(self, size: int) -> Ints:
        """Where the next `size` bytes begin. A cursor with fewer bytes left is marked, and reads padding or the next row."""
        start = self.pos
        stop = start + size
        inside = stop <= self.end
        self.ok &= inside
        self.pos = np.where(inside, stop, self.end)
        return start

    def fixed(self, dtype: str) -> npt.NDArray[np.floating]:
        """A little-endian float or double from each cursor."""
        size = np.dtype(dtype).itemsize
        data = self.shared.data
        anywhere = np.ndarray((len(data) - size + 1,), dtype, data, strides=(1,))
        return anywhere[self.take(size)]

    def varint(self) -> Ints:
        """A zigzag number of at most 64 bits from each cursor; 0 where there is none."""
        data = self.shared.data
        byte = data[self.pos]
        value = (byte & 0x7F).astype(np.uint64)
        size = np.ones(len(byte), np.int64)
        more = np.flatnonzero(byte >= 0x80)
        length = 1
        while more.size:
            byte = data[self.pos[more] + length]
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * length)
            size[more] += 1
            length += 1
            if length == VARINT_BYTES_MAX:
                self.ok[more[byte > 1]] = False
                break
            more = more[byte >= 0x80]
        stop = self.pos + size
        inside = stop <= self.end
        self.ok &= inside
        self.pos = np.where(inside, stop, self.end)
        value[~inside] = 0
        return ((value >> np.uint64(1)) ^ (~(value & np.uint64(1)) + np.uint64(1))).view(np.int64)

    def block(self) -> tuple[Ints, Ints]:
        """Where the bytes begin and end that follow a length."""
        length = self.varint()
        inside = (length >= 0) & (length <= self.end - self.pos)
        self.ok &= inside
        start = self.pos
        self.pos = start + np.where(inside, length, 0)
        return start, self.pos

    def bytes(self, start: Ints, stop: Ints) -> pa.BinaryArray:
        """The bytes from start to stop, one element per cursor. The array first also has the gaps between; every second element is taken."""
        if not len(start):
            return pa.array([], pa.binary())
        edges = np.empty(2 * len(start), np.int32)
        edges[0::2] = start
        edges[1::2] = stop
        both = pa.Array.from_buffers(
            pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), self.shared.buffer], null_count=0
        )
        return both.take(pa.array(np.arange(0, len(edges), 2)))

    def text(self, start: Ints, stop: Ints) -> pa.StringArray:
        """The same as strings; a cursor that is not UTF-8 is marked, and empty."""
        array = self.bytes(start, stop)
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            texts = array.to_pylist()
            for number, text in enumerate(texts):
                try:
                    text.decode()
                except UnicodeDecodeError:
                    self.ok[number] = False
                    texts[number] = b""
            return pa.array(texts, pa.binary()).cast(pa.string())
