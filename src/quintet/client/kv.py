"""Gives the broker's cache as a mapping: `bus.kv("sessions")`. Values by key, with an age, a version, and watchers.

    Cache --request--> CacheStreams: up to LANES streams, one for the keys of a hash, each with many requests under way
    Watch <--changes-- a stream of its own; the latest of each key, so a slow reader skips and never falls behind

What is asked about one key goes over one stream, and is done in the order it was asked. A read that lost its connection is
asked again; a write is not, because it may have been done: ConnectionLost says so. Here are no frames: felix.py has them.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from zlib import crc32

from quintet.client.core.base import Channel, ClientConnection, Fields, RequestConnection, Setup, Silent, deadline
from quintet.client.core.errors import Closed, ConnectionLost, Timeout, VersionConflict
from quintet.client.core.message import log
from quintet.client.core.values import encode
from quintet.model.errors import BadName, BadRequest, ProtocolError, QuintetError

if TYPE_CHECKING:
    from quintet.client.links.felix import FelixConnector, FelixStream

LANES: Final = 4
MANY_KEYS_MAX: Final = 1_000  # of one request
WATCH_KEYS_MAX: Final = 10_000  # changes not taken yet, and keys remembered over a lost connection
TTL_MS_MAX: Final = 1 << 53


class Change(NamedTuple):
    """A key has another value now; None: it is gone."""

    key: str
    value: bytes | None
    version: int


class CacheStreams:
    """The streams that all caches of a bus share."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._channels: list[Channel | None] = [None] * LANES
        self._locks = [asyncio.Lock() for _ in range(LANES)]
        self._watches: set[Watch] = set()
        self._closed = False

    async def ask(self, key: str, name: str, fields: Fields, timeout: float | None, again: bool) -> Fields:
        """The answer, over the lane of this key. `again`: after a lost connection, too."""
        limit = self.setup.timeout if timeout is None else timeout
        lane = crc32(key.encode()) % LANES
        channel = self._channels[lane]
        connection = None if channel is None else channel.current
        if isinstance(connection, RequestConnection) and not connection.full:
            try:
                return await _within(limit, connection.request(name, fields), name, key)
            except ConnectionLost:
                if not again:
                    raise
        async with deadline(limit, f"{name} of {key!r}"):
            channel = await self._channel(lane)
            while True:
                connection = await channel.connection()
                assert isinstance(connection, RequestConnection), "a door without a cache says so in `lacks`"
                try:
                    await connection.writable()
                    return await connection.request(name, fields)
                except ConnectionLost:
                    if not again or channel.failed is not None:
                        raise

    async def _channel(self, lane: int) -> Channel:
        async with self._locks[lane]:
            self.check()
            channel = self._channels[lane]
            if channel is None or channel.failed is not None:
                channel = self._channels[lane] = Channel(self.setup, Silent())
                try:
                    await channel.open()
                except BaseException:
                    self._channels[lane] = None
                    raise
                if self._closed:  # meanwhile
                    await channel.close()
                    self.check()
            return channel

    def check(self) -> None:
        if self._closed:
            raise Closed("the bus is closed", hint="use its caches inside its `with` block")

    def opened(self, watch: "Watch") -> None:
        self.check()
        self._watches.add(watch)

    def closed(self, watch: "Watch") -> None:
        self._watches.discard(watch)

    async def close(self) -> None:
        self._closed = True
        closing = [watch.close() for watch in self._watches]
        closing += [channel.close() for channel in self._channels if channel is not None]
        await asyncio.gather(*closing)


