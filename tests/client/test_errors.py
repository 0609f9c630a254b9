"""Errors: each NACK of the document to its type, and each type to its builtin."""

import pytest

from quintet.client.core import errors
from quintet.client.links.blipmq import error_of
from quintet.model.errors import QuintetError
from quintet.protocols.blipmq import errors as wire

CASES: list[tuple[int, str, type[QuintetError], type[Exception], bool]] = [
    (*wire.AUTH_KEY, errors.AuthError, PermissionError, False),
    (*wire.UNAUTHENTICATED, errors.AuthError, PermissionError, False),
    (401, "alice may not write to orders", errors.Forbidden, PermissionError, False),
    (*wire.UNKNOWN, errors.UnknownSubscription, LookupError, False),
    (*wire.VERSION, errors.ProtocolError, ValueError, False),
    (*wire.HELLO_MISSING, errors.ProtocolError, ValueError, False),
    (*wire.MALFORMED[1], errors.ProtocolError, ValueError, False),
    (*wire.EMPTY_TOPIC, errors.BadName, ValueError, False),
    (*wire.TOPIC_LONG, errors.BadName, ValueError, False),
    (*wire.TOPIC_NUL, errors.BadName, ValueError, False),
    (500, "durable publish failed: disk full", errors.StorageError, OSError, True),
    (500, "internal server error", errors.ServerError, Exception, True),
    (599, "never heard of", errors.ServerError, Exception, False),
]


@pytest.mark.parametrize(("code", "text", "kind", "builtin", "retryable"), CASES)
def test_nack(code: int, text: str, kind: type[QuintetError], builtin: type[Exception], retryable: bool) -> None:
    error = error_of(code, text)
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert error.retryable is retryable
    assert error.message == f"{text} (NACK {code})"


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in errors.ALL]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConnectionLost, ConnectionError),
        (errors.Timeout, TimeoutError),
        (errors.Backpressure, BlockingIOError),
        (errors.Unsupported, NotImplementedError),
        (errors.Closed, RuntimeError),
    ],
)
def test_builtins(kind: type[QuintetError], builtin: type[Exception]) -> None:
    error = kind("what happened", hint="what to do")
    assert isinstance(error, builtin)
    assert (str(error), error.hint) == ("what happened (what to do)", "what to do")
