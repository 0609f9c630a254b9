"""Parses a URL: which door, which hosts and ports, which secret, which TLS.

    blipmq://:API_KEY@HOST:PORT            plain TCP
    blipmqs://:API_KEY@HOST:PORT?ca=FILE   TLS; ca names the authority to trust in place of the system's
    flymq://USER:PASSWORD@HOST:PORT?dialect=sdk&compression=zstd
    flymqs://USER:PASSWORD@HOST:PORT?ca=FILE&cert=FILE&key=FILE   cert and key show who we are (mutual TLS)
    flight://USER:PASSWORD@HOST:PORT        Arrow Flight, for Spark and the pipelines; flights:// with TLS
    fast://:TOKEN@HOST:PORT                 Fast TCP Pub/Sub with a JSON web token; fasts:// with TLS
    peerbus://:TOKEN@HOST:PORT?name=ALICE&secret_file=FILE   over WebSocket; peerbuss:// with TLS; name is the mailbox
    peerbus+tcp://:TOKEN@HOST:PORT?name=ALICE                the same, one object a line; peerbuss+tcp:// with TLS
    felix://:TOKEN@HOST:PORT?ca=FILE&tenant=T&namespace=N    over QUIC, always with TLS; an API key or a tenant's token
    blipmq://:API_KEY@A:PORT,B:PORT,[::1]:PORT               several nodes of one cluster, for every scheme of `connect`

A host of a list without a port has the scheme's own. `?order=given` tries them as they stand; else they are shuffled once for each bus.
User, secret and options are written once and hold for all hosts. What becomes of a list is decided in hosts.py.

A new door is a row in SCHEMES and, in bus.py, the module that speaks it. Nothing is resolved or opened here.
"""

import difflib
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from quintet.client.core.errors import BadUrl


class Scheme(NamedTuple):
    door: str
    tls: bool
    port: int
    lines: bool = False


SCHEMES: Final = {
    "blipmq": Scheme("blipmq", False, 5555),
    "blip": Scheme("blipmq", False, 5555),
    "blipmqs": Scheme("blipmq", True, 5555),
    "blips": Scheme("blipmq", True, 5555),
    "flymq": Scheme("flymq", False, 9092),
    "fly": Scheme("flymq", False, 9092),
    "flymqs": Scheme("flymq", True, 9092),
    "flys": Scheme("flymq", True, 9092),
    "flight": Scheme("flight", False, 8815),
    "flights": Scheme("flight", True, 8815),
    "fast": Scheme("fast", False, 7400),
    "fasts": Scheme("fast", True, 7400),
    "peerbus": Scheme("peerbus", False, 47821),
    "peerbuss": Scheme("peerbus", True, 47821),
    "peerbus+tcp": Scheme("peerbus", False, 47822, lines=True),
    "peerbuss+tcp": Scheme("peerbus", True, 47822, lines=True),
    "felix": Scheme("felix", True, 5000),
}

HOSTS_MAX: Final = 64  # of one URL: more than any cluster has nodes
ORDERS: Final = ("random", "given")
DIALECTS: Final = ("document", "sdk")
COMPRESSIONS: Final = ("none", "gzip", "lz4", "zstd", "snappy")
ALL_DOORS: Final = tuple(dict.fromkeys(scheme.door for scheme in SCHEMES.values()))
# option -> the doors that have it, and what it may be; none: anything
OPTIONS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "ca": (ALL_DOORS, ()),
    "cert": (ALL_DOORS, ()),
    "key": (ALL_DOORS, ()),
    "dialect": (("flymq",), DIALECTS),
    "compression": (("flymq", "felix"), COMPRESSIONS),
    "name": (("peerbus",), ()),
    "secret_file": (("peerbus",), ()),
    "verify": (("peerbus",), ("on", "off")),
    "kid": (("peerbus",), ()),
    "tenant": (("felix",), ()),
    "namespace": (("felix",), ()),
    "order": (tuple(door for door in ALL_DOORS if door != "flight"), ORDERS),
}
FELIX_COMPRESSIONS: Final = ("none", "zstd")
TYPO_RATIO: Final = 0.75  # how alike an unknown scheme is to one of ours to be a slip: fasts:// is not nats://
_TLS_OPTIONS: Final = ("ca", "cert", "key")
_KEY_DOORS: Final = ("blipmq", "fast", "peerbus", "felix")  # who is known by one secret: it may stand alone
RESERVED: Final = "/?#[]"  # what a URL gives a meaning of its own before the host
_EXAMPLE: Final = "a URL looks like flymq://admin:admin@127.0.0.1:9092 or blipmq://:dev-key@127.0.0.1:5555"
_LIST_EXAMPLE: Final = "a list looks like blipmq://:KEY@a:5555,b:5555,[::1]:5555"
_REPEATED_USER: Final = re.compile(r"@[^@,/]+,[^@,:]*:[^@]*$")  # behind the first @: a host, a comma and the next user


