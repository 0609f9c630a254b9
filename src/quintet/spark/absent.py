"""Replaces a data source whose packages are not installed by one that raises a clear error when it is used.

Spark imports every top-level module `pyspark_*` when it first looks for a data source, and an error there would end the user's query,
whatever it reads. This happens if only the client is installed (`pip install quintet`), in a Python that has pyspark.
"""

from typing import NoReturn

from pyspark.sql.datasource import DataSource

from quintet.model.extras import missing


def stand_in(source: str, error: ModuleNotFoundError) -> type[DataSource]:
    """A source of this name whose use raises PackageMissing with the extra to install. Raises `error` if it has another cause."""
    found = missing(error, f'format("{source}")', "spark")
    if found is None:
        raise error
    said, hint = found.message, found.hint

    class Absent(DataSource):
        @classmethod
        def name(cls) -> str:
            return source

        def __init__(self, options: dict[str, str]) -> None:
            refuse()

    def refuse() -> NoReturn:
        from quintet.model.extras import PackageMissing

        raise PackageMissing(said, hint=hint)

    return Absent
