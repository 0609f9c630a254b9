"""Writes a table of plain Parquet files in an object store, which has no rename, no lock and no directories to swap.

    TABLE/date=2026-11-16/topic=orders/part-...parquet              what readers see, as in a directory (parquet.py)
    TABLE/_quintet/staging/WRITER/EPOCH/ID.part                     what tasks wrote
    TABLE/_quintet/commits/WRITER/EPOCH-NONCE.pending               a manifest: files to come, files to go
    TABLE/_quintet/claims/_delta_log                                which manifest counts (claims.py)
    TABLE/_quintet/commits/WRITER/EPOCH.json                        it is carried out

    state of a manifest     written       -> claimed           -> carried out (copied, removed)     -> gone
    cut off behind it       ignored          the next commit, of any writer, carries it out

Claiming is the commit. Carrying out can be done twice and by two at once: staged files and manifests have names that never come
again. A reader that lists *.parquet sees committed rows only, a batch file by file while it is copied, and for the moment of a
merge fewer rows, never a row twice. `read` of this package takes what is claimed and not yet copied from the staging. The claim
is made on a state of the claims that was read before older ones were carried out, so only the last claim of a writer can be open.
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
TRIES_MAX: Final = 10  # of a write that comes once, while others like it commit


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
            self._carry_out(claims)
            epoch = claims.last(ONCE)[0] + 1 if once else commit.epoch
            try:
                self._claim(claims, ONCE if once else commit.writer, epoch, commit)
                return
            except Outrun:
                if not once or not left:
                    self._carry_out(CommitClaims(self.at))
                    raise

    def _claim(self, claims: CommitClaims, name: str, epoch: int, commit: Commit) -> None:
        """Write the manifest, claim it, carry it out."""
        number = nonce()
        manifest = self._folder(commit.writer) / f"{commit.epoch}-{number}{PENDING}"
        manifest.write_bytes(msgspec.json.encode(commit))
        try:
            claims.make(name, epoch, number)
        except Outrun:
            if CommitClaims(self.at).last(name) != (epoch, number):  # it is, if only the answer to our claim was lost
                manifest.unlink(missing_ok=True)
                raise
        self._apply(manifest, commit)

    def _recover(self, writer: str) -> None:
        self._carry_out(CommitClaims(self.at))

    def _same_again(self, commit: Commit, accept_other: bool, keep: bool) -> None:
        """Staged files of this batch are removed next, so what another driver has claimed of it is carried out first."""
        self._carry_out(CommitClaims(self.at))
        super()._same_again(commit, accept_other, keep)

    def _carry_out(self, claims: CommitClaims) -> None:
        """What is claimed and open; manifests that can never be claimed any more go."""
        for manifest, commit in self._open(claims).items():
            self._apply(manifest, commit)
        for manifest in self._manifests():
            writer, epoch, _ = self._named(manifest)
            if not writer.startswith(ONCE) and epoch < claims.last(writer)[0]:
                manifest.unlink(missing_ok=True)

    def _open(self, claims: CommitClaims) -> dict[ObjectPath, Commit]:
        """Manifests that are claimed, and not yet carried out."""
        found = {}
        for manifest in self._manifests():
            writer, epoch, number = self._named(manifest)
            claimed = (
                claims.last(ONCE)[1] == number if writer.startswith(ONCE) else claims.last(writer) == (epoch, number)
            )
            if claimed:
                try:
                    found[manifest] = msgspec.json.decode(manifest.read_bytes(), type=Commit)
                except FileNotFoundError:
                    continue  # carried out meanwhile
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
        """LakeError if one of these is neither staged nor where it stays. Where the manifest is gone, another process has carried
        it out, and a merge may have taken the file since; a merge takes none whose manifest is open."""
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
        paths = self.paths()  # first: what is claimed later is not among them, and what is done by then may be merged
        under_way = {
            self.at / file.path for commit in self._open(CommitClaims(self.at)).values() for file in commit.files
        }
        return [path for path in paths if path not in under_way and not hidden(relative(path, self.at))]

    def _merge_epoch(self) -> int:
        return CommitClaims(self.at).last(COMPACTOR)[0] + 1

    def _replace(self, merged: Sequence[Merge], epoch: int) -> None:
        gone = [path.relative_to(self.at) for one in merged for path in one.gone if isinstance(path, ObjectPath)]
        files = tuple(one.file for one in merged)
        commit = Commit(COMPACTOR, epoch, sum(file.rows for file in files), files, tuple(map(str, gone)))
        self._claim(CommitClaims(self.at), COMPACTOR, epoch, commit)

    # -- names ----------------------------------------------------------------------------------------------------------

    def _folder(self, writer: str) -> ObjectPath:
        return self.at / OWN / "commits" / quote(writer, safe="")

    def _manifests(self) -> list[ObjectPath]:
        return [path for path in (self.at / OWN / "commits").walk() if path.name.endswith(PENDING)]

    @staticmethod
    def _named(manifest: ObjectPath) -> tuple[str, int, int]:
        """Writer, epoch and nonce."""
        epoch, _, number = manifest.name.removesuffix(PENDING).partition("-")
        return unquote(manifest.parent.name), int(epoch), int(number)
