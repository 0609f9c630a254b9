"""Decides who may do what: the only place that turns a credential into a principal and checks it against a topic.

Keys are kept as SHA-256 of the secret (they are long random strings; a slow hash would buy nothing) and looked up by that
hash, so no comparison's time depends on the secret. Users come from users.py, which checks their passwords; here is only
what a user may do. Nothing here is durable: users.py, access_rules.py and keys.py own the tables and set what is live.

    allowed(principal, action, topic), the first row that fits decides:
    the name starts with __                               no: the broker's own
    an admin pattern of the principal covers the topic    yes
    the action is admin                                   no
    an ACL matches (exact name, else longest prefix)      public: yes; else listed by name or role AND a pattern covers it
    no ACL matches                                        a pattern covers it

and a dead-letter topic needs the same answer for the topic it belongs to as well. `explain` is the same decision with its
steps written down, row by row.

    identity             is who                                                            until
    key:SHA256           the key's own principal, or the user it belongs to                 the key is removed, the user disabled
    user:NAME:VERSION    the user that gave its password                                   disabled, deleted, another password
    subject:NAME         the user of that name, or a principal of its own (JSON tokens)     the user is disabled
    subject:             (no subject): a JSON token that names nobody                       it expires
    anonymous:ROLE       (anonymous), with that role                                       the connection ends
"""

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from quintet.model.errors import AuthError, BadName, BadRequest, Forbidden

Action = Literal["publish", "subscribe", "admin"]
INTERNAL_PREFIX: Final = "__"
GROUP_PREFIX: Final = "group:"  # of ACL entries that speak of a consumer group
EVERYTHING: Final = ("*",)
USER_NAME_BYTES_MAX: Final = 255
ROLES_OF_USER_MAX: Final = 100
ANONYMOUS: Final = "(anonymous)"  # the owner of what clients do that need not log in; no user has this name
NO_SUBJECT: Final = "(no subject)"  # whoever shows a token that names nobody
TOKEN_PREFIX: Final = "(token) "  # of a token's subject that has the name of an API key: another owner than that key
_SCRIPTS: Final = ("LATIN", "CYRILLIC", "GREEK")  # their letters look alike: a name keeps to one of them


def covering(patterns: tuple[str, ...], name: str) -> str | None:
    """Which of these patterns (a name, or a prefix ending in `*`) speaks of this name, if one does."""
    if "*" in patterns:
        return "*"
    if name in patterns:
        return name
    for pattern in patterns:
        if pattern[-1:] == "*" and name.startswith(pattern[:-1]):
            return pattern
    return None


def covers(patterns: tuple[str, ...], name: str) -> bool:
    """Whether one of these patterns speaks of this name."""
    return covering(patterns, name) is not None


class Principal(msgspec.Struct, frozen=True):
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


class Credential(msgspec.Struct, frozen=True):
    """One API key: its name, the hex SHA-256 of its secret, and its rights: those of the user it belongs to, or, where
    it belongs to none, its own patterns."""

    name: str
    secret_sha256: str
    publish: tuple[str, ...] = EVERYTHING
    subscribe: tuple[str, ...] = EVERYTHING
    user: str = ""


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


Reason = Literal["internal", "administers", "not administered", "public", "left out", "covered", "not covered"]
GRANTS: Final[frozenset[Reason]] = frozenset({"administers", "public", "covered"})
Rule = Literal["internal name", "admin pattern", "access rule", "role or key pattern", "dead letters"]
Outcome = Literal["yes", "no", "next"]


