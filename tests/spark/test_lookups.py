"""pyspark compares an error of the JVM with classes that py4j finds by their names, without a search of every jar."""

from typing import TYPE_CHECKING, Any

import pytest
from py4j import java_gateway  # type: ignore[import-untyped]  # py4j ships no types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that py4j looks up in packages, from now on."""
    seen: list[str] = []
    original = java_gateway.JVMView.__getattr__

    def look(view: Any, name: str) -> Any:
        seen.append(name)
        return original(view, name)

    monkeypatch.setattr(java_gateway.JVMView, "__getattr__", look)
    return seen


def test_the_end_of_a_java_map_searches_no_package(spark: "SparkSession", searched: list[str]) -> None:
    jvm: Any = spark._jvm
    empty = jvm.java.util.HashMap()
    searched.clear()
    assert dict(empty) == {}
    assert "py4j" not in searched


def test_without_the_change_each_class_is_searched(
    spark: "SparkSession", searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_gateway, "is_instance_of", java_gateway.is_instance_of.__wrapped__)
    jvm: Any = spark._jvm
    empty = jvm.java.util.HashMap()
    assert dict(empty) == {}
    assert "py4j" in searched


def test_its_answers_are_those_of_py4j(spark: "SparkSession") -> None:
    jvm: Any = spark._jvm
    java = jvm.java.util
    gateway, map = spark.sparkContext._gateway, java.HashMap()
    for kind, expected in (("java.util.Map", True), ("java.util.List", False), (java.AbstractMap, True), (map, True)):
        assert java_gateway.is_instance_of(gateway, map, kind) is expected
        assert java_gateway.is_instance_of.__wrapped__(gateway, map, kind) is expected
