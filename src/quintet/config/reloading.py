"""Says which options a running broker takes at SIGHUP, and which wait for a restart.

Everything not listed in TAKEN waits: it keeps its value, is named at every reload until the broker is started again, and no
option is passed over in silence. server.py applies what is taken; tests/test_reload.py compares the two.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from quintet.config.fields import Section

S = TypeVar("S", bound=Section)

TAKEN: Final = (
    "keys", "users", "roles", "tenants", "tokens", "tokens.*", "peers", "peers.*", "drain_timeout_s",
    "listeners.felix.tls_*", "listeners.felix.certificate_names", "listeners.felix.issuer", "listeners.felix.audience",
)  # fmt: skip
# Another certificate for connections to come; whether a door has one at all is decided when it is opened.
CERTIFICATES: Final = tuple(
    f"listeners.{door}.{option}"
    for door in ("blipmq", "flymq", "flymq_sdk", "fast", "peerbus", "peerbus_tcp")
    for option in ("tls_cert", "tls_key")
)


def is_taken(path: str, old: object, new: object) -> bool:
    """Whether a reload takes this change of this option."""
    if path in CERTIFICATES:
        return old is not None and new is not None
    return any(fnmatchcase(path, pattern) for pattern in TAKEN)


def changes(old: Section, new: Section, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """(path, old, new) of every option that differs; of a section, if only what a file of it holds does."""
    for name in type(old).model_fields:
        before, after, path = getattr(old, name), getattr(new, name), prefix + name
        if isinstance(before, Section):
            found = list(changes(before, after, path + "."))
            yield from found
            if not found and before != after:
                yield path, before, after
        elif before != after:
            yield path, before, after


def split(old: Section, new: Section) -> tuple[list[str], list[str]]:
    """Paths of what is taken, and of what waits for a restart. Without values, because some are secrets."""
    taken: list[str] = []
    waits: list[str] = []
    for path, before, after in changes(old, new):
        (taken if is_taken(path, before, after) else waits).append(path)
    return taken, waits


def merged(old: S, new: S, prefix: str = "") -> S:
    """The new options where they are taken, else the old ones: what the broker goes on with."""
    update: dict[str, object] = {}
    for name in type(old).model_fields:
        before, after, path = getattr(old, name), getattr(new, name), prefix + name
        if before == after:
            continue
        if is_taken(path, before, after):
            update[name] = after
        elif isinstance(before, Section):
            update[name] = merged(before, after, path + ".")
    return old.model_copy(update=update)
