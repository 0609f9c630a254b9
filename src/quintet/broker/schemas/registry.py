"""Keeps subjects and their schema versions in the table `__schemas`, and validates messages against a version.

A subject is a name, usually a topic's. Its versions count 1, 2, 3 ...; a number is never given twice, also not after a
delete. Each subject has a compatibility mode that a new version must satisfy against the latest one (compatibility.py).
A version is seen by readers when it is durable, and not before.

Compiling a definition and comparing two may take a tenth of a second: both are done in slices (slices.py), registrations
one after the other, so that each is compared with the one before it.

The table has two kinds of rows in one shape: (name, 0) is the subject, with its mode and the last number given out;
(name, n) is version n. The subject's row is written first, so that a crash between the two skips a number, no more.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from quintet.broker.schemas.compiling import compile_steps
from quintet.broker.schemas.validators import Validator, clip, too_large
from quintet.broker.slices import Slices, Steps, Unwanted, Wanted, always, finish, in_order
from quintet.broker.table import Table
from quintet.broker.topics.names import check_name
from quintet.model.errors import (
    Busy,
    LimitExceeded,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    SchemaRejected,
)
from quintet.model.tasks import Mutex, Promise, completed, start

SCHEMAS_TABLE = (7, "__schemas")
SUBJECTS_MAX = 10_000
VERSIONS_MAX = 1_000  # of one subject, at a time
DEFINITIONS_BYTES_MAX = 64 * 1024 * 1024  # of all versions together: they are kept in memory
COMPILED_MAX = 256  # validators kept ready
REGISTRATIONS_MAX = 100  # waiting for those before them

TYPES = {"json": "json", "avro": "avro", "protobuf": "protobuf", "proto": "protobuf"}
MODES = ("backward", "forward", "full", "none")
DEFAULT_MODE = "backward"
LATEST = 0
ALL = 0

_ID = re.compile(r"(?P<name>.+)-v(?P<version>[1-9][0-9]{0,8})", re.DOTALL)


class SchemaRow(msgspec.Struct, frozen=True):
    """What `__schemas` keeps: a subject (version 0: mode and last number) or a version (type and definition)."""

    name: str
    version: int
    type: str = ""
    definition: bytes = b""
    compatibility: str = ""
    last: int = 0


class Schema(msgspec.Struct, frozen=True):
    """One version of a subject, as callers see it."""

    name: str
    id: str
    version: int
    type: str
    definition: bytes
    compatibility: str


class _Subject:
    """The versions of a name. Those in `waiting` are on their way to the disk."""

    __slots__ = ("compatibility", "last", "versions", "waiting")

    def __init__(self, compatibility: str = DEFAULT_MODE, last: int = 0) -> None:
        self.compatibility = compatibility
        self.last = last
        self.versions: dict[int, SchemaRow] = {}
        self.waiting: dict[int, Promise[Schema]] = {}

    def durable(self) -> list[int]:
        return [version for version in self.versions if version not in self.waiting]


Reasons = list[str]
Found = list[Schema]


class Schemas:
    """The registry's verbs. A change is over when it is durable. Nothing is done any more for a caller whose `wanted` says
    no: Unwanted."""

    def __init__(self, table: Table[SchemaRow], slices: Slices) -> None:
        """`table` is loaded."""
        self._table = table
        self._slices = slices
        self._registering = Mutex()
        self._registrations = 0  # under way or waiting, until they are on their way to the disk
        self._subjects: dict[str, _Subject] = {}
        self._compiled: OrderedDict[tuple[str, int], Validator] = OrderedDict()
        self._bytes = 0
        for row in sorted(table, key=lambda row: (row.name, row.version)):
            self._take(row)

    def _take(self, row: SchemaRow) -> None:
        subject = self._subjects.setdefault(row.name, _Subject())
        if row.version == 0:
            subject.compatibility, subject.last = row.compatibility, max(subject.last, row.last)
            return
        before = subject.versions.get(row.version)
        subject.versions[row.version] = row
        subject.last = max(subject.last, row.version)
        self._bytes += len(row.definition) - (0 if before is None else len(before.definition))

    def follow(self) -> None:
        """Of a follower: take what the leader wrote since the last call."""
        for key, row in self._table.follow().items():
            if row is not None:
                self._take(row)
                continue
            name, _, version = key.decode().rpartition("\0")
            subject = self._subjects.get(name)
            gone = subject.versions.pop(int(version), None) if subject is not None else None
            self._bytes -= 0 if gone is None else len(gone.definition)

    # -- changing --------------------------------------------------------------------------------------------------

    async def register(
        self, name: str, type: str, definition: bytes, compatibility: str | None, wanted: Wanted = always
    ) -> Schema:
        """A new version, or the latest one if it has this very definition. A given mode is kept for the subject."""
        check_name(name.encode())
        kind = _kind(type)
        mode = None if compatibility is None else _mode(compatibility)
        if self._registrations >= REGISTRATIONS_MAX:
            raise Busy(f"{self._registrations} registrations of schemas wait already", hint="try again in a moment")
        self._registrations += 1
        try:
            async with self._registering:
                if not wanted():
                    raise Unwanted
                stored = await self._slices.finish(self._register(name, kind, definition, mode))
        finally:
            self._registrations -= 1
        return await stored

    def _register(self, name: str, kind: str, definition: bytes, asked: str | None) -> Steps[Promise[Schema]]:
        """Put it on its way to the disk."""
        known = self._subjects.get(name)
        mode = asked or (known or _Subject()).compatibility
        latest = known.versions[max(known.versions)] if known is not None and known.versions else None
        if known is not None and latest is not None and (latest.type, latest.definition) == (kind, definition):
            return self._register_again(known, latest, mode)
        validator = yield from compile_steps(kind, definition)
        if latest is not None:
            yield from self._require_compatible(name, mode, latest, validator)
        known = self._subjects.get(name)  # versions may have been deleted meanwhile, none was added
        self._make_room(name, known, len(definition))
        subject = self._subjects.setdefault(name, _Subject())
        row = SchemaRow(name, subject.last + 1, kind, definition)
        self._put_subject(name, mode, row.version)
        stored = self._table.put(_key(name, row.version), row)
        subject.compatibility, subject.last = mode, row.version
        subject.versions[row.version] = row
        subject.waiting[row.version] = waiting = start(self._finish_registering(subject, row, stored))
        self._bytes += len(definition)
        return waiting

    async def compare(
        self, name: str, version: int, type: str, definition: bytes, compatibility: str | None, wanted: Wanted = always
    ) -> Reasons:
        """Why this definition may not follow a version, [] if it may: what `register` would say, with nothing changed."""
        row = self._row(name, version)
        mode = _mode(compatibility or self._subjects[name].compatibility)
        return await self._slices.finish(self._compare_steps(mode, row, _kind(type), definition), wanted)

    def _compare_steps(self, mode: str, row: SchemaRow, kind: str, definition: bytes) -> Steps[Reasons]:
        validator = yield from compile_steps(kind, definition)
        return (yield from self._reasons(mode, row, validator))

    def _reasons(self, mode: str, latest: SchemaRow, validator: Validator) -> Steps[Reasons]:
        from quintet.broker.schemas.compatibility import incompatibility_steps  # with it come three schema libraries

        before = yield from self._compile_steps(latest)
        return (yield from incompatibility_steps(mode, before, validator))

    def _require_compatible(self, name: str, mode: str, latest: SchemaRow, validator: Validator) -> Steps[None]:
        reasons = yield from self._reasons(mode, latest, validator)
        if reasons:
            raise SchemaIncompatible(
                f"the new version of schema {name!r} is not {mode} compatible with version {latest.version}: "
                + "; ".join(reasons),
                reasons=tuple(reasons),
                hint="change the definition, or register the latest one again with compatibility none",
            )

    def _register_again(self, subject: _Subject, latest: SchemaRow, mode: str) -> Promise[Schema]:
        if mode != subject.compatibility:
            stored = self._put_subject(latest.name, mode, subject.last)
            subject.compatibility = mode
            return start(self._schema_after(stored, latest))
        return subject.waiting.get(latest.version) or completed(self._schema(latest))

    async def _schema_after(self, stored: Promise[None], row: SchemaRow) -> Schema:
        await stored
        return self._schema(row)

    async def _finish_registering(self, subject: _Subject, row: SchemaRow, stored: Promise[None]) -> Schema:
        try:
            await stored
        except Exception:
            if subject.versions.pop(row.version, None) is not None:
                self._bytes -= len(row.definition)
            raise
        finally:
            del subject.waiting[row.version]
        return self._schema(row)

    def _make_room(self, name: str, known: _Subject | None, size: int) -> None:
        if known is None and len(self._subjects) >= SUBJECTS_MAX:
            raise LimitExceeded(f"schema {name!r} was not registered: there are {SUBJECTS_MAX} subjects, the limit")
        if known is not None and len(known.versions) >= VERSIONS_MAX:
            raise LimitExceeded(
                f"schema {name!r} was not registered: it has {VERSIONS_MAX} versions, the limit",
                hint="delete versions that no message needs",
            )
        if self._bytes + size > DEFINITIONS_BYTES_MAX:
            raise LimitExceeded(
                f"schema {name!r} was not registered: all definitions together have {self._bytes} bytes, "
                f"the limit is {DEFINITIONS_BYTES_MAX}",
                hint="delete versions that no message needs",
            )

    async def delete(self, name: str, version: int) -> int:
        """Forget a version, or ALL of them: how many. Their numbers are not given out again, and the mode stays."""
        subject = self._subjects.get(name)
        deleted = [] if subject is None else (subject.durable() if version == ALL else [version])
        if subject is None or not deleted or any(number not in subject.durable() for number in deleted):
            raise self._missing(name, version)
        rows = [subject.versions.pop(number) for number in deleted]
        gone = completed(None)
        for number, row in zip(deleted, rows, strict=True):
            self._compiled.pop((name, number), None)
            self._bytes -= len(row.definition)
            gone = self._table.delete(_key(name, number))
        await gone
        return len(deleted)

    def _put_subject(self, name: str, mode: str, last: int) -> Promise[None]:
        return self._table.put(_key(name, 0), SchemaRow(name, 0, compatibility=mode, last=last))

    # -- looking ---------------------------------------------------------------------------------------------------

    def get(self, name: str, version: int = LATEST) -> Schema:
        return self._schema(self._row(name, version))

    def list(self, name: str | None = None) -> Found:
        """As walk, all at once."""
        return [schema for schema in self.walk(name) if schema is not None]

    def walk(self, name: str | None = None) -> Iterator[Schema | None]:
        """All versions of a subject, or of all; by name, then version. An unknown subject has none. None is a pause."""
        for each in in_order(list(self._subjects) if name is None else [name], str):
            subject = self._subjects.get(each or "")
            for version in sorted(subject.durable()) if subject is not None else ():
                row = subject.versions.get(version) if subject is not None else None
                yield None if row is None else self._schema(row)
            yield None

    def find(self, name_or_id: str) -> Schema:
        """By subject (its latest version), or by id ("orders-v2"). A subject that is itself called so comes first."""
        subject = self._subjects.get(name_or_id)
        match = _ID.fullmatch(name_or_id)
        if match is None or (subject is not None and subject.durable()):
            return self.get(name_or_id)
        return self.get(match["name"], int(match["version"]))

    async def judge(self, name: str, version: int, message: bytes | memoryview, wanted: Wanted = always) -> Reasons:
        """Why the message is not valid, [] if it is; without a wait unless the schema must be compiled first and is large."""
        return await self._slices.finish(self._judge(self._row(name, version), message), wanted)

    def _judge(self, row: SchemaRow, message: bytes | memoryview) -> Steps[Reasons]:
        validator = yield from self._compile_steps(row)
        return too_large(message) or validator.check(bytes(message))  # copied only if it is small enough

    def validate(self, name: str, version: int, message: bytes) -> Reasons:
        """As judge, at once."""
        return finish(self._judge(self._row(name, version), message))

    def require(self, name_or_id: str, message: bytes) -> Schema:
        """The schema that this message fits; SchemaRejected with the reasons if it does not."""
        schema = self.find(name_or_id)
        reasons = self.validate(schema.name, schema.version, message)
        if reasons:
            raise SchemaRejected(
                f"the message does not fit schema {schema.id}: {'; '.join(reasons)}",
                hint="nothing was stored; correct the message, or name the schema version it was written with",
            )
        return schema

    def __len__(self) -> int:
        return sum(len(subject.durable()) for subject in self._subjects.values())

    def _row(self, name: str, version: int) -> SchemaRow:
        subject = self._subjects.get(name)
        versions = subject.durable() if subject is not None else []
        wanted = max(versions, default=0) if version == LATEST else version
        if subject is None or wanted not in versions:
            raise self._missing(name, version)
        return subject.versions[wanted]

    def _missing(self, name: str, version: int) -> SchemaNotFound:
        which = f"version {version} of schema {name!r}" if version else f"schema {name!r}"
        return SchemaNotFound(clip(f"there is no {which}"), hint="register it, or list what there is")

    def _schema(self, row: SchemaRow) -> Schema:
        mode = self._subjects[row.name].compatibility
        return Schema(row.name, f"{row.name}-v{row.version}", row.version, row.type, row.definition, mode)

    def _compile_steps(self, row: SchemaRow) -> Steps[Validator]:
        key = (row.name, row.version)
        found = self._compiled.get(key)
        if found is None:
            found = yield from compile_steps(row.type, row.definition)
            self._compiled[key] = found
            if len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(key)
        return found


def _kind(type: str) -> str:
    kind = TYPES.get(type.lower())
    if kind is None:
        raise SchemaInvalid(clip(f"{type!r} is no type of schema; there are json, avro and protobuf"))
    return kind


def _mode(mode: str) -> str:
    lower = mode.lower()
    if lower not in MODES:
        raise SchemaInvalid(clip(f"{mode!r} is no compatibility mode; there are {', '.join(MODES)}"))
    return lower


def _key(name: str, version: int) -> bytes:
    return b"%s\0%d" % (name.encode(), version)
