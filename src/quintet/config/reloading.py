"""Says which options a running broker takes at SIGHUP, and which wait for a restart.

What is not in `Reloads.taken` waits: it keeps its value, is named at every reload until the broker is started again, and no
option is passed over in silence. server.py applies what is taken; tests/test_reload.py compares the two.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from quintet.model.sections import Section
from quintet.protocols.doors import DOORS, Doors

S = TypeVar("S", bound=Section)

_TAKEN: Final = (
    "keys", "users", "roles", "tenants", "tokens", "tokens.*", "peers", "peers.*", "quotas.*", "drain_timeout_seconds",
)  # fmt: skip


def changes(old: Section, new: Section, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """(path, old, new) of every option that differs; of a section, if only what a file of it holds does."""
    for name in type(old).model_fields:
        before, path = getattr(old, name), prefix + name
        after = getattr(new, name, before)  # a plugin that was taken out waits for a restart, and so does its section
        if isinstance(before, Section):
            found = list(changes(before, after, path + "."))
            yield from found
            if not found and before != after and type(before) is type(after):  # other plugins make another type
                yield path, before, after
        elif before != after:
            yield path, before, after


class Reloads:
    """Which options a broker with these doors takes."""

    def __init__(self, doors: Doors = DOORS) -> None:
        listed = (f"listeners.{door.key}.{option}" for door in doors for option in door.reloads)
        self.taken: Final = (*_TAKEN, *listed)
        # Another certificate for connections to come; whether a door has one at all is decided when it is opened.
        self.certificates: Final = tuple(
            f"listeners.{door.key}.{option}"
            for door in doors
            if door.transport != "quic"
            for option in ("tls_cert", "tls_key")
        )

    def is_taken(self, path: str, old: object, new: object) -> bool:
        """Whether a reload takes this change of this option."""
        if path in self.certificates:
            return old is not None and new is not None
        return any(fnmatchcase(path, pattern) for pattern in self.taken)

    def split(self, old: Section, new: Section) -> tuple[list[str], list[str]]:
        """Paths of what is taken, and of what waits for a restart. Values are not told: some are secrets."""
        taken: list[str] = []
        waits: list[str] = []
        for path, before, after in changes(old, new):
            (taken if self.is_taken(path, before, after) else waits).append(path)
        return taken, waits

    def merged(self, old: S, new: S, prefix: str = "") -> S:
        """The new options where they are taken, else the old ones: what the broker goes on with."""
        update: dict[str, object] = {}
        for name in type(old).model_fields:
            before, path = getattr(old, name), prefix + name
            after = getattr(new, name, before)
            if before == after:
                continue
            if self.is_taken(path, before, after):
                update[name] = after
            elif isinstance(before, Section):
                update[name] = self.merged(before, after, path + ".")
        return old.model_copy(update=update)
