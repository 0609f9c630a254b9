"""Gives the tree of options as data: what there is, what is set, where each value comes from, and what a reload takes.

`quintet config`, its reference and the console's page are made from it. Secrets are not in it: a field that is not in the `repr` of its
section, and those that SECRETS names, have HIDDEN for a value.
"""

import json
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final, NamedTuple, get_args

from quintet.config import ENV_PREFIX, ENV_SEPARATOR, SECRETS, Origins, Settings
from quintet.config.reloading import Reloads
from quintet.model.sections import Section, section_of

HIDDEN: Final = "(hidden)"


class Option(NamedTuple):
    """One key of the tree as data."""

    path: tuple[str, ...]
    kind: str
    default: object
    required: bool
    help: str
    listed: bool  # inside a list of tables
    secret: bool

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return ENV_PREFIX + ENV_SEPARATOR.join(self.path).upper()


class TomlTable(NamedTuple):
    """One table of the file with its own keys, in the order of the tree."""

    path: tuple[str, ...]
    help: str
    listed: bool
    options: list[Option]


def tables(
    section: type[Section] | None = None, path: tuple[str, ...] = (), listed: bool = False
) -> Iterator[TomlTable]:
    """A section, the whole tree if none is given: tables before the tables in them."""
    section = section or Settings
    options: list[Option] = []
    below: list[Iterator[TomlTable]] = []
    for name, field in section.model_fields.items():
        here = (*path, name)
        inner = section_of(field.annotation)
        if inner is not None:
            is_list = field.annotation is not inner
            below.append(tables(inner, here, listed=is_list))
            continue
        kind = _kind(field.annotation)
        secret = not field.repr or name in SECRETS
        options.append(Option(here, kind, field.default, field.is_required(), field.description or "", listed, secret))
    yield TomlTable(path, " ".join((section.__doc__ or "").split()), listed, options)
    for one in below:
        yield from one


def _kind(annotation: object) -> str:
    """A field's type in a reader's words."""
    words: dict[object, str] = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
    if annotation in words:
        return words[annotation]
    parts = [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
    if all(isinstance(part, str) for part in parts):
        return ", ".join(parts)
    if getattr(annotation, "__origin__", None) is tuple:
        return "list of " + _kind(parts[0])
    return _kind(parts[0])


def toml(value: object) -> str:
    """A default as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, PurePath):
        value = str(value)
    return json.dumps(value)


def flat(tree: Mapping[str, object], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """(path, value) of every option that is set; a list is one value."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, (*path, name))
        else:
            yield (*path, name), value


def origin_of(path: tuple[str, ...], origins: Origins) -> str:
    """Where a value comes from: the file, a variable, a flag, a preset, or the default."""
    return next((origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins), "default")


class OptionRow(NamedTuple):
    """One option of a running broker. `reloads`: SIGHUP takes it; `waits`: it was changed and needs a restart."""

    key: str
    value: str
    default: str
    source: str
    kind: str
    help: str
    variable: str
    reloads: bool
    waits: bool


def option_rows(settings: Settings, waits: Container[str]) -> Iterator[OptionRow]:
    """All options with their values. `waits`: those that were changed in the files and need a restart."""
    known = {option.path: option for table in tables(type(settings)) for option in table.options}
    reloads = Reloads(settings.listeners.doors)
    for path, value in _rows(settings.model_dump(mode="json")):
        names = tuple(name for name in path if not name.isdecimal())
        option = known.get(names)
        if option is None or (option.secret and value is None and names not in settings.origins):
            continue
        listed = len(names) < len(path)
        prefixes = [".".join(names[:n]) for n in range(1, len(names) + 1)]
        yield OptionRow(
            key=".".join(path),
            value=HIDDEN if option.secret else _text(value),
            default="" if option.required or listed else _text(option.default),
            source=origin_of(names, settings.origins),
            kind=option.kind,
            help=option.help,
            variable="" if option.listed else option.variable,
            reloads=any(reloads.is_taken(prefix, value, value) for prefix in prefixes),
            waits=any(prefix in waits for prefix in prefixes),
        )


def _rows(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """As flat, with the tables of a list one by one."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _rows(below, (*path, name))
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from _rows(each, (*path, str(number)))
    elif path:
        yield path, value


def _text(value: object) -> str:
    text = str(value) if isinstance(value, PurePath) else value
    return "none" if text is None else text if isinstance(text, str) and text else toml(text)
