"""Parses and checks the options of format("quintet") before anything is asked of the broker.

Spark hands over text with lower-case names; the result is a frozen `ReadOptions` or `WriteOptions`. The error about an unknown option
proposes the most similar name, and that about an option of Spark's Kafka source which we lack says what to write instead. Every error
is an `OptionError`: one sentence that names the option and never shows a secret.

`errors_without_trace` is here, too. Spark's Python processes send a stack trace in front of every error, unless
SPARK_HIDE_TRACEBACK is set at that moment. Each process ends after the error, so setting the variable changes nothing else.
"""

import datetime
import difflib
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, ParamSpec, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from quintet.flight.wire import COLUMNS
from quintet.model.errors import QuintetError

PORT: Final = 8815
RETRY_SECONDS: Final = 30.0
RETRY_SECONDS_MAX: Final = 3600.0
BYTES_PER_TRIGGER: Final = 1 << 30  # of a micro-batch, about, when maxOffsetsPerTrigger is not given
TASKS_MAX: Final = 10_000  # the most that minPartitions may ask for
GROUP_PREFIX: Final = "spark-quintet"
EARLIEST: Final = -2  # in offsets JSON, as Kafka's source has it
LATEST: Final = -1
US_PER_MS: Final = 1000
# Spark sets one of these in each of its Python workers, depending on how it talks to them.
WORKER_MARKS: Final = ("PYTHON_UNIX_DOMAIN_ENABLED", "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH")

P = ParamSpec("P")
R = TypeVar("R")
Edge = Literal["earliest", "latest"]
Host = tuple[str, int]
# startingOffsets and endingOffsets: one word for all partitions, or an offset (or EARLIEST, LATEST) of each.
Start = Edge | dict[str, dict[int, int]]

LINK_OPTIONS: Final = ("url", "user", "password", "token", "retrySeconds")
READ_OPTIONS: Final = (
    *LINK_OPTIONS,
    "subscribe", "topic", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss", "groupIdPrefix", "columns", "schema", "subject", "typedPrefix",
    "access", "pushFilters", "onDecodeError", "valuePrefix", "schemaIds", "readFrom", "maxAgeSeconds",
)  # fmt: skip
WRITE_OPTIONS: Final = (*LINK_OPTIONS, "topic", "failOnDataLoss", "txnAppId", "txnVersion")
SECRETS: Final = frozenset({"password", "token"})  # not stripped: a space may be part of one
# Options that Spark itself adds to those of the user.
SPARKS_OWN: Final = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode", "header"})
TYPED_ONLY: Final = ("subject", "typedPrefix", "onDecodeError", "valuePrefix", "schemaIds")
# What happens to a row that does not decode, and whether values begin with Confluent's prefix; the first is the default.
ON_DECODE_ERROR: Final = ("null", "fail", "deadletter")
VALUE_PREFIX: Final = ("auto", "confluent", "none")
READ_FROM: Final = ("follower", "leader", "any")  # of the nodes of a cell
AGE_SECONDS_MAX: Final = 86_400.0
SCHEMA_IDS_MAX: Final = 1_000  # of one read
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
# Spellings of Spark's Kafka source that we do not have -> what to write instead
KAFKA: Final = {
    "assign": "write subscribe, and filter on the columns topic and partition",
    "startingoffsetsbytimestamp": "write startingTimestamp, it holds for every partition",
    "endingoffsetsbytimestamp": "write endingTimestamp, it holds for every partition",
    "startingoffsetsbytimestampstrategy": "leave it out: a partition without newer records begins at its end",
    "includeheaders": "leave it out: there is always a column headers, and the option columns can leave it out",
    "minoffsetspertrigger": "leave it out and choose a longer processingTime trigger",
    "maxtriggerdelay": "leave it out and choose a processingTime trigger",
    "maxbytespertrigger": "write maxOffsetsPerTrigger",
    "maxrecordsperpartition": "write minPartitions",
    "fetchoffset.numretries": "write retrySeconds",
    "fetchoffset.retryintervalms": "write retrySeconds",
    "kafka.bootstrap.servers": "write url, as flight://USER:PASSWORD@HOST:8815",
    "kafka.group.id": "write groupIdPrefix",
}


class OptionError(ValueError):
    """An option that is wrong, missing, or must not be set."""

    def __init__(self, option: str, what: str) -> None:
        super().__init__(f"option {option}: {what}")
        self.option = option

    def __reduce__(self) -> tuple[Callable[[str, str], "OptionError"], tuple[str, str]]:
        return OptionError, (self.option, str(self).removeprefix(f"option {self.option}: "))


