"""Says which cell each Fast packet of a connection is for (protocols/routing.py).

Requests go to the cell of their topic's number, CREATE to that of its name's number. A token is judged here first: a packet whose
token is refused stays in this process, where it counts as any other. The token that an empty one stands for may have been shown in
a packet for another cell, so it is written out. EXTEND is said to all cells that this connection has reached.
"""

from typing import TYPE_CHECKING, Final

from quintet import kernel
from quintet.model.cells import CellMap
from quintet.protocols.fast import codec, frames
from quintet.protocols.fast.mapping import topic_id
from quintet.protocols.routing import EVERY, Parts, Run, frames_in

if TYPE_CHECKING:
    from quintet.protocols.fast.session import FastSession

KERNEL_KIND: Final = 3
NOBODY: Final = -1
_TOPIC_BYTES: Final = frames.TOPIC.size
_LONG: Final = (frames.PUBLISH, frames.RECORDS)
_SHORT: Final = (frames.SUBSCRIBE, frames.UNSUBSCRIBE)
_ASKED: Final = (frames.CREATE, frames.ROTATE_KEY, *_LONG, *_SHORT)
_RESULT_TEXT: Final = frames.RESULT.size - 1  # where the length of its text stands


class FastRouter:
    """See above."""

    needs_login = False
    at_once = True

    def __init__(self, cells: CellMap, own: int, payload_bytes_max: int, session: "FastSession") -> None:
        self._cells = cells
        self._own = own
        self._payload_bytes_max = payload_bytes_max
        self._session = session
        self._versions: list[int] = []  # of EXTEND, each once
        self._token = b""  # the last that was accepted
        self._same: bytes | None = None  # ... by the session of this process, behind what was looked at
        self.reached: set[int] = set()

    @property
    def login(self) -> bytes:
        return b"".join(codec.extend(version) for version in self._versions)

    def note(self, frame: memoryview) -> None:
        """An EXTEND that was said in another process."""
        if frame[0] == frames.EXTEND and frame[1] in frames.VERSIONS and frame[1] not in self._versions:
            self._versions.append(frame[1])

    def frame_end(self, view: memoryview | bytes, position: int) -> int:
        """Of a client's packet."""
        end = self._end(view, position)
        return end if end <= len(view) else position

    def _end(self, view: memoryview | bytes, at: int) -> int:
        """Where a packet ends, perhaps behind the view; the end of the view if it is none."""
        size = len(view)
        kind = view[at]
        if kind == frames.EXTEND:
            return at + frames.EXTEND_BYTES
        if kind not in _ASKED:
            return size
        if at + 2 > size:
            return size + 1
        at += 2 + view[at + 1]
        if kind in _SHORT:
            return at + _TOPIC_BYTES
        if kind == frames.CREATE:
            return size + 1 if at >= size else at + 1 + view[at] + 1
        if kind == frames.ROTATE_KEY:
            at += _TOPIC_BYTES
            return size + 1 if at >= size else at + 1 + view[at]
        head = at + frames.PUBLISH_TAIL.size
        if head > size:
            return size + 1
        length = int(frames.PUBLISH_TAIL.unpack_from(view, at)[1])
        return head + length if length <= self._payload_bytes_max else size

    def is_own(self, view: memoryview, now: int) -> bool:
        session, token, own = self._session, self._token, self._own
        if not token or not session.admits(token, now):
            return False
        empty = own if session.same_token == token else NOBODY
        found = kernel.cell_run(KERNEL_KIND, view, 0, self._payload_bytes_max, self._cells.count, empty, b"", token)
        return found == (own, len(view))

    def run(self, view: memoryview, position: int, now: int) -> Run:
        at, chosen = position, self._own
        self._same = self._session.same_token
        if self._token and self._session.admits(self._token, now):
            empty = self._own if self._same == self._token else NOBODY
            limit, count = self._payload_bytes_max, self._cells.count
            found, end = kernel.cell_run(KERNEL_KIND, view, position, limit, count, empty, b"", self._token)
            if end > position:
                return Run(found, end)
        while at < len(view):
            end = self.frame_end(view, at)
            if end == at:
                break
            kind = view[at]
            if kind == frames.EXTEND:
                return Run(chosen, at) if at > position else self._extend(view, end)
            cell, data = (self._own, None) if kind not in _ASKED else self._judge(kind, view, at, end, now)
            if at > position and (cell != chosen or data is not None):
                break
            if data is not None:
                return Run(cell, end, data)
            chosen, at = cell, end
        return Run(chosen, at)

    def _judge(self, kind: int, view: memoryview, at: int, end: int, now: int) -> tuple[int, bytes | None]:
        """Where a request goes, and what is sent in its place if its token is an empty one."""
        token, rest = codec.token_at(view, at), at + 2 + view[at + 1]
        assert token is not None, "the packet is all there"
        shown = token or (self._token if self._versions or self._session.extended else b"")
        if not shown or not self._session.admits(shown, now):
            return self._own, None
        self._token = shown
        if kind == frames.CREATE:
            number = topic_id(bytes(view[rest + 1 : rest + 1 + view[rest]]))
        else:
            number = int(frames.TOPIC.unpack_from(view, rest)[0])
        cell = self._cells.cell_of_number(number)
        if token or (cell == self._own and self._same == shown):
            self._same = shown if cell == self._own else self._same
            return cell, None
        return cell, bytes((kind, len(shown))) + shown + bytes(view[rest:end])

    def _extend(self, view: memoryview, end: int) -> Run:
        """One EXTEND: its answer is that of our own session."""
        version = view[end - 1]
        if version in frames.VERSIONS and version not in self._versions:
            self._versions.append(version)
        ask = bytes(view[end - frames.EXTEND_BYTES : end])
        return Run(EVERY, end, each=dict.fromkeys((self._own, *self.reached), ask), merge=self._extended)

    def _extended(self, parts: Parts) -> bytes:
        """Our own answer, and what the others sent beside theirs."""
        said = parts.pop(self._own, b"")
        return (
            b"".join(
                packet
                for part in parts.values()
                for packet in frames_in(part, _sent_end)
                if not (packet[0] in (frames.OK, frames.ERROR) and packet[1] == frames.EXTEND)
            )
            + said
        )


def _sent_end(data: bytes, at: int) -> int:
    """Where a packet of a session ends."""
    kind = data[at]
    if kind in (frames.MESSAGE, frames.MESSAGES):
        return at + frames.MESSAGE_HEAD.size + int(frames.MESSAGE_HEAD.unpack_from(data, at)[2])
    if kind == frames.KEY_UPDATE:
        return at + frames.KEY_UPDATE_HEAD.size + int(frames.KEY_UPDATE_HEAD.unpack_from(data, at)[2])
    assert kind in (frames.OK, frames.ERROR), f"a session sent a packet of type {kind}"
    return at + frames.RESULT.size + data[at + _RESULT_TEXT]
