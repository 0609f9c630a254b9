"""Makes Spark sessions: finds Java, starts the JVM, and registers the data source.

For a local master the JVM is started directly (launch.py). Every other master goes through spark-submit, which knows the cluster's files
and settings, with a Java that it can start (`wrapper`), and the package is sent to the executors (travel.py). settings.py decides which
settings apply. There is one JVM per process: pyspark keeps it for later sessions, so its heap and flags are chosen once.
"""

import atexit
import contextlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quintet.model.errors import ConfigError
from quintet.model.extras import PackageMissing, absent
from quintet.spark.sessions import java, launch, settings, travel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYSPARK_MIN: Final = (4, 2)  # the first with admission control for Python sources
MEMORY: Final = "2g"  # heap of the JVM, unless spark.driver.memory is set (settings.py)
NAME: Final = "quintet"
LOCAL: Final = "local[*]"
LOG_LEVEL: Final = "QUINTET_SPARK_LOG"  # read by log4j2.properties
LOOPBACK: Final = "127.0.0.1"
# Names of options whose values are redacted; also account_key of a store, and the uri of a catalog, which may contain a password.
SECRETS: Final = r"(?i)secret|password|token|(access|account)[._-]?key|credential|authorization|connection[._-]?string|(^|[._])ur[li]$"
SHUFFLE_PER_CORE: Final = 2
# Rows of a topic reach the JVM as Arrow. Without checks of each access, which pyarrow's batches do not need, and with the parallel
# garbage collector a full read takes a fifth less CPU (bench/README.md).
ARROW: Final = ("-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false")
COLLECTOR: Final = re.compile(r"-XX:[+]Use\w+GC")
LOG_FILE: Final = re.compile(r"-Dlog4j2?[.]configurationFile=")
CLASSPATH: Final = "spark.driver.extraClassPath"
JARS: Final = frozenset(f"spark.jars{more}" for more in ("", ".packages", ".excludes", ".repositories", ".ivySettings"))
LOOK_S: Final = 60  # time-out of LOOK in another Python, in seconds
LOOK: Final = """\
import importlib.util, json, sys
print(json.dumps([sys.version_info[:2], [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]]))
"""

_starting = threading.Lock()
_machines: list[launch.Machine] = []  # at most one, as in pyspark; guarded by _starting


class SparkMissing(PackageMissing):
    """pyspark is not installed, or too old."""

    code = "E2102"
    hint = "pip install 'quintet[spark]', and 'quintet[java]' on a machine without Java 17"


def session(
    master: str | None, name: str | None, conf: Mapping[str, str], own: Mapping[str, str] | None = None
) -> "SparkSession":
    """As `quintet.spark.session`. `own`: defaults of the caller, over which the user's settings take precedence."""
    check_packages()
    check_environment(os.environ)
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    with _starting:
        said = settings.said(os.environ, _pyspark())
        user = {**said.settings, **conf}
        master = master or user.get("spark.master") or LOCAL
        named = {"spark.app.name": name} if name else {}
        ours = {"spark.app.name": NAME, **defaults(master, user), **(own or {})}
        chosen = settings.resolve(ours, said.settings, {**conf, **named, "spark.master": master})
        builder = SparkSession.builder
        fresh = SparkSession.getActiveSession() is None and SparkContext._active_spark_context is None
        if not fresh:  # a running session keeps its master and the settings it was made with
            chosen = {key: value for key, value in conf.items() if key != "spark.master"}
        starts = SparkContext._gateway is None
        with _gateway(master, chosen, said.words) if starts else contextlib.nullcontext(False) as first:
            made = builder.config(map=dict(chosen)).getOrCreate()
        attach(made)
        if first:
            rehearse(made)
        return made


def attach(made: "SparkSession") -> None:
    """As `quintet.spark.attach`."""
    if not hasattr(made, "_jsparkSession"):
        raise ConfigError(
            "a session of Spark Connect has its JVM in another process",
            hint="format('quintet') works on it without this function where its server's Python has quintet installed",
        )
    if not local(str(made.sparkContext.master)):
        travel.send(made, launch.cache_folder())
    register(made)


def register(made: "SparkSession") -> None:
    """Make `format("quintet")` known, and queries that read topics visible on their brokers."""
    from quintet.spark.sessions import lookups, threads
    from quintet.spark.source import describe, modes, progress
    from quintet.spark.source.source import QuintetSource

    made.dataSource.register(QuintetSource)
    progress.attach(made)
    modes.explain()
    describe.names()
    threads.activate()
    lookups.by_name()


