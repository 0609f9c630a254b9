"""Makes the Spark session: finds Java, starts the virtual machine, sets what a topic's reader and writer need.

Local masters are launched directly (launch.py). Every other master goes through Spark's own spark-submit, which knows
the cluster's files and settings, with a Java it can start (`wrapper`), and the package is sent to the executors
(travel.py). One virtual machine per process: pyspark keeps it for later sessions, so its heap and flags are chosen once.
"""

import atexit
import contextlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quintet.model.errors import ConfigError
from quintet.model.extras import PackageMissing, absent
from quintet.spark import java, launch, travel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN: Final = (4, 2)  # the first with admission control for Python sources
MEMORY: Final = "2g"  # heap of the virtual machine, unless QUINTET_SPARK_MEMORY or spark.driver.memory says otherwise
LOG_LEVEL: Final = "QUINTET_SPARK_LOG"  # read by log4j2.properties
LOOPBACK: Final = "127.0.0.1"
SECRETS: Final = r"(?i)secret|password|token|access[.]?key|credential|(^|[._])url$"
SHUFFLE_PER_CORE: Final = 2
# Rows of a topic reach the machine as Arrow: without a check of each access, which pyarrow's batches do not need, and with the
# collector made for throughput, a full read takes a fifth less of the processor (bench/README.md).
ARROW: Final = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
COLLECTOR: Final = re.compile(r"-XX:[+]Use\w+GC")
JARS: Final = frozenset({"spark.jars", "spark.jars.packages", "spark.jars.excludes", "spark.jars.ivySettings"})

_starting = threading.Lock()
_machines: list[launch.Machine] = []  # at most one, as pyspark has it; guarded by _starting


class SparkMissing(PackageMissing):
    """pyspark is not installed, or too old."""

    code = "E2102"
    hint = "pip install 'quintet[spark]', and 'quintet[java]' on a machine without Java 17"


def session(master: str | None, name: str, conf: Mapping[str, str]) -> "SparkSession":
    """What `quintet.spark.session` promises."""
    check_packages()
    check_environment(os.environ)
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    with _starting:
        master = master or conf.get("spark.master") or "local[*]"
        settings = {**defaults(master), **conf, "spark.master": master, "spark.app.name": name}
        builder = SparkSession.builder
        fresh = SparkSession.getActiveSession() is None and SparkContext._active_spark_context is None
        if not fresh:  # a running session keeps its master and the settings it was made with
            settings = {key: value for key, value in conf.items() if key != "spark.master"}
        with _gateway(master, settings) if SparkContext._gateway is None else contextlib.nullcontext(False) as first:
            made = builder.config(map=dict(settings)).getOrCreate()
        if fresh and not local(master):
            made.sparkContext.addArchive(travel.archive(launch.cache_folder()))
        register(made)
        if first:
            rehearse(made)
        return made


def register(made: "SparkSession") -> None:
    """Make `format("quintet")` known, and queries that read topics visible on their brokers."""
    from quintet.spark import progress
    from quintet.spark.source import QuintetSource

    made.dataSource.register(QuintetSource)
    progress.attach(made)


