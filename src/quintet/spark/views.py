"""Topics as tables of SQL: the statements of a text, and a view for each topic that one of them names.

A view is made when Spark misses its name, so a broker with thousands of topics costs nothing. Spark's names do not tell
Orders from orders; where two topics differ by that alone, the session is told to tell them apart. Nothing is printed here.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from quintet.model.errors import QuintetError, TopicNotFound
from quintet.spark.pipelines.failures import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"
VIEWS_MAX: Final = 1_000  # of one statement
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
    """The topics of a broker in one session."""

    def __init__(self, spark: "SparkSession", access: Mapping[str, str], topics: frozenset[str], typed: bool) -> None:
        self._spark, self._access, self._typed = spark, dict(access), typed
        self._exact = len({name.casefold() for name in topics}) < len(topics)
        self._topics = {name if self._exact else name.casefold(): name for name in topics}
        if self._exact:
            spark.conf.set("spark.sql.caseSensitive", "true")

    def sql(self, statement: str) -> "DataFrame":
        """Carry a statement out; TopicNotFound and SqlFailed are one sentence each."""
        from pyspark.errors import AnalysisException

        for _ in range(VIEWS_MAX):
            try:
                return self._spark.sql(statement)
            except AnalysisException as error:
                if error.getCondition() != MISSING:
                    raise self.failed(error) from error
                self._view(_parts((error.getMessageParameters() or {}).get("relationName", "")))
            except Exception as error:  # of Java, of py4j, of the source: one sentence is all that a user can use
                raise self.failed(error) from error
        raise SqlFailed(f"the statement names over {VIEWS_MAX} topics")

    @staticmethod
    def failed(error: BaseException) -> SqlFailed:
        """What is wrong with a statement, and where in it."""
        place = _PLACE.search(str(getattr(error, "_desc", "")))
        where = f"line {place[1]}, column {int(place[2]) + 1}: " if place else ""
        return SqlFailed(f"{where}{explain(error).sentence}")

    def _view(self, parts: list[str]) -> None:
        topic = self._topics.get(self._key(parts[0])) if len(parts) == 1 else None
        if topic is None:
            raise self._unknown(parts)
        reader = self._spark.read.format("quintet").options(**self._access)
        if "," in topic or topic != topic.strip():  # `subscribe` takes a list
            reader = reader.option("subscribePattern", re.escape(topic))
        else:
            reader = reader.option("subscribe", topic)
        if self._typed:
            reader = reader.option("schema", "registry")
        try:
            reader.load().createOrReplaceTempView("`" + parts[0].replace("`", "``") + "`")
        except Exception as error:  # as above
            raise self.failed(error) from error

    def _unknown(self, parts: list[str]) -> TopicNotFound:
        whole = ".".join(parts)
        if len(parts) > 1 and self._key(whole) in self._topics:
            return TopicNotFound(
                f"there is no table {whole}", hint=f"the topic is written `{whole}` in SQL, with backticks"
            )
        near = difflib.get_close_matches(self._key(whole), self._topics, n=1)
        hint = f"did you mean {self._topics[near[0]]}?" if near else "`quintet topic list` shows them"
        return TopicNotFound(f"there is no topic {whole!r} that you may read", hint=hint)

    def _key(self, name: str) -> str:
        return name if self._exact else name.casefold()


def _parts(name: str) -> list[str]:
    """`a`.`b` -> [a, b]."""
    return [part.replace("``", "`") for part in _PART.findall(name)] or [name]
