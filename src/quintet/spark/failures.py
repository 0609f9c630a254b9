"""Explains a failure of Spark in one sentence, and says whether a restart can help.

Spark shows an error of the source or sink as text: class and message of a Python exception inside the message of a Java exception,
inside that of the query. `explain` finds the innermost. Errors that a restart cannot cure are listed in INCURABLE (ours, by class) and
INCURABLE_CONDITIONS (Spark's, by condition). After all others a pipeline is restarted, with pauses by `Patience`.
"""

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from quintet.model.errors import QuintetError
from quintet.spark.source.options import OptionError

SENTENCE_CHARS_MAX: Final = 600
CAUSES_MAX: Final = 32
PAUSE_S: Final = 1.0  # before the first restart; it doubles
PAUSE_S_MAX: Final = 60.0
FORGIVEN_S: Final = 600.0  # after so long without a failure, earlier ones are not counted any more
RESTARTS_NOW: Final = 5  # of a run with trigger=now, unless --restarts is given

# Our errors that a restart cannot cure. The reader raises OptionError also if records were lost and failOnDataLoss is true.
INCURABLE: Final = frozenset(
    {
        "OptionError",
        "ConfigError",
        "AuthError",
        "Forbidden",
        "EpochDiffers",
        "OtherLog",
        "SchemaInvalid",
        "SchemaNotFound",
        "SchemaIncompatible",
        "BadUrl",
        "BadName",
        "BadRequest",
        "TooLarge",
        "Unsupported",
        "CorruptData",
        "JavaMissing",
        "LakeError",
        "PackageMissing",
        "SparkMissing",
    }
)
# Conditions of Spark: another run uses the checkpoint, or it was written by another plan or schema.
INCURABLE_CONDITIONS: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "UNRESOLVED_COLUMN",
    "UNSUPPORTED_STREAMING",
    "DATATYPE_MISMATCH",
    "PARSE_",
)
# Exceptions about a wrong plan: columns, SQL.
_OF_THE_PLAN: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")
# In the text of errors that only pass on an error of Python.
_OF_PYTHON: Final = ("PYTHON_", "Python worker", "Python data source")
_NAMED: Final = re.compile(r"(?:^|[\s:])quintet(?:\.\w+)+\.(\w+): (.*)", re.DOTALL)
_PYTHON_LINE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?$")
_CONDITION: Final = re.compile(r"^\s*(?:[\w.$]+: )?\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ")
_ENDS: Final = re.compile(r"\s+SQLSTATE: |\n=== |\n== |\n\s+at |\n\s*Driver stacktrace|\nJVM stacktrace")
_TASK: Final = re.compile(r"(?:Lost task|Task) .*?\(TID \d+\)[^:]*: ", re.DOTALL)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+(\w+?)(?:Exception|Error)?: ")


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, in a sentence. `detail` is the whole error, for --verbose."""

    sentence: str
    incurable: bool
    detail: str = ""


class Patience:
    """Decides how long to wait before a restart, and when to give up. Time is a parameter."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit  # None: never give up
        self.restarts = 0  # in total
        self._counted = 0  # since the last FORGIVEN_S without a failure

    def failed(self, healthy_s: float) -> float | None:
        """Count a failure after so many seconds of running. Returns the seconds to wait; None: give up."""
        if healthy_s >= FORGIVEN_S:
            self._counted = 0
        if self.limit is not None and self._counted >= self.limit:
            return None
        pause: float = min(PAUSE_S * 2 ** min(self._counted, 16), PAUSE_S_MAX)
        self._counted += 1
        self.restarts += 1
        return pause


def explain(error: BaseException) -> Failure:
    """The innermost cause of an error that Spark, a pipeline or the connection raised."""
    error = _converted(error)
    detail = _detail(error)
    if isinstance(error, QuintetError | OptionError):
        return Failure(_short(str(error)), _incurable(type(error).__name__), detail)
    causes = list(_causes(error))
    for cause in reversed(causes):
        named = _NAMED.search(_text(cause))
        if named:
            return Failure(_short(_cut(named[2])), _incurable(named[1]), detail)
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return Failure("Spark's JVM has died, or does not answer any more.", False, detail)
    if not _from_spark(error):
        name, said = type(error).__name__, str(error)
        if isinstance(error, ValueError):  # a pipeline raises it for wrong options
            return Failure(_short(said or name), True, detail)
        return Failure(_short(f"{name}: {said}" if said else name), False, detail)
    cause = next((each for each in reversed(causes) if _text(each).strip()), error)
    incurable = any(_of_the_plan(each) for each in causes)
    return Failure(_short(_plain(_text(cause))) or type(cause).__name__, incurable, detail)


def _converted(error: BaseException) -> BaseException:
    """A Java exception of py4j as one of pyspark, which has its causes; other errors unchanged."""
    if not hasattr(error, "java_exception"):
        return error
    from pyspark.errors.exceptions.captured import convert_exception

    try:
        return convert_exception(error.java_exception)
    except Exception:  # it asks the JVM, and py4j raises several kinds of errors if that is gone
        return error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was caused by, outermost first."""
    seen: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if seen is None:
            return
        yield seen
        inner = getattr(seen, "_cause", None)  # of pyspark's captured exceptions
        seen = inner if isinstance(inner, BaseException) else seen.__cause__


def _incurable(name: str) -> bool:
    return name in INCURABLE


def _from_spark(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def _of_the_plan(cause: BaseException) -> bool:
    text = _text(cause)
    condition = _CONDITION.match(text)
    if condition and condition[1].startswith(INCURABLE_CONDITIONS):
        return True
    return type(cause).__name__ in _OF_THE_PLAN and not any(word in text for word in _OF_PYTHON)


def _text(error: BaseException) -> str:
    """The text of an exception. str() of pyspark's would ask the JVM, which may be gone."""
    text = getattr(error, "_desc", None)
    if text is None and hasattr(error, "java_exception"):  # str() would ask the JVM
        text = type(error).__name__
    return str(error) if text is None else str(text)


def _plain(text: str) -> str:
    """One sentence of a message of Spark, without condition, Java class, position in a plan, or stack trace."""
    if "Traceback (most recent call last)" in text:
        lines = [line for line in _cut(text, stacks=False).splitlines() if _PYTHON_LINE.match(line)]
        if lines:
            return lines[-1]
    text = _TASK.sub("", text.removeprefix("Job aborted due to stage failure: "))
    text = _cut(text.strip())
    condition = _CONDITION.match(text)
    text = text[condition.end() :] if condition else text
    text = re.sub(r"^An exception was thrown from the Python worker:\s*", "", text)
    return _JAVA_CLASS.sub(lambda found: f"{found[1]}: ", text)


def _cut(text: str, stacks: bool = True) -> str:
    """The text without Spark's additions at its end."""
    ends = _ENDS.search(text) if stacks else re.search(r"\s+SQLSTATE: |\n=== ", text)
    return text[: ends.start()] if ends else text


def _short(text: str) -> str:
    text = " ".join(text.split())
    if len(text) > SENTENCE_CHARS_MAX:
        return text[: SENTENCE_CHARS_MAX - 3] + "..."
    return text if not text or text[-1] in ".?!" else f"{text}."


def _detail(error: BaseException) -> str:
    stack = getattr(error, "_stackTrace", None)
    own = "".join(traceback.format_tb(error.__traceback__))
    return f"{own}{_text(error)}" + (f"\n{stack}" if stack else "")
