"""Makes topics tables of SQL: splits a text into statements, and makes a view for each topic that one of them names.

A view is made when Spark misses its name, so a broker with thousands of topics costs nothing. It lives for one statement:
Spark plans a read once for each view, so an older one would not have the rows that came since. A query reads only the
columns it needs (prune.py); a command that runs a query (INSERT, CREATE TABLE AS) reads whole topics.

Spark's names do not tell Orders from orders, unless spark.sql.caseSensitive says so. Nothing is printed here.
"""

import contextlib
import difflib
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

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
CHEAPEST: Final = "partition"  # a column that is the same in every row: what a query reads that only counts rows
# What hides a semicolon: texts, quoted names, comments. Spark's texts know the backslash.
_TOKENS: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | --[^\n]* | /\*.*?\*/ | (?P<end>;) | .""",
    re.DOTALL | re.VERBOSE,
)
_PART: Final = re.compile(r"`((?:[^`]|``)*)`")
_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")


class SqlFailed(QuintetError, ValueError):
    """A statement that Spark cannot read, or could not carry out."""

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
    """The statement, unless it is only room and comments."""
    bare = "".join(token[0] for token in _TOKENS.finditer(text) if not token[0].startswith(("--", "/*")))
    if bare.strip():
        yield text.strip()


class Views:
    """The topics of a broker in one session. `once`: each frame is used for one query, so that filters may be pushed."""

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
        self._turn = threading.Lock()  # views have names, and a session has each name once

    def sql(self, statement: str) -> "DataFrame":
        """As `query`; TopicNotFound and SqlFailed are one sentence each."""
        from pyspark.errors import AnalysisException

        try:
            return self.query(statement)
        except QuintetError:
            raise
        except Exception as error:  # of Java, of py4j, of the source: one sentence is all that a user can use
            if isinstance(error, AnalysisException) and error.getCondition() == MISSING:
                raise self._unknown(_missing(error)) from error
            raise self.failed(error) from error

    def query(self, statement: str, *args: Any, **more: Any) -> "DataFrame":
        """As SparkSession.sql, which raises its own errors; topics are tables in it."""
        return self._planned(partial(type(self._spark).sql, self._spark, statement, *args, **more))

    def table(self, name: str) -> "DataFrame":
        """As SparkSession.table. All columns are read, whatever becomes of the frame: only of a statement is all known."""
        return self._planned(partial(type(self._spark).table, self._spark, name))

    def look(self) -> None:
        """Ask which topics there are."""
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
        """Make views until Spark misses none; commands have run when this returns."""
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
        """The frame over reads of the columns it needs; `whole` if it needs all, or was a command."""
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
        """What to add to a read of this topic; nothing if it is best read as it is."""
        options = {"pushFilters": "true"} if self._once and need.filtered and need.reads == 1 else {}
        columns = [name for name in frame.columns if name in need.columns]
        fields = [name for name in frame.columns if name not in COLUMNS]
        if self._typed and "value" in frame.columns:  # a field of the schema; the option means the column of that name
            return options
        if self._typed and fields and not set(columns) & set(fields):
            columns.append(fields[0])  # the option takes all of them, unless it names one
        columns = columns or [CHEAPEST]
        if len(columns) < len(frame.columns) and not any("," in name or name != name.strip() for name in columns):
            options["columns"] = ",".join(columns)
        return options

    def _read(self, topic: str, more: Mapping[str, str] | None = None) -> "DataFrame":
        options = self._access | _selection(topic) | ({"schema": "registry"} if self._typed else {}) | dict(more or {})
        return self._spark.read.format("quintet").options(**options).load()

    @staticmethod
    def failed(error: BaseException) -> SqlFailed:
        """What is wrong with a statement, and where in it."""
        place = _PLACE.search(str(getattr(error, "_desc", "")))
        where = f"line {place[1]}, column {int(place[2]) + 1}: " if place else ""
        return SqlFailed(f"{where}{explain(error).sentence}")

    def _topic(self, name: str) -> str | None:
        """The topic that a name in SQL means. One that is not known may have been made since: the broker is asked again."""
        exact = self._spark.conf.get("spark.sql.caseSensitive") == "true"
        for again in (False, True):
            if again:
                self.look()
            found = [one for one in self._topics if one == name or (not exact and one.casefold() == name.casefold())]
            if len(found) > 1:
                raise SqlFailed(
                    f"topics {' and '.join(sorted(found))} differ by case alone, which Spark passes over",
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
    """Make a session's names exact if two topics differ by case alone."""
    if len({name.casefold() for name in topics}) < len(topics):
        spark.conf.set("spark.sql.caseSensitive", "true")


def attach(spark: "SparkSession", url: str, typed: bool) -> None:
    """Let `sql` and `table` of this session find topics. A url that is wrong, or refused, is an error at once."""
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
    """pyspark logs each error of SQL with a stack of Java's, also one that is caught; not that a name is missing, in here."""
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