class Step(NamedTuple):
    """One row of the table, asked for one name: it decided (yes, no), or the next row must; and why."""

    topic: str
    rule: Rule
    outcome: Outcome
    why: str


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
        self._keys: dict[str, Principal | str] = {}  # by identity; a str is the name of the user it belongs to
        self._namesakes: dict[str, list[Principal]] | None = (
            None  # keys without a user, by twin; None: not looked up yet
        )
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
        self._keys = {f"key:{found.secret_sha256}": _owner(found) for found in credentials}
        self._keys_changed()

    def set_key(self, credential: Credential) -> None:
        self._keys[f"key:{credential.secret_sha256}"] = _owner(credential)
        self._keys_changed()

    def drop_key(self, secret_sha256: str) -> None:
        self._keys.pop(f"key:{secret_sha256}", None)
        self._keys_changed()

    def _keys_changed(self) -> None:
        self._namesakes = None
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
        """The user is there, or was, and may do nothing, through whichever door and with whichever credential it comes."""
        self._users.pop(name, None)
        self._disabled.add(name)
        self._twins[twin_key(name)] = name
        self.epoch += 1

    def drop_user(self, name: str) -> None:
        """There is no user of this name, and nobody knows of one."""
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
        principal = self.current(identity)
        if principal is None:
            if identity in self._keys:
                raise AuthError(f"the user {self._keys[identity]!r} of this key is disabled, or there is none")
            raise AuthError(
                "invalid API key", hint="`quintet user key add`, or [[keys]] in the configuration, makes one"
            )
        return identity, principal

    def anonymous(self, role: str) -> tuple[str, Principal]:
        """(identity, principal) of whoever does not log in, where a listener allows that."""
        return f"anonymous:{role}", self.principal(ANONYMOUS, (role,))

    def no_subject(self) -> tuple[str, Principal]:
        """(identity, principal) of whoever shows a signed token that names nobody."""
        return "subject:", Principal(NO_SUBJECT)

    def subject(self, name: str) -> tuple[str, Principal]:
        """(identity, principal) of whoever a signed token speaks of: the user of that name with its rights, or, where there
        is no such user, a principal of its own that may publish and subscribe wherever no ACL leaves it out. If an API key
        has that name, it is still another principal than the key, and may do no more than it."""
        try:
            clean = check_user_name(name)
        except BadName as error:
            raise AuthError(f"the subject of the token is not a user name: {error}") from error
        identity = f"subject:{clean}"
        principal = self.current(identity)
        if principal is None:
            if clean in self._disabled:
                raise AuthError(
                    f"the user {clean!r} is disabled, or was deleted", hint="an administrator can enable or make it"
                )
            raise AuthError(f"the subject {clean!r} looks the same as the user {self._twins[twin_key(clean)]!r}")
        return identity, principal

    def current(self, identity: str) -> Principal | None:
        """The principal of an identity as it is now, or None: revoked, disabled, or its password changed since."""
        kind, _, rest = identity.partition(":")
        if kind == "key":
            owner = self._keys.get(identity)
            if not isinstance(owner, str):
                return owner
            user = self._users.get(owner)
            return None if user is None else user[1]
        if kind == "user":
            name, _, version = rest.rpartition(":")
            user = self._users.get(name)
            return user[1] if user is not None and version == str(user[0]) else None
        if kind == "subject":
            user = self._users.get(rest)
            if user is not None:
                return user[1]
            return None if rest and twin_key(rest) in self._twins else self._stranger(rest)
        return self.principal(ANONYMOUS, (rest,)) if kind == "anonymous" else None

    def _stranger(self, name: str) -> Principal:
        """The subject of a token that is no user."""
        if not name:
            return Principal(NO_SUBJECT)
        if self._namesakes is None:
            self._namesakes = {}
            for owner in self._keys.values():
                if isinstance(owner, Principal):
                    self._namesakes.setdefault(twin_key(owner.name), []).append(owner)
        keys = self._namesakes.get(twin_key(name), ())
        if not keys:
            return Principal(name)
        publish, subscribe = (_common(key.publish for key in keys), _common(key.subscribe for key in keys))
        return Principal(TOKEN_PREFIX + name, publish, subscribe)

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

    def check_roles(self, names: Sequence[str]) -> None:
        """BadRequest unless there are roles of all these names, and not too many for one user."""
        if len(names) > ROLES_OF_USER_MAX:
            raise BadRequest(f"{len(names)} roles were given; a user has at most {ROLES_OF_USER_MAX}")
        for name in names:
            if name not in self._roles:
                known = ", ".join(sorted(self._roles))
                raise BadRequest(f"there is no role {name!r}", hint=f"the roles are {known}")

    def key_names(self) -> set[str]:
        """Of keys that belong to no user."""
        return {owner.name for owner in self._keys.values() if isinstance(owner, Principal)}

    def of_name(self, name: str) -> Principal | None:
        """The user of that name, or None: there is none, or (`disabled`) it may do nothing."""
        user = self._users.get(name)
        return None if user is None else user[1]

    def disabled(self, name: str) -> bool:
        return name in self._disabled

    # -- what ------------------------------------------------------------------------------------------------------

    def allowed(self, principal: Principal, action: Action, topic: str) -> bool:
        """See the table above."""
        if self._judge(principal, action, topic)[0] not in GRANTS:
            return False
        suffix = self._suffix
        while topic.endswith(suffix) and len(topic) > len(suffix):
            topic = topic[: -len(suffix)]
            if self._judge(principal, action, topic)[0] not in GRANTS:
                return False
        return True

    def _judge(self, principal: Principal, action: Action, topic: str) -> tuple[Reason, Acl | None, str]:
        """The rows of the table in their order, for one name: which one decided, the ACL that matches, the pattern that
        covers it."""
        if topic.startswith(INTERNAL_PREFIX):
            return "internal", None, ""
        if principal.admin and (found := covering(principal.admin, topic)) is not None:
            return "administers", None, found
        if action == "admin":
            return "not administered", None, ""
        acl = self._find(topic)
        if acl is not None:
            if acl.public:
                return "public", acl, ""
            if not acl.lists(principal):
                return "left out", acl, ""
        found = covering(principal.publish if action == "publish" else principal.subscribe, topic)
        return ("not covered", acl, "") if found is None else ("covered", acl, found)

    def explain(self, principal: Principal, action: Action, topic: str) -> tuple[bool, list[Step]]:
        """What `allowed` says, and the rows of the table on the way to it: of the topic, and of those whose dead letters
        it holds, up to the first that is refused."""
        steps: list[Step] = []
        suffix = self._suffix
        while True:
            reason, acl, pattern = self._judge(principal, action, topic)
            steps += self._steps(principal, action, topic, reason, acl, pattern)
            if reason not in GRANTS or not (topic.endswith(suffix) and len(topic) > len(suffix)):
                return reason in GRANTS, steps
            topic = topic[: -len(suffix)]
            steps.append(Step(topic, "dead letters", "next", f"{topic + suffix!r} holds what died in this topic"))

    def _steps(
        self, principal: Principal, action: Action, topic: str, reason: Reason, acl: Acl | None, pattern: str
    ) -> Iterator[Step]:
        """The rows up to the one that decided, in words."""
        if reason == "internal":
            yield Step(
                topic, "internal name", "no", f"names that begin with {INTERNAL_PREFIX} are reserved for the broker"
            )
            return
        yield Step(topic, "internal name", "next", "the name is not one of the broker's own")
        if reason == "administers":
            why = f"it administers {pattern!r}{self._by(principal, 'admin', pattern)}"
            yield Step(topic, "admin pattern", "yes", why)
            return
        why = f"it administers {_list(principal.admin)}"
        yield Step(topic, "admin pattern", "no" if reason == "not administered" else "next", why)
        if reason == "not administered":
            return
        if acl is None:
            yield Step(topic, "access rule", "next", "no access rule names it or a prefix of it")
        else:
            outcome: Outcome = "yes" if reason == "public" else "no" if reason == "left out" else "next"
            yield Step(topic, "access rule", outcome, _rule_words(acl, principal))
        if reason == "covered":
            why = f"it may {action} on {pattern!r}{self._by(principal, action, pattern)}"
            yield Step(topic, "role or key pattern", "yes", why)
        elif reason == "not covered":
            patterns = principal.publish if action == "publish" else principal.subscribe
            yield Step(topic, "role or key pattern", "no", f"it may {action} on {_list(patterns)}")

    def _by(self, principal: Principal, action: Action, pattern: str) -> str:
        """Which of its roles give it this pattern, in words."""
        field = "write" if action == "publish" else "read" if action == "subscribe" else "admin"
        names = [
            name for name in principal.roles if name in self._roles and pattern in getattr(self._roles[name], field)
        ]
        return f", by the role {' and '.join(names)}" if names else ""

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