@dataclass(frozen=True, slots=True)
class Target:
    """The address of the broker's Flight door and the credentials for it. The repr leaves out secrets. With `read_from` it is a cell, and
    reads go to a node that is that; "": the node of this address, whatever it is."""

    host: str
    port: int
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    retry_seconds: float = RETRY_SECONDS
    others: tuple[Host, ...] = ()  # more nodes of the same cell
    read_from: str = ""  # or follower, leader, any
    max_age_seconds: float = 0.0  # of what a follower answers; 0: as it is configured

    @property
    def hosts(self) -> tuple[Host, ...]:
        return ((self.host, self.port), *self.others)

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    target: Target
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: Start | None = None  # None: earliest for a batch, latest for a stream
    ending: Start = "latest"
    starting_us: int | None = None
    ending_us: int | None = None
    rows_per_trigger: int = 0  # 0: as many as BYTES_PER_TRIGGER hold
    tasks_min: int = 0  # 0: as many as fit
    fail_on_data_loss: bool = True
    group_prefix: str = GROUP_PREFIX
    columns: tuple[str, ...] = ()  # as the user wrote them; (): all
    typed: bool = False
    subject: str = ""
    typed_prefix: str = ""
    on_decode_error: str = "null"  # or fail, or deadletter
    value_prefix: str = "auto"  # or confluent, or none
    schema_ids: tuple[tuple[int, int], ...] = ()  # schema ids of another registry, and the versions here they mean
    access: str = "auto"  # or files, or flight
    push_filters: bool = False
    given: frozenset[str] = frozenset()  # the options that were set, in our spelling


@dataclass(frozen=True, slots=True)
class WriteOptions:
    target: Target
    topic: str = ""  # "": a column names the topic of each row
    fail_on_data_loss: bool = True
    writer: str = ""  # with `batch_id`: the identity of a batch write that may be repeated
    batch_id: int = 0
    checkpoint: str = ""  # of a streaming query that names it as an option


# -- errors without a stack trace in front ----------------------------------------------------------------------------


def in_worker() -> bool:
    """Whether this process is one of Spark's Python workers, which ends after an error."""
    return any(name in os.environ for name in WORKER_MARKS)


def complain(error: QuintetError | OptionError) -> NoReturn:
    """Raise the error without a stack trace in front, so that the user reads its sentence first."""
    if in_worker():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    raise error.with_traceback(None) from None


def errors_without_trace(function: Callable[P, R]) -> Callable[P, R]:
    """For functions that Spark calls: our own errors are shown without a stack trace."""

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (QuintetError, OptionError) as error:
            complain(error)

    return inner


