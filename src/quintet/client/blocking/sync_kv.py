"""The blocking twin of the client: `quintet.sync.connect`. Same names, same arguments, same errors.

Written by generate.py from the asynchronous classes; do not edit. `python -m quintet.client.blocking.generate` writes it again.
"""

from collections.abc import Iterable
from types import TracebackType

from quintet.client import kv as _kv
from quintet.client.blocking.mapped import Mapped
from quintet.client.blocking.portal import Portal
from quintet.client.kv import Change


class Watch:
    """Changes of a cache, in the order of their versions for each key. After a lost connection the keys that were told of
    are looked at again, so none of their last changes is missed; one that was new meanwhile is told of when it changes
    again."""

    def __init__(self, portal: Portal, inner: _kv.Watch) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Watch":
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return self._portal.run(self._inner.__aexit__(kind, error, trace))

    def open(self) -> None:
        """Begin. Iterating does it too."""
        return self._portal.run(self._inner.open())

    def close(self) -> None:
        return self._portal.run(self._inner.close())

    def __iter__(self) -> "Watch":
        return self

    def __next__(self) -> Change:
        return self._portal.next(self._inner.__anext__)

    def get(self, *, timeout: float | None = None) -> Change:
        """The next change; Timeout if none comes in time."""
        return self._portal.run(self._inner.get(timeout=timeout))


class Cache(Mapped):
    """`cache = bus.kv("sessions")`: values by key. Every write is on disk when it returns.

    Keys are text. Values are bytes as they are, str as UTF-8, anything else as JSON; they come back as bytes.
    """

    def __init__(self, portal: Portal, inner: _kv.Cache) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Cache":
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The streams are the bus's, and end with it."""
        return self._portal.run(self._inner.__aexit__(kind, error, trace))

    @property
    def name(self) -> str:
        return self._inner.name

    def get(self, key: str, *, timeout: float | None = None) -> bytes | None:
        """The value, or None."""
        return self._portal.run(self._inner.get(key, timeout=timeout))

    def entry(self, key: str, *, timeout: float | None = None) -> tuple[bytes, int] | None:
        """The value and its version, for a later `put(..., if_version=version)`; or None."""
        return self._portal.run(self._inner.entry(key, timeout=timeout))

    def get_many(self, keys: Iterable[str], *, timeout: float | None = None) -> dict[str, bytes]:
        """The values of those keys that are there."""
        return self._portal.run(self._inner.get_many(keys, timeout=timeout))

    def put(
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
        return self._portal.run(self._inner.put(key, value, ttl=ttl, if_version=if_version, timeout=timeout))

    def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> bool:
        """Forget a key; whether it was there."""
        return self._portal.run(self._inner.delete(key, if_version=if_version, timeout=timeout))

    def incr(self, key: str, delta: int = 1, *, ttl: float | None = None, timeout: float | None = None) -> int:
        """Add to the number that the value is, in decimal; a key that is not there counts as 0. The sum."""
        return self._portal.run(self._inner.incr(key, delta, ttl=ttl, timeout=timeout))

    def watch(self, key: str | None = None, *, prefix: str | None = None) -> Watch:
        """`with cache.watch(prefix="user/") as changes`, then `for change in changes`: what changes from now
        on, of one key, of those that begin with `prefix`, or of all. Of several changes of one key that were not read yet
        the last is told."""
        return Watch(self._portal, self._portal.call(self._inner.watch, key, prefix=prefix))
