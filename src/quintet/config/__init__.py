"""Defines the typed tree of options, and merges defaults, file, environment and flags.

Layers, each over the one before: defaults, the --dev preset, the TOML file, environment variables
(QUINTET_SECTION__KEY), flags. They are merged as plain dictionaries first and checked once, so that an error can name
the place the bad value came from. Every field carries its description and unit: docs/CONFIGURATION.md and
`quintet config explain` are made from them. How keys are named is in fields.py. No layer below may import this file: server.py
hands each its section.
"""

import copy
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, create_model, field_validator, model_validator
from pydantic_core import PydanticCustomError

from quintet.broker.identity.access import BUILT_IN_ROLE_NAMES, check_user_name, twin_key
from quintet.broker.identity.passwords import check_hash
from quintet.broker.sections import (
    AuditSection,
    CacheSection,
    DeliverySection,
    LimitSection,
    QuotaSection,
    TelemetrySection,
    Tenant,
)
from quintet.config.cell import Cell, Cluster
from quintet.config.credentials import with_credentials
from quintet.config.doors import Listeners, load_plugins, with_plugins
from quintet.config.fields import matches, read_secret
from quintet.config.renaming import Item, OldName, dotted, renamed_items, renamed_tree
from quintet.config.trust import Peers, Tokens
from quintet.model import limits
from quintet.model.errors import ConfigError
from quintet.model.sections import (
    DAY_SECONDS,
    Bytes,
    Count,
    Durability,
    FractionalSeconds,
    Partitions,
    Renamed,
    Seconds,
    Section,
    section_of,
)
from quintet.protocols.options import Listener, is_loopback

# Development credentials, the same on every machine: --dev listens on loopback only.
DEV_NAME: Final = "dev"
DEV_BLIPMQ_KEY: Final = "dev-key"
DEV_FAST_MASTER_SECRET: Final = "quintet-development-master-secret"
DEV_PEER: Final = "dev-peer"
DEV_PEERBUS_SECRET: Final = "quintet-development-peerbus-secret"
DEV_PEERBUS_TOKEN: Final = "dev-token"
DEV_USER: Final = "admin"
DEV_PASSWORD: Final = "admin"
DEV_DATA: Final = ".quintet"

SECRETS: Final = (
    "key",
    "key_sha256",
    "password",
    "password_argon2",
    "secret",
    "hmac_secret",
)  # fields that are not shown

ENV_PREFIX: Final = "QUINTET_"
ENV_SEPARATOR: Final = "__"
# Variables that are not options of the broker: other commands, the kernel and the tests read them.
ENV_OTHER: Final = frozenset({
    "QUINTET_URL", "QUINTET_PURE", "QUINTET_CONFIG", "QUINTET_JAVA_HOME", "QUINTET_SPARK_MEMORY", "QUINTET_SPARK_LOG",
    "QUINTET_DIFF_CASES", "QUINTET_FLIGHT_URL", "QUINTET_PROFILE", "QUINTET_TOKEN_SECRET", "QUINTET_PEERBUS_SECRET",
    "QUINTET_ADMIN", "QUINTET_CONSOLE",
})  # fmt: skip
ENV_OTHER_PREFIX: Final = "QUINTET_TEST_"

KEYS_LISTED_MAX: Final = 12  # in an error about an unknown key

# Path of a key -> where its value came from, for keys that the defaults did not give.
Origins = dict[tuple[str, ...], str]
Warn = Callable[[OldName], None]


def warn_of_old_name(name: OldName) -> None:
    """What a program hears that loads settings and says nothing else of old names."""
    warnings.warn(str(name), FutureWarning, stacklevel=4)


# -- the tree ---------------------------------------------------------------------------------------------------------


