"""Writes a table of plain Parquet files in an object store, which has no rename, no lock and no directories to swap.

    TABLE/date=2026-11-16/topic=orders/part-...parquet              what readers see, as in a directory (parquet.py)
    TABLE/_quintet/staging/WRITER/BATCH/ID.part                     files that tasks wrote
    TABLE/_quintet/commits/WRITER/BATCH-NONCE.pending               a manifest: files to add and files to remove
    TABLE/_quintet/claims/_delta_log                                which manifest is committed (claims.py)
    TABLE/_quintet/commits/WRITER/BATCH.json                        the manifest is applied

    state of a manifest         written       -> claimed           -> applied (copied, removed)     -> deleted
    if the process dies then    ignored          the next commit, of any writer, applies it

The claim is the commit. A manifest may be applied twice, and by two processes at once: the names of staged files and manifests are
never used again. A reader that lists *.parquet sees committed rows only: a batch file by file while it is copied, fewer rows for a
moment during a merge, and never a row twice. `read` of this package takes files that are claimed and not yet copied from staging. A claim is
based on a state of the claims that was read before older ones were applied, so only the last claim of a writer can be open.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from quintet.spark.lake.errors import LakeError, Outrun, StoreUnreachable
from quintet.spark.lake.parquet import ParquetTable, hidden
from quintet.spark.lake.storage.claims import CommitClaims, nonce
from quintet.spark.lake.storage.files import OWN, File
from quintet.spark.lake.storage.journal import Commit
from quintet.spark.lake.storage.objects import ObjectPath, TablePath, each
from quintet.spark.lake.table import COMPACTOR, ONCE, Merge, relative

PENDING: Final = ".pending"
LISTINGS_MAX: Final = 10  # of one read, while others commit
TRIES_MAX: Final = 10  # of a ONCE writer, while others commit


class ObjectParquet(ParquetTable):
    """`path` is an ObjectPath here."""

    @property
    def in_place(self) -> bool:
        return False

    @property
    def at(self) -> ObjectPath:
        assert isinstance(self.path, ObjectPath)
        return self.path

    def fence(self, writer: str) -> int:
        return CommitClaims(self.at).last(writer)[0]

    def paths(self, version: int | None = None) -> Sequence[TablePath]:
        self.check_version(version)
        for _ in range(LISTINGS_MAX):
            claims = CommitClaims(self.at)
            open_ = self._open(claims)
            there = {str(path.relative_to(self.at)): path for path in self.at.walk() if path.name.endswith(".parquet")}
            seen = {name: path for name, path in there.items() if not hidden(path.relative_to(self.at))}
            if CommitClaims(self.at).version != claims.version or self._open(claims).keys() != open_.keys():
                continue
            for commit in open_.values():
                seen |= {file.path: there.get(file.path, self.at / file.staged) for file in commit.files}
                for name in commit.gone:
                    seen.pop(name, None)
            return sorted(seen.values())
        raise StoreUnreachable(
            f"the files of {self.path} changed each of {LISTINGS_MAX} times they were listed", hint="read it again"
        )

    # -- commits --------------------------------------------------------------------------------------------------------

    def _publish(self, commit: Commit) -> None:
        once = commit.writer.startswith(ONCE)
        for left in reversed(range(TRIES_MAX)):
            claims = CommitClaims(self.at)
            self._apply_open(claims)
            batch_id = claims.last(ONCE)[0] + 1 if once else commit.batch_id
            try:
                self._claim(claims, ONCE if once else commit.writer, batch_id, commit)
                return
            except Outrun:
                if not once or not left:
                    self._apply_open(CommitClaims(self.at))
                    raise

    def _claim(self, claims: CommitClaims, name: str, batch_id: int, commit: Commit) -> None:
        """Write the manifest, claim it and apply it."""
        number = nonce()
        manifest = self._folder(commit.writer) / f"{commit.batch_id}-{number}{PENDING}"
        manifest.write_bytes(msgspec.json.encode(commit))
        try:
            claims.make(name, batch_id, number)
        except Outrun:
            if CommitClaims(self.at).last(name) != (batch_id, number):  # equal if only the answer to our claim was lost
                manifest.unlink(missing_ok=True)
                raise
        self._apply(manifest, commit)

    def _recover(self, writer: str) -> None:
        self._apply_open(CommitClaims(self.at))

    def _same_again(self, commit: Commit, accept_other: bool, keep: bool) -> None:
        """Apply what another driver has claimed of this batch first, because its staged files are removed next."""
        self._apply_open(CommitClaims(self.at))
        super()._same_again(commit, accept_other, keep)

    def _apply_open(self, claims: CommitClaims) -> None:
        """Apply the open manifests, and delete those that cannot be claimed any more."""
        for manifest, commit in self._open(claims).items():
            self._apply(manifest, commit)
        for manifest in self._manifests():
            writer, batch_id, _ = self._named(manifest)
            if not writer.startswith(ONCE) and batch_id < claims.last(writer)[0]:
                manifest.unlink(missing_ok=True)

    def _open(self, claims: CommitClaims) -> dict[ObjectPath, Commit]:
        """The manifests that are claimed and not yet applied."""
        found = {}
        for manifest in self._manifests():
            writer, batch_id, number = self._named(manifest)
            claimed = (
                claims.last(ONCE)[1] == number if writer.startswith(ONCE) else claims.last(writer) == (batch_id, number)
            )
            if claimed:
                try:
                    found[manifest] = msgspec.json.decode(manifest.read_bytes(), type=Commit)
                except FileNotFoundError:
                    continue  # applied meanwhile
        return found

    def _apply(self, manifest: ObjectPath, commit: Commit) -> None:
        if commit.gone:
            self._check(manifest, commit.files)
            each([self.at / name for name in commit.gone], lambda path: path.unlink(missing_ok=True))
        targets = {self.at / file.staged: self.at / file.path for file in commit.files}
        moved = each(list(targets), lambda path: path.move_to(targets[path]))
        self._check(manifest, [file for file, done in zip(commit.files, moved, strict=True) if not done])
        if not commit.writer.startswith(ONCE) and commit.writer != COMPACTOR:
            self.journal.put(commit)
        manifest.unlink(missing_ok=True)

    def _check(self, manifest: ObjectPath, files: Sequence[File]) -> None:
        """LakeError if one of these is neither staged nor at its final path. If the manifest is gone, another process has applied it,
        and a merge may have replaced the file since; a merge leaves files of open manifests alone."""
        lost = [file for file in files if not self._exists(file)]
        if lost and manifest.exists():
            raise LakeError(
                f"the file {lost[0].staged} of {self.path} is gone, and with it {lost[0].rows} rows that were committed",
                hint=f"restore it, or remove {manifest} to go on without them",
            )

    def _exists(self, file: File) -> bool:
        return (self.at / file.staged).exists() or (self.at / file.path).exists()

    # -- merging --------------------------------------------------------------------------------------------------------

    def _settled(self) -> Sequence[TablePath]:
        paths = (
            self.paths()
        )  # listed first: files that are claimed later are not in it, and those applied by then may be merged
        under_way = {
            self.at / file.path for commit in self._open(CommitClaims(self.at)).values() for file in commit.files
        }
        return [path for path in paths if path not in under_way and not hidden(relative(path, self.at))]

    def _merge_batch_id(self) -> int:
        return CommitClaims(self.at).last(COMPACTOR)[0] + 1

    def _replace(self, merged: Sequence[Merge], batch_id: int) -> None:
        gone = [path.relative_to(self.at) for one in merged for path in one.gone if isinstance(path, ObjectPath)]
        files = tuple(one.file for one in merged)
        commit = Commit(COMPACTOR, batch_id, sum(file.rows for file in files), files, tuple(map(str, gone)))
        self._claim(CommitClaims(self.at), COMPACTOR, batch_id, commit)

    # -- names ----------------------------------------------------------------------------------------------------------

    def _folder(self, writer: str) -> ObjectPath:
        return self.at / OWN / "commits" / quote(writer, safe="")

    def _manifests(self) -> list[ObjectPath]:
        return [path for path in (self.at / OWN / "commits").walk() if path.name.endswith(PENDING)]

    @staticmethod
    def _named(manifest: ObjectPath) -> tuple[str, int, int]:
        """Writer, batch id and nonce in the name of a manifest."""
        batch_id, _, number = manifest.name.removesuffix(PENDING).partition("-")
        return unquote(manifest.parent.name), int(batch_id), int(number)
