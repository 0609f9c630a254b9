"""Decides which process may commit to a Parquet table in an object store: a Delta log without files, TABLE/_quintet/claims.

pyarrow's file systems cannot write a name only if nobody else has (If-None-Match of S3, and what GCS and ABFS have instead).
deltalake writes every entry of a log so, and refuses a second transaction of one application that began before the first.
A claim is such a transaction: the writer, and in one number the epoch and the nonce that the claimed manifest is named by.
The log says of each writer the last claim only, and forgets its own old entries.
"""

import contextlib
import uuid
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import Transaction

from quintet.spark.lake.errors import LakeError, Outrun
from quintet.spark.lake.storage.files import OWN
from quintet.spark.lake.storage.journal import NONE
from quintet.spark.lake.storage.objects import ObjectPath
from quintet.spark.lake.storage.options import plain

LOG: Final = f"{OWN}/claims"
NONCE_BITS: Final = 20
EPOCHS_MAX: Final = 1 << (63 - NONCE_BITS)
COLUMNS: Final = pa.schema([("nothing", pa.int32())])  # a Delta table has a column
KEPT: Final = {"delta.logRetentionDuration": "interval 1 days", "delta.enableExpiredLogCleanup": "true"}


def nonce() -> int:
    return uuid.uuid4().int & ((1 << NONCE_BITS) - 1)


class CommitClaims:
    """The claims of a table as they were when this was made."""

    def __init__(self, table: ObjectPath) -> None:
        self._at = table / LOG
        self._options = table.storage.delta(table.store, table.authority)
        with plain(table, TableNotFoundError):
            try:
                self._log: DeltaTable | None = DeltaTable(str(self._at), storage_options=self._options)
            except TableNotFoundError:
                self._log = None

    @property
    def version(self) -> int:
        return NONE if self._log is None else self._log.version()

    def last(self, writer: str) -> tuple[int, int]:
        """Epoch and nonce of the last claim of a writer; (NONE, 0) if there is none."""
        found = None if self._log is None else self._log.transaction_version(writer)
        return (NONE, 0) if found is None else divmod(found, 1 << NONCE_BITS)

    def make(self, writer: str, epoch: int, nonce: int) -> None:
        """Claim an epoch. Outrun: somebody has claimed for this writer since this was read, or is further than the epoch."""
        if epoch >= EPOCHS_MAX:
            raise LakeError(f"batch {epoch} of {writer} has too high a number", hint=f"the limit is {EPOCHS_MAX - 1:,}")
        if self.last(writer)[0] >= epoch:
            raise Outrun(f"batch {epoch} of {writer} was claimed before")
        if self._log is None:
            with plain(self._at), contextlib.suppress(CommitFailedError):  # somebody else makes it at the same time
                DeltaTable.create(
                    str(self._at), Schema.from_arrow(COLUMNS), mode="ignore", configuration=KEPT,
                    storage_options=self._options,
                )  # fmt: skip
            with plain(self._at):
                self._log = DeltaTable(str(self._at), storage_options=self._options)
            if self.last(writer)[0] >= epoch:
                raise Outrun(f"batch {epoch} of {writer} was claimed before")
        fence = Transaction(writer, epoch << NONCE_BITS | nonce)
        try:
            with plain(self._at, CommitFailedError):
                self._log.create_write_transaction(
                    [], "append", self._log.schema(), commit_properties=CommitProperties(app_transactions=[fence])
                )
        except CommitFailedError:
            raise Outrun(f"batch {epoch} of {writer} was claimed by another process") from None