def check_packages() -> None:
    """SparkMissing names the packages to install."""
    missing = absent("spark")
    if missing:
        raise SparkMissing(f"Spark needs {', '.join(missing)}, which this Python ({sys.executable}) does not have")
    version = metadata.version("pyspark")
    if tuple(int(part) for part in version.split(".")[:2]) < PYSPARK_MIN:
        wanted = ".".join(str(part) for part in PYSPARK_MIN)
        raise SparkMissing(f"pyspark {version} is too old: reading topics needs {wanted} or newer")


def check_python(program: str) -> None:
    """Refuse a Python for Spark's workers that cannot read a topic: without this check, the error would be a stack trace about the first
    missing module. It must be on this machine, because Spark also plans with it, next to the driver."""
    if program == sys.executable:
        return
    hint = f"PYSPARK_PYTHON (or spark.pyspark.python) names it; it needs {', '.join(travel.NEEDED)}"
    try:
        done = subprocess.run(
            [program, "-c", LOOK, *travel.NEEDED], capture_output=True, text=True, check=True, timeout=LOOK_S
        )
        version, missing = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SparkMissing(
            f"the Python of Spark's workers, {program}, does not run here: {error}", hint=hint
        ) from error
    if missing:
        raise SparkMissing(f"the Python of Spark's workers, {program}, lacks {', '.join(missing)}", hint=hint)
    if tuple(version) != sys.version_info[:2]:
        here, there = (".".join(map(str, each[:2])) for each in (sys.version_info, version))
        raise SparkMissing(
            f"the Python of Spark's workers, {program}, is {there} and that of the driver {here}",
            hint="Spark sends functions between them and takes only one minor version; PYSPARK_PYTHON names the workers'",
        )


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse environment variables by which pyspark would make a session of Spark Connect, which has no JVM here."""
    asked = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    found = [name for name in asked if environment.get(name)]
    found += ["SPARK_API_MODE"] if environment.get("SPARK_API_MODE", "").lower() == "connect" else []
    if found:
        raise ConfigError(
            f"{found[0]} is set, which asks for Spark Connect, and this session starts a Spark of its own",
            hint=f"unset {found[0]}; on a session of Spark Connect, format('quintet') works without this function",
        )


def local(master: str) -> bool:
    """Whether tasks run in the JVM of this process (local-cluster[...] starts others)."""
    return master == "local" or master.startswith("local[")


def cores(master: str) -> int:
    """How many tasks a local master runs at once: local, local[2], local[2,4], local[*]."""
    count = master.partition("[")[2].rstrip("]").partition(",")[0].strip()
    return max(1, int(count) if count.isdigit() else (os.cpu_count() or 1) if count == "*" else 1)


def defaults(master: str, user: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our defaults of Spark's settings."""
    everywhere = {
        "spark.pyspark.python": sys.executable,
        "spark.sql.python.filterPushdown.enabled": "true",  # without it pushFilters does nothing
        "spark.python.unix.domain.socket.enabled": "true",  # a Python task in 28 ms instead of 71
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": SECRETS,
        "spark.sql.redaction.options.regex": SECRETS,
        "spark.driver.memory": MEMORY,
    }
    if not local(master):
        return everywhere
    here = {"spark.sql.shuffle.partitions": str(SHUFFLE_PER_CORE * cores(master))}
    if not os.environ.get("SPARK_LOCAL_IP"):
        here |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if not any(name.startswith("spark.ui.") and name not in everywhere for name in user or {}):
        here["spark.ui.enabled"] = "false"  # a user who has set an option of the UI wants it
    return everywhere | here


def rehearse(made: "SparkSession") -> None:
    """Run a small query in the JVM that records the class archive, so that the archive has the classes of queries."""
    made.range(8, numPartitions=1).selectExpr("id % 2 as k", "id").groupBy("k").sum("id").toArrow()


def machine() -> launch.Machine | None:
    """The JVM that this process started directly, for tests and crash campaigns that need its process."""
    return _machines[-1] if _machines else None


