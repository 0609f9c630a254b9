"""Finds the columns of topics that a statement needs, and fills the place of the others.

Spark (4.3 and before) cannot prune columns of a Python source: it asks for all of them and throws away what the query does not
use. The optimised plan of the statement over whole topics tells which those are. There the statement is planned again, over
reads of the needed columns only. So that its analysis sees the same names and types (`select *` in a view that is made of
another), every other column stands in that plan as a call of raise_error: Spark prunes it, as it pruned the column. If one is
left after all, `touched` says so and the statement keeps the whole read; if even that were wrong, the query would
fail and not return something else.

Plans are reached through py4j by the names of Spark's classes. Where those are others, nothing is found and nothing is pruned.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCAN: Final = "DataSourceV2ScanRelation"  # a read, in an optimised plan
CHOOSING: Final = frozenset({"Project", "Aggregate"})  # nodes above them see only the columns that these name
MARK: Final = "quintet did not read the column"


@dataclass(slots=True)
class Need:
    """What a statement needs of one topic: columns, how often it is read, and whether rows are filtered at a read."""

    columns: set[str] = field(default_factory=set)
    reads: int = 0
    filtered: bool = False


def needs(frame: "DataFrame") -> dict[str, Need]:
    """By the text of the option subscribe (or subscribePattern): what the statement needs of that read. Nothing if it has no
    plan: why, Spark says when it is run, as without us."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j ships no types
    from pyspark.errors import PySparkException

    try:
        return _needs(_optimised(frame))
    except (PySparkException, Py4JError):
        return {}


def _needs(plan: Any) -> dict[str, Need]:
    found: dict[str, Need] = {}
    for node, above in _nodes(plan):
        if _kind(node) != SCAN:
            continue
        options = node.relation().options()
        need = found.setdefault(str(options.get("subscribe") or options.get("subscribePattern")), Need())
        need.reads += 1
        need.filtered = need.filtered or any(_kind(one) == "Filter" for one in above)
        # Without something that chooses, every column goes up: to the result, into a union, through a join.
        chosen = any(_kind(one) in CHOOSING for one in above)
        for column in _each(node.output()):
            if not chosen or any(one.references().contains(column) for one in above):
                need.columns.add(column.name())
    return found


def filled(whole: "DataFrame", narrow: "DataFrame") -> "DataFrame":
    """The narrow read with all columns of the whole one, in their order; those that were not read raise an error."""
    read, schema = set(narrow.columns), whole._jdf.schema()
    columns = []
    for number, name in enumerate(whole.columns):
        quoted = f"`{name.replace('`', '``')}`"
        if name not in read:  # as text: columns made by pyspark's functions take four times as long
            said = f"{MARK} {name}".replace("\\", r"\\").replace("'", r"\'")
            columns.append(f"cast(raise_error('{said}') as {schema.apply(number).dataType().sql()}) as {quoted}")
        else:
            columns.append(quoted)
    return narrow.selectExpr(*columns)


def touched(frame: "DataFrame") -> bool:
    """Whether the plan still has a column that was not read."""
    return any(MARK in node.expressions().mkString(" ") for node, _ in _nodes(_optimised(frame)))


def _optimised(frame: "DataFrame") -> Any:
    return frame._jdf.queryExecution().optimizedPlan()


def _nodes(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node, those of subqueries too, with the filters above it up to the node that chooses its columns."""
    yield node, above
    for inner in _each(node.subqueries()):
        yield from _nodes(inner)
    kind = _kind(node)
    beneath = (node,) if kind in CHOOSING else (*above, node) if kind == "Filter" else ()
    for child in _each(node.children()):
        yield from _nodes(child, beneath)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(seq: Any) -> Iterator[Any]:
    """The elements of a Scala sequence."""
    return (seq.apply(number) for number in range(seq.size()))