def check_packages() -> None:
    """Say what to install before an ImportError does."""
    missing = absent("spark")
    if missing:
        raise SparkMissing(f"Spark needs {', '.join(missing)}, which this Python ({sys.executable}) does not have")
    version = metadata.version("pyspark")
    if tuple(int(part) for part in version.split(".")[:2]) < PYSPARK_MIN:
        wanted = ".".join(str(part) for part in PYSPARK_MIN)
        raise SparkMissing(f"pyspark {version} is too old: reading topics needs {wanted} or newer")


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse what would make pyspark answer with a session of Spark Connect, which has no virtual machine here."""
    asked = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    found = [name for name in asked if environment.get(name)]
    found += ["SPARK_API_MODE"] if environment.get("SPARK_API_MODE", "").lower() == "connect" else []
    if found:
        raise ConfigError(
            f"{found[0]} is set, which asks for Spark Connect, and this session starts a Spark of its own",
            hint=f"unset {found[0]}; on a session of Spark Connect, format('quintet') works without this function",
        )


def local(master: str) -> bool:
    """Whether tasks run in the virtual machine of this process (local-cluster[...] starts others)."""
    return master == "local" or master.startswith("local[")


def cores(master: str) -> int:
    """Tasks at once of a local master: local, local[2], local[2,4], local[*]."""
    count = master.partition("[")[2].rstrip("]").partition(",")[0].strip()
    return max(1, int(count) if count.isdigit() else (os.cpu_count() or 1) if count == "*" else 1)


def defaults(master: str) -> dict[str, str]:
    """Spark's settings that differ from Spark's own defaults; a caller's `conf` goes over them."""
    everywhere = {
        "spark.pyspark.python": sys.executable,
        "spark.sql.python.filterPushdown.enabled": "true",  # without it a source that offers to filter fails
        "spark.python.unix.domain.socket.enabled": "true",  # a Python task in 28 ms instead of 71
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": SECRETS,
        "spark.sql.redaction.options.regex": SECRETS,
        "spark.driver.memory": os.environ.get("QUINTET_SPARK_MEMORY") or MEMORY,
    }
    if not local(master):
        # The same program on every machine is the exception: a cluster's own Python is what pyspark says it is.
        everywhere["spark.pyspark.python"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
        return everywhere
    return {
        **everywhere,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(SHUFFLE_PER_CORE * cores(master)),
    }


def rehearse(made: "SparkSession") -> None:
    """The machine that writes the archive runs one small query, so that later ones find the classes of queries in it."""
    made.range(8, numPartitions=1).selectExpr("id % 2 as k", "id").groupBy("k").sum("id").toArrow()


def machine() -> launch.Machine | None:
    """The virtual machine that this process launched directly, for tests and crash campaigns that need its process."""
    return _machines[-1] if _machines else None


@contextlib.contextmanager
def _gateway(master: str, settings: Mapping[str, str]) -> Iterator[bool]:
    """While this is open, pyspark finds the machine to attach to, or the Java to start. True: it writes an archive."""
    found = java.find()
    if not local(master):
        wrapped = {"JAVA_HOME": str(wrapper(found)), "PYSPARK_PYTHON": settings["spark.pyspark.python"]}
        with _environment({**wrapped, **_submit_options()}):
            yield False
        return
    os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]  # read again with each function sent to a worker
    wanted = settings.get("spark.driver.extraJavaOptions", "").split()
    collector = [] if any(COLLECTOR.fullmatch(flag) for flag in wanted) else ["-XX:+UseParallelGC"]
    flags = [f"-Xmx{settings['spark.driver.memory']}", *logging_flags(), *ARROW, *collector, *wanted]
    submit = ["--master", master]
    for name in sorted(set(settings) & JARS):  # only what starts the machine can put jars before it
        submit += ["--conf", f"{name}={settings[name]}"]
    started = launch.launch(found, spark_home(), flags, submit, machine_environment(settings))
    atexit.register(started.end)
    attach = {"PYSPARK_GATEWAY_PORT": str(started.port), "PYSPARK_GATEWAY_SECRET": started.secret}
    try:
        with _environment(attach):
            yield started.recording
    except BaseException:
        started.end()
        raise
    _machines.append(started)


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "check_packages found it"
    return Path(spec.origin).parent


def spark_home() -> Path:
    """pyspark's own jars; those of SPARK_HOME if it came without."""
    home = _pyspark()
    return home if (home / "jars").is_dir() else Path(os.environ.get("SPARK_HOME", home))


def wrapper(found: java.Java) -> Path:
    """A JAVA_HOME that spark-submit can start: for a Java without the module it always asks for, one whose `java` is
    a script that leaves that request out."""
    if found.whole:
        return found.home
    home = launch.cache_folder() / f"java-{found.version}-{travel.digest(str(found.home).encode())}"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        "# Leaves out the one module that this runtime lacks and Spark always asks for; only MLlib would use it.\n"
        f'for word do\n  shift\n  [ "$word" = "--add-modules={java.VECTOR_MODULE}" ] || set -- "$@" "$word"\ndone\n'
        f"exec '{found.program}' \"$@\"\n"
    )
    if not script.exists() or script.read_text() != text:
        travel.place(script, text.encode(), 0o755)
    return home


def logging_flags() -> list[str]:
    """What makes Spark's log quiet from its first line on."""
    words = Path(__file__).with_name("log4j2.properties")
    return [f"-Dlog4j2.configurationFile={words.as_uri()}"] if words.exists() else []


def _submit_options() -> dict[str, str]:
    """spark-submit gets flags of the driver's machine by its environment."""
    flags = " ".join(logging_flags())
    return {"SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {flags}".strip()} if flags else {}


def machine_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a local machine; its Python workers inherit it, and find this very package first. Without SPARK_HOME
    they import the pyspark that is installed; with it Spark has them import one out of a zip, which keeps no compiled code:
    a second for each of its processes."""
    paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    installed = spark_home() == _pyspark()
    return {
        **{name: value for name, value in os.environ.items() if name != "SPARK_HOME" or not installed},
        LOG_LEVEL: settings.get("spark.log.level", "ERROR"),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time of one call: pyspark takes no other way in."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