@contextlib.contextmanager
def _gateway(master: str, chosen: Mapping[str, str], words: Sequence[str]) -> Iterator[bool]:
    """While this context is open, pyspark finds the JVM to attach to, or the Java to start. Yields whether the JVM records an archive.
    `words`: arguments of spark-submit that are not settings."""
    found = java.find()
    python = chosen["spark.pyspark.python"]
    check_python(python)
    if not local(master):
        wrapped = {"JAVA_HOME": str(wrapper(found)), "PYSPARK_PYTHON": python}
        rest = {settings.SUBMIT: shlex.join([*words, settings.SHELL])}  # its settings are in `chosen`
        with _environment({**wrapped, **rest, **_submit_options(chosen)}):
            yield False
        return
    os.environ["PYSPARK_PYTHON"] = python  # for processes that the user's program starts
    submit = ["--master", master, *words]
    for name in sorted(set(chosen) & JARS):  # jars must be known when the JVM starts
        submit += ["--conf", f"{name}={chosen[name]}"]
    started = launch.launch(found, spark_home(), machine_flags(chosen), submit, machine_environment(chosen))
    atexit.register(started.end)
    attached = {"PYSPARK_GATEWAY_PORT": str(started.port), "PYSPARK_GATEWAY_SECRET": started.secret}
    try:
        with _environment(attached):
            yield started.recording
    except BaseException:
        started.end()
        raise
    _machines.append(started)


def machine_flags(chosen: Mapping[str, str]) -> list[str]:
    """The flags of a local JVM: ours, then the user's, which take precedence."""
    wanted = shlex.split(os.environ.get("SPARK_SUBMIT_OPTS", ""))
    for name in ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"):
        wanted += shlex.split(chosen.get(name, ""))
    if chosen.get(CLASSPATH):
        wanted.append(
            f"-D{CLASSPATH}={chosen[CLASSPATH]}"
        )  # launch.py puts it first in the class path, with an archive of its own
    collector = [] if any(COLLECTOR.fullmatch(flag) for flag in wanted) else ["-XX:+UseParallelGC"]
    return [f"-Xmx{chosen['spark.driver.memory']}", *logging_flags(wanted), *ARROW, *collector, *wanted]


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "check_packages found it"
    return Path(spec.origin).parent


def spark_home() -> Path:
    """The folder of pyspark with its jars; SPARK_HOME if pyspark came without jars."""
    home = _pyspark()
    return home if (home / "jars").is_dir() else Path(os.environ.get("SPARK_HOME", home))


def wrapper(found: java.Java) -> Path:
    """A JAVA_HOME that spark-submit can start. For a Java without VECTOR_MODULE this is a folder whose `java` is a script that removes
    that module from the arguments."""
    if found.whole:
        return found.home
    home = launch.cache_folder() / f"java-{found.version}-{travel.digest(str(found.home).encode())}"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        "# Removes the module that Spark always requires and this runtime lacks; only MLlib uses it.\n"
        f'for word do\n  shift\n  [ "$word" = "--add-modules={java.VECTOR_MODULE}" ] || set -- "$@" "$word"\ndone\n'
        f"exec '{found.program}' \"$@\"\n"
    )
    if not script.exists() or script.read_text() != text:
        travel.place(script, text.encode(), 0o755)
    return home


def logging_flags(wanted: Sequence[str] = ()) -> list[str]:
    """Flags that make Spark's log quiet from its first line on; none if the user has a log4j2 file."""
    words = Path(__file__).with_name("log4j2.properties")
    theirs = any(LOG_FILE.match(flag) for flag in wanted) or any(
        settings.folder(os.environ, _pyspark()).glob("log4j2.*")
    )
    return [] if theirs or not words.exists() else [f"-Dlog4j2.configurationFile={words.as_uri()}"]


def _submit_options(chosen: Mapping[str, str]) -> dict[str, str]:
    """The environment variable by which spark-submit gets flags of the driver's JVM."""
    flags = " ".join(logging_flags(shlex.split(chosen.get("spark.driver.extraJavaOptions", ""))))
    return {"SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {flags}".strip()} if flags else {}


def machine_environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """The environment of a local JVM, which its Python workers inherit, so that they import this same package. SPARK_HOME is left out if
    pyspark is installed with jars: with it, workers import pyspark from a zip, without compiled code, which takes each a second."""
    paths = [str(Path(__file__).parents[3]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    installed = spark_home() == _pyspark()
    files = settings.folder(os.environ, _pyspark())
    return {
        **{name: value for name, value in os.environ.items() if name != "SPARK_HOME" or not installed},
        LOG_LEVEL: chosen.get("spark.log.level", "ERROR"),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP") or LOOPBACK,
        **({"SPARK_CONF_DIR": str(files)} if files.is_dir() else {}),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during one call, because pyspark has no parameters for them."""
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
