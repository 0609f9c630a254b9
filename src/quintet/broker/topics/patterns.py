"""Compiles patterns of topic names, and finds the topics that match them.

One language for every door, bounded in time and memory whatever the pattern is:

    shop.*           * stands for any number of any characters; everything else stands for itself
    regex:shop\\.\\d+  a regular expression of RE2 that must match the whole name (Spark's subscribePattern has it without `regex:`)

A name without `*` and without `regex:` matches itself. Names that begin with the broker's own prefixes never match. Caches,
mailboxes, reply addresses and dead letters match only a pattern that names their kind: `*` does not read what another part of
the broker keeps there, and whoever consumes `shop.*` with dead letters does not consume its own. Whether a caller may see what
was found is the caller's question, topic by topic.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from quintet.broker.identity.access import INTERNAL_PREFIX
from quintet.broker.slices import Steps, in_order
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.names import CACHE_PREFIX
from quintet.model.errors import BadRequest, LimitExceeded, TooLarge

PATTERN_BYTES_MAX: Final = 1_000
PATTERN_MEMORY_BYTES: Final = 1 << 20  # of one compiled expression
PATTERN_STARS_MAX: Final = 16
PATTERNS_MAX: Final = 100  # of one request
MATCHES_MAX: Final = 10_000  # topics in one answer
LOOKED_AT_ONCE: Final = 200  # topics between two pauses
REGEX: Final = "regex:"
STAR: Final = "*"
KINDS: Final = (CACHE_PREFIX, "peerbus/", "reply/")  # names that begin so match a pattern that begins so

Matches = Callable[[str], bool]


def is_pattern(text: str) -> bool:
    """Can it match more than one name?"""
    return STAR in text or text.startswith(REGEX)


def re2_reason(error: Exception) -> str:
    """What RE2 found wrong: it says so in bytes."""
    reason = error.args[0] if error.args else "it is not a regular expression"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)


def regular(expression: str) -> Matches:
    """The whole name must match. RE2 takes time in proportion to the name, whatever the expression."""
    _check_size(expression)
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        compiled = re2.compile(expression, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise BadRequest(f"the pattern is no regular expression of RE2: {re2_reason(error)}") from None
    return lambda name: compiled.fullmatch(name) is not None


def compiled(text: str, dead_letter_suffix: str) -> Matches:
    """Whether a name matches; BadRequest or TooLarge if this is no pattern."""
    if text.startswith(REGEX):
        matches = regular(text.removeprefix(REGEX))
        begin, end = text.removeprefix(REGEX), text
    elif STAR in text:
        matches = _glob(text)
        begin, end = text.partition(STAR)[0], text
    else:
        _check_size(text)
        return text.__eq__
    kinds = tuple(kind for kind in KINDS if not begin.startswith(kind))
    dead = not end.rstrip("$").replace("\\", "").endswith(dead_letter_suffix)

    def visible(name: str) -> bool:
        if name.startswith(INTERNAL_PREFIX) or name.startswith(kinds) or (dead and name.endswith(dead_letter_suffix)):
            return False
        return matches(name)

    return visible


def _check_size(text: str) -> None:
    size = len(text.encode(errors="replace"))
    if not 0 < size <= PATTERN_BYTES_MAX:
        raise TooLarge(f"a pattern has 1 to {PATTERN_BYTES_MAX:,} bytes, this one has {size:,}")


def _glob(text: str) -> Matches:
    """Each part is looked for behind the one before, so a name is read at most once for each `*`: no backtracking."""
    _check_size(text)
    first, *middle, last = text.split(STAR)
    if len(middle) >= PATTERN_STARS_MAX:
        raise BadRequest(f"the pattern has {len(middle) + 1} times *; the limit is {PATTERN_STARS_MAX}")

    def matches(name: str) -> bool:
        end = len(name) - len(last)
        if end < len(first) or not name.startswith(first) or not name.endswith(last):
            return False
        at = len(first)
        for part in middle:
            at = name.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return matches


def _name_of(topic: Topic) -> str:
    return topic.name


def matching(
    patterns: Sequence[str], topics: Iterable[Topic], may_see: Matches, dead_letter_suffix: str
) -> Steps[list[str]]:
    """The names that match one of the patterns, sorted; LimitExceeded if they are too many for one answer."""
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise BadRequest(f"{len(patterns)} patterns: 1 to {PATTERNS_MAX} may be given")
    tests = [compiled(pattern, dead_letter_suffix) for pattern in dict.fromkeys(patterns)]
    found: list[str] = []
    sorted_by_name = in_order(list(topics), _name_of)
    for number, topic in enumerate(sorted_by_name):
        if topic is None or number % LOOKED_AT_ONCE == 0:
            yield
        if topic is not None and any(test(topic.name) for test in tests) and may_see(topic.name):
            found.append(topic.name)
            if len(found) > MATCHES_MAX:
                raise LimitExceeded(
                    f"more than {MATCHES_MAX:,} topics match (MATCHES_MAX)", hint="use a narrower pattern"
                )
    return found