class LogOutput(Section):
    """What the broker says about itself, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level written."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="json: one object a line; console: for people; auto: console on a terminal, else json.",
    )


class Key(Section):
    """One API key, given as text, as a file or as its SHA-256. After loading only the SHA-256 is kept."""

    name: str = Field(
        description="Who this is; owns subscriptions and appears in logs. With user: a name for the key alone.",
        min_length=1,
        max_length=255,
    )
    user: str = Field(
        default="",
        description="The user it belongs to: it is that user, with the rights it has now, and publish and subscribe are not "
        "given. Empty: somebody of its own.",
    )
    key: str | None = Field(default=None, description="The key itself. Prefer key_file.", min_length=1, repr=False)
    key_file: Path | None = Field(
        default=None, description="File with the key (one line), readable by its owner only; read again on SIGHUP."
    )
    key_sha256: str | None = Field(
        default=None, description="SHA-256 of the key, 64 hexadecimal digits.", pattern=r"^[0-9a-fA-F]{64}$"
    )
    publish: tuple[str, ...] = Field(
        default=("*",), description="Topics it may publish to; a trailing * matches any ending."
    )
    subscribe: tuple[str, ...] = Field(
        default=("*",), description="Topics it may read; a trailing * matches any ending."
    )

    @model_validator(mode="after")
    def _keep_only_the_digest(self) -> Self:
        given = [name for name in ("key", "key_file", "key_sha256") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of key, key_file and key_sha256 (given: {', '.join(given) or 'none'})")
        for pattern in (*self.publish, *self.subscribe):
            if "*" in pattern[:-1]:
                raise ValueError(f"pattern {pattern!r}: a * is allowed at the end only")
        if self.user and self.model_fields_set & {"publish", "subscribe"}:
            raise ValueError(
                "a key of a user has the rights of that user: give user, or publish and subscribe, not both"
            )
        secret = self.key
        if self.key_file is not None:
            secret = read_secret(self.key_file)
        if secret is not None:
            # The model is frozen for its readers; this is still its construction.
            self.__dict__["key_sha256"] = hashlib.sha256(secret.encode()).hexdigest()
            self.__dict__["key"] = None
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key: what a door compares with, in constant time."""
        assert self.key_sha256 is not None, "set by the validator"
        return bytes.fromhex(self.key_sha256)


class User(Section):
    """One user with a password, given as text, as a file or as its argon2id hash. None of them is shown again."""

    name: str = Field(description="Who this is; owns subscriptions and appears in logs.", min_length=1)
    password: str | None = Field(
        default=None, description="The password itself. Prefer password_file.", min_length=1, repr=False
    )
    password_file: Path | None = Field(
        default=None, description="File with the password (one line), readable by its owner only; read again on SIGHUP."
    )
    password_argon2: str | None = Field(
        default=None,
        description="Its hash, as $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH; other costs are bounded.",
        repr=False,
    )
    roles: tuple[str, ...] = Field(
        default=(), description="Its roles: admin, producer, consumer, guest, or one of [[roles]]."
    )
    _password: str = PrivateAttr(default="")
    _hash: str = PrivateAttr(default="")

    @field_validator("name")
    @classmethod
    def _one_spelling(cls, name: str) -> str:
        return check_user_name(name)

    @model_validator(mode="after")
    def _hide_the_secret(self) -> Self:
        ways = ("password", "password_file", "password_argon2")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(ways)} (given: {', '.join(given) or 'none'})")
        self._password = self.password or (read_secret(self.password_file) if self.password_file else "")
        if len(self._password.encode()) > limits.PASSWORD_BYTES_MAX:
            raise ValueError(f"the password has more than {limits.PASSWORD_BYTES_MAX} bytes")
        if self.password_argon2 is not None:
            self._hash = check_hash(self.password_argon2)
        # The model is frozen for its readers; this is still its construction.
        self.__dict__["password"] = self.__dict__["password_argon2"] = None
        return self

    @property
    def secret(self) -> bytes:
        """The password, to be compared with what the broker has; empty if only its hash was given."""
        return self._password.encode()

    @property
    def hashed(self) -> str:
        """The argon2id hash, if that was given."""
        return self._hash


