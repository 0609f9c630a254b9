"""Whose word counts for a setting: the order of the ways to say it, files as Java reads them, what is joined or insisted on."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.model.errors import ConfigError
from quintet.spark.sessions import settings, start
from tests.spark.machines import START_S, archived, without_archives

# A session of its own, as a user's program has it: what it is set to, its heap and where its page is.
PROBE = """
import json, os, sys
from quintet.spark import session
spark = session(conf=json.loads(sys.argv[1]))
context = spark.sparkContext
java = context._jvm.java.lang
print(json.dumps({
    "conf": dict(context.getConf().getAll()), "heap": java.Runtime.getRuntime().maxMemory(), "ui": context.uiWebUrl,
    "python": os.environ["PYSPARK_PYTHON"], "flag": java.System.getProperty("quintet.flag"), "master": context.master,
}))
spark.stop()
"""
FILE = """\
# a comment
spark.master               local[1]
spark.ui.enabled=true
spark.ui.port : 0
spark.driver.memory        600m
spark.sql.session.timeZone Asia/Tokyo
spark.redaction.regex      (?i)my-own
spark.quintet.a            file
spark.quintet.b            file
spark.quintet.c            file
"""
SUBMIT = "--conf spark.quintet.b=submit --conf 'spark.quintet.c=submit it' --driver-java-options '-Dquintet.flag=x' pyspark-shell"


@pytest.mark.timeout(START_S + 50)
def test_the_users_word_wins_in_a_session(tmp_path: Path) -> None:
    (tmp_path / settings.FILE).write_text(FILE)
    without_archives(tmp_path)  # its flags are like no others, and an archive of them would be written for one use
    conf = {"spark.quintet.c": "call", "spark.quintet.d": "call", "spark.driver.defaultJavaOptions": archived()}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(conf)],
        env={
            "PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin",
            "XDG_CACHE_HOME": str(tmp_path),
            "SPARK_CONF_DIR": str(tmp_path),
            "PYSPARK_SUBMIT_ARGS": SUBMIT,
            "PYSPARK_PYTHON": "python",  # found on PATH
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["master"] == "local[1]"
    assert [told["conf"][f"spark.quintet.{name}"] for name in "abcd"] == ["file", "submit", "call", "call"]
    assert told["conf"]["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert 500 << 20 < told["heap"] <= 600 << 20
    assert told["ui"] is not None
    assert (told["python"], told["flag"]) == ("python", "x")
    for pattern in (start.SECRETS, "my-own"):
        assert pattern in told["conf"]["spark.redaction.regex"]
    assert told["conf"]["spark.python.unix.domain.socket.enabled"] == "true", "ours, where the user says nothing"


def test_the_order() -> None:
    found = settings.resolve(
        {"spark.a": "ours", "spark.b": "ours", "spark.c": "ours"},
        {"spark.b": "before", "spark.c": "before"},
        {"spark.c": "call", "spark.d": "call"},
    )
    assert found == {"spark.a": "ours", "spark.b": "before", "spark.c": "call", "spark.d": "call"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, "pyspark"),
        ({"SPARK_HOME": "home"}, "home"),
        ({"SPARK_HOME": "home", "SPARK_CONF_DIR": "dir"}, "dir"),
        ({"PYSPARK_SUBMIT_ARGS": "--properties-file {}/given pyspark-shell", "SPARK_CONF_DIR": "dir"}, "given"),
        ({"QUINTET_SPARK_MEMORY": "7g", "SPARK_DRIVER_MEMORY": "6g"}, "7g"),
        ({"SPARK_DRIVER_MEMORY": "6g", "PYSPARK_SUBMIT_ARGS": "--driver-memory=8g"}, "8g"),
    ],
)
def test_where_the_users_word_is(environment: dict[str, str], wanted: str, tmp_path: Path) -> None:
    """Each file says its own name as the driver's memory."""
    files = {"pyspark": "pyspark/conf", "home": "home/conf", "dir": "dir"}
    for name, folder in files.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / settings.FILE).write_text(f"spark.driver.memory {name}")
    (tmp_path / "given").write_text("spark.driver.memory given")
    given = {
        name: str(tmp_path / value) if name in ("SPARK_HOME", "SPARK_CONF_DIR") else value.format(tmp_path)
        for name, value in environment.items()
    }
    assert settings.said(given, tmp_path / "pyspark").settings["spark.driver.memory"] == wanted


