"""Answers what a consumer asks of a Felix stream: subscribe, acknowledge, give back, credit, unsubscribe.

FelixSession inherits it. Feeds belong to the connection (mapping.py), so any of its streams may speak of them, if it is of the
same client. Who may subscribe is decided by `Subscribing`; nothing here reads or delivers records.
"""

from functools import partial
from typing import Final

from quintet.delivery.subscription import Subscription
from quintet.model.errors import BadRequest, QuintetError, UnknownSubscription
from quintet.protocols.base import Slot
from quintet.protocols.felix import codec, frames, matching
from quintet.protocols.felix.cache_requests import Late
from quintet.protocols.felix.codec import Id
from quintet.protocols.felix.feature_requests import FeatureRequests
from quintet.protocols.felix.mapping import EventStream, Feed, GroupStream, Subscribing

ACK_COST_BYTES: Final = 256  # what an acknowledged record counts of the session's UNPACKED_BYTES_MAX
Range = tuple[int, int, int]  # partition, first offset, count


class ConsumerRequests(FeatureRequests):
    """The part of a session that its subscriptions need."""

    __slots__ = ()

    @property
    def _going(self) -> bool:
        raise NotImplementedError

    def _spend(self, size: int) -> None:
        raise NotImplementedError

    def _subscribe(self, ask: codec.Subscribe, _now: int) -> None:
        assert self._bearer is not None
        self._check_id(ask.subscription_id)
        slot = self._replies.reserve()
        done = partial(self._sink.completed, partial(self._subscribed, slot, ask.request_id))
        try:
            Subscribing(self._shared, self._bearer, ask, self._dialect, done)
        except QuintetError as error:
            self._error(error, ask.request_id, slot)

    def _check_id(self, id: Id) -> None:
        if id is not None and not self._dialect.document and not codec.is_u64(id):
            raise BadRequest("subscription_id: a number of 64 bits")

    def _subscribed(self, slot: Slot, request_id: Id, feed: object, error: Exception | None) -> None:
        if error is not None:
            self._error(error, request_id, slot)
            return
        assert isinstance(feed, Feed)
        if self._dialect.document:
            self._replies.fill(slot, codec.encode(codec.Ok(request_id=request_id)))
            return
        said = codec.Subscribed(subscription_id=feed.id)
        if self._dialect.extended:
            feed.told = partial(self._sink.completed, self._tell)
            timeout_ms = self._broker.subscriptions.push_timeout_us // 1000 if _acknowledges(feed) else None
            said = codec.Subscribed(
                subscription_id=feed.id, request_id=request_id, offsets=feed.offsets, ack_timeout_ms=timeout_ms
            )
        self._replies.fill(slot, codec.encode(said))

    def _tell(self, data: object, _error: Exception | None) -> None:
        """Something about a feed that its own stream could not say."""
        assert isinstance(data, bytes)
        if not self._going:
            self._replies.push(data)

    def _own(self, id: int | str) -> Feed:
        """A feed of this connection that this very client asked for."""
        feed = self._shared.feed(id)
        assert self._bearer is not None
        mine = (self._bearer.identity, self._bearer.tenant)
        if feed is None or (feed.bearer.identity, feed.bearer.tenant) != mine:
            raise UnknownSubscription(f"unknown subscription: {id}")
        return feed

    def _ranges(self, what: str, id: int | str, asked: list[tuple[int, int]]) -> tuple[EventStream, list[Range]]:
        """Whose, and (partition, first offset, count) of what a message says something about."""
        feed = self._own(id)
        if not isinstance(feed, EventStream):
            raise BadRequest(f"{what}: changes of a cache are not acknowledged")
        ranges = [(*codec.offset_of(offset, feed.partitions), count) for offset, count in asked]
        records = sum(count for *_, count in ranges)
        if any(count < 1 for *_, count in ranges) or records > frames.ACK_RECORDS_MAX:
            raise BadRequest(
                f"{what}: each range has a count of 1 or more, all together {frames.ACK_RECORDS_MAX} at most"
            )
        self._spend(records * ACK_COST_BYTES)
        return feed, ranges

    def _nack(self, ask: codec.NackRanges, _now: int) -> None:
        """Given back; what it does not hold any more is passed over."""
        feed, ranges = self._ranges("nack", ask.subscription_id, ask.ranges)
        if ask.delay_ms is not None and not 0 <= ask.delay_ms <= frames.DELAY_MS_MAX:
            raise BadRequest(f"delay_ms: 0 to {frames.DELAY_MS_MAX}")
        delay_us = None if ask.delay_ms is None else ask.delay_ms * 1000
        for partition, offset, count in ranges:
            subscription, lane = _place(feed, partition)
            if subscription is not None:
                subscription.nack(lane, offset, count, delay_us, give_up=ask.dead)
        self._done(ask.request_id)

    def _working(self, ask: codec.WorkingRanges, _now: int) -> None:
        feed, ranges = self._ranges("working", ask.subscription_id, ask.ranges)
        for partition, offset, count in ranges:
            subscription, lane = _place(feed, partition)
            if subscription is not None:
                subscription.working(lane, offset, count)
        self._done(ask.request_id)

    def _credit(self, ask: codec.Credit, _now: int) -> None:
        codec.check_credit(ask.credit)
        feed, _ = self._ranges("credit", ask.subscription_id, [])
        if isinstance(feed, GroupStream):
            feed.member.consumer.credit = ask.credit
            feed.member.consumer.feed()
        elif feed.subscription is not None:
            feed.subscription.grant(ask.credit)
        self._done(ask.request_id)

    def _done(self, request_id: Id) -> None:
        if request_id is not None:
            self._replies.put(codec.encode(codec.Ok(request_id=request_id)))

    def _ack(self, ask: codec.AckRanges, _now: int) -> None:
        feed, ranges = self._ranges("ack", ask.subscription_id, ask.ranges)
        slot = None if ask.request_id is None else self._replies.reserve()
        sink, left = self._sink, len(ranges) + 1
        failed: Exception | None = None

        def settled(error: Exception | None) -> None:
            nonlocal left, failed
            left -= 1
            failed = failed or error
            if not left and slot is not None:
                sink.completed(partial(self._acked, slot, ask.request_id), None, failed)

        for partition, offset, count in ranges:
            feed.settle(partition, offset, count, settled)
        settled(None)

    def _acked(self, slot: Slot, request_id: Id, _result: object, error: Exception | None) -> None:
        if error is not None:
            self._error(error, request_id, slot)
        else:
            self._replies.fill(slot, codec.encode(codec.Ok(request_id=request_id)))

    def _match_topics(self, ask: matching.MatchTopics, _now: int) -> None:
        """The topics that match and that this client may subscribe to; no names while nothing changed."""
        bearer, version = self._bearer, self._broker.topics_version
        assert bearer is not None
        if ask.version == version:
            same = matching.TopicList(request_id=ask.request_id, version=version, changed=False, topics=[])
            self._answer(ask.request_id, same)
            return
        late = Late(self, ask.request_id)

        def found(names: list[str] | None, error: Exception | None) -> None:
            if names is not None:
                late.message = matching.TopicList(
                    request_id=ask.request_id, version=version, changed=True, topics=names
                )
            late.done(error)

        try:
            names = self._broker.matching_topics(
                ask.patterns, lambda name: bearer.may_see(matching.scope_of(name), name)
            )
            self._broker.slices.finish(names).then(found)
        except QuintetError as error:
            late.done(error)

    def _unsubscribe(self, ask: codec.Unsubscribe, _now: int) -> None:
        self._own(ask.subscription_id).end(forget=ask.delete)
        self._replies.put(codec.encode(codec.Ok(request_id=ask.request_id)))


def _place(feed: EventStream, partition: int) -> tuple[Subscription | None, int]:
    """Through which subscription a partition comes, and as which of its lanes."""
    if isinstance(feed, GroupStream):
        return feed.member.subscription(partition), 0
    return feed.subscription, partition


def _acknowledges(feed: Feed) -> bool:
    if isinstance(feed, GroupStream):
        return True
    return isinstance(feed, EventStream) and feed.subscription is not None and feed.subscription.qos > 0
