"""The words for what an operation of a door needs, and the check that no operation is without one.

Every door has a table: operation -> one of these words. What the words mean is decided in one place, broker/identity/access.py; here
is no decision. server.py calls `check_rights` for each door before it opens any, so an operation that somebody added
and gave no right keeps the broker from starting.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Literal, TypeVar, get_args

from quintet.model.errors import ConfigError

# open: anybody. known: anybody authenticated. read, write, manage: the right to do so with the topic it names; "read or
# write": one of them. owner: whose transaction, group, subscription or message it is (checked where that is looked up).
# admin: an administrator of the whole broker. server: nobody; only the broker sends it.
Right = Literal["open", "known", "read", "write", "manage", "read or write", "owner", "admin", "server"]
RIGHTS: Final[tuple[str, ...]] = get_args(Right)

Operation = TypeVar("Operation", bound=Hashable)


def check_rights(door: str, operations: Iterable[Operation], rights: Mapping[Operation, str]) -> None:
    """Each of these operations has a row, each row is of an operation, and says one of the words; or ConfigError."""
    names = set(operations)
    missing = sorted(map(str, names - rights.keys()))
    unknown = sorted(map(str, rights.keys() - names))
    wrong = sorted(str(name) for name, right in rights.items() if right not in RIGHTS)
    if missing or unknown or wrong:
        raise ConfigError(
            f"the table of rights of {door} is not whole: without a row: {', '.join(missing) or 'none'}; rows of nothing: "
            f"{', '.join(unknown) or 'none'}; words that mean nothing: {', '.join(wrong) or 'none'}",
            hint="this is a fault of this version of quintet; it does not start, because it could let strangers in",
        )
