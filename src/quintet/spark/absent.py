"""Stands in for a data source whose packages are not installed: Spark goes on, and using the source raises a clear error.

Spark imports every top-level module `pyspark_*` when it first looks for a data source, and an error there would end the
user's query, whatever it reads. A client alone (`pip install quintet`) beside somebody's own pyspark is such a case.
"""

from typing import NoReturn

from pyspark.sql.datasource import DataSource

from quintet.model.extras import missing


def stand_in(source: str, error: ModuleNotFoundError) -> type[DataSource]:
    """A source of this name that can do nothing but say which extra it needs; other errors of an import are raised."""
    found = missing(error, f'format("{source}")', "spark")
    if found is None:
        raise error
    said, hint = str(found), found.hint

    class Absent(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def __init__(self, options: dict[str, str]) -> None:
            refuse()

    def refuse() -> NoReturn:
        from quintet.model.extras import PackageMissing

        raise PackageMissing(f"{said} ({hint})", hint=hint)

    return Absent