def errors_without_trace_each(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """The same for a function that yields."""

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from function(*args, **kwargs)
        except (QuintetError, OptionError) as error:
            complain(error)

    return inner


# -- the options ------------------------------------------------------------------------------------------------------


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a reader. OptionError names the first one that is wrong."""
    given = _known(options, READ_OPTIONS)
    topics, pattern = _selection(given)
    for place, moment in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if place in given and moment in given:
            raise OptionError(moment, f"{place} is set, too; set one of the two")
    typed = _choice(given, "schema", ("raw", "registry")) == "registry"
    for name in TYPED_ONLY:
        if name in given and not typed:
            raise OptionError(name, "it only has a meaning together with schema=registry")
    starting = given.get("startingOffsets")
    return ReadOptions(
        target=target(given, "follower"),
        topics=topics,
        pattern=pattern,
        starting=None if starting is None else _offsets("startingOffsets", starting),
        ending=_offsets("endingOffsets", given.get("endingOffsets", "latest")),
        starting_us=_moment(given, "startingTimestamp"),
        ending_us=_moment(given, "endingTimestamp"),
        rows_per_trigger=_number(given, "maxOffsetsPerTrigger", 0, least=1),
        tasks_min=_number(given, "minPartitions", 0, least=1, most=TASKS_MAX),
        fail_on_data_loss=_flag(given, "failOnDataLoss"),
        group_prefix=given.get("groupIdPrefix", GROUP_PREFIX),
        columns=_columns(given, typed),
        typed=typed,
        subject=given.get("subject", ""),
        typed_prefix=given.get("typedPrefix", ""),
        on_decode_error=_choice(given, "onDecodeError", ON_DECODE_ERROR),
        value_prefix=_choice(given, "valuePrefix", VALUE_PREFIX),
        schema_ids=_schema_ids(given),
        access=_choice(given, "access", ("auto", "files", "flight")),
        push_filters=_choice(given, "pushFilters", ("false", "true")) == "true",
        given=frozenset(given),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a writer."""
    given = _known(options, WRITE_OPTIONS)
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("txnAppId", "it needs txnVersion, and txnVersion needs it; set both or none of them")
    if "txnAppId" in given and not given["txnAppId"]:
        raise OptionError("txnAppId", "it is empty; write a name that no other writer has")
    if "topic" in given and not given["topic"]:
        raise OptionError("topic", "it is empty; name a topic, or leave it out and have a column topic")
    return WriteOptions(
        target=target(given),
        topic=given.get("topic", ""),
        fail_on_data_loss=_flag(given, "failOnDataLoss"),
        writer=given.get("txnAppId", ""),
        batch_id=_number(given, "txnVersion", 0, least=0),
        checkpoint=checkpoint(options),
    )


def checkpoint(options: Mapping[str, str]) -> str:
    """The checkpointLocation among the options of a sink; "" if it was set elsewhere, for example in the session."""
    return next((value for name, value in options.items() if name.lower() == "checkpointlocation"), "")


def without_file(place: str) -> str:
    """/x of file:///x and of file:/x, which both name a directory for Spark; any other text unchanged."""
    return re.sub(r"\Afile:(//)?(?=/)", "", place)


def refuse_in_stream(options: ReadOptions) -> None:
    """OptionError if an option is set that only a batch read has."""
    for name in BATCH_ONLY:
        if name in options.given:
            raise OptionError(name, "a streaming query has no end; remove the option, or use spark.read")


def target(given: Mapping[str, str], read_from: str = "leader") -> Target:
    """The target that `url` names. The options user, password and token take precedence over those in the URL. read_from: of which node
    of a cell, if the URL names several hosts and no option says it."""
    url, others = _several_hosts(given.get("url", ""))
    example = "write flight://USER:PASSWORD@HOST:8815, or flights:// for TLS"
    if not url:
        raise OptionError("url", f"it is missing; {example}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise OptionError("url", f"its port is not a number from 0 to 65535; {example}") from None
    if parts.scheme not in ("flight", "flights") or not parts.hostname:
        raise OptionError("url", f"it names no Flight door; {example}")
    if parts.path not in ("", "/"):
        raise OptionError("url", f"it has a path, which the door does not use; {example}")
    extra = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in extra:
        if name not in ("ca", "cert", "key"):
            raise OptionError("url", f"it has ?{name}=, which is not known; ca, cert and key are")
        if parts.scheme != "flights":
            raise OptionError("url", f"?{name}= needs TLS; write flights://")
    if ("cert" in extra) != ("key" in extra):
        raise OptionError("url", "?cert= and ?key= need each other")
    return Target(
        host=parts.hostname,
        port=PORT if port is None else port,
        tls=parts.scheme == "flights",
        user=given.get("user", unquote(parts.username or "")),
        password=given.get("password", unquote(parts.password or "")),
        token=given.get("token", ""),
        retry_seconds=_seconds(given, "retrySeconds"),
        others=others,
        read_from=_choice(given, "readFrom", READ_FROM) if "readFrom" in given else read_from if others else "",
        max_age_seconds=_age(given),
        **extra,
    )


def _several_hosts(url: str) -> tuple[str, tuple[Host, ...]]:
    """The URL with its first host alone, and the others. Each has its own port, or PORT."""
    scheme, mark, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = authority.rpartition("@")
    first, *more = hosts.split(",")
    others: list[Host] = []
    for text in more:
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host:
            raise OptionError("url", f"{text!r} is not a host; write flight://USER:PASSWORD@HOST1:8815,HOST2:8815")
        others.append((host, PORT if port is None else port))
    return f"{scheme}{mark}{login}{at}{first}{rest[len(authority) :]}", tuple(others)


def _age(given: Mapping[str, str]) -> float:
    text = given.get("maxAgeSeconds")
    if text is None:
        return 0.0
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not 0 < float(text) <= AGE_SECONDS_MAX:
        raise OptionError("maxAgeSeconds", f"{text!r} is not a number of seconds above 0, up to {AGE_SECONDS_MAX:.0f}")
    return float(text)


def _known(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options under the names of `names`; Spark hands them over in any case, mostly lower."""
    spelling = {name.lower(): name for name in names}
    given = {}
    for name, value in options.items():
        low = name.lower()
        if low in spelling:
            given[spelling[low]] = value if low in SECRETS else value.strip()
        elif low in KAFKA or low.startswith("kafka."):
            raise OptionError(name, f"the quintet source does not have it; {KAFKA.get(low, 'write url')}")
        elif low not in SPARKS_OWN:
            near = difflib.get_close_matches(low, spelling, n=1)
            guess = f"did you mean {spelling[near[0]]}?" if near else f"known are {', '.join(names)}"
            raise OptionError(name, f"it is not known here; {guess}")
    return given


def _selection(given: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    names = [name for name in ("subscribe", "topic", "subscribePattern") if name in given]
    if not names:
        raise OptionError("subscribe", "it is missing; name topics as a,b,c, or set subscribePattern")
    if len(names) > 1:
        raise OptionError(names[1], f"{names[0]} is set, too; set one of the two")
    if names[0] == "subscribePattern":
        if not given["subscribePattern"]:
            raise OptionError("subscribePattern", "it is empty; .* is every topic")
        return (), given["subscribePattern"]
    topics = [topic.strip() for topic in given[names[0]].split(",")]
    if not all(topics):
        raise OptionError(names[0], "a name in it is empty; name topics as a,b,c")
    if len(set(topics)) < len(topics):
        raise OptionError(names[0], "a topic is named twice")
    return tuple(sorted(topics)), ""


def _offsets(name: str, text: str) -> Start:
    word = text.lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    form = 'write earliest, latest, or JSON such as {"orders":{"0":12,"1":-2}} (-2: earliest, -1: latest)'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"it is neither a word that is known nor JSON ({error}); {form}") from None
    if not isinstance(found, dict) or not found:
        raise OptionError(name, f"it is not an object of topics; {form}")
    result: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict) or not partitions:
            raise OptionError(name, f"topic {topic} has no object of partitions; {form}")
        for partition, offset in partitions.items():
            if not re.fullmatch("[0-9]{1,9}", partition):
                raise OptionError(name, f"{partition!r} of topic {topic} is not a partition; {form}")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise OptionError(name, f"{offset!r} of {topic}/{partition} is not an offset; {form}")
            result.setdefault(topic, {})[int(partition)] = offset
    return result


def _schema_ids(given: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """{"17":1,"23":2} as pairs."""
    if "schemaIds" not in given:
        return ()
    form = 'write ids of the other registry and versions of the subject here, such as {"17":1,"23":2}'
    if given.get("valuePrefix", "").lower() == "none":
        raise OptionError("schemaIds", "valuePrefix is none, so no value has an id; remove one of the two")
    try:
        found = json.loads(given["schemaIds"])
    except ValueError as error:
        raise OptionError("schemaIds", f"it is not JSON ({error}); {form}") from None
    if not isinstance(found, dict) or not 0 < len(found) <= SCHEMA_IDS_MAX:
        raise OptionError("schemaIds", f"it is not an object of 1 to {SCHEMA_IDS_MAX} ids; {form}")
    for id, version in found.items():
        if not re.fullmatch("[0-9]{1,10}", id) or int(id) >= 1 << 32:
            raise OptionError("schemaIds", f"{id!r} is not an id from 0 to {(1 << 32) - 1}; {form}")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise OptionError("schemaIds", f"{version!r}, of the id {id}, is not a version; {form}")
    return tuple(sorted((int(id), version) for id, version in found.items()))


def _moment(given: Mapping[str, str], name: str) -> int | None:
    """Microseconds since 1970 of milliseconds, or of ISO 8601 (without a zone: UTC)."""
    text = given.get(name)
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,15}", text):
        return int(text) * US_PER_MS
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            name, "it is not a time; write milliseconds since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return (when - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(microseconds=1)


def _number(given: Mapping[str, str], name: str, default: int, *, least: int, most: int = (1 << 63) - 1) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch("-?[0-9]{1,19}", text):
        raise OptionError(name, f"{text!r} is not a whole number")
    if not least <= int(text) <= most:
        raise OptionError(name, f"{text} is out of range; it is a number from {least} to {most}")
    return int(text)


def _seconds(given: Mapping[str, str], name: str) -> float:
    text = given.get(name)
    if text is None:
        return RETRY_SECONDS
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) > RETRY_SECONDS_MAX:
        raise OptionError(name, f"{text!r} is not a number of seconds from 0 to {RETRY_SECONDS_MAX:.0f}")
    return float(text)


def _flag(given: Mapping[str, str], name: str) -> bool:
    return _choice(given, name, ("true", "false")) == "true"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = given.get(name, choices[0]).lower()
    if text not in choices:
        raise OptionError(name, f"{text!r} is not one of {', '.join(choices)}")
    return text


def _columns(given: Mapping[str, str], typed: bool) -> tuple[str, ...]:
    """The columns that the option names. With schema=registry, names of fields are checked later, when the schema is known."""
    if "columns" not in given:
        return ()
    names = tuple(name.strip() for name in given["columns"].split(","))
    for name in names:
        if not name or (not typed and name not in COLUMNS):
            raise OptionError("columns", f"{name!r} is not a column; there are {', '.join(COLUMNS)}")
    return names
