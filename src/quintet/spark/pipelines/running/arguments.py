"""Turns KEY=VALUE arguments and a TOML file into a pipeline's Options, checked field by field.

Every error is a ConfigError that names the option, and shows its value unless that may be a secret. `described` lists the options of
a pipeline for its --help. Nothing here needs Spark.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import msgspec
from msgspec import inspect

from quintet.model.errors import ConfigError
from quintet.spark.pipelines.base import Common, Streaming
from quintet.spark.source.options import OptionError, target

FILE_BYTES_MAX: Final = 1024 * 1024
VALUE_CHARS: Final = 60  # of a wrong value are shown
SECRETS: Final = frozenset({"url", "password", "token", "storage", "catalog"})
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`, got `[^`]*`")
# msgspec's name of a type -> what users read
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list: a,b,c",
    "object": 'a table: {"name": "value"} as JSON, or a [table] of the --config file',
}


class Described(NamedTuple):
    """One option, for --help. `default` None: it is required."""

    name: str
    kind: str
    default: str | None
    description: str


def words(arguments: Iterable[str]) -> dict[str, str]:
    """KEY=VALUE arguments as a mapping. Dashes in a key become underscores, as in the options of commands."""
    found: dict[str, str] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        key, dot, name = key.strip().removeprefix("--").partition(".")
        key = key.replace("-", "_") + dot + name  # names after a dot belong to another library, and stay as they are
        if not equals or not key:
            raise ConfigError(
                f"{word!r} is not an option of a pipeline", hint="write KEY=VALUE, for instance topic=orders"
            )
        if key in found:
            raise ConfigError(f"option {key} is given twice")
        found[key] = value
    return found


def file(path: Path) -> dict[str, object]:
    """The options of a TOML file."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path} has more than {FILE_BYTES_MAX:,} bytes, the limit for a file of options")
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def options(module: ModuleType, given: Mapping[str, object]) -> Common:
    """The Options of a pipeline. Strings are converted to the type of the field: numbers, lists a,b,c, tables as JSON."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(module.Options)}
    given = _nested(fields, given)
    for key in given:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            raise ConfigError(f"there is no option {key!r}", hint=hint)
    for name, field in fields.items():
        if field.required and name not in given:
            raise ConfigError(f"option {name} is missing", hint=_description(field) or f"write {name}=VALUE")
    found = {name: _convert(fields[name], value) for name, value in given.items()}
    try:
        made: Common = module.Options(**{fields[name].name: value for name, value in found.items()})
        if isinstance(made, Streaming):
            made.trigger_options()
        target(made.access())
    except OptionError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"these options do not fit together: {error}") from error
    return made


def _nested(fields: Mapping[str, msgspec.structs.FieldInfo], given: Mapping[str, object]) -> dict[str, object]:
    """Put storage.region=x into the table `storage`, where it takes precedence over the file."""
    found = dict(given)
    for key, value in given.items():
        head, dot, name = key.partition(".")
        if dot and name and head in fields and _kind(inspect.type_info(fields[head].type)) == "table":
            table = found.get(head, {})
            del found[key]
            found[head] = {**table, name: value} if isinstance(table, dict) else table
    return found


def described(module: ModuleType) -> list[Described]:
    """The options of a pipeline, required ones first."""
    found = []
    for field in msgspec.structs.fields(module.Options):
        default: str | None = None
        if not field.required:
            value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            default = (
                ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value) if value != {} else ""
            )
        found.append(Described(field.encode_name, _kind(inspect.type_info(field.type)), default, _description(field)))
    return sorted(found, key=lambda row: row.default is not None)


def _convert(field: msgspec.structs.FieldInfo, value: object) -> object:
    name, about = field.encode_name, inspect.type_info(field.type)
    if isinstance(about, inspect.Metadata):
        about = about.type
    prepared = value
    if isinstance(value, str) and isinstance(about, inspect.VarTupleType | inspect.ListType | inspect.SetType):
        prepared = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, str) and isinstance(about, inspect.DictType | inspect.StructType):
        try:
            prepared = msgspec.json.decode(value)
        except msgspec.DecodeError:
            prepared = value
    elif not isinstance(value, str) and isinstance(about, inspect.StrType) and not isinstance(value, bool):
        prepared = str(value) if isinstance(value, int | float) else value  # a topic called 2026, in TOML
    try:
        return msgspec.convert(prepared, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"option {name}: {_complaint(name, value, str(error))}") from error


def _complaint(name: str, value: object, text: str) -> str:
    shown = "" if name in SECRETS else f"{str(value)[:VALUE_CHARS]!r} is wrong; "
    expected = _EXPECTED.search(text)
    if expected:
        kinds = [_WORDS.get(kind.strip(), kind.strip()) for kind in expected[1].split("|")]
        text = f"it is {' or '.join(kinds)}{_EXPECTED.sub('', text).replace(' - at `$`', '')}"
    return f"{shown}{text[:1].lower()}{text[1:]}"


def _description(field: msgspec.structs.FieldInfo) -> str:
    about = inspect.type_info(field.type)
    extra = about.extra_json_schema if isinstance(about, inspect.Metadata) else None
    return str((extra or {}).get("description", ""))


def _kind(about: inspect.Type) -> str:
    """The type of an option as --help shows it."""
    if isinstance(about, inspect.Metadata):
        return _kind(about.type)
    if isinstance(about, inspect.LiteralType):
        return "|".join(map(str, about.values))
    if isinstance(about, inspect.UnionType):
        return "|".join(_kind(each) for each in about.types if not isinstance(each, inspect.NoneType))
    names: tuple[tuple[type[inspect.Type], str], ...] = (
        (inspect.BoolType, "true|false"),
        (inspect.IntType, "number"),
        (inspect.FloatType, "number"),
        (inspect.StrType, "text"),
        (inspect.DictType, "table"),
        (inspect.StructType, "table"),
    )
    return next((word for kind, word in names if isinstance(about, kind)), "a,b,c")