class Role(Section):
    """A role of your own, for [[users]] and access rules. The built-in ones (admin, producer, consumer, guest) stay."""

    name: str = Field(description="What users and access rules call it.", min_length=1, max_length=255)
    read: tuple[str, ...] = Field(default=(), description="Topics it may read; a trailing * matches any ending.")
    write: tuple[str, ...] = Field(default=(), description="Topics it may publish to; a trailing * matches any ending.")
    admin: tuple[str, ...] = Field(
        default=(), description="Topics it may create, change and delete; * is the whole broker, users among it."
    )
    description: str = Field(default="", description="For people.", max_length=255)

    @model_validator(mode="after")
    def _star_ends_it(self) -> Self:
        if self.name in BUILT_IN_ROLE_NAMES:
            raise ValueError(f"the role {self.name!r} is built in and cannot be changed; choose another name")
        for pattern in (*self.read, *self.write, *self.admin):
            if "*" in pattern[:-1] or not pattern:
                raise ValueError(f"pattern {pattern!r}: a * is allowed at the end only")
        return self


class TopicSettings(Section):
    """What a topic gets unless something says otherwise."""

    durability: Durability = Field(
        default="fsync",
        description="When a publish counts as kept: fsync (on disk), interval (fsync every 100 ms), os (handed to the "
        "kernel), memory (never written).",
    )
    partitions: Partitions = Field(default=1, description="Partitions of a topic whose maker asks for no number.")
    retention_seconds: Seconds = Field(
        default=7 * DAY_SECONDS,
        description="Age at which messages are removed, in seconds; 0 keeps them. Whole segments go: a message stays "
        "at most a quarter longer than this, or 60 s.",
    )
    retention_bytes: Bytes = Field(
        default=0, description="Size of a partition above which old segments go, in bytes; 0: none."
    )
    segment_bytes: Annotated[Bytes, Field(ge=limits.SEGMENT_BYTES_MIN)] = Field(
        default=limits.SEGMENT_BYTES_DEFAULT, description="Size at which a segment file is closed, in bytes."
    )
    memory_bytes: Bytes = Field(
        default=limits.MEMORY_TOPIC_BYTES_DEFAULT,
        description="What a memory topic keeps, in bytes; the oldest go first.",
    )


class TopicOverride(Section):
    """Other values for the topics a pattern matches; the first match wins. Keys left out keep the default."""

    pattern: str = Field(description="Topic name; a trailing * matches any ending.", min_length=1)
    durability: Durability | None = Field(default=None, description="As topics.durability.")
    partitions: Partitions | None = Field(default=None, description="As topics.partitions.")
    retention_seconds: Seconds | None = Field(default=None, description="As topics.retention_seconds, in seconds.")
    retention_bytes: Bytes | None = Field(default=None, description="As topics.retention_bytes, in bytes.")
    segment_bytes: Annotated[Bytes, Field(ge=limits.SEGMENT_BYTES_MIN)] | None = Field(
        default=None, description="As topics.segment_bytes, in bytes."
    )
    memory_bytes: Bytes | None = Field(default=None, description="As topics.memory_bytes, in bytes.")

    @model_validator(mode="after")
    def _star_ends_it(self) -> Self:
        if "*" in self.pattern[:-1]:
            raise ValueError(f"pattern {self.pattern!r}: a * is allowed at the end only")
        return self


class Topics(TopicSettings):
    """Defaults for new topics, and overrides by name."""

    renamed = (Renamed("max_topics", "topics_max"),)

    topics_max: Annotated[Count, Field(le=limits.TOPICS_MAX)] = Field(
        default=10_000, description="Topics that may exist; one more is refused."
    )
    overrides: tuple[TopicOverride, ...] = Field(
        default=(), description="Other values by topic name; the first match wins."
    )

    def of(self, name: str) -> TopicSettings:
        """The settings of the topic called `name`."""
        values = {field: getattr(self, field) for field in TopicSettings.model_fields}
        for override in self.overrides:
            if matches(override.pattern, name):
                changed = override.model_dump(exclude={"pattern"}, exclude_none=True)
                return TopicSettings(**(values | changed))
        return TopicSettings(**values)