class Cache:
    """`cache = bus.kv("sessions")`: values by key. Every write is on disk when it returns.

    Keys are text. Values are bytes as they are, str as UTF-8, anything else as JSON; they come back as bytes.
    """

    def __init__(self, streams: CacheStreams, name: str) -> None:
        self._streams = streams
        self._name = name
        door = cast("FelixConnector", streams.setup.connector)
        if name.count("/") not in (0, 2):
            raise BadName(f"{name!r} is not the name of a cache", hint="a name without /, or TENANT/NAMESPACE/NAME")
        tenant, namespace, cache = door.names.scope(name)
        self._scope: Fields = {"tenant_id": tenant, "namespace": namespace, "cache": cache}

    async def __aenter__(self) -> "Cache":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The streams are the bus's, and end with it."""

    @property
    def name(self) -> str:
        return self._name

    async def get(self, key: str, *, timeout: float | None = None) -> bytes | None:
        """The value, or None."""
        found = await self.entry(key, timeout=timeout)
        return None if found is None else found[0]

    async def entry(self, key: str, *, timeout: float | None = None) -> tuple[bytes, int] | None:
        """The value and its version, for a later `put(..., if_version=version)`; or None."""
        answer = await self._ask("cache_get", key, {"key": key}, timeout, again=True)
        value = _value(answer.get("value"))
        return None if value is None else (value, int(answer.get("version", 0)))

    async def get_many(self, keys: Iterable[str], *, timeout: float | None = None) -> dict[str, bytes]:
        """The values of those keys that are there."""
        asked = list(dict.fromkeys(keys))
        found = await self._many(asked, timeout)
        return {key: entry[0] for key, entry in zip(asked, found, strict=True) if entry is not None}

    async def keys(self, *, prefix: str = "", timeout: float | None = None) -> AsyncIterator[str]:
        """The keys that begin with `prefix`, in the order of their bytes, page by page. What is put or deleted meanwhile may
        or may not be among them."""
        after, more = "", True
        while more:
            fields: Fields = {"prefix": prefix, "after": after}
            answer = await self._ask("cache_keys", prefix, fields, timeout, again=True)
            page, more = answer.get("keys", []), bool(answer.get("more"))
            for key in page:
                yield str(key)
            after = page[-1] if page else after
            more = more and bool(page)

    async def put(
        self,
        key: str,
        value: object,
        *,
        ttl: float | None = None,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Store a value; the version it has now.

        ttl         seconds after which it is gone; None: never
        if_version  only if the key is at this version (0: only if it is not there), else VersionConflict
        """
        fields: Fields = {"key": key, "value": encode(value, self._name), "ttl_ms": _ttl_ms(ttl)}
        if if_version is not None:
            fields["if_version"] = if_version
        return int((await self._ask("cache_put", key, fields, timeout)).get("version", 0))

    async def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> bool:
        """Forget a key; whether it was there."""
        fields: Fields = {"key": key}
        if if_version is not None:
            fields["if_version"] = if_version
        return bool((await self._ask("cache_delete", key, fields, timeout)).get("existed"))

    async def incr(self, key: str, delta: int = 1, *, ttl: float | None = None, timeout: float | None = None) -> int:
        """Add to the number that the value is, in decimal; a key that is not there counts as 0. The sum."""
        fields: Fields = {"key": key, "delta": delta}
        if ttl is not None:
            fields["ttl_ms"] = _ttl_ms(ttl)
        return int((await self._ask("cache_incr", key, fields, timeout))["number"])

    def watch(self, key: str | None = None, *, prefix: str | None = None) -> "Watch":
        """`async with cache.watch(prefix="user/") as changes`, then `async for change in changes`: what changes from now
        on, of one key, of those that begin with `prefix`, or of all. Of several changes of one key that were not read yet
        the last is told."""
        if key is not None and prefix is not None:
            raise ValueError("give key= or prefix=, not both")
        return Watch(self, self._streams, self._scope, key, prefix)

    async def _ask(self, name: str, key: str, fields: Fields, timeout: float | None, again: bool = False) -> Fields:
        check_key(key)
        answer = await self._streams.ask(key, name, {**self._scope, **fields}, timeout, again)
        if answer.get("type") == "cache_conflict":
            version = int(answer.get("version", 0))
            raise VersionConflict(
                f"{key!r} is at version {version}" if version else f"{key!r} is not there",
                version=version,
                value=_value(answer.get("value")),
                hint="read the key again, and decide anew",
            )
        return answer

    async def _many(self, keys: list[str], timeout: float | None) -> list[tuple[bytes, int] | None]:
        found: list[tuple[bytes, int] | None] = []
        for at in range(0, len(keys), MANY_KEYS_MAX):
            found += await self._some(keys[at : at + MANY_KEYS_MAX], timeout)
        return found

    async def _some(self, keys: list[str], timeout: float | None) -> list[tuple[bytes, int] | None]:
        """With one request, or with more where the values are too large for one answer."""
        if len(keys) == 1:
            return [await self.entry(keys[0], timeout=timeout)]
        try:
            answer = await self._ask("cache_get_many", keys[0], {"keys": keys}, timeout, again=True)
        except BadRequest:
            half = len(keys) // 2
            return await self._some(keys[:half], timeout) + await self._some(keys[half:], timeout)
        values, versions = answer.get("values", []), answer.get("versions", [])
        if not len(values) == len(versions) == len(keys):
            raise ProtocolError("the server's answer to cache_get_many has not one value for each key")
        pairs = zip(values, versions, strict=True)
        return [None if value is None else (base64.b64decode(value), version) for value, version in pairs]


class Watch(Silent):
    """Changes of a cache, in the order of their versions for each key. After a lost connection the keys that were told of
    are looked at again, so none of their last changes is missed; one that was new meanwhile is told of when it changes
    again."""

    def __init__(self, cache: Cache, streams: CacheStreams, scope: Fields, key: str | None, prefix: str | None) -> None:
        self._cache = cache
        self._streams = streams
        self._fields: Fields = {**scope, **({"key": key} if key is not None else {})}
        if prefix is not None:
            self._fields["prefix"] = prefix
        self._key = key
        self._channel = Channel(streams.setup, self, on_up=self._attach, on_down=self._down)
        self._waiting: dict[str, Change] = {}  # the latest of each key, not taken yet
        self._seen: dict[str, tuple[int, bool]] = {}  # key -> its version, and whether it is there
        self._ready = asyncio.Event()
        self._opened = False
        self._paused = False
        self._closed = False

    async def __aenter__(self) -> "Watch":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin. Iterating does it too."""
        if self._closed:
            raise Closed("the watch is closed", hint="cache.watch() makes a new one")
        if not self._opened:
            self._streams.opened(self)
            self._opened = True
            try:
                await self._channel.open()
            except BaseException:
                self._opened = False
                self._streams.closed(self)
                raise

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._streams.closed(self)
            await self._channel.close()
            self._ready.set()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Change:
        if not self._opened:
            await self.open()
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            if self._channel.failed is not None:
                raise self._channel.failed
            self._ready.clear()
            await self._ready.wait()
        change = self._waiting.pop(next(iter(self._waiting)))
        if self._paused and not self._waiting and self._channel.current is not None:
            self._paused = False
            self._channel.current.resume()
        return change

    async def get(self, *, timeout: float | None = None) -> Change:
        """The next change; Timeout if none comes in time."""
        async with deadline(self._streams.setup.timeout if timeout is None else timeout, "waiting for a change"):
            try:
                return await self.__anext__()
            except StopAsyncIteration:
                raise Closed("the watch is closed") from None

    async def _attach(self, connection: ClientConnection) -> None:
        felix: FelixStream = connection  # type: ignore[assignment]
        self._paused = False
        seen = dict(self._seen)  # a key that changes after this is sent again
        await felix.listen("cache_watch", self._fields, self._on_message)
        for (key, before), entry in zip(seen.items(), await self._cache._many(list(seen), inf), strict=True):
            if entry is not None:
                self._changed(Change(key, *entry))
            elif before[1] and self._seen.get(key) == before:
                self._tell(Change(key, None, before[0]))  # its version is not known any more
        if self._key is not None and not seen:
            found = await self._cache.entry(self._key, timeout=inf)
            if self._key not in self._seen:
                self._remember(self._key, found[1] if found else 0, found is not None)

    def _down(self, error: QuintetError) -> None:
        if self._channel.failed is not None:
            self._ready.set()

    def _on_message(self, message: Fields) -> None:
        if message.get("type") == "cache_event":
            check_key(message["key"])
            self._changed(Change(message["key"], _value(message.get("value")), int(message.get("version", 0))))

    def _changed(self, change: Change) -> None:
        if change.version <= self._seen.get(change.key, (-1, False))[0]:
            return
        self._tell(change)

    def _tell(self, change: Change) -> None:
        self._remember(change.key, change.version, change.value is not None)
        self._waiting[change.key] = change
        self._ready.set()
        connection = self._channel.newest
        if len(self._waiting) >= WATCH_KEYS_MAX and not self._paused and connection is not None:
            self._paused = True
            connection.pause()

    def _remember(self, key: str, version: int, there: bool) -> None:
        self._seen.pop(key, None)
        self._seen[key] = (version, there)
        if len(self._seen) > WATCH_KEYS_MAX:
            del self._seen[next(iter(self._seen))]
            log.debug("a watch remembers the last %d keys that changed", WATCH_KEYS_MAX)


async def _within(limit: float, answer: "asyncio.Future[Fields]", name: str, key: str) -> Fields:
    """As `deadline`, at a third of its cost: most calls are gets."""
    if limit == inf:
        return await answer
    timer = asyncio.get_running_loop().call_later(limit, _late, answer, limit, name, key)
    try:
        return await answer
    finally:
        timer.cancel()


def _late(answer: "asyncio.Future[Fields]", limit: float, name: str, key: str) -> None:
    if not answer.done():
        answer.set_exception(Timeout(f"{name} of {key!r} took longer than {limit:g} s"))


def check_key(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"a key is text, not {type(key).__name__}")
    if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
        raise ValueError(f"the key {key!r} cannot be encoded as UTF-8")


def _value(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _ttl_ms(ttl: float | None) -> int | None:
    if ttl is None:
        return None
    if not 0.0005 <= ttl <= TTL_MS_MAX / 1000:
        raise ValueError(f"ttl is a number of seconds from 0.001 up, not {ttl!r}")
    return max(round(ttl * 1000), 1)
