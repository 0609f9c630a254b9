"""Opens the tables of one test in an S3 server (store.py), for the files that test tables in object stores."""

from pathlib import Path

from quintet.spark.lake.opening import table_of
from quintet.spark.lake.storage import options as storage
from quintet.spark.lake.storage.objects import ObjectPath, located
from quintet.spark.lake.table import LakeTable
from tests.spark.store import BUCKET, Store
from tests.spark.test_lake import BY

FORMATS = ("delta", "iceberg")  # Parquet has no log, and a store no rename


class Maker:
    """Tables of one test: opened anew each time, as by another process."""

    def __init__(self, store: Store, path: str, uri: str) -> None:
        self.store = store
        self.path = path
        self.catalog = {"type": "sql", "uri": uri, "table": f"db.{path.rpartition('/')[2]}"}

    @classmethod
    def of_test(cls, store: Store, folder: Path, test: str) -> "Maker":
        name = "".join(sign if sign.isalnum() else "-" for sign in test).strip("-")
        return cls(store, f"s3://{BUCKET}/{name}/t", f"sqlite:///{folder}/catalog.db")

    def beside(self, name: str) -> "Maker":
        return Maker(self.store, f"{self.path}_{name}", self.catalog["uri"])

    def open(self, format: str) -> LakeTable:
        catalog = self.catalog if format == "iceberg" else {}
        return table_of(self.path, format, BY, storage.parse(self.store.options), catalog)

    @property
    def where(self) -> ObjectPath:
        found = located(self.path, storage.parse(self.store.options))
        assert isinstance(found, ObjectPath)
        return found

    def names(self) -> list[str]:
        """Every object of the table."""
        return [str(path.relative_to(self.where)) for path in self.where.walk()]