class Plugins(Section):
    """What is loaded beside Quintet's own parts. It runs inside the broker, with all of its rights."""

    doors: tuple[str, ...] = Field(
        default=(),
        description='Doors of other packages, each as "module:NAME" of a `quintet.protocols.door.Door`. Each has a section '
        "`[listeners.NAME]`.",
    )


class Settings(Section):
    """Everything an operator may choose."""

    renamed = (Renamed("drain_timeout_s", "drain_timeout_seconds"),)

    data: Path = Field(
        default=Path("/var/lib/quintet"), description="Folder of the log. With dev: .quintet in the current folder."
    )
    dev: bool = Field(
        default=False, description="Development: loopback only, with fixed credentials that are printed at start."
    )
    engine: Literal["embedded", "kafka"] = Field(
        default="embedded",
        description="Where the log is kept: embedded (on this machine only) or kafka (a cell of nodes over Apache Kafka, see "
        "[cell] and docs/CLUSTER.md).",
    )
    cell: Cell = Field(default=Cell(), description="A cell of nodes over Apache Kafka, with engine kafka.")
    cluster: Cluster = Field(
        default=Cluster(), description="How the nodes of a cell reach each other, with engine kafka."
    )
    drain_timeout_seconds: FractionalSeconds = Field(default=10.0, description="Longest graceful stop, in seconds.")
    log: LogOutput = Field(default=LogOutput(), description="What the broker says about itself, on stderr.")
    listeners: Listeners = Field(default=Listeners(), description="The doors.")
    plugins: Plugins = Field(default=Plugins(), description="What is loaded beside Quintet's own parts.")
    keys: tuple[Key, ...] = Field(default=(), description="API keys. Without any, only users can log in.")
    users: tuple[User, ...] = Field(default=(), description="Users with a password; more can be made on the wire.")
    roles: tuple[Role, ...] = Field(default=(), description="Roles beside the built-in ones.")
    tokens: Tokens = Field(default=Tokens(), description="JSON web tokens, as the Fast door takes them.")
    tenants: tuple[Tenant, ...] = Field(default=(), description="Quotas and keys of the Felix door's tenants.")
    quotas: QuotaSection = Field(
        default=QuotaSection(), description="What each user may have; `quintet quota set` changes it for one."
    )
    cache: CacheSection = Field(default=CacheSection(), description="The caches of the Felix door.")
    peers: Peers = Field(default=Peers(), description="What peers of the peerbus door may do.")
    audit: AuditSection = Field(default=AuditSection(), description="What can be proved afterwards.")
    telemetry: TelemetrySection = Field(
        default=TelemetrySection(), description="Spans of sampled messages, exported to an OpenTelemetry collector."
    )
    topics: Topics = Field(default=Topics(), description="Defaults for new topics, and overrides by name.")
    delivery: DeliverySection = Field(
        default=DeliverySection(), description="How messages reach subscribers that acknowledge."
    )
    limits: LimitSection = Field(default=LimitSection(), description="What the broker protects itself with.")
    _origins: "Origins" = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> "Origins":
        """Where each value that is not a default came from."""
        return self._origins

    def take_origins(self, of: "Settings", paths: Iterable[str]) -> None:
        """These options are of another configuration now: so is where they come from."""
        taken = [tuple(path.split(".")) for path in paths]

        def among(path: tuple[str, ...]) -> bool:
            return any(path[: len(each)] == each or each[: len(path)] == path for each in taken)

        kept = {path: origin for path, origin in self._origins.items() if not among(path)}
        self._origins = kept | {path: origin for path, origin in of.origins.items() if among(path)}

    @field_validator("keys")
    @classmethod
    def _keys_are_told_apart(cls, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        for what in ("name", "key_sha256"):
            seen: dict[str, str] = {}
            for key in keys:
                value = str(getattr(key, what)).lower()
                if value in seen:
                    raise ValueError(f"{seen[value]!r} and {key.name!r} have the same {what.partition('_')[0]}")
                seen[value] = key.name
        return keys

    @model_validator(mode="after")
    def _users_are_told_apart(self) -> Self:
        roles = BUILT_IN_ROLE_NAMES | {role.name for role in self.roles}
        if len(roles) < len(BUILT_IN_ROLE_NAMES) + len(self.roles):
            raise PydanticCustomError("twin_roles", "two roles have the same name", {"path": ("roles",)})
        seen = {twin_key(key.name): key.name for key in self.keys if not key.user}
        users: set[str] = set()
        for number, user in enumerate(self.users):
            twin = seen.setdefault(twin_key(user.name), user.name)
            if user.name in users or twin != user.name:
                text = "{name} is there twice, or looks the same as {twin}"
                where = {"name": repr(user.name), "twin": repr(twin), "path": ("users", number, "name")}
                raise PydanticCustomError("twin_users", text, where)
            users.add(user.name)
            for role in user.roles:
                if role not in roles:
                    text = "there is no role {role}; add it to [[roles]], or use one of {known}"
                    known = {"role": repr(role), "known": ", ".join(sorted(roles)), "path": ("users", number, "roles")}
                    raise PydanticCustomError("unknown_role", text, known)
        return self

    @model_validator(mode="after")
    def _cell_is_whole(self) -> Self:
        if self.engine == "kafka":
            for name in ("node", "servers"):
                if not getattr(self.cell, name):
                    raise PydanticCustomError("no_cell", "engine = kafka needs it", {"path": ("cell", name)})
        if self.cell.cells > 1 and not self.cluster.listen:
            text = "cell.cells = {cells} needs it: requests for a topic that another node leads go over it"
            raise PydanticCustomError("no_cluster", text, {"cells": self.cell.cells, "path": ("cluster", "listen")})
        for name, used in (("cell", self.cell.node or self.cell.servers), ("cluster", self.cluster.listen)):
            if used and self.engine != "kafka":
                raise PydanticCustomError("cell_unused", 'only with engine = "kafka", not {engine}',
                                          {"engine": repr(self.engine), "path": (name,)})  # fmt: skip
        return self

    @model_validator(mode="after")
    def _open_only_in_development(self) -> Self:
        for door in self.listeners.doors:
            for option in door.dev_only:
                if getattr(self.listeners.of(door), option) and not self.dev:
                    text = "lets everybody in, which only --dev may"
                    raise PydanticCustomError("dev_only", text, {"path": ("listeners", door.key, option)})
        return self

    @field_validator("tenants")
    @classmethod
    def _tenants_are_told_apart(cls, tenants: tuple[Tenant, ...]) -> tuple[Tenant, ...]:
        names = [tenant.name for tenant in tenants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is there twice")
        return tenants

    @model_validator(mode="after")
    def _dev_stays_home(self) -> Self:
        for name in type(self.listeners).model_fields:
            listener: Listener = getattr(self.listeners, name)
            if self.dev and listener.enabled and not is_loopback(listener.host):
                raise PydanticCustomError(
                    "dev_loopback",
                    "{host} is not loopback, and dev has credentials everyone knows",
                    {"host": listener.host, "path": ("listeners", name, "host")},
                )
        return self

    @classmethod
    def load(
        cls, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], warn: Warn = warn_of_old_name
    ) -> "Settings":
        """The settings these three give together. `flags` has dotted keys; a None value counts as not given. `warn` is called
        for each key that was given by its old name. Raises ConfigError."""
        return load_with_origins(file, environ, flags, warn)[0]


# -- layers -----------------------------------------------------------------------------------------------------------


def _put(tree: dict[str, object], path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        below = tree.get(name)
        if not isinstance(below, dict):
            below = tree[name] = {}
        tree = below
    tree[path[-1]] = value


def _read_file(file: Path) -> dict[str, object]:
    import tomllib  # late: 3 ms, and many a broker has no file

    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _read_environment(environ: Mapping[str, str]) -> Iterator[Item]:
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in ENV_OTHER or name.startswith(ENV_OTHER_PREFIX):
            continue
        value: object = text
        if text[:1] in ("[", "{"):
            try:
                value = json.loads(text)
            except ValueError as error:
                raise ConfigError(f"environment variable {name}: not valid JSON: {error}") from None
        yield tuple(name.removeprefix(ENV_PREFIX).lower().split(ENV_SEPARATOR)), value, f"environment variable {name}"


def _read_flags(flags: Mapping[str, Any]) -> Iterator[Item]:
    for key, value in flags.items():
        if value is not None:
            path = tuple(key.split("."))
            yield path, value, f"flag --{path[-1].replace('_', '-')}"


def load_with_origins(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], warn: Warn = warn_of_old_name
) -> tuple[Settings, Origins]:
    """As Settings.load, with the origin of every value that is not a default (`quintet config show --origin`)."""
    layers = [[*_read_environment(environ)], [*_read_flags(flags)]]
    written = _read_file(file) if file else {}
    tree, origins = _merged(written, layers, str(file))
    kind = Settings
    old_names: dict[str, str] = {}

    def found(name: OldName) -> None:
        old_names[name.new] = name.old
        warn(name)

    try:
        first = Settings.model_validate({name: tree[name] for name in ("dev", "plugins") if name in tree})
        kind = settings_with(first.plugins)
        renamed = [[*renamed_items(layer, kind, found)] for layer in layers]
        tree, origins = _merged(renamed_tree(written, kind, str(file), found), renamed, str(file))
        tree = {name: with_credentials(value, environ) for name, value in tree.items()}
        if first.dev:
            _apply_dev(tree, origins, kind)
        settings = kind.model_validate(tree)
        settings._origins = origins
    except ValidationError as error:
        raise _explain(error, file, origins, kind, old_names) from None
    return settings, origins


def _merged(written: Mapping[str, Any], layers: list[list[Item]], file: str) -> tuple[dict[str, Any], Origins]:
    """The file, and single values over it in the order of their layers."""
    tree = copy.deepcopy(dict(written))
    origins: Origins = {path: file for path in _leaves(tree)}
    for path, value, origin in itertools.chain(*layers):
        _put(tree, path, value)
        origins[path] = origin
    return tree, origins


def plugins_of(file: Path | None, environ: Mapping[str, str]) -> Plugins:
    """Only the plugins of a configuration: what tables there are depends on them. Raises ConfigError."""
    tree, origins = _merged(_read_file(file) if file else {}, [[*_read_environment(environ)]], str(file))
    try:
        return Settings.model_validate({"plugins": tree["plugins"]} if "plugins" in tree else {}).plugins
    except ValidationError as error:
        raise _explain(error, file, origins, Settings, {}) from None


def settings_with(plugins: Plugins) -> type[Settings]:
    """The tree of options with the sections of these doors in it."""
    if not plugins.doors:
        return Settings
    kind = with_plugins(load_plugins(plugins.doors))
    field: Any = (kind, Field(default=kind(), description="The doors."))
    return create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, listeners=field)


