"""Takes keys by their old names for one release: gives them their new ones, and says where each of them stands.

Each layer (file, environment, flags) is put into new names before it is merged with the others, so a new name in the environment
goes over an old one in the file as any other. Both names in one layer are an error: which of them counts is a guess.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from quintet.model.errors import ConfigError
from quintet.model.sections import Section, section_of

Path = tuple[str | int, ...]
Item = tuple[tuple[str, ...], Any, str]  # path, value, where it was given


class OldName(NamedTuple):
    """A key that was given by its old name. `origin`: the file, the variable, the flag. `value`: what the new key is to be, if the
    old one had another unit."""

    origin: str
    old: str
    new: str
    value: float | None = None

    def __str__(self) -> str:
        unit = "" if self.value is None else f" and has another unit ({self.value:g})"
        return f"{self.origin}: {self.old} is now {self.new}{unit}; the old name is taken in this release only"


Found = Callable[[OldName], None]


def dotted(path: Path) -> str:
    """('keys', 0, 'name') as keys[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def renamed_tree(tree: Any, section: type[Section] | None, origin: str, found: Found, path: Path = ()) -> Any:
    """A table, or a list of them, with new names. What is no table is left for the section to judge."""
    if section is None:
        return tree
    if isinstance(tree, list):
        return [renamed_tree(one, section, origin, found, (*path, number)) for number, one in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    fresh: dict[str, Any] = {}
    names = section.old_names()
    for key, value in tree.items():
        new = names.get(key)
        if new is None:
            fresh[key] = renamed_tree(value, section_below(section, key), origin, found, (*path, key))
            continue
        if new.to in tree or new.to in fresh:
            raise both_given(origin, dotted((*path, key)), origin, dotted((*path, new.to)))
        fresh[new.to] = new.convert(value)
        found(old_name(origin, (*path, key), (*path, new.to), value, fresh[new.to]))
    return fresh


def renamed_items(items: Iterable[Item], section: type[Section], found: Found) -> Iterator[Item]:
    """Single values by their path, as the environment and flags give them, with new names."""
    given: dict[tuple[str, ...], tuple[str, ...]] = {}  # new path -> as it was written
    origins: dict[tuple[str, ...], str] = {}
    for path, value, origin in items:
        fresh, below, convert = _renamed_path(path, section)
        converted = convert(value)
        if fresh in given and given[fresh] != path:
            raise both_given(origins[fresh], dotted(given[fresh]), origin, dotted(path))
        given[fresh], origins[fresh] = path, origin
        if fresh != path:
            found(old_name(origin, path, fresh, value, converted))
        yield fresh, renamed_tree(converted, below, origin, found, fresh), origin


def new_name(key: str, section: type[Section]) -> str:
    """A dotted key by its new name."""
    return ".".join(_renamed_path(tuple(key.split(".")), section)[0])


def _renamed_path(
    path: tuple[str, ...], section: type[Section] | None
) -> tuple[tuple[str, ...], type[Section] | None, Callable[[Any], Any]]:
    """The path by new names, the section it leads to, and how its value is converted."""
    fresh: list[str] = []
    convert: Callable[[Any], Any] = lambda value: value  # noqa: E731
    for name in path:
        new = section.old_names().get(name) if section else None
        if new is not None:
            name, convert = new.to, new.convert
        fresh.append(name)
        section = section_below(section, name) if section else None
    return tuple(fresh), section, convert


def section_below(section: type[Section], name: str) -> type[Section] | None:
    """The section that a key of another one holds, or a list of."""
    field = section.model_fields.get(name)
    return section_of(field.annotation) if field else None


def old_name(origin: str, old: Path, new: Path, value: Any, converted: Any) -> OldName:
    """The record of an old name; `converted` is shown if it is another number."""
    return OldName(origin, dotted(old), dotted(new), None if converted is value else converted)


def both_given(origin: str, key: str, other_origin: str, other: str) -> ConfigError:
    """The error for one option that was given twice, by an old name and by another."""
    where = origin if origin == other_origin else f"{origin} and {other_origin}"
    return ConfigError(f"{where}: {key} and {other} are the same option", hint="give it once, by its new name")
