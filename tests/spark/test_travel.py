"""What is sent to executors imports the packages that docs/SPARK.md names for them, and no others."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from quintet.spark import typed
from quintet.spark.sessions import start, travel
from tests.spark.cluster import environment

PAGE = (Path(__file__).parents[2] / "docs/SPARK.md").read_text()
# Everything that Spark's Python processes load of ours for any read or write but Avro's and Protobuf's; the kernel's pure twin is
# among it. Prints the packages that were loaded out of the environment's own folder.
LOAD = """
import sys
import quintet.spark.source.source, quintet.spark.lake.sink, quintet.spark.lake.parquet, quintet.spark.typed.json_rows, quintet.kernel.pure
site = next(path for path in sys.path if path.endswith("site-packages"))
files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items() if "." not in name}
print(*(name for name, file in files.items() if file.startswith(site)))
print(quintet.spark.source.source.__file__)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    return environment(tmp_path_factory.mktemp("bare"), ())


def test_the_page_names_what_executors_need() -> None:
    named = re.search(r"/opt/executor/bin/pip install ([\w ]+)", PAGE)
    assert named is not None
    assert tuple(named[1].split()) == travel.NEEDED
    for kind, (_, package) in typed.PACKAGES.items():
        assert f"`{package}` for {kind.title()} columns" in PAGE
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        assert f"`{variable}`" in PAGE


def test_what_travels_imports_what_the_page_names_and_nothing_else(tmp_path: Path) -> None:
    python = environment(tmp_path / "python", travel.NEEDED)
    packed = travel.archive(tmp_path).removesuffix("#quintet")
    with zipfile.ZipFile(packed) as file:
        file.extractall(tmp_path / "sent" / "quintet")
    zips = [str(path) for path in (start.spark_home() / "python" / "lib").glob("*.zip")]
    done = subprocess.run(
        [python, "-c", LOAD],
        env={"PYTHONPATH": ":".join([str(tmp_path / "sent"), *zips])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    packages, place = done.stdout.splitlines()
    assert sorted(packages.split()) == sorted(travel.NEEDED)
    assert place.startswith(str(tmp_path / "sent"))


def test_a_python_that_could_not_read_is_refused_at_the_start(bare: Path, tmp_path: Path) -> None:
    start.check_python(sys.executable)
    with pytest.raises(start.SparkMissing, match=f"{bare}, lacks pyarrow, msgspec, numpy") as caught:
        start.check_python(str(bare))
    assert "PYSPARK_PYTHON" in caught.value.hint
    with pytest.raises(start.SparkMissing, match="/no/python, does not run here"):
        start.check_python("/no/python")
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho '[[3, 9], []]'\n")
    old.chmod(0o755)
    with pytest.raises(start.SparkMissing, match=r"is 3[.]9 and that of the driver 3[.]"):
        start.check_python(str(old))
