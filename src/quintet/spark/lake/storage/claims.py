"""Decides which process may commit to a Parquet table in an object store, by a Delta log without files: TABLE/_quintet/claims.

pyarrow's file systems have no conditional write (If-None-Match of S3, and its counterparts of GCS and ABFS). deltalake writes every log
entry so, and refuses a second transaction of an application that began before the first. A claim is such a transaction: its
application is the writer, and its version has the batch id and the nonce of the claimed manifest in one number. The log has only the
last claim of each writer, and removes its old entries.
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
BATCH_IDS_MAX: Final = 1 << (63 - NONCE_BITS)
COLUMNS: Final = pa.schema([("nothing", pa.int32())])  # a Delta table needs a column
KEPT: Final = {"delta.logRetentionDuration": "interval 1 days", "delta.enableExpiredLogCleanup": "true"}


def nonce() -> int:
    return uuid.uuid4().int & ((1 << NONCE_BITS) - 1)


class CommitClaims:
    """The claims of a table when this object was made."""

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
        """The batch id and nonce of the last claim of a writer; (NONE, 0) if there is none."""
        found = None if self._log is None else self._log.transaction_version(writer)
        return (NONE, 0) if found is None else divmod(found, 1 << NONCE_BITS)

    def make(self, writer: str, batch_id: int, nonce: int) -> None:
        """Claim a batch id. Outrun: another process has claimed for this writer since the log was read, or this batch id or a higher
        one is claimed."""
        if batch_id >= BATCH_IDS_MAX:
            raise LakeError(
                f"batch {batch_id} of {writer} has too high an id", hint=f"the limit is {BATCH_IDS_MAX - 1:,}"
            )
        if self.last(writer)[0] >= batch_id:
            raise Outrun(f"batch {batch_id} of {writer} was claimed before")
        if self._log is None:
            with plain(self._at), contextlib.suppress(CommitFailedError):  # another process makes it at the same time
                DeltaTable.create(
                    str(self._at), Schema.from_arrow(COLUMNS), mode="ignore", configuration=KEPT,
                    storage_options=self._options,
                )  # fmt: skip
            with plain(self._at):
                self._log = DeltaTable(str(self._at), storage_options=self._options)
            if self.last(writer)[0] >= batch_id:
                raise Outrun(f"batch {batch_id} of {writer} was claimed before")
        fence = Transaction(writer, batch_id << NONCE_BITS | nonce)
        try:
            with plain(self._at, CommitFailedError):
                self._log.create_write_transaction(
                    [], "append", self._log.schema(), commit_properties=CommitProperties(app_transactions=[fence])
                )
        except CommitFailedError:
            raise Outrun(f"batch {batch_id} of {writer} was claimed by another process") from None
