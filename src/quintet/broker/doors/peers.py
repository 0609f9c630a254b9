"""Registers named peers, puts envelopes into their mailboxes and delivers them to the connection of a name.

    register:  name -> row in `__peers`, durable -> bound to a connection (the one before it is dropped)
    send:      outbox of the recipient's mailbox -> end of the turn -> one batch per mailbox -> its topic -> subscription
    deliver:   the mailbox's subscription pushes to the bound connection; what is not acknowledged comes again with the next

A name belongs to the owner (a principal's name) that registered it first, after a disconnect and a restart, too. Its
mailbox is the topic `peerbus/NAME`, made with the first message, and one subscription that outlives connections. A name is
free again when that topic is deleted, after `name_idle_us` with nothing waiting, or when its owner wants another name and has
as many as it may. Copies of broadcasts do not count as waiting: they go to who is connected, and are kept for less long
(ADR 18).

Ids of messages are remembered per sender for at least `replay_window_us`; after a restart they are read back from the
mailboxes, whose records have them as keys. Sockets, JSON and close codes are the door's business.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from quintet.broker.consumers.subscriptions import MAILBOX_OWNER, Subscriptions
from quintet.broker.doors.mailbox import (
    FIRST_PARTITION,
    MEASURE_EVERY_US,
    ORIGIN_PREFIX,
    TOPIC_PREFIX,
    AppendedLetter,
    Holder,
    Letter,
    Mailbox,
    PeerRow,
    batch_of,
    bytes_waiting,
    time_of,
)
from quintet.broker.doors.seen_ids import Seen
from quintet.broker.identity.access import Access, Principal
from quintet.broker.sections import PeerSection
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.model import envelope, limits
from quintet.model.batch import Header
from quintet.model.client_address import ids_of
from quintet.model.errors import (
    Busy,
    LimitExceeded,
    NameClaimed,
    ProtocolError,
    QuintetError,
    StorageError,
    TopicNotFound,
)
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, start, start_alone

TABLE: Final = (14, "__peers")
DOOR: Final = "peerbus"

DAY_US: Final = 24 * 3600 * 1_000_000
FOREVER_US: Final = 100 * 365 * DAY_US  # what a mailbox without a time to live keeps
PEERS_MAX: Final = 100_000  # names
TAKEOVERS_MAX: Final = 10  # of one name within ...
TAKEOVERS_WITHIN_US: Final = 10_000_000
PRUNE_EVERY_US: Final = 10_000_000  # how often what expired in the mailboxes of absent peers is passed over
FLUSH_TURN_US: Final = 5_000  # of writing outboxes in one turn; a topic that must be made first costs about 0.1 ms
FLUSH_LOOK_EVERY: Final = 16  # outboxes between two looks at the clock
FLUSH_BYTES: Final = 4 * limits.MIB  # of an outbox: above it, it does not wait for the end of the turn
BROADCAST_BYTES_PER_SECOND: Final = 64 * limits.MIB  # of copies one sender causes ...
COPY_BYTES: Final = limits.KIB  # what a copy costs beside its envelope: the work is the same for a small one
BROADCAST_BURST_BYTES: Final = 256 * limits.MIB  # ... and how much of it may be saved up

REPORT_EVERY_US: Final = 1_000_000  # how often an envelope that was not taken is written to the broker's log
RECLAIM_EVERY_US: Final = 1_000_000  # how often all names are looked through for topics that can be given up ...
RECLAIM_TOPICS_MAX: Final = 32  # ... and how many of them at a time

DROPS: Final = (
    "bad_envelope", "broadcast_budget", "duplicate", "forbidden", "quota", "reserved", "sender", "signature", "stale",
    "storage", "unknown_recipient",
)  # fmt: skip

Report = Callable[[str, dict[str, object]], None]
Discard = Callable[[Topic], bool]  # delete this topic, unless somebody else reads it


class Peers:
    """All names. Made by the broker; the verbs are the door's."""

    def __init__(
        self,
        table: Table[PeerRow],
        topics: Topics,
        subscriptions: Subscriptions,
        access: Access,
        scheduler: Scheduler,
        options: PeerSection,
        report: Report,
        discard: Discard,
    ) -> None:
        self._seen = Seen(options.fresh_us, options.replay_ids_max)
        self.options = options
        self._report = report
        self._discard = discard
        self._reported_at = self._reclaimed_at = -REPORT_EVERY_US
        self.dropped = dict.fromkeys(DROPS, 0)
        self.sent = self.broadcasts = self.takeovers = 0
        self.listed: bytes | None = None  # the door's: `names` as it tells them, None when they have changed
        self._table = table
        self._topics = topics
        self._subscriptions = subscriptions
        self._access = access
        self._scheduler = scheduler
        self._by_name: dict[str, Mailbox] = {}
        self._by_owner: dict[str, dict[str, Mailbox]] = {}
        self._connected: list[str] = []
        self._dirty: deque[Mailbox] = deque()
        self._armed = False  # the end of this turn flushes
        self._lone_read = scheduler.lone_read
        self._dirtied = self._flushed = 0  # how many mailboxes were ever put there, and taken from there
        self._writes = 0  # begun
        self._unfinished: dict[int, None] = {}  # numbers of writes on their way, rising
        self._at_flush: deque[tuple[int, Promise[None]]] = (
            deque()
        )  # who waits for outboxes, up to a number of `_dirtied`
        self._waiting: deque[tuple[int, Promise[None]]] = deque()  # who waits for writes up to a number
        self._looked_at = (-1, -1)  # topics and rights when mailboxes were last compared with them
        self._pruned_at = -PRUNE_EVERY_US

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def options(self) -> PeerSection:
        return self._options

    @options.setter
    def options(self, options: PeerSection) -> None:
        # Asked for with every envelope: properties and private attributes of a model take microseconds.
        self._options, self._keys, self.secret = options, options.keys, options.secret
        self._verify, self._refuses = options.verify, options.sender_check == "refuse"
        self._proves = self._verify or bool(self._keys)  # else a sender that says its own name is taken at its word
        ttl_us, copies_us = options.mailbox_ttl_us, options.broadcast_ttl_us
        self._ttl_us, self._copies_ttl_us = ttl_us, min(ttl_us, copies_us) if ttl_us else copies_us
        self._seen.resize(options.fresh_us, options.replay_ids_max)

    @property
    def connected(self) -> int:
        return len(self._connected)

    @property
    def remembered(self) -> int:
        """Ids of messages that would be refused as duplicates."""
        return len(self._seen)

    def load(self) -> None:
        """Take up the names and mailboxes of the last run, and the ids of the recent past."""
        now, monotonic = self._scheduler.now(), self._scheduler.monotonic()
        for row in self._table:
            # The broker was away, perhaps for long, or the clock is wrong: peers have a day to come back before their
            # names are free.
            idle_us = min(max(now - row.seen, 0), max(self.options.name_idle_us - DAY_US, 0))
            mailbox = self._by_name[row.name] = Mailbox(row, durable=True, seen=monotonic - idle_us)
            self._by_owner.setdefault(row.owner, {})[row.name] = mailbox
        for subscription in self._subscriptions.all():
            if subscription.owner == MAILBOX_OWNER:
                name = subscription.topic_name.decode().removeprefix(TOPIC_PREFIX)
                found = self._by_name.get(name)
                topic = self._topics.get(subscription.topic_name)
                if found is not None and found.subscription is None and topic is not None:
                    found.subscription = subscription
                    found.has_topic(topic)
                else:  # of a name that was freed when the power went: nobody would ever read it
                    with suppress(StorageError):
                        self._subscriptions.remove(subscription)
        for topic in self._topics.all():
            if topic.name.startswith(TOPIC_PREFIX):
                self._remember(topic, now)

    def _remember(self, topic: Topic, now: int) -> None:
        """Read back the ids of one mailbox. Blocks: only used at start."""
        since, monotonic = now - self.options.fresh_us, self._scheduler.monotonic()
        for partition in topic.partitions:
            offset = max(partition.offset_at(since), partition.visible - self.options.replay_ids_max)
            while offset < partition.visible:
                batches = partition.read_now(offset)
                if not batches:
                    break
                for batch in batches:
                    for _, timestamp, key, _, _, _, origin in batch.rows():
                        if key is not None and timestamp >= since and origin.startswith(ORIGIN_PREFIX):
                            sender = origin.removeprefix(ORIGIN_PREFIX).decode(errors="replace")
                            self._seen.add(sender, key.decode(errors="replace"), monotonic)
                    offset = batch.next_offset

    # -- names -----------------------------------------------------------------------------------------------------

    def register(self, name: str, principal: Principal, peer: str = "") -> Mailbox:
        """The mailbox of this name for this owner, at once: `registered` is over when the name is its own after a restart,
        too. NameClaimed if it is another's, Forbidden without the right, Busy after too many takeovers."""
        self._access.require(principal, "subscribe", TOPIC_PREFIX + name, peer)
        mailbox = self._by_name.get(name)
        if mailbox is None:
            return self._new(name, principal.name)
        if mailbox.owner != principal.name:
            raise NameClaimed(f"the peer name {name!r} belongs to another owner", hint="choose another name")
        if mailbox.holder is not None and not self._may_take_over(mailbox):
            raise Busy(f"the peer name {name!r} was taken over {TAKEOVERS_MAX} times in a few seconds")
        if not mailbox.registered.pending:
            self._keep_seen(mailbox)
        return mailbox

    def _new(self, name: str, owner: str) -> Mailbox:
        if len(self._by_name) >= PEERS_MAX:
            raise LimitExceeded(f"no more peer names: there are {PEERS_MAX}")
        self._check_names_of(owner)
        now = self._scheduler.now()
        row = PeerRow(name, owner, now, now)
        topic = self._topics.get((TOPIC_PREFIX + name).encode())
        if topic is not None:  # what is in it was put there before there was such a peer: no backfill
            starts = tuple(partition.visible for partition in topic.partitions)
            row = PeerRow(name, owner, now, now, topic.spec.id, starts)
        mailbox = Mailbox(row, durable=False, seen=self._scheduler.monotonic())
        stored = self._table.put(row.name.encode(), row)
        self._by_name[name] = mailbox
        self._by_owner.setdefault(owner, {})[name] = mailbox
        mailbox.registered = start(self._keep(mailbox, stored))
        if topic is not None:
            self._open(mailbox, topic)
        return mailbox

    def _check_names_of(self, owner: str) -> None:
        """Room for one more name of this owner, if need be that of its name which was not used for longest."""
        names, most = self._by_owner.get(owner, {}), self.options.names_per_owner_max
        if len(names) < most:
            return
        idle = [mailbox for mailbox in names.values() if mailbox.dispensable]
        if idle:
            self._free(min(idle, key=lambda mailbox: mailbox.left))
        if len(self._by_owner.get(owner, {})) >= most:
            raise LimitExceeded(
                f"{owner} has {most} peer names, all connected or with messages waiting; the limit is {most} "
                "(peers.names_per_owner_max)",
                hint="end a connection, read what waits, or raise the limit",
            )

    async def _keep(self, mailbox: Mailbox, stored: Promise[None]) -> None:
        try:
            await stored
        except Exception:
            if self._by_name.get(mailbox.name) is mailbox:
                self._forget(mailbox)
            raise
        mailbox.durable = True

    def _keep_seen(self, mailbox: Mailbox) -> None:
        monotonic = self._scheduler.monotonic()
        if monotonic - mailbox.seen > DAY_US:
            mailbox.seen = monotonic
            mailbox.row = msgspec.structs.replace(mailbox.row, seen=self._scheduler.now())
            with suppress(StorageError):  # a full disk: it is kept the next time
                self._table.put(mailbox.name.encode(), mailbox.row)

    def _may_take_over(self, mailbox: Mailbox) -> bool:
        monotonic = self._scheduler.monotonic()
        if monotonic - mailbox.takeovers_since > TAKEOVERS_WITHIN_US:
            mailbox.takeovers, mailbox.takeovers_since = 0, monotonic
        mailbox.takeovers += 1
        return mailbox.takeovers <= TAKEOVERS_MAX

    def bind(self, mailbox: Mailbox, holder: Holder) -> None:
        """The name is this session's now; the one that had it is told."""
        before, mailbox.holder = mailbox.holder, holder
        if before is None:
            insort(self._connected, mailbox.name)
            self.listed = None
        else:
            self.takeovers += 1
            mailbox.detach()
            before.lost_name(freed=False)

    def release(self, mailbox: Mailbox, holder: Holder) -> None:
        """The session is gone. What it had not acknowledged waits for the next."""
        if mailbox.holder is not holder:
            return
        mailbox.holder = None
        mailbox.left = self._scheduler.monotonic()
        mailbox.detach()
        self._disconnected(mailbox.name)
        if not mailbox.gone:
            self._keep_seen(mailbox)

    def _disconnected(self, name: str) -> None:
        at = bisect_left(self._connected, name)
        assert self._connected[at] == name, "a name that was bound is among the connected ones"
        del self._connected[at]
        self.listed = None

    def names(self) -> list[str]:
        """Connected peers, sorted."""
        return self._connected

    def walk(self) -> Iterator[Mailbox]:
        """All names, connected or not."""
        return iter(tuple(self._by_name.values()))

    def find(self, name: str) -> Mailbox | None:
        return self._by_name.get(name)

    # -- sending ---------------------------------------------------------------------------------------------------

    def drop(
        self, reason: str, sender: Mailbox | None = None, why: str = "", peer: str = "", request: str = ""
    ) -> None:
        """Count a message that goes nowhere: the wire has no word for it. If it says why, that is in the broker's log, for
        one message a second, with the address it came from and its id."""
        self.dropped[reason] += 1
        monotonic = self._scheduler.monotonic()
        if why and monotonic - self._reported_at >= REPORT_EVERY_US:
            self._reported_at = monotonic
            name = "" if sender is None else sender.name
            fields = {"reason": reason, "name": name, "why": why, "peer": peer, **ids_of(peer)}
            self._report("peer_message_dropped", fields | ({"request": request} if request else {}))

    def _admit(self, sender: Mailbox, claimed: str, ts: str, data: bytes, now: int) -> bool:
        """Whether this peer may send this envelope now; counted if not."""
        keys = self._keys.get(sender.name)
        judged = self._verify or keys is not None
        if claimed != sender.name and (judged or self._refuses):
            self.dropped["sender"] += 1
            return False
        if judged:
            if not self._genuine(data, keys):
                self.dropped["signature"] += 1
                return False
            said = time_of(ts)
            if said is not None and abs(now - said) > self._options.replay_window_us:
                self.dropped["stale"] += 1
                return False
        return True

    def _genuine(self, data: bytes, keys: Mapping[str, bytes] | None) -> bool:
        try:
            found = envelope.parse(data, strict=False)
        except ProtocolError:
            return False
        secret = self.secret
        if keys is not None:
            kid, _, digits = found.hmac.partition(":")
            secret, found = keys.get(kid, b""), found._replace(hmac=digits)
        return envelope.genuine(found, secret, data)

    def send(
        self, sender: Mailbox, recipient: Mailbox, id: str, claimed: str, ts: str, data: bytes, now: int,
        headers: tuple[Header, ...] = (),
    ) -> None:  # fmt: skip
        """Put an envelope into a mailbox, if its sender may send it; counted if not. `claimed` is who it says it is from, and `ts` when it
        says it was sent. `read_taken` must follow."""
        if (self._proves or claimed != sender.name) and not self._admit(sender, claimed, ts, data, now):
            return
        if not self._seen.add(sender.name, id, self._scheduler.monotonic()):
            self.dropped["duplicate"] += 1
        elif self._put(sender, recipient, id.encode(), data, headers, copy=False):
            self.sent += 1
        else:
            self._seen.forget(sender.name, id)

    def broadcast(
        self, sender: Mailbox, principal: Principal, id: str, claimed: str, ts: str, data: bytes, now: int,
        headers: tuple[Header, ...] = (),
    ) -> None:  # fmt: skip
        """The same into the mailbox of every peer that is connected, but the sender's: what is sent to names that came and went would
        cost a topic for each of them, and nobody would read it."""
        if (self._proves or claimed != sender.name) and not self._admit(sender, claimed, ts, data, now):
            return
        if not self._seen.add(sender.name, id, self._scheduler.monotonic()):
            self.dropped["duplicate"] += 1
            return
        if not self._may_broadcast(sender, (len(data) + COPY_BYTES) * (len(self._connected) - 1)):
            self.dropped["broadcast_budget"] += 1  # before anything is done for each recipient
            self._seen.forget(sender.name, id)
            return
        others = [self._by_name[name] for name in self._connected if name != sender.name]
        allowed = [m for m in others if self._access.allowed(principal, "publish", m.raw.decode())]
        self.dropped["forbidden"] += len(others) - len(allowed)
        self.broadcasts += 1
        key = id.encode()
        for mailbox in allowed:
            self.sent += self._put(sender, mailbox, key, data, headers, copy=True)

    def _may_broadcast(self, sender: Mailbox, cost: int) -> bool:
        """Copies cost disk for every recipient: a sender has so many bytes of them a second, and some saved up."""
        monotonic = self._scheduler.monotonic()
        earned = (monotonic - sender.broadcast_since) * BROADCAST_BYTES_PER_SECOND // 1_000_000
        sender.broadcast_bytes = max(0, sender.broadcast_bytes - earned)
        sender.broadcast_since = monotonic
        if sender.broadcast_bytes + cost > BROADCAST_BURST_BYTES:
            return False
        sender.broadcast_bytes += cost
        return True

    def _put(
        self, sender: Mailbox, mailbox: Mailbox, key: bytes, data: bytes, headers: tuple[Header, ...], *, copy: bool
    ) -> bool:
        size = len(data)
        if (mailbox.room_messages <= 0 or mailbox.room_bytes < size) and not self._measure(mailbox, size):
            self.dropped["quota"] += 1
            return False
        mailbox.room_messages -= 1
        mailbox.room_bytes -= size
        letter = (sender.origin, key, data, copy, headers)
        if mailbox.outbox is None:
            mailbox.outbox = [letter]
            mailbox.outbox_bytes = size
            if not self._armed and not self._lone_read.under_way:  # else `read_taken` follows
                self._flush_soon()
            self._dirty.append(mailbox)
            self._dirtied += 1
            return True
        mailbox.outbox.append(letter)
        mailbox.outbox_bytes += size
        if mailbox.outbox_bytes >= FLUSH_BYTES:
            self._write(mailbox)
            mailbox.outbox = []  # it stays among the dirty ones
        return True

    def _measure(self, mailbox: Mailbox, size: int) -> bool:
        """How much a mailbox may still take; whether that is one message of this size. Costly, so not at every refusal."""
        monotonic = self._scheduler.monotonic()
        if monotonic - mailbox.measured_at < MEASURE_EVERY_US:
            return False
        mailbox.measured_at = monotonic
        waiting = mailbox.outbox_bytes if mailbox.outbox else 0
        if mailbox.subscription is not None and mailbox.backlog:
            waiting += sum(bytes_waiting(lane) for lane in mailbox.subscription.lanes)
        mailbox.room_messages = self.options.mailbox_messages_max - mailbox.backlog
        mailbox.room_bytes = self.options.mailbox_bytes_max - waiting
        return mailbox.room_messages > 0 and mailbox.room_bytes >= size

    def all_stored(self) -> Promise[None]:
        """Over when everything sent so far is durable (or was dropped, and counted). Those who wait are told in the order in
        which they asked."""
        stored: Promise[None] = Promise()
        if self._dirty:
            self._at_flush.append((self._dirtied, stored))
        elif self._unfinished:
            self._waiting.append((self._writes, stored))
        else:
            stored.resolve(None)
        return stored

    def _flush_soon(self) -> None:
        self._armed = True
        self._scheduler.soon(self._flush_some)

    def read_taken(self) -> None:
        """All objects of a read were taken. If it is alone and for one mailbox, that is written now, so that it is delivered by the callback
        that read it (ADR 32, 51); if not, at the end of the turn."""
        if not self._dirty or self._armed:
            return
        if len(self._dirty) > 1 or not self._lone_read.under_way:
            self._flush_soon()
            return
        self._flushed += 1
        self._write(self._dirty.popleft())
        if self._at_flush:
            self._flush_some()

    def flush(self) -> None:
        """Write all outboxes now."""
        while self._dirty:
            self._flush_some()

    def _flush_some(self) -> None:
        """The end of a turn: one batch for each mailbox that was written to. Of a broadcast to many, the rest is written in
        the turns that follow: each may need a topic first."""
        self._armed = False
        until = self._scheduler.monotonic() + FLUSH_TURN_US
        while self._dirty and (self._flushed % FLUSH_LOOK_EVERY or self._scheduler.monotonic() <= until):
            self._flushed += 1
            self._write(self._dirty.popleft())
        while self._at_flush and self._at_flush[0][0] <= self._flushed:
            self._waiting.append((self._writes, self._at_flush.popleft()[1]))
        if self._waiting:
            self._tell_waiting()
        if self._dirty:
            self._flush_soon()

    def _tell_waiting(self) -> None:
        oldest = next(iter(self._unfinished), self._writes + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            self._waiting.popleft()[1].resolve(None)

    def _write(self, mailbox: Mailbox) -> None:
        letters, mailbox.outbox, mailbox.outbox_bytes = mailbox.outbox, None, 0
        if not letters:
            return
        self._writes = number = self._writes + 1
        self._unfinished[number] = None
        now = self._scheduler.now()
        expiry = now + self._ttl_us if self._ttl_us else 0
        try:
            topic = mailbox.topic
            if topic is None or topic.gone is not None or mailbox.gone or topic.spec.durability == "memory":
                topic = self._topic_of(mailbox)
            batch = batch_of(letters, expiry, now + self._copies_ttl_us, now)
            done = partial(self._stored, mailbox, letters, number)
            if not self._lone_read.under_way:
                topic.publish(batch, len(letters), True, done, FIRST_PARTITION)
                return
            offset = topic.publish_read(batch, len(letters), done, FIRST_PARTITION)
        except QuintetError as error:
            self._stored(mailbox, letters, number, -1, error)
            return
        if offset >= 0:
            del self._unfinished[number]
            mailbox.stored(offset, letters)
            if self._waiting:
                self._tell_waiting()
            subscription, letter = mailbox.subscription, letters[0]
            if subscription is not None and subscription.sink is not None and len(letters) == 1 and not letter[3]:
                appended = AppendedLetter(letter, offset, now, expiry)
                subscription.push_appended(topic.partitions[FIRST_PARTITION], appended)

    def _stored(
        self, mailbox: Mailbox, letters: list[Letter], number: int, offset: int, error: Exception | None
    ) -> None:
        """Durable; or refused, then its senders may send it again. Not a broadcast: others have its copies."""
        del self._unfinished[number]
        if error is None:
            mailbox.stored(offset, letters)
        else:
            self.dropped["storage"] += len(letters)
            for origin, key, _, copy, _ in letters:
                if not copy:
                    self._seen.forget(origin.removeprefix(ORIGIN_PREFIX).decode(), key.decode())
        if self._waiting:
            self._tell_waiting()

    # -- mailboxes -------------------------------------------------------------------------------------------------

    def _topic_of(self, mailbox: Mailbox) -> Topic:
        topic = mailbox.topic
        if topic is not None and topic.gone is not None:
            self._free(mailbox)
        if mailbox.gone:
            raise TopicNotFound(f"the peer {mailbox.name!r} is gone")
        if topic is None:
            topic = self._topics.get(mailbox.raw)
            if topic is None:
                # What has expired is kept for as long as a replay must be recognised: ids are read back from here.
                ttl = self.options.mailbox_ttl_us
                retention = max(ttl, self.options.replay_window_us) if ttl else FOREVER_US
                topic = self._make_topic(mailbox, retention)
            self._open(mailbox, topic)
        # Another door may have made it for what nobody waits for: an envelope is on disk before anybody sees it.
        if topic.spec.durability == "memory" and self._topics.may_harden(topic):
            return self._topics.ensure(mailbox.raw, durable=True)
        return topic

    def _make_topic(self, mailbox: Mailbox, retention_us: int) -> Topic:
        """A mailbox's topic. If there are as many topics as there may be, those of absent peers make room."""
        try:
            return self._topics.create(mailbox.raw, 1, retention_us=retention_us, owner=mailbox.owner)[0]
        except LimitExceeded:
            if not self._reclaim_topics():
                raise
        return self._topics.create(mailbox.raw, 1, retention_us=retention_us, owner=mailbox.owner)[0]

    def _reclaim_topics(self) -> bool:
        """Delete topics of names that can do without, the longest absent first; whether there were any. They keep their
        owners."""
        monotonic = self._scheduler.monotonic()
        if monotonic - self._reclaimed_at < RECLAIM_EVERY_US:
            return False
        found = [mailbox for mailbox in self._by_name.values() if mailbox.topic is not None and mailbox.dispensable]
        found.sort(key=lambda mailbox: mailbox.left)
        given_up = 0
        for mailbox in found:
            topic = mailbox.topic
            if topic is not None and self._is_own(mailbox, topic) and self._discard(topic):
                mailbox.subscription = mailbox.topic = None
                given_up += 1
                if given_up == RECLAIM_TOPICS_MAX:
                    break
        if given_up:
            self._report("peer_topics_reclaimed", {"topics": given_up, "hint": "topics.topics_max is reached"})
        else:
            self._reclaimed_at = monotonic  # in vain: not again for every message
        return given_up > 0

    def _is_own(self, mailbox: Mailbox, topic: Topic) -> bool:
        """Whether the topic was made for this mailbox: it was not there before the name."""
        return mailbox.row.topic != topic.spec.id and not topic.deleted

    def _open(self, mailbox: Mailbox, topic: Topic) -> None:
        """The mailbox has a topic now. If it was made after the name, all in it is for this peer."""
        mailbox.has_topic(topic)
        start_alone(self._scheduler, self._subscribe(mailbox, topic))

    async def _subscribe(self, mailbox: Mailbox, topic: Topic) -> None:
        try:
            await topic.ready()
            if mailbox.gone or mailbox.topic is None:
                mailbox.topic = None
                return
            subscription = self._subscriptions.create(
                MAILBOX_OWNER,
                mailbox.topic,
                1,
                door=DOOR,
                from_start=True,
                starts=mailbox.row.starts if mailbox.row.topic == mailbox.topic.spec.id else (),
            )
        except QuintetError:  # tried again with the next message
            mailbox.topic = None
            return
        mailbox.subscription = subscription
        if mailbox.sink is not None:
            subscription.attach(mailbox.sink)

    def tick(self, trusted: int, monotonic: int) -> None:
        """Topics that came or went by another way; what expired, by this date, in the mailboxes of absent peers; names
        nobody uses."""
        state = (len(self._topics), self._access.epoch)
        if state != self._looked_at:
            self._looked_at = state
            self._compare()
        if monotonic - self._pruned_at >= PRUNE_EVERY_US:
            self._pruned_at = monotonic
            self._compare()  # those that could not be opened when it was their turn
            self._prune(trusted, monotonic)

    def clock_jumped(self, by_us: int) -> None:
        if by_us < 0:
            self._seen.keep_longer(-by_us)

    def _compare(self) -> None:
        for mailbox in list(self._by_name.values()):
            topic = mailbox.topic
            if topic is None:
                found = self._topics.get(mailbox.raw)
                if found is not None and not found.deleted:
                    self._open(mailbox, found)
            elif topic.deleted and mailbox.subscription is not None:
                self._free(mailbox)

    def _prune(self, trusted: int, monotonic: int) -> None:
        for mailbox in list(self._by_name.values()):
            if mailbox.holder is not None:
                self._keep_seen(mailbox)
                continue
            if mailbox.backlog and mailbox.subscription is not None:
                for lane in mailbox.subscription.lanes:
                    lane.take(1, trusted, _wake)  # passes over what expired, hands out nothing
            if monotonic - mailbox.seen > self.options.name_idle_us and mailbox.dispensable:
                self._free(mailbox)

    def _free(self, mailbox: Mailbox) -> None:
        """Release the name, so that anybody may register it. Delete its topic too, unless somebody else reads that."""
        holder, topic = mailbox.holder, mailbox.topic
        try:
            if mailbox.subscription is not None and mailbox.topic is not None and not mailbox.topic.deleted:
                self._subscriptions.remove(mailbox.subscription)
            self._table.delete(mailbox.name.encode())
        except QuintetError:  # a full disk: it is freed later
            return
        self._forget(mailbox)
        if topic is not None and self._is_own(mailbox, topic):
            self._discard(topic)
        if holder is not None:
            mailbox.holder = None
            self._disconnected(mailbox.name)
            holder.lost_name(freed=True)

    def _forget(self, mailbox: Mailbox) -> None:
        mailbox.gone = True
        del self._by_name[mailbox.name]
        names = self._by_owner[mailbox.owner]
        del names[mailbox.name]
        if not names:
            del self._by_owner[mailbox.owner]
        mailbox.subscription = mailbox.topic = None


def _wake() -> None:
    """What is read from disk is looked at when the next prune comes."""