def _apply_dev(tree: dict[str, object], origins: Origins, kind: type[Settings]) -> None:
    """The --dev preset: below everything that was given, besides the key and the user that are added to the others."""
    tree.setdefault("data", DEV_DATA)
    for name in ("data", "keys", "users"):
        origins.setdefault((name,), "preset of dev")
    listeners = tree.setdefault("listeners", {})
    doors = kind.model_fields["listeners"].default.doors
    presets = [
        ("console", "enabled", True),
        *((door.key, key, value) for door in doors for key, value in door.dev.items()),
    ]
    for name, key, value in presets:
        extra = listeners.setdefault(name, {}) if isinstance(listeners, dict) else None
        if isinstance(extra, dict) and key not in extra:
            extra[key] = value
            origins["listeners", name, key] = "preset of dev"
    tokens = tree.setdefault("tokens", {})
    if isinstance(tokens, dict) and "secrets" not in tokens:
        tokens["secrets"] = [{"secret": DEV_FAST_MASTER_SECRET}]
        origins["tokens", "secrets"] = "preset of dev"
    peers = tree.setdefault("peers", {})
    if isinstance(peers, dict) and not {"hmac_secret", "hmac_secret_file"} & peers.keys():
        peers["hmac_secret"] = DEV_PEERBUS_SECRET
        origins["peers", "hmac_secret"] = "preset of dev"
    keys = tree.setdefault("keys", [])
    if isinstance(keys, list):
        known = [key.get("name") for key in keys if isinstance(key, dict)]
        for name, secret in ((DEV_NAME, DEV_BLIPMQ_KEY), (DEV_PEER, DEV_PEERBUS_TOKEN)):
            if name not in known:
                tree["keys"] = keys = [*keys, {"name": name, "key": secret}]
    users = tree.setdefault("users", [])
    if isinstance(users, list) and not any(isinstance(user, dict) and user.get("name") == DEV_USER for user in users):
        tree["users"] = [*users, {"name": DEV_USER, "password": DEV_PASSWORD, "roles": ["admin"]}]