def _common(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """What all of them have; a pattern of everything has what another has."""
    first, *others = parts
    for other in others:
        first = tuple(
            dict.fromkeys(
                [*(one for one in first if covers(other, one)), *(one for one in other if covers(first, one))]
            )
        )
    return first


def _words(*rights: tuple[str, tuple[str, ...]]) -> tuple[str, ...]:
    found: list[str] = []
    for word, patterns in rights:
        found.extend((word,) if "*" in patterns else (f"{word}:{pattern}" for pattern in patterns))
    return tuple(found)


def _owner(credential: Credential) -> Principal | str:
    return credential.user or Principal(credential.name, credential.publish, credential.subscribe)


def _list(patterns: tuple[str, ...]) -> str:
    return ", ".join(map(repr, patterns)) or "nothing"


def _rule_words(acl: Acl, principal: Principal) -> str:
    kind = "prefix" if acl.pattern.endswith("*") else "exact"
    if acl.public:
        return f"the rule of {acl.pattern!r} ({kind}) is public: everybody may"
    if principal.name in acl.users:
        return f"the rule of {acl.pattern!r} ({kind}) lists it by name"
    roles = [role for role in principal.roles if role in acl.roles]
    if roles:
        return f"the rule of {acl.pattern!r} ({kind}) lists its role {' and '.join(roles)}"
    return f"the rule of {acl.pattern!r} ({kind}) lists neither it nor a role of it"
