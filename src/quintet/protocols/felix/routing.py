"""Says which cell each Felix request of a stream is for (protocols/routing.py).

    binary batches, publish, subscribe, stream_shards, group_*    the cell of the topic that they name
    ack, nack, working, credit, unsubscribe                       the cell of their subscription
    match_topics                                                  every cell, the lists are joined
    all else (caches, auth, what is not understood)               cell 0, where the door is

Ids of subscriptions and watches are of a connection, whichever cell has them. A request that names none is given one here, whose remainder
says its cell; which cell has one that a client chose is remembered for the connection (`Places`).
"""

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from quintet.model.cells import CellMap
from quintet.model.errors import BadRequest, QuintetError
from quintet.protocols.felix import codec, errors, frames, matching
from quintet.protocols.felix.codec import Id
from quintet.protocols.felix.long_json import JSON_HERE_BYTES_MAX
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.routing import EVERY, REFUSED, Parts, Run

if TYPE_CHECKING:
    from quintet.protocols.felix.session import FelixSession

NAMED: Final = frozenset(
    {"publish", "publish_batch", "subscribe", "stream_shards", "group_poll", "group_ack", "group_nack"}
)
BY_SUBSCRIPTION: Final = frozenset({"ack", "nack", "working", "credit", "unsubscribe"})
EVERYWHERE: Final = frozenset({"match_topics"})
UNPACKED_BYTES_MAX: Final = 1 << 20  # of a packed batch that is looked into; a larger one is for cell 0
CHOSEN_MAX: Final = 65_536  # ids that clients chose, of one connection; the oldest are forgotten
_ACKED_BYTES: Final = 9  # before the names of an acknowledged batch
_SIZE_BYTES: Final = 2


class _Where(msgspec.Struct):
    """What a JSON message says of its place."""

    type: str
    tenant_id: str | None = None
    namespace: str | None = None
    stream: str | None = None
    subscription_id: int | str | None = None
    request_id: Id = None


_decode: Final = msgspec.json.Decoder(_Where).decode