def _leaves(tree: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


# -- errors -----------------------------------------------------------------------------------------------------------


def _explain(
    error: ValidationError, file: Path | None, origins: Origins, kind: type[Section], old_names: Mapping[str, str]
) -> ConfigError:
    """One line for the first problem: where, which key, what is wrong, what was probably meant."""
    problems = error.errors(include_url=False)
    # A misspelt key often makes a second complaint (a missing one): the misspelling is the one to tell.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    path = tuple(first["loc"]) or tuple(first.get("ctx", {}).get("path", ()))
    origin = _origin_of(path, origins) or (str(file) if file else "defaults")
    key = dotted(path)
    if first["type"] == "extra_forbidden":
        text = f"unknown key{_nearest(path, kind)}"
    elif first["type"] == "missing":
        text = "missing"
    else:
        text = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
        given = first.get("input")
        if isinstance(given, str | int | float) and not _is_secret(path):
            text += f", not {given!r}"
    if key in old_names:
        text += f" (given as {old_names[key]})"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return ConfigError(f"{origin}: {key + ': ' if key else ''}{text}{more}")


def _origin_of(path: tuple[str | int, ...], origins: Origins) -> str | None:
    names = tuple(part for part in path if isinstance(part, str))
    for length in range(len(names), 0, -1):
        if names[:length] in origins:
            return origins[names[:length]]
    below = {origin for known, origin in origins.items() if known[: len(names)] == names and names}
    return below.pop() if len(below) == 1 else None


def _is_secret(path: tuple[str | int, ...]) -> bool:
    return bool(path) and path[-1] in SECRETS


def _nearest(path: tuple[str | int, ...], kind: type[Section]) -> str:
    section = section_at(path[:-1], kind)
    return nearest_key(dotted(path), [dotted((*path[:-1], name)) for name in section.model_fields] if section else [])


def nearest_key(wrong: str, keys: list[str]) -> str:
    """The end of the sentence about an unknown key: what was probably meant, or what there is."""
    import difflib  # late: 1 ms, for who makes a mistake

    close = difflib.get_close_matches(wrong, keys, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; valid here: {', '.join(keys)}" if len(keys) <= KEYS_LISTED_MAX else ""


# -- the tree as data: for the reference, `config init` and `config explain` ------------------------------------------


def section_at(path: tuple[str | int, ...], section: type[Section] = Settings) -> type[Section] | None:
    """The section a path leads to, lists being passed through."""
    for name in path:
        if isinstance(name, int):
            continue
        field = section.model_fields.get(name)
        below = section_of(field.annotation) if field else None
        if below is None:
            return None
        section = below
    return section
