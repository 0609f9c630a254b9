"""Who may do what: the only place where a credential becomes a principal and a principal meets a topic.

Keys are kept as SHA-256 of the secret (they are long random strings; a slow hash would buy nothing) and looked up by that
hash, so no comparison's time depends on the secret. Rules are topic names or prefixes ending in `*`; `__` names are the
broker's own and open to nobody.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from quintet.model.errors import AuthError, Forbidden

Action = Literal["publish", "subscribe"]
INTERNAL_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class Principal:
    """A known client. Two principals of the same name are the same owner."""

    name: str
    publish: tuple[str, ...] = ("*",)
    subscribe: tuple[str, ...] = ("*",)

    def may(self, action: Action, topic: str) -> bool:
        if topic.startswith(INTERNAL_PREFIX):
            return False
        rules = self.publish if action == "publish" else self.subscribe
        return any(topic == rule or (rule.endswith("*") and topic.startswith(rule[:-1])) for rule in rules)


@dataclass(frozen=True, slots=True)
class Credential:
    """One API key: whose it is, the hex SHA-256 of its secret, and its rights."""

    name: str
    secret_sha256: str
    publish: tuple[str, ...] = ("*",)
    subscribe: tuple[str, ...] = ("*",)


def hash_secret(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


class Access:
    """The live set of credentials. `replace` swaps the whole set at once; `epoch` rises so that sessions look again."""

    def __init__(self, credentials: Iterable[Credential] = ()) -> None:
        self.epoch = 0
        self._by_hash: dict[str, Principal] = {}
        self.replace(credentials)

    def replace(self, credentials: Iterable[Credential]) -> None:
        fresh: dict[str, Principal] = {}
        for credential in credentials:
            fresh[credential.secret_sha256] = Principal(credential.name, credential.publish, credential.subscribe)
        self._by_hash = fresh
        self.epoch += 1

    def authenticate(self, secret: bytes) -> tuple[str, Principal]:
        """(hash of the secret, principal): the hash is what `still_valid` wants later."""
        hashed = hash_secret(secret)
        principal = self._by_hash.get(hashed)
        if principal is None:
            raise AuthError(
                "invalid API key", hint="add it to [[keys]] in the configuration, or use a key that is there"
            )
        return hashed, principal

    def current(self, hashed: str) -> Principal | None:
        """The principal of an authenticated secret as it is now, or None: revoked."""
        return self._by_hash.get(hashed)

    @staticmethod
    def require(principal: Principal, action: Action, topic: str) -> None:
        if not principal.may(action, topic):
            raise Forbidden(f"{principal.name} may not {action} on topic {topic!r}")