class Host(NamedTuple):
    """One place of the list."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UrlParts(NamedTuple):
    """A URL cut at its hosts: urlsplit takes one host only, and later versions of it refuse a list with [::1] in it."""

    scheme: str  # with "://"
    user: str  # with the "@" behind it, as written; empty: none
    hosts: str
    rest: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect and as whom. The secret never shows up in a repr, an error or a log.

    `host` and `port` are the first of the list, or the one that is being tried."""

    door: str
    host: str
    port: int
    user: str
    secret: str = field(repr=False)
    tls: bool
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    dialect: str = "document"
    compression: str = "none"
    lines: bool = False
    name: str = ""
    secret_file: str | None = None
    verify: str = "on"
    kid: str = ""
    tenant: str = ""
    namespace: str = ""
    order: str = "random"
    others: tuple[Host, ...] = ()  # the rest of the list

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All that the URL names, in its order."""
        return (Host(self.host, self.port), *self.others)

    def at(self, host: Host) -> "Endpoint":
        """The same with one host only."""
        return replace(self, host=host.host, port=host.port, others=())

    def __str__(self) -> str:
        return ",".join(map(str, self.hosts))


def parse(url: str) -> Endpoint:
    """The endpoint a URL names. BadUrl says which part is wrong and what would be right."""
    parts = cut(url)
    texts = parts.hosts.split(",")
    if len(texts) == 1:
        return _parse_one(url)
    if len(texts) > HOSTS_MAX:
        raise BadUrl(f"the URL has {len(texts)} hosts; the limit is {HOSTS_MAX}", hint="some of the nodes are enough")
    first = _parse_one(f"{parts.scheme}{parts.user}{_checked(texts[0], 1)}{parts.rest}")
    if first.door == "flight":
        raise BadUrl("flight:// takes one host", hint="name the node that Spark shall read from")
    port = SCHEMES[parts.scheme.removesuffix("://").lower()].port
    found = (_host(text, place, port) for place, text in enumerate(texts[1:], 2))
    others = dict.fromkeys(host for host in found if host != first.hosts[0])
    return replace(first, others=tuple(others))


def cut(url: str) -> UrlParts:
    """The URL in four parts. A list in which every host has the scheme again, with or without the same user, is made plain."""
    scheme, found, rest = url.partition("://")
    if not found:
        return UrlParts("", "", url, "")
    again = re.split(rf",{re.escape(scheme)}://", rest)
    end = re.search(r"[/?#]", again[-1])
    behind = again[-1][end.start() :] if end else ""
    again[-1] = again[-1][: end.start()] if end else again[-1]
    if len(again) == 1 and "@" not in again[0] and "@" in behind:
        # A secret with a / in it, as _reserved will say: what stands before is no list.
        return UrlParts(f"{scheme}://", "", again[0].partition(",")[0], behind)
    if any(re.search(r"[/?#]", one) for one in again[:-1]):
        raise BadUrl("a host of the URL has options or a path of its own", hint="write them once, behind the last host")
    other = re.search(r",([a-z][a-z0-9+]*):$", again[-1])
    if other is not None and behind.startswith("//"):
        raise BadUrl(f"the hosts of the URL have two schemes, {scheme}:// and {other[1]}://", hint=_LIST_EXAMPLE)
    users, hosts = zip(*((user + at, host) for user, at, host in (one.rpartition("@") for one in again)), strict=True)
    if any(user not in ("", users[0]) for user in users) or _REPEATED_USER.search(users[0].removesuffix("@")):
        hint = f"write them once, before the first host, and an @ in a password as %40: {_LIST_EXAMPLE}"
        raise BadUrl("the hosts of the URL have users or passwords of their own", hint=hint)
    return UrlParts(f"{scheme}://", users[0], ",".join(hosts), behind)


def _checked(text: str, place: int) -> str:
    if text.count(":") > 1 and not text.startswith("["):
        raise BadUrl(f"{text!r} in the list of the URL is not a host", hint=f"IPv6 stands in brackets: [{text}]")
    if not text.strip() or text.startswith(":"):
        raise BadUrl(f"host {place} in the list of the URL is empty", hint=_LIST_EXAMPLE)
    return text


def _host(text: str, place: int, port: int) -> Host:
    _checked(text, place)
    try:
        parts = urlsplit(f"//{text}")
        name, given = parts.hostname, parts.port
    except ValueError:
        what = "has no port from 0 to 65535" if "[" not in text or "]:" in text else "is not a host"
        raise BadUrl(f"{text!r} in the list of the URL {what}", hint=_LIST_EXAMPLE) from None
    if not name:
        raise BadUrl(f"{text!r} in the list of the URL is not a host", hint=_LIST_EXAMPLE)
    return Host(name, port if given is None else given)


def address(text: str, port: int) -> Host | None:
    """HOST:PORT, [HOST]:PORT or HOST as somebody else wrote it; None if it is neither."""
    try:
        return _host(text, 1, port)
    except BadUrl:
        return None


def _parse_one(url: str) -> Endpoint:
    try:
        parts = urlsplit(url)
    except ValueError as error:  # its text may hold a part of the password
        raise _reserved(url) or BadUrl("the URL does not parse", hint=_EXAMPLE) from error
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        raise _unknown_scheme(parts.scheme)
    if not parts.netloc:
        raise BadUrl(f"the {parts.scheme}:// URL names no host", hint=_EXAMPLE)
    behind = f"{parts.path}{parts.fragment}" if "@" in parts.netloc else f"{parts.path}{parts.query}{parts.fragment}"
    cut = _reserved(url) if "@" in behind else None
    if cut is not None:
        raise cut
    try:
        port = parts.port
    except ValueError:
        raise BadUrl("the port in the URL is not a number from 0 to 65535", hint=_EXAMPLE) from None
    if parts.fragment:
        raise BadUrl("the URL has a # behind its host, which no door uses", hint=_EXAMPLE)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_options(options, scheme, parts.scheme)
    if parts.path not in ("", "/"):
        raise BadUrl(f"the URL has a path ({parts.path!r}), which no door uses", hint=_EXAMPLE)
    user, secret = unquote(parts.username or ""), unquote(parts.password or "")
    return Endpoint(
        door=scheme.door,
        host=parts.hostname or "127.0.0.1",
        port=scheme.port if port is None else port,
        user=user,
        secret=secret or (user if scheme.door in _KEY_DOORS else ""),
        tls=scheme.tls,
        lines=scheme.lines,
        **cast(dict[str, Any], options),
    )


def _check_options(options: dict[str, str], scheme: Scheme, name: str) -> None:
    known = [option for option, (doors, _) in OPTIONS.items() if scheme.door in doors]
    for option, value in options.items():
        if option not in known:
            raise BadUrl(f"unknown option {option!r} in the URL", hint=f"known options: {', '.join(known)}")
        choices = FELIX_COMPRESSIONS if (scheme.door, option) == ("felix", "compression") else OPTIONS[option][1]
        if choices and value not in choices:
            raise BadUrl(f"?{option}={value} is not known", hint=f"one of {', '.join(choices)}")
        if option in _TLS_OPTIONS and not scheme.tls:
            raise BadUrl(f"?{option}= needs TLS", hint=f"write {_with_tls(name)}:// for a TLS connection")
    if "key" in options and "cert" not in options:
        raise BadUrl("?key= needs ?cert=", hint="key is the private key of the certificate; one file may hold both")


def _reserved(url: str) -> BadUrl | None:
    """For a URL whose user, password or key holds a character that ends that part of a URL; never with the secret itself."""
    secret = url.partition("://")[2].rpartition("@")[0]
    found = [letter for letter in RESERVED if letter in secret]
    if not found:
        return None
    names = " and ".join(f"{letter} as %{ord(letter):02X}" for letter in found)
    return BadUrl(
        f"the user, password or key in the URL holds {' and '.join(found)}, which ends that part of a URL",
        hint=f"write {names}, or all of it by urllib.parse.quote(password, safe='')",
    )


def _with_tls(name: str) -> str:
    first, plus, rest = name.partition("+")
    return f"{first}s{plus}{rest}"


def _unknown_scheme(name: str) -> BadUrl:
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    near = difflib.get_close_matches(name, SCHEMES, n=1, cutoff=TYPO_RATIO)
    guess = f"did you mean {near[0]}://? " if near and near[0] != name else ""
    what = f"no door has the scheme {name}://" if name else "the URL has no scheme"
    return BadUrl(what, hint=f"{guess}known schemes: {known}; {_EXAMPLE}")
