"""Defines Source and Inbox: where a subscription gets its messages from, and the queue that it puts them into."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from quintet.client.core.message import LogPosition, Row, Rows
from quintet.model.errors import QuintetError


class Inbox(Protocol):
    """The queue as its source sees it."""

    @property
    def closed(self) -> bool: ...

    @property
    def room(self) -> int:
        """Messages it takes before it is full."""

    def put(self, topic: str, rows: Rows, *, first: bool = False) -> None:
        """Queue these, at the end or before all others. Takes the list over."""

    def drop(self, keep: Callable[[Row], bool]) -> None:
        """Throw queued messages away, but those that pass."""

    def wake(self) -> None:
        """Something changed that those who wait should look at: the source failed."""


class Source(ABC):
    """Where a subscription's messages come from, and where their acknowledgements go."""

    @abstractmethod
    async def open(self, inbox: Inbox) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Stop, after the server has taken the acknowledgements."""

    @property
    @abstractmethod
    def id(self) -> int: ...

    @property
    @abstractmethod
    def connected(self) -> bool: ...

    @property
    @abstractmethod
    def failed(self) -> QuintetError | None:
        """Why nothing will ever come again, or None."""

    @property
    @abstractmethod
    def refused(self) -> int: ...

    @property
    def missed(self) -> int:
        """Messages the server says were gone before they were read; 0 where it does not tell."""
        return 0

    @property
    @abstractmethod
    def reconnects(self) -> int: ...

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that are read now, if it is a source of several."""
        return ()

    @property
    @abstractmethod
    def assigned(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def stuck(self) -> bool:
        """Nothing comes before something is acknowledged."""

    def stuck_error(self) -> QuintetError | None:
        """What a reader is told that waits while it is stuck; None: a warning in the log is enough, because the server
        delivers again what is not acknowledged."""
        return None

    @abstractmethod
    def pause(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...

    @abstractmethod
    def taken(self, tags: Sequence[int]) -> None:
        """These were handed to the user."""

    @abstractmethod
    async def settle(self, tags: Sequence[int], timeout: float) -> None: ...

    @abstractmethod
    async def flush(self) -> None: ...

    @abstractmethod
    def hold(self, tags: Sequence[int], retry: int | None) -> None: ...

    @abstractmethod
    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        """They could not be dealt with: they come again after `delay` seconds (None: as configured), or are given up when they
        came again `retry` times (None: as the door does it). What becomes of them, for the log."""

    def tried_here(self, tag: int, times: int) -> None:
        """The consumer tried it so often before it gives it back. Matters where the client counts and not the server."""
        return

    @property
    def comes_again(self) -> bool:
        """Whether what is given back comes again over this connection."""
        return True

    @property
    def has_dead_letters(self) -> bool:
        """Whether what is given up is kept among the dead letters."""
        return True

    @abstractmethod
    def release(self, rows: Rows) -> None:
        """Processing was cancelled: let the server deliver them again."""

    @abstractmethod
    async def nack(self, rows: Rows, delay: float | None) -> None:
        """They failed: let them come again after so many seconds, or as configured. Unsupported where that cannot be said."""

    @abstractmethod
    async def in_progress(self, tags: Sequence[int]) -> None:
        """They take longer. Does nothing where no time runs out; Unsupported where it does and that cannot be said."""

    def want_more(self) -> bool:
        """A reader waits, although all that the server sends before an acknowledgement was handed out. Whether the server
        was asked for more."""
        return False

    @abstractmethod
    def position_of(self, tag: int) -> LogPosition | None: ...

    @abstractmethod
    async def commit_in(self, transaction: str, tag: int) -> None:
        """Make this message, and those of its partition before it, settled when the transaction commits."""

    @abstractmethod
    def committed(self, tag: int) -> None:
        """The transaction did."""
