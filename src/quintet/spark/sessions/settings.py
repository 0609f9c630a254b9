"""Resolves the settings of a Spark session: those of the user, wherever they are set, take precedence over our defaults.

    our defaults  <  spark-defaults.conf  <  environment, PYSPARK_SUBMIT_ARGS  <  conf=, --conf, --master

spark-defaults.conf is in SPARK_CONF_DIR, else in SPARK_HOME/conf, else in the conf folder of the installed pyspark;
--properties-file in PYSPARK_SUBMIT_ARGS replaces it, as it does for spark-submit. It is read here, because settings of a session's
builder take precedence over it, and because the heap and the flags of a local JVM are chosen before Spark reads it.

Two kinds of settings are not simply replaced. Redaction patterns are joined, because our url may contain a password. The settings in
INSISTED cannot be changed, and a warning names them. Nothing here starts anything.
"""

import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quintet.model.errors import ConfigError

FILE: Final = "spark-defaults.conf"
SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
SHELL: Final = "pyspark-shell"  # the last argument in PYSPARK_SUBMIT_ARGS
PREFIX: Final = "spark."
# Environment variable -> setting. Of two for the same setting the later one wins.
VARIABLES: Final = {
    "PYSPARK_PYTHON": "spark.pyspark.python",
    "SPARK_DRIVER_MEMORY": "spark.driver.memory",
    "QUINTET_SPARK_MEMORY": "spark.driver.memory",
}
# Option of spark-submit -> setting.
OPTIONS: Final = {
    "--master": "spark.master",
    "--deploy-mode": "spark.submit.deployMode",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-cores": "spark.driver.cores",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--driver-library-path": "spark.driver.extraLibraryPath",
    "--executor-memory": "spark.executor.memory",
    "--executor-cores": "spark.executor.cores",
    "--total-executor-cores": "spark.cores.max",
    "--num-executors": "spark.executor.instances",
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
    "--exclude-packages": "spark.jars.excludes",
    "--repositories": "spark.jars.repositories",
    "--files": "spark.files",
    "--archives": "spark.archives",
    "--py-files": "spark.submit.pyFiles",
    "--queue": "spark.yarn.queue",
}
CONF: Final = ("--conf", "-c")
PROPERTIES: Final = "--properties-file"
BOTH_FILES: Final = "--load-spark-defaults"
JOINED: Final = ("spark.redaction.regex", "spark.sql.redaction.options.regex")
# Setting -> its value in every session of ours, and the reason
INSISTED: Final = {"spark.submit.deployMode": ("client", "the process that asks for a session is its driver")}
CONNECT: Final = ("spark.remote", "spark.api.mode")
ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

_log = logging.getLogger("quintet.spark")


@dataclass(frozen=True, slots=True)
class Said:
    """What the user set outside of the call: settings, and arguments of spark-submit that are not settings."""

    settings: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()


def folder(environment: Mapping[str, str], pyspark: Path) -> Path:
    """Spark's configuration folder; it need not exist."""
    if environment.get("SPARK_CONF_DIR"):
        return Path(environment["SPARK_CONF_DIR"])
    return Path(environment.get("SPARK_HOME") or pyspark) / "conf"


def said(environment: Mapping[str, str], pyspark: Path) -> Said:
    """The settings of the user's file and environment."""
    given, words = submitted(environment.get(SUBMIT, ""))
    file = _value_of(PROPERTIES, words)
    found = properties(folder(environment, pyspark) / FILE) if not file or BOTH_FILES in words else {}
    if file:
        if not Path(file).is_file():
            raise ConfigError(
                f"{SUBMIT} names the file {file}, which does not exist", hint=f"change {PROPERTIES}, or unset it"
            )
        found |= properties(Path(file))
    found |= {setting: environment[name] for name, setting in VARIABLES.items() if environment.get(name)}
    return Said(found | given, words)


def resolve(defaults: Mapping[str, str], before: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """All settings of a session. `before`: those of the user outside of the call; `conf`: those of the call."""
    user = {**before, **conf}
    asked = [name for name in CONNECT if user.get(name) and user[name].lower() != "classic"]
    if asked:
        raise ConfigError(
            f"{asked[0]} is set to {user[asked[0]]}, which asks for Spark Connect, and this session starts a Spark of its own",
            hint=f"remove {asked[0]}; on a session of Spark Connect, format('quintet') works without this function",
        )
    for name, (value, why) in INSISTED.items():
        if user.get(name, value) != value:
            _log.warning("quintet: %s is %s here, and not %s: %s", name, value, user.pop(name), why)
    joined = {name: join(defaults[name], user[name]) for name in JOINED if name in defaults and user.get(name)}
    return {**defaults, **user, **joined}


def join(ours: str, theirs: str) -> str:
    """A pattern that matches what either matches."""
    return theirs if ours in theirs else f"(?:{ours})|(?:{theirs})"


def submitted(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """PYSPARK_SUBMIT_ARGS as settings, and the arguments that are not settings."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{SUBMIT} cannot be read: {error}", hint="quote its words as in a shell") from error
    found: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        word, equals, value = words[at].partition("=") if words[at].startswith("--") else (words[at], "", "")
        takes = word in OPTIONS or word in CONF
        if takes and not equals:
            if at + 1 == len(words):
                raise ConfigError(f"{SUBMIT} ends with {word}, which has no value", hint="write one after it")
            at += 1
            value = words[at]
        if word in OPTIONS:
            found[OPTIONS[word]] = value
        elif takes:
            found |= dict([assignment(value)])
        elif word != SHELL:
            rest.append(words[at])
        at += 1
    return found, tuple(rest)


def assignment(text: str) -> tuple[str, str]:
    """KEY=VALUE of --conf."""
    key, equals, value = text.partition("=")
    if not equals or not key.startswith(PREFIX):
        raise ConfigError(f"--conf {text!r} is not a setting of Spark", hint="write --conf spark.KEY=VALUE")
    return key, value


def _value_of(option: str, words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(words):
            return words[at + 1]
    return ""


# -- files of properties, as Java reads them ----------------------------------------------------------------------------------


def properties(file: Path) -> dict[str, str]:
    """The settings in a file; empty if it does not exist. Names without `spark.` are ignored, as Spark does."""
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}", hint="Spark's settings are in it; make it readable"
        ) from error
    found = {}
    for line in _logical_lines(text):
        key = re.match(r"(?:\\.|[^\s=:\\])*", line, re.DOTALL)
        assert key is not None, "the pattern also matches the empty string"
        value = re.sub(r"\A[ \t\f]*[=:]?[ \t\f]*", "", line[key.end() :])
        found[_plain(key[0])] = _plain(value).strip()
    return {key: value for key, value in found.items() if key.startswith(PREFIX)}


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, joined where one ends in an odd number of backslashes."""
    whole = ""
    for line in re.split(r"\r\n|\r|\n", text):
        stripped = line.lstrip(" \t\f")
        if not whole and (not stripped or stripped[0] in "#!"):
            continue
        whole += stripped
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1]
            continue
        yield whole
        whole = ""
    if whole:
        yield whole


def _plain(text: str) -> str:
    """The text with backslash escapes replaced."""

    def sign(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else ESCAPES.get(found[2], found[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", sign, text, flags=re.DOTALL)
