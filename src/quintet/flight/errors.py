"""From a named failure of the broker to the Flight error of its kind, and nothing of the inside to the outside.

    AuthError                      UNAUTHENTICATED   log in (again)
    Forbidden                      UNAUTHORIZED
    retryable errors, draining     UNAVAILABLE       the same call may succeed later
    every other named failure      FAILED            the code says which
    what has no name               INTERNAL          a fault of ours: it is in the broker's log, the client learns no more

The text is "CODE: what happened (what helps)" and `extra_info` a `wire.Problem`. Both are headers of HTTP/2 and have to stay
short: a text that repeats what the client sent is cut.
"""

import logging
from typing import Final

import msgspec
from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight.wire import Problem
from quintet.model.errors import AuthError, Forbidden, QuintetError

INTERNAL_CODE: Final = "E1000"
TEXT_BYTES_MAX: Final = 1_000

_log = logging.getLogger("quintet")


def to_flight(error: BaseException) -> flight.FlightError:
    """The error to raise in a handler."""
    if isinstance(error, flight.FlightError):
        return error
    if not isinstance(error, QuintetError):
        _log.error("flight_failed", exc_info=error, extra={"fields": {"error": repr(error)}})
        problem = Problem(INTERNAL_CODE, "the broker failed to answer", "its log says why", retryable=False)
        return flight.FlightInternalError(text_of(problem), msgspec.json.encode(problem))
    problem = Problem(error.code, _short(error.message), _short(error.hint), error.retryable)
    kind = flight.FlightServerError
    if isinstance(error, AuthError):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(error, Forbidden):
        kind = flight.FlightUnauthorizedError
    elif error.retryable:
        kind = flight.FlightUnavailableError
    return kind(text_of(problem), msgspec.json.encode(problem))


def _short(text: str) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= TEXT_BYTES_MAX else data[:TEXT_BYTES_MAX].decode(errors="ignore") + " ..."


def text_of(problem: Problem) -> str:
    return f"{problem.code}: {problem.message}" + (f" ({problem.hint})" if problem.hint else "")