def test_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """The same file through Java's own class is in the words of its documentation: one pair a line, three separators."""
    file = tmp_path / "file"
    file.write_bytes(
        b"# no\n! neither = this\n\n  spark.blank one two  \nspark.equals=a=b\nspark.colon : c:d\r\n"
        b"spark.tab\t\te\nspark.long x,\\\n    y,\\\r\n  z\nspark.empty\nspark.odd\\ key v\n"
        b"spark.escape \\u00e9\\t|C:\\\\dir\nother.thing no\nspark.blank three"
    )
    assert settings.properties(file) == {
        "spark.blank": "three",
        "spark.equals": "a=b",
        "spark.colon": "c:d",
        "spark.tab": "e",
        "spark.long": "x,y,z",
        "spark.empty": "",
        "spark.odd key": "v",
        "spark.escape": "é\t|C:\\dir",
    }
    assert settings.properties(tmp_path / "none") == {}


def test_words_for_spark_submit() -> None:
    text = "--master local[3] --packages=g:a:1 -c spark.a=1 --verbose --proxy-user x --conf 'spark.b=2 3' pyspark-shell"
    found, rest = settings.submitted(text)
    assert found == {"spark.master": "local[3]", "spark.jars.packages": "g:a:1", "spark.a": "1", "spark.b": "2 3"}
    assert rest == ("--verbose", "--proxy-user", "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--conf 'spark.a", "cannot be read: No closing quotation"),
        ("--master", "ends with --master, which has no value"),
        ("--conf a=b", "'a=b' is not a setting of Spark"),
        ("--properties-file /no/where", "the file /no/where, which does not exist"),
    ],
)
def test_wrong_words_are_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        settings.said({settings.SUBMIT: text}, tmp_path)


def test_what_is_insisted_on_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quintet.spark"):
        found = settings.resolve({}, {"spark.submit.deployMode": "cluster", "spark.a": "1"}, {})
    assert found == {"spark.a": "1"}
    assert "spark.submit.deployMode is client here, and not cluster" in caplog.text


@pytest.mark.parametrize(("name", "value"), [("spark.remote", "sc://host"), ("spark.api.mode", "connect")])
def test_settings_that_ask_for_another_kind_of_session(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is set to {value}, which asks for Spark Connect"):
        settings.resolve({}, {name: value}, {})
    settings.resolve({}, {"spark.api.mode": "classic"}, {})


def test_the_page_of_spark_is_on_where_the_user_has_it_on() -> None:
    assert start.defaults("local[2]")["spark.ui.enabled"] == "false"
    assert "spark.ui.enabled" not in start.defaults("local[2]", {"spark.ui.port": "4050"})
    assert "spark.ui.enabled" not in start.defaults("spark://host:7077")


def test_an_address_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.9")
    assert "spark.driver.host" not in start.defaults("local[2]")
    assert start.machine_environment({})["SPARK_LOCAL_IP"] == "127.0.0.9"


def test_a_log_of_the_users_takes_the_place_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert start.logging_flags()
    assert not start.logging_flags(["-Dlog4j2.configurationFile=file:/mine"])
    (tmp_path / "log4j2.xml").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not start.logging_flags()
    assert start.machine_environment({})["SPARK_CONF_DIR"] == str(tmp_path)


def test_flags_and_classes_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Da=1")
    flags = start.machine_flags(
        {
            "spark.driver.memory": "3g",
            "spark.driver.extraJavaOptions": "-Db='2 3' -XX:+UseG1GC",
            start.CLASSPATH: "/x/*",
        }
    )
    assert flags[0] == "-Xmx3g"
    assert flags[-4:] == ["-Da=1", "-Db=2 3", "-XX:+UseG1GC", "-Dspark.driver.extraClassPath=/x/*"]
    assert "-XX:+UseParallelGC" not in flags


@pytest.mark.parametrize(
    "name",
    ["url", "token", "storage.secret_key", "storage.access_key", "storage.account_key", "storage.sas_token",
     "catalog.uri", "catalog.credential", "catalog.adls.connection-string", "catalog.header.Authorization"],
)  # fmt: skip
def test_options_that_may_hold_a_secret_are_redacted_by_name(name: str) -> None:
    assert re.search(start.SECRETS, name)
    assert not re.search(start.SECRETS, "storage.region") and not re.search(start.SECRETS, "path")
