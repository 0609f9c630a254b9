"""Makes topics available as tables in Spark SQL, by a temporary view for each topic that a statement names.

A view is made when Spark does not find a name, so a broker with thousands of topics costs nothing. It lives for one statement: Spark
plans a read once for each view, so an older view would not show newer rows. A query reads only the columns it needs (prune.py); a
command that contains a query (INSERT, CREATE TABLE AS) reads all columns.

For Spark, Orders and orders are the same name unless spark.sql.caseSensitive is true. Nothing is printed here.
"""

import contextlib
import difflib
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from quintet.flight.wire import COLUMNS, Selection
from quintet.model.errors import QuintetError, TopicNotFound
from quintet.spark.failures import explain
from quintet.spark.source import prune

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrame, SparkSession

    from quintet.spark.source.connection import FlightConnection

MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"
SQL_LOGGER: Final = "SQLQueryContextLogger"  # pyspark's own
VIEWS_MAX: Final = 1_000  # of one statement
CHEAPEST: Final = "partition"  # what a query reads that only counts rows: a column with one value costs least
# Tokens that may contain a semicolon: strings, quoted names, comments. Strings of Spark have backslash escapes.
_TOKENS: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | --[^\n]* | /\*.*?\*/ | (?P<end>;) | .""",
    re.DOTALL | re.VERBOSE,
)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")


class SqlFailed(QuintetError, ValueError):
    """A statement that Spark cannot parse, or that failed."""

    code = "E2105"


def statements(text: str) -> Iterator[str]:
    """The statements of a text, separated by semicolons."""
    begin = 0
    for token in _TOKENS.finditer(text):
        if token["end"]:
            yield from _some(text[begin : token.start()])
            begin = token.end()
    yield from _some(text[begin:])


def _some(text: str) -> Iterator[str]:
    """The statement, unless it has only spaces and comments."""
    bare = "".join(token[0] for token in _TOKENS.finditer(text) if not token[0].startswith(("--", "/*")))
    if bare.strip():
        yield text.strip()


class Views:
    """The topics of a broker as tables of one session. `once`: each DataFrame is used for one query, so filters may be pushed."""

    def __init__(
        self,
        spark: "SparkSession",
        access: Mapping[str, str],
        topics: Callable[[], frozenset[str]],
        typed: bool = False,
        once: bool = False,
    ) -> None:
        self._spark, self._access, self._typed, self._once = spark, dict(access), typed, once
        self._ask = topics
        self._topics: frozenset[str] = frozenset()
        self._turn = threading.Lock()  # one statement at a time: the names of views are unique in a session

    def sql(self, statement: str) -> "DataFrame":
        """As `query`, but errors are TopicNotFound or SqlFailed with one sentence."""
        from pyspark.errors import AnalysisException

        try:
            return self.query(statement)
        except QuintetError:
            raise
        except Exception as error:  # of Java, py4j or the source, with long texts
            if isinstance(error, AnalysisException) and error.getCondition() == MISSING:
                raise self._unknown(_missing(error)) from error
            raise self.failed(error) from error

    def query(
        self, statement: str, args: dict[str, object] | list[object] | None = None, **more: object
    ) -> "DataFrame":
        """As SparkSession.sql, with its errors; topics are tables in it."""
        return self._planned(partial(type(self._spark).sql, self._spark, statement, args, **more))

    def table(self, name: str) -> "DataFrame":
        """As SparkSession.table. Reads all columns: what a query on the DataFrame needs is not known yet, unlike that of a statement."""
        return self._planned(partial(type(self._spark).table, self._spark, name))

    def look(self) -> None:
        """Ask the broker which topics exist."""
        self._topics = self._ask()

    def _planned(self, run: "Callable[[], DataFrame]") -> "DataFrame":
        with self._turn:
            views: dict[str, tuple[str, DataFrame]] = {}
            try:
                return self._narrowed(self._whole(run, views), run, views)
            finally:
                for name in views:
                    self._spark.catalog.dropTempView(name)

    def _whole(self, run: "Callable[[], DataFrame]", views: "dict[str, tuple[str, DataFrame]]") -> "DataFrame":
        """Make views until Spark finds all names. A command has run when this returns."""
        from pyspark.errors import AnalysisException

        for _ in range(VIEWS_MAX):
            try:
                with _unlogged():
                    return run()
            except AnalysisException as error:
                parts = _missing(error) if error.getCondition() == MISSING else []
                topic = self._topic(parts[0]) if len(parts) == 1 else None
                if topic is None:
                    raise
                views[parts[0]] = topic, self._read(topic)
                views[parts[0]][1].createOrReplaceTempView(_quoted(parts[0]))
        raise SqlFailed(f"the statement names over {VIEWS_MAX} topics")

    def _narrowed(
        self, whole: "DataFrame", run: "Callable[[], DataFrame]", views: "dict[str, tuple[str, DataFrame]]"
    ) -> "DataFrame":
        """The statement over reads of the columns it needs; `whole` if it needs all, or is a command."""
        needs = prune.needs(whole) if views else {}
        again = False
        for name, (topic, frame) in views.items():
            need = needs.get(next(iter(_selection(topic).values())))
            options = self._options(frame, need) if need else {}
            if options:
                prune.filled(frame, self._read(topic, options)).createOrReplaceTempView(_quoted(name))
                again = True
        narrow = run() if again else whole
        return whole if again and prune.touched(narrow) else narrow

    def _options(self, frame: "DataFrame", need: prune.Need) -> dict[str, str]:
        """Options for a narrower read of this topic; empty if all of it is needed."""
        options = {"pushFilters": "true"} if self._once and need.filtered and need.reads == 1 else {}
        columns = [name for name in frame.columns if name in need.columns]
        fields = [name for name in frame.columns if name not in COLUMNS]
        if (
            self._typed and "value" in frame.columns
        ):  # a field of the schema, but the option `columns` would mean the source's own column
            return options
        if self._typed and fields and not set(columns) & set(fields):
            columns.append(fields[0])  # the option reads all fields unless it names one
        columns = columns or [CHEAPEST]
        if len(columns) < len(frame.columns) and not any("," in name or name != name.strip() for name in columns):
            options["columns"] = ",".join(columns)
        return options

    def _read(self, topic: str, more: Mapping[str, str] | None = None) -> "DataFrame":
        options = self._access | _selection(topic) | ({"schema": "registry"} if self._typed else {}) | dict(more or {})
        return self._spark.read.format("quintet").options(**options).load()

    @staticmethod
    def failed(error: BaseException) -> SqlFailed:
        """The error of a statement, with line and column if Spark says them."""
        place = _PLACE.search(str(getattr(error, "_desc", "")))
        where = f"line {place[1]}, column {int(place[2]) + 1}: " if place else ""
        return SqlFailed(f"{where}{explain(error).sentence}")

    def _topic(self, name: str) -> str | None:
        """The topic that a name in SQL means. If it is unknown, the broker is asked again, because it may be new."""
        exact = self._spark.conf.get("spark.sql.caseSensitive") == "true"
        for again in (False, True):
            if again:
                self.look()
            found = [one for one in self._topics if one == name or (not exact and one.casefold() == name.casefold())]
            if len(found) > 1:
                raise SqlFailed(
                    f"topics {' and '.join(sorted(found))} differ by case alone, which Spark ignores",
                    hint="set spark.sql.caseSensitive=true in this session",
                )
            if found:
                return found[0]
        return None

    def _unknown(self, parts: list[str]) -> TopicNotFound:
        whole = ".".join(parts)
        if len(parts) > 1 and self._topic(whole):
            return TopicNotFound(
                f"there is no table {whole}", hint=f"the topic is written `{whole}` in SQL, with backticks"
            )
        names = {name.casefold(): name for name in self._topics}
        near = difflib.get_close_matches(whole.casefold(), names, n=1)
        hint = f"did you mean {names[near[0]]}?" if near else "`quintet topic list` shows them"
        return TopicNotFound(f"there is no topic {whole!r} that you may read", hint=hint)


def tell_apart(spark: "SparkSession", topics: Collection[str]) -> None:
    """Make names in a session case-sensitive if two topics differ by case alone."""
    if len({name.casefold() for name in topics}) < len(topics):
        spark.conf.set("spark.sql.caseSensitive", "true")


def attach(spark: "SparkSession", url: str, typed: bool) -> None:
    """Let `sql` and `table` of this session find topics. A wrong url or wrong credentials raise here."""
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import target

    where = target({"url": url})
    views = Views(spark, {"url": url}, lambda: names(FlightConnection.of(where)), typed)
    views.look()
    vars(spark).update(sql=views.query, table=views.table)


def names(connection: "FlightConnection") -> frozenset[str]:
    """The topics that the user of this connection may read."""
    return frozenset(topic.name for topic in connection.topics(Selection(pattern=".*")).topics)


def _selection(topic: str) -> dict[str, str]:
    """The option that names one topic; `subscribe` takes a list."""
    if "," in topic or topic != topic.strip():
        return {"subscribePattern": re.escape(topic)}
    return {"subscribe": topic}


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep pyspark from logging missing names, which are handled here. It logs every error of SQL with a Java stack trace."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(SQL_LOGGER)
    logger.addFilter(_other)
    try:
        yield
    finally:
        logger.removeFilter(_other)


def _other(record: logging.LogRecord) -> bool:
    return MISSING not in record.getMessage()


def _missing(error: "AnalysisException") -> list[str]:
    """The parts of the name that Spark does not know."""
    return _parts((error.getMessageParameters() or {}).get("relationName", ""))


def _parts(name: str) -> list[str]:
    """`a`.`b` -> [a, b]."""
    return [part.replace("``", "`") for part in _PART.findall(name)] or [name]
