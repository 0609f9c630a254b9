"""Finds the columns of topics that a SQL statement needs, so that a view reads only these.

Spark (4.3 and before) cannot prune the columns of a Python source: it asks for all of them and throws away what the query does not
use. The optimised plan of the statement over whole topics says which columns it uses. The statement is then planned again over reads
of these columns only. The analysis must see the same names and types as before (`select *` in a view over another view), so every
other column is a call of raise_error in that plan: Spark prunes the call as it pruned the column. If one is left after all,
`touched` finds it and the statement keeps the whole read. If `touched` missed one, the query would fail; it could not return
wrong rows.

Plans are read through py4j by the names of Spark's classes. Where a release of Spark has other names, nothing is found and nothing is
pruned.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # py4j ships no types
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
    """What the statement needs of each read, by the read's option subscribe (or subscribePattern). Empty if Spark cannot plan the
    statement: the same error is raised when it is run."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return _needs(_optimised(frame))
    except (PySparkException, Py4JError):
        return {}


def _needs(plan: "JavaObject") -> dict[str, Need]:
    found: dict[str, Need] = {}
    for node, above in _nodes(plan):
        if _kind(node) != SCAN:
            continue
        options = node.relation().options()
        need = found.setdefault(str(options.get("subscribe") or options.get("subscribePattern")), Need())
        need.reads += 1
        need.filtered = need.filtered or any(_kind(one) == "Filter" for one in above)
        # If no node above names columns, all of them are used: in the result, a union or a join.
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
        if name not in read:  # SQL text: columns made by pyspark's functions take four times as long
            said = f"{MARK} {name}".replace("\\", r"\\").replace("'", r"\'")
            columns.append(f"cast(raise_error('{said}') as {schema.apply(number).dataType().sql()}) as {quoted}")
        else:
            columns.append(quoted)
    return narrow.selectExpr(*columns)


def touched(frame: "DataFrame") -> bool:
    """Whether the plan still has a column that was not read."""
    return any(MARK in node.expressions().mkString(" ") for node, _ in _nodes(_optimised(frame)))


def _optimised(frame: "DataFrame") -> "JavaObject":
    return frame._jdf.queryExecution().optimizedPlan()


def _nodes(
    node: "JavaObject", above: "tuple[JavaObject, ...]" = ()
) -> "Iterator[tuple[JavaObject, tuple[JavaObject, ...]]]":
    """Every node, also of subqueries, with the filters above it up to the node that names its columns."""
    yield node, above
    for inner in _each(node.subqueries()):
        yield from _nodes(inner)
    kind = _kind(node)
    beneath = (node,) if kind in CHOOSING else (*above, node) if kind == "Filter" else ()
    for child in _each(node.children()):
        yield from _nodes(child, beneath)


def _kind(node: "JavaObject") -> str:
    return str(node.getClass().getSimpleName())


def _each(seq: "JavaObject") -> "Iterator[JavaObject]":
    """The elements of a Scala sequence."""
    return (seq.apply(number) for number in range(seq.size()))
