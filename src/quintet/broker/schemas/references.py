"""Finds what a reference inside a JSON Schema leads to: `#`, `#/a/b`, `#anchor`, or one of these behind the root's `$id`.

The validator, the comparison of two versions and Spark's columns all follow references by this; what it means that nothing is
there is theirs to say. Nothing is ever fetched. The other types need none: fastavro gives every named type its full name,
and Protobuf's descriptor pool links a file to those it imports.
"""

from functools import cached_property
from urllib.parse import unquote

from quintet.model.json_value import Json

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
INDEX_DIGITS_MAX = 9  # Python refuses to read numbers of thousands of digits


class References:
    """The subschemas of one definition, by reference."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def find(self, reference: str) -> Json:
        """The subschema; None if nothing is there."""
        place, _, fragment = reference.partition("#")
        if place and not (isinstance(self._root, dict) and self._root.get("$id") == place):
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment)
        target = self._root
        for part in fragment.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(name)
            elif (
                isinstance(target, list)
                and name.isdecimal()
                and len(name) <= INDEX_DIGITS_MAX
                and int(name) < len(target)
            ):
                target = target[int(name)]
            else:
                return None
        return target

    @cached_property
    def _anchors(self) -> dict[str, Json]:
        found: dict[str, Json] = {}
        waiting = [self._root]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                for keyword in ANCHORS:
                    if isinstance(name := value.get(keyword), str):
                        found.setdefault(name, value)
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        return found
