"""Who may do what: the only place where a credential becomes a principal and a principal meets a topic.

Keys are kept as SHA-256 of the secret (they are long random strings; a slow hash would buy nothing) and looked up by that
hash, so no comparison's time depends on the secret. Users come from users.py, which checks their passwords; here is only
what a user may do. Nothing here is durable: users.py and core.py own the tables and set what is live.

    allowed(principal, action, topic), the first row that fits decides:
    the name starts with __                               no: the broker's own
    an admin pattern of the principal covers the topic    yes
    the action is admin                                   no
    an ACL matches (exact name, else longest prefix)      public: yes; else listed by name or role AND a pattern covers it
    no ACL matches                                        a pattern covers it

and a dead-letter topic needs the same answer for the topic it belongs to as well.
"""

import hashlib
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from quintet.model.errors import AuthError, BadName, Forbidden

Action = Literal["publish", "subscribe", "admin"]
INTERNAL_PREFIX: Final = "__"
GROUP_PREFIX: Final = "group:"  # of ACL entries that speak of a consumer group
EVERYTHING: Final = ("*",)
USER_NAME_BYTES_MAX: Final = 255
ANONYMOUS: Final = "(anonymous)"  # the owner of what clients do that need not log in; no user has this name
_SCRIPTS: Final = ("LATIN", "CYRILLIC", "GREEK")  # their letters look alike: a name keeps to one of them


