"""Makes pyspark's check of an error cheap: py4j gets the class it needs by its name, without a search of every jar.

pyspark compares each error of the JVM with up to fourteen classes. For each, py4j looks up `py4j`, `py4j.reflection` and
`py4j.reflection.TypeUtil`, and because the first two are packages, Java searches all jars of Spark for classes of these names. The end of
a Java map is such an error, and the progress of one micro-batch has about seven maps. The end of a map takes 4 ms of processor time
instead of 25.
"""

import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway, JavaObject  # type: ignore[import-untyped]  # py4j ships no types

TYPES: Final = "py4j.reflection.TypeUtil"
_MARK: Final = "_quintet_asks_by_name"


def by_name() -> None:
    """Change py4j's `is_instance_of` from now on. A second call does nothing."""
    from py4j import java_gateway  # type: ignore[import-untyped]  # py4j ships no types

    original = java_gateway.is_instance_of
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def asked(gateway: "JavaGateway", java_object: "JavaObject", java_class: object) -> bool:
        if not isinstance(java_class, str):
            return bool(original(gateway, java_object, java_class))
        return bool(java_gateway.JavaClass(TYPES, gateway._gateway_client).isInstanceOf(java_class, java_object))

    setattr(asked, _MARK, True)
    java_gateway.is_instance_of = asked
