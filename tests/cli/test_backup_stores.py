"""Backups in an object store, by the file systems of the lakes: an S3 server stands in for the cloud's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintet.cli.folder.stores import open_store
from quintet.log.embedded.backup import manifest
from tests.cli.conftest import Commands
from tests.client.server import Server
from tests.spark.store import BUCKET, Store, serving

PLACE = f"s3://{BUCKET}/quintet/backups"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with serving() as found:
            yield found


@pytest.fixture
def options(store: Store) -> list[str]:
    return [word for name, value in store.options.items() for word in ("--storage", f"{name}={value}")]


def test_backups_in_s3_are_incremental_restored_and_pruned(
    broker: Server, quintet: Commands, topic: str, options: list[str], tmp_path: Path
) -> None:
    data = str(broker.folder / "data")
    quintet("pub", topic, "x" * 100_000)
    first = quintet("backup", "create", PLACE, "--data", data, "--json", *options).json
    quintet("pub", topic, "small")
    second = quintet("backup", "create", PLACE, "--data", data, "--json", *options).json
    assert second["stored_bytes"] < first["stored_bytes"]
    assert len(quintet("backup", "list", PLACE, "--json", *options).json) == 2
    quintet("backup", "prune", PLACE, "--keep", "1", "--yes", *options)
    assert quintet("backup", "verify", PLACE, *options).out == f"{second['id']}: sound\n"
    quintet("restore", PLACE, "--data", str(tmp_path / "restored"), *options)
    assert len(quintet("log", "dump", str(tmp_path / "restored"), "--topic", topic).lines) == 2


def test_a_damaged_object_is_found(
    broker: Server, quintet: Commands, topic: str, store: Store, options: list[str], tmp_path: Path
) -> None:
    place = PLACE + "-damaged"
    quintet("pub", topic, "hello")
    quintet("backup", "create", place, "--data", str(broker.folder / "data"), *options)
    objects = open_store(place, tuple(f"{name}={value}" for name, value in store.options.items()))
    [bundle] = objects.names(manifest.BUNDLES)
    content = bytearray(objects.get(bundle))
    content[100] ^= 1
    objects.put(bundle, bytes(content))
    assert "is damaged" in quintet("backup", "verify", place, *options, code=1).out
    assert "is damaged" in quintet("restore", place, "--data", str(tmp_path / "r"), *options, code=1).err


def test_a_store_that_is_not_there_is_named(quintet: Commands, options: list[str], tmp_path: Path) -> None:
    assert "does not exist" in quintet("backup", "list", "s3://nowhere/x", *options, code=1).err
    assert "is for object stores" in quintet("backup", "list", str(tmp_path), *options, code=2).err