class Places:
    """Which cell each subscription of a connection is in."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._given = 0  # the last id that was given out
        self._chosen: dict[int | str, int] = {}

    def give(self, cell: int) -> int:
        id = self._given + 1
        while id % self._count != cell or id in self._chosen or str(id) in self._chosen:
            id += 1
        self._given = id
        return id

    def choose(self, id: int | str, cell: int) -> None:
        """BadRequest if another cell has it, or may have it."""
        before = self._chosen.get(id)
        number = id if isinstance(id, int) else int(id) if id.isascii() and id.isdigit() and len(id) < 20 else 0
        given = before is None and 0 < number <= self._given and number % self._count != cell
        if given or before not in (None, cell):
            raise BadRequest(f"subscription_id: {id} is in use on this connection")
        if len(self._chosen) >= CHOSEN_MAX:
            del self._chosen[next(iter(self._chosen))]
        self._chosen[id] = cell

    def cell(self, id: int | str) -> int | None:
        found = self._chosen.get(id)
        return id % self._count if found is None and isinstance(id, int) and id >= 0 else found


class FelixRouter:
    """One stream's. Remembers its `auth`, for the sessions of other cells."""

    needs_login = True
    at_once = False  # a connection of QUIC stays where it is

    def __init__(self, cells: CellMap, own: int, options: FelixListener, session: "FelixSession") -> None:
        self._cells = cells
        self._own = own
        self._options = options
        self._session = session
        self.login = b""
        self.reached: set[int] = set()
        shared = session.shared
        if shared.places is None:
            shared.places = Places(cells.count)
        assert isinstance(shared.places, Places)
        self._places = shared.places

    def begin(self, view: memoryview) -> None:
        """Nobody is known yet: who need not say who he is enters before the first request is looked at."""
        end = self.frame_end(view, 0)
        if self._options.open and 0 < end <= len(view) and end >= frames.HEADER.size:
            payload = bytes(view[frames.HEADER.size : end])
            flags = frames.HEADER.unpack_from(view)[2]
            if flags or codec.type_of(payload) not in ("auth", ""):
                self._session.enter_open()

    def frame_end(self, view: memoryview | bytes, position: int) -> int:
        if len(view) - position < frames.HEADER.size:
            return position
        magic, version, _, length = frames.HEADER.unpack_from(view, position)
        if magic != frames.MAGIC or version != frames.VERSION or length > self._options.frame_bytes_max:
            return len(view)
        end = position + frames.HEADER.size + int(length)
        return end if end <= len(view) else position

    def note(self, frame: memoryview) -> None:
        self.login += bytes(frame)

    def is_own(self, view: memoryview, now: int) -> bool:
        return False

    def run(self, view: memoryview, position: int, now: int) -> Run:
        at, chosen = position, self._own
        while at < len(view):
            end = self.frame_end(view, at)
            if end == at:
                break
            found = self._place(view, at, end)
            if isinstance(found, Run):
                return Run(chosen, at) if at > position else found
            if at > position and found != chosen:
                break
            chosen, at = found, end
        return Run(chosen, at)

    def _place(self, view: memoryview, at: int, end: int) -> int | Run:
        if end - at < frames.HEADER.size:
            return self._own
        magic, _, flags, length = frames.HEADER.unpack_from(view, at)
        if magic != frames.MAGIC or at + frames.HEADER.size + length != end:
            return self._own
        payload = view[at + frames.HEADER.size : end]
        try:
            if flags & frames.BATCH:
                return self._of_batch(flags, payload)
            return self._own if flags or length > JSON_HERE_BYTES_MAX else self._of_json(bytes(payload), end)
        except (QuintetError, msgspec.MsgspecError, UnicodeDecodeError):
            return self._own  # whose session says what is wrong

    def _of_batch(self, flags: int, payload: memoryview) -> int:
        dialect = self._session.dialect
        data: memoryview | bytes = payload
        if flags & frames.ZSTD and dialect.zstd:
            data = codec.unpack(bytes(payload), UNPACKED_BYTES_MAX)
        at = _ACKED_BYTES if flags & frames.ACKED else 0
        if flags & dialect.key_flag:
            at += _SIZE_BYTES + int.from_bytes(data[at : at + _SIZE_BYTES], "big")
        names = []
        for _ in range(3):
            end = at + _SIZE_BYTES + int.from_bytes(data[at : at + _SIZE_BYTES], "big")
            names.append(bytes(data[at + _SIZE_BYTES : end]).decode())
            at = end
        return self._of_scope(names[0], names[1], names[2])

    def _of_scope(self, tenant: str, namespace: str, stream: str) -> int:
        return self._cells.cell_of(codec.topic_of((tenant, namespace, stream)).encode())

    def _of_json(self, payload: bytes, end: int) -> int | Run:
        said = _decode(payload)
        if said.type in BY_SUBSCRIPTION:
            found = None if said.subscription_id is None else self._places.cell(said.subscription_id)
            return self._own if found is None else found
        if said.type in EVERYWHERE and self._session.dialect.extended:
            return self._everywhere(payload, end)
        if said.type == "cache_watch":
            return self._subscribe(payload, said, self._own, end)
        if said.type not in NAMED or said.tenant_id is None or said.namespace is None or said.stream is None:
            return self._own
        cell = self._of_scope(said.tenant_id, said.namespace, said.stream)
        return self._subscribe(payload, said, cell, end) if said.type == "subscribe" else cell

    def _subscribe(self, payload: bytes, said: _Where, cell: int, end: int) -> int | Run:
        if said.subscription_id is not None:
            try:
                self._places.choose(said.subscription_id, cell)
            except BadRequest as error:
                return Run(REFUSED, end, errors.encoded(error, self._session.dialect, said.request_id))
            return cell
        id = self._places.give(cell)
        fields: dict[str, object] = msgspec.json.decode(payload, type=dict)
        fields["subscription_id"] = str(id) if self._session.dialect.document else id
        return Run(cell, end, codec.frame(msgspec.json.encode(fields)))

    # -- every cell --------------------------------------------------------------------------------------------------

    def _everywhere(self, payload: bytes, end: int) -> Run:
        ask = msgspec.json.decode(payload, type=matching.MatchTopics)
        frame = codec.frame(msgspec.json.encode(msgspec.structs.replace(ask, version=0)))
        each = dict.fromkeys(range(self._cells.count), frame)
        return Run(EVERY, end, each=each, merge=partial(self._joined, ask.version))

    def _joined(self, asked: int, parts: Parts) -> bytes:
        """One list; the first that is none, if there is one."""
        found = []
        for cell in sorted(parts):
            try:
                found.append(msgspec.json.decode(parts[cell][frames.HEADER.size :], type=matching.TopicList))
            except msgspec.MsgspecError:
                return parts[cell]
        version = sum(each.version for each in found)
        changed = version != asked
        topics = sorted(name for each in found for name in each.topics) if changed else []
        said = matching.TopicList(request_id=found[0].request_id, version=version, changed=changed, topics=topics)
        return codec.encode(said)
