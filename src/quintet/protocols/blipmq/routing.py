"""Says which cell each BlipMQ frame of a connection is for (protocols/routing.py).

PUBLISH, RECORDS, SUBSCRIBE   the cell of their topic
ACK, POLL, NACK               the cell of their subscription
PING, and what has no place   the cell of the frame before: everything before that is answered, so a PONG is the barrier it was
MATCH                         every cell; the names together, the versions added up
"""

from typing import TYPE_CHECKING, Final

from quintet import kernel
from quintet.model.cells import CellMap
from quintet.protocols.blipmq import codec, frames
from quintet.protocols.routing import EVERY, Parts, Run, frames_in

if TYPE_CHECKING:
    from quintet.protocols.base import Session

_HEAD: Final = frames.HEADER.size
_LENGTH_BYTES: Final = 4
_TTL: Final = 0x80  # of the qos byte from version 2 on: four bytes of time to live follow it
_TTL_BYTES: Final = 4
_BY_TOPIC: Final = (frames.PUBLISH, frames.RECORDS, frames.SUBSCRIBE)
_BY_SUBSCRIPTION: Final = (frames.ACK, frames.POLL)


class BlipRouter:
    """See above. Remembers HELLO and AUTH, for the sessions of other cells."""

    needs_login = True
    at_once = True

    def __init__(self, cells: CellMap, own: int, frame_bytes_max: int, _session: "Session") -> None:
        self._cells = cells
        self._own = own
        self._frame_bytes_max = frame_bytes_max
        self._version = 1
        self._hello = self._auth = b""
        self._last = own
        self.reached: set[int] = set()

    @property
    def login(self) -> bytes:
        return self._hello + self._auth

    def frame_end(self, view: memoryview | bytes, position: int) -> int:
        left = len(view) - position
        if left < _LENGTH_BYTES:
            return position
        length = int.from_bytes(view[position : position + _LENGTH_BYTES], "big")
        if not frames.FRAME_BYTES_MIN <= length <= self._frame_bytes_max:
            return len(view)
        return position + _LENGTH_BYTES + length if left >= _LENGTH_BYTES + length else position

    def note(self, frame: memoryview) -> None:
        if len(frame) <= _HEAD:
            return
        if frame[4] == frames.HELLO:
            version = codec.parse_hello(bytes(frame[_HEAD:]))
            if version in frames.VERSIONS and not self._hello:
                self._hello, self._version = bytes(frame), version
        elif frame[4] == frames.AUTH:
            self._auth = bytes(frame)  # of several the last: the one that was accepted

    def is_own(self, view: memoryview, now: int) -> bool:
        cells, own = self._cells, self._own
        if not cells.by_hash:
            return False
        layout, most = int(self._version > 1), self._frame_bytes_max
        if kernel.cell_run(layout, view, 0, most, cells.count, own, cells.suffix, b"") != (own, len(view)):
            return False
        self._last = own
        return True

    def run(self, view: memoryview, position: int, now: int) -> Run:
        cells = self._cells
        if cells.by_hash:
            layout, most = int(self._version > 1), self._frame_bytes_max
            found, end = kernel.cell_run(layout, view, position, most, cells.count, self._own, cells.suffix, b"")
            if end > position:
                self._last = found
                return Run(found, end)
        chosen: int | None = None
        at = position
        while at < len(view):
            end = self.frame_end(view, at)
            if end == at:
                break
            kind = view[at + 4] if end - at >= _HEAD else frames.HELLO
            if kind == frames.MATCH:
                return (
                    Run(self._last if chosen is None else chosen, at) if at > position else self._match(view, at, end)
                )
            cell = self._cell(kind, view, at + _HEAD, end)
            if chosen is None:
                chosen = self._last if cell is None else cell
            elif cell is not None and cell != chosen:
                break
            at = end
        if chosen is not None:
            self._last = chosen
        return Run(self._last, at)

    def _cell(self, kind: int, view: memoryview, at: int, end: int) -> int | None:
        """None: wherever the frame before went."""
        if kind in _BY_TOPIC:
            if kind != frames.SUBSCRIBE:
                if at >= end:
                    return self._own
                qos, at = view[at], at + 1
                if kind == frames.PUBLISH and qos & _TTL and self._version > 1:
                    at += _TTL_BYTES
            if at + 2 > end:
                return self._own
            size = view[at] << 8 | view[at + 1]
            return self._cells.cell_of(bytes(view[at + 2 : at + 2 + size])) if at + 2 + size <= end else self._own
        if kind in _BY_SUBSCRIPTION:
            return self._of_subscription(view[at:end]) if end - at == frames.U64.size else self._own
        if kind == frames.NACK and self._version >= frames.OURS:
            return self._of_subscription(view[at + 2 : at + 10]) if end - at == frames.WORD.size else self._own
        return None if kind == frames.PING else self._own

    def _of_subscription(self, id: memoryview) -> int:
        return self._cells.cell_of_subscription(int.from_bytes(id, "big"))

    def _match(self, view: memoryview, at: int, end: int) -> Run:
        parsed = codec.parse_match(bytes(view[at + _HEAD : end])) if self._version >= frames.WHOLE else None
        if parsed is None:
            self._last = self._own
            return Run(self._own, end)
        id = int(frames.HEADER.unpack_from(view, at)[2])
        version, patterns = parsed
        ask = codec.match_topics(id, 0, [pattern.encode() for pattern in patterns])
        return Run(
            EVERY,
            end,
            each=dict.fromkeys(range(self._cells.count), ask),
            merge=lambda parts: self._matched(id, version, parts),
        )

    def _matched(self, id: int, asked: int, parts: Parts) -> bytes:
        """One answer of all; what was pushed meanwhile goes before it."""
        pushed, refusal = [], b""
        version, names = 0, set[bytes]()
        for part in parts.values():
            for frame in frames_in(part, self.frame_end):
                _, kind, correlation_id = frames.HEADER.unpack_from(frame)
                found = codec.parse_matched(frame[_HEAD:]) if kind == frames.MATCH else None
                if found is not None:
                    version += found[0]
                    names |= {name.encode() for name in found[1] or ()}
                elif kind == frames.NACK and correlation_id == id:
                    refusal = frame
                else:
                    pushed.append(frame)
        answer = refusal or codec.matched(id, version, None if version == asked else sorted(names))
        return b"".join(pushed) + answer