def covers(patterns: tuple[str, ...], name: str) -> bool:
    """Whether one of these patterns (a name, or a prefix ending in `*`) speaks of this name."""
    if "*" in patterns or name in patterns:
        return True
    return any(pattern[-1:] == "*" and name.startswith(pattern[:-1]) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Principal:
    """A known client. Two principals of the same name are the same owner."""

    name: str
    publish: tuple[str, ...] = EVERYTHING
    subscribe: tuple[str, ...] = EVERYTHING
    admin: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def may(self, action: Action, topic: str) -> bool:
        """What its own patterns say; ACLs are Access's to know."""
        if topic.startswith(INTERNAL_PREFIX):
            return False
        patterns = self.publish if action == "publish" else self.subscribe if action == "subscribe" else self.admin
        return covers(patterns, topic)

    @property
    def permissions(self) -> tuple[str, ...]:
        """As of a role."""
        return _words(("read", self.subscribe), ("write", self.publish), ("admin", self.admin))


@dataclass(frozen=True, slots=True)
class Credential:
    """One API key: whose it is, the hex SHA-256 of its secret, and its rights."""

    name: str
    secret_sha256: str
    publish: tuple[str, ...] = EVERYTHING
    subscribe: tuple[str, ...] = EVERYTHING


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of patterns that users share."""

    name: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    description: str = ""

    @property
    def permissions(self) -> tuple[str, ...]:
        """For people: `read` where it is every topic, `read:PATTERN` where it is not."""
        return _words(("read", self.read), ("write", self.write), ("admin", self.admin))


BUILT_IN_ROLES: Final = (
    Role("admin", EVERYTHING, EVERYTHING, EVERYTHING, "Everything, users and access rules among it."),
    Role("producer", write=EVERYTHING, description="Publishes to every topic."),
    Role("consumer", read=EVERYTHING, description="Reads every topic."),
    Role("guest", description="Nothing but public topics."),
)
BUILT_IN_ROLE_NAMES: Final = frozenset(role.name for role in BUILT_IN_ROLES)


@dataclass(frozen=True, slots=True)
class Acl:
    """Who may use the topics of a name or prefix pattern, or (entries named `group:NAME`) a consumer group."""

    pattern: str
    public: bool = False
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def lists(self, principal: Principal) -> bool:
        return self.public or principal.name in self.users or any(role in self.roles for role in principal.roles)


def hash_secret(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def user_identity(name: str, version: int) -> str:
    return f"user:{name}:{version}"


# -- names ------------------------------------------------------------------------------------------------------------


def check_user_name(name: str) -> str:
    """The name in its one spelling (NFC), or BadName with the reason."""
    name = unicodedata.normalize("NFC", name)
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= USER_NAME_BYTES_MAX:
        raise BadName(f"a user name has 1 to {USER_NAME_BYTES_MAX} bytes, this one has {size}")
    for letter in name:
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            raise BadName(f"a user name has no control or invisible characters, this one has U+{ord(letter):04X}")
    if name == ANONYMOUS:
        raise BadName(f"{ANONYMOUS!r} is whoever does not log in; choose another name")
    if name != name.strip():
        raise BadName("a user name does not begin or end with a space")
    if name.startswith("("):
        raise BadName("names that begin with ( are the broker's own words: (anonymous), (configuration)")
    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in name if letter.isalpha()}
    if len(scripts.intersection(_SCRIPTS)) > 1:
        raise BadName(f"user name {name!r} mixes alphabets whose letters look alike; use one of them")
    return name


def twin_key(name: str) -> str:
    """Equal for names that differ in case or in compatible forms of the same letters only."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return unicodedata.normalize("NFKC", folded)


# -- the live set -----------------------------------------------------------------------------------------------------


class Access:
    """What is valid now: keys, users, roles, ACLs. `epoch` rises with every change so that sessions look again."""

    def __init__(self, credentials: Iterable[Credential] = (), *, dead_letter_suffix: str = "-dlq") -> None:
        self.epoch = 0
        self.on_refused: Callable[[Principal, Action, str, str], None] | None = None  # for the audit
        self._suffix = dead_letter_suffix
        self._keys: dict[str, Principal] = {}
        self._users: dict[str, tuple[int, Principal]] = {}
        self._disabled: set[str] = set()
        self._twins: dict[str, str] = {}  # of all users, disabled ones among them
        self._roles: dict[str, Role] = {role.name: role for role in BUILT_IN_ROLES}
        self._exact: dict[str, Acl] = {}
        self._prefixes: dict[str, Acl] = {}
        self._prefix_lengths: tuple[int, ...] = ()  # in characters, longest first
        self.replace(credentials)

    # -- changes ---------------------------------------------------------------------------------------------------

    def replace(self, credentials: Iterable[Credential]) -> None:
        """Make these the API keys, whole and at once."""
        self._keys = {
            f"key:{found.secret_sha256}": Principal(found.name, found.publish, found.subscribe) for found in credentials
        }
        self.epoch += 1

    def set_roles(self, roles: Iterable[Role]) -> None:
        """Make these the roles beside the built-in ones; what users may do follows at once."""
        custom = {role.name: role for role in roles}
        assert not BUILT_IN_ROLE_NAMES & custom.keys(), "the configuration refuses to redefine a built-in role"
        self._roles = {role.name: role for role in BUILT_IN_ROLES} | custom
        for name, (version, principal) in self._users.items():
            self._users[name] = (version, self.principal(name, principal.roles))
        self.epoch += 1

    def set_user(self, name: str, version: int, roles: tuple[str, ...]) -> None:
        self._users[name] = (version, self.principal(name, roles))
        self._disabled.discard(name)
        self._twins[twin_key(name)] = name
        self.epoch += 1

    def disable_user(self, name: str) -> None:
        """The user is there and may do nothing, through whichever door and with whichever credential it comes."""
        self._users.pop(name, None)
        self._disabled.add(name)
        self._twins[twin_key(name)] = name
        self.epoch += 1

    def drop_user(self, name: str) -> None:
        """There is no user of this name."""
        self._users.pop(name, None)
        self._disabled.discard(name)
        self._twins.pop(twin_key(name), None)
        self.epoch += 1

    def set_acl(self, acl: Acl) -> None:
        if acl.pattern.endswith("*"):
            self._prefixes[acl.pattern[:-1]] = acl
        else:
            self._exact[acl.pattern] = acl
        self._acls_changed()

    def drop_acl(self, pattern: str) -> None:
        if pattern.endswith("*"):
            self._prefixes.pop(pattern[:-1], None)
        else:
            self._exact.pop(pattern, None)
        self._acls_changed()

    def _acls_changed(self) -> None:
        self._prefix_lengths = tuple(sorted({len(prefix) for prefix in self._prefixes}, reverse=True))
        self.epoch += 1

    # -- who -------------------------------------------------------------------------------------------------------

    def authenticate(self, secret: bytes) -> tuple[str, Principal]:
        """(identity, principal) of an API key: the identity is what `current` wants later."""
        identity = f"key:{hash_secret(secret)}"
        principal = self._keys.get(identity)
        if principal is None:
            raise AuthError(
                "invalid API key", hint="add it to [[keys]] in the configuration, or use a key that is there"
            )
        return identity, principal

    def anonymous(self, role: str) -> tuple[str, Principal]:
        """(identity, principal) of whoever does not log in, where a listener allows that."""
        return f"anonymous:{role}", self.principal(ANONYMOUS, (role,))

    def subject(self, name: str) -> tuple[str, Principal]:
        """(identity, principal) of whoever a signed token speaks of: the user of that name with its rights, or, where there
        is no such user, a principal of its own that may publish and subscribe wherever no ACL leaves it out."""
        try:
            clean = check_user_name(name)
        except BadName as error:
            raise AuthError(f"the subject of the token is no name: {error}") from error
        identity = f"subject:{clean}"
        principal = self.current(identity)
        if principal is None:
            if clean in self._disabled:
                raise AuthError(f"the user {clean!r} is disabled", hint="an administrator can enable it")
            raise AuthError(f"the subject {clean!r} looks the same as the user {self._twins[twin_key(clean)]!r}")
        return identity, principal

    def current(self, identity: str) -> Principal | None:
        """The principal of an identity as it is now, or None: revoked, disabled, or its password changed since."""
        kind, _, rest = identity.partition(":")
        if kind == "key":
            return self._keys.get(identity)
        if kind == "user":
            name, _, version = rest.rpartition(":")
            user = self._users.get(name)
            return user[1] if user is not None and version == str(user[0]) else None
        if kind == "subject":
            user = self._users.get(rest)
            if user is not None:
                return user[1]
            return None if twin_key(rest) in self._twins else Principal(rest)
        return self.principal(ANONYMOUS, (rest,)) if kind == "anonymous" else None

    def principal(self, name: str, roles: tuple[str, ...]) -> Principal:
        """A user with these roles. A role that is no longer configured gives nothing."""
        known = [self._roles[role] for role in roles if role in self._roles]
        return Principal(
            name,
            publish=_union(role.write for role in known),
            subscribe=_union(role.read for role in known),
            admin=_union(role.admin for role in known),
            roles=roles,
        )

    def roles(self) -> list[Role]:
        """All roles, the built-in ones first."""
        return list(self._roles.values())

    def has_role(self, name: str) -> bool:
        return name in self._roles

    def key_names(self) -> set[str]:
        return {principal.name for principal in self._keys.values()}

    # -- what ------------------------------------------------------------------------------------------------------

    def allowed(self, principal: Principal, action: Action, topic: str) -> bool:
        """See the table above."""
        if not self._allowed(principal, action, topic):
            return False
        suffix = self._suffix
        while topic.endswith(suffix) and len(topic) > len(suffix):
            topic = topic[: -len(suffix)]
            if not self._allowed(principal, action, topic):
                return False
        return True

    def _allowed(self, principal: Principal, action: Action, topic: str) -> bool:
        if topic.startswith(INTERNAL_PREFIX):
            return False
        if principal.admin and covers(principal.admin, topic):
            return True
        if action == "admin":
            return False
        acl = self._find(topic)
        if acl is not None:
            if acl.public:
                return True
            if not acl.lists(principal):
                return False
        return covers(principal.publish if action == "publish" else principal.subscribe, topic)

    def require(self, principal: Principal, action: Action, topic: str, peer: str = "") -> None:
        """Forbidden unless allowed. `peer` is where the request came from, for the audit."""
        if not self.allowed(principal, action, topic):
            if self.on_refused is not None:
                self.on_refused(principal, action, topic, peer)
            what = "administer" if action == "admin" else f"{action} on"
            raise Forbidden(f"{principal.name} may not {what} topic {topic!r}", hint=self.remedy(topic))

    @staticmethod
    def remedy(topic: str) -> str:
        """What helps whoever is refused."""
        if topic.startswith(INTERNAL_PREFIX):
            return f"names that start with {INTERNAL_PREFIX!r} are the broker's own: choose another"
        return "an administrator can give it a role that may, and must list it where an access rule names the topic"

    def may_administer(self, principal: Principal) -> bool:
        """Whether the whole broker is its to administer."""
        return "*" in principal.admin

    def listed(self, principal: Principal, resource: str) -> bool:
        """Whether an ACL for this resource is public or names this principal. Only `group:` entries speak of groups."""
        acl = self._find(resource)
        if acl is None or (resource.startswith(GROUP_PREFIX) and not acl.pattern.startswith(GROUP_PREFIX)):
            return False
        return acl.lists(principal)

    def look_again(self) -> None:
        """Something else that sessions remember is no longer so."""
        self.epoch += 1

    def bars(self, principal: Principal, topic: str) -> bool:
        """Whether an ACL speaks of this topic and leaves out this principal, which does not administer it either."""
        acl = self._find(topic)
        return acl is not None and not acl.lists(principal) and not covers(principal.admin, topic)

    def _find(self, name: str) -> Acl | None:
        found = self._exact.get(name)
        if found is None:
            for length in self._prefix_lengths:
                if length <= len(name) and (found := self._prefixes.get(name[:length])) is not None:
                    break
        return found


def _union(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for part in parts for pattern in part))


def _words(*rights: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
    found: list[str] = []
    for word, patterns in rights:
        found.extend((word,) if "*" in patterns else (f"{word}:{pattern}" for pattern in patterns))
    return tuple(found)
