"""`quintet pub` and `quintet sub` as users run them: processes, pipes, exit codes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests import forks
from tests.client.server import Server, running

WAIT_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


class Cli:
    """Runs commands against the test's broker."""

    def __init__(self, url: str) -> None:
        self.environment = {**os.environ, "QUINTET_URL": url}

    def run(self, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return forks.run(arguments, input=data, env=self.environment, timeout=WAIT_S)

    def sub(self, *arguments: str) -> tuple[forks.Process, int]:
        """A running `quintet sub` and its subscription id: what is published from here on reaches it."""
        process = forks.command(["sub", *arguments], env=self.environment)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert line.startswith("subscription "), line
        return process, int(line.split()[1])


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server.url)


def finish(process: forks.Process) -> tuple[int, bytes, str]:
    out, error = process.communicate(timeout=WAIT_S)
    return process.wait(WAIT_S), out, error.decode()


def test_values(cli: Cli, topic: str) -> None:
    process, _ = cli.sub(topic, "--count", "2", "--timeout", "30")
    done = cli.run("pub", topic, "hello", "w\u00f6rld")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"2 messages to {topic}: durable\n", b"")
    assert finish(process) == (0, "hello\nw\u00f6rld\n".encode(), "")


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_lines_through_a_pipe(cli: Cli, topic: str, dash: tuple[str, ...]) -> None:
    """More than the broker leaves unacknowledged, and a last line without its end."""
    data = b"\n".join(b"line %d" % i for i in range(5_000))
    process, _ = cli.sub(topic, "--count", "5000", "--timeout", "50")
    done = cli.run("pub", topic, *dash, data=data)
    assert done.stdout.decode() == f"5000 messages to {topic}: durable\n"
    assert finish(process) == (0, data + b"\n", "")


def test_raw_both_ways(cli: Cli, topic: str) -> None:
    data = bytes(range(256)) * 5_000
    process, _ = cli.sub(topic, "--count", "1", "--format", "raw")
    assert cli.run("pub", topic, "--raw", data=data).returncode == 0
    assert finish(process) == (0, data, "")


def test_json_lines(cli: Cli, topic: str) -> None:
    process, _ = cli.sub(topic, "--count", "2")
    done = cli.run("pub", topic, "--json-lines", data=b'{"a": [1, 2]}\r\n\n"x"\n')
    assert done.returncode == 0
    assert finish(process)[1] == b'{"a":[1,2]}\n"x"\n'
    wrong = cli.run("pub", topic, "--json-lines", data=b"1\n{no\n")
    assert wrong.returncode == 1
    assert b"line 2 is not JSON" in wrong.stderr


def test_formats(cli: Cli, topic: str) -> None:
    as_json, _ = cli.sub(topic, "--count", "2", "--format", "json")
    as_hex, _ = cli.sub(topic, "--count", "2", "--format", "hex", "--qos", "0")
    cli.run("pub", topic, "text")
    cli.run("pub", topic, "--raw", data=b"\xff\x00")
    rows = [json.loads(line) for line in finish(as_json)[1].splitlines()]
    told = {"timestamp_us": rows[0]["timestamp_us"], "origin": "blipmq:dev"}
    assert rows[0] == {"topic": topic, "qos": 1, "tag": rows[0]["tag"], **told, "value": "text"}
    assert rows[1]["value_base64"] == "/wA="
    assert finish(as_hex)[1] == b"74657874\nff00\n"


def test_count_repeats(cli: Cli, topic: str) -> None:
    process, _ = cli.sub(topic, "--count", "25000", "--timeout", "50")
    done = cli.run("pub", topic, "x", "y", "--count", "12500", "--ttl", "60")
    assert done.stdout.decode() == f"25000 messages to {topic}: durable\n"
    assert finish(process) == (0, b"x\ny\n" * 12_500, "")


def test_qos_0_says_so(cli: Cli, topic: str) -> None:
    assert cli.run("pub", topic, "x", "--qos", "0").stdout.endswith(
        b"1 message to test_qos_0_says_so: sent, not confirmed (QoS 0)\n"
    )


def test_resume_and_no_ack(cli: Cli, topic: str) -> None:
    process, id = cli.sub(topic, "--count", "3", "--no-ack")
    cli.run("pub", topic, "1", "2", "3")
    assert finish(process)[1] == b"1\n2\n3\n"
    process, same = cli.sub(topic, "--count", "2", "--resume", str(id))
    assert same == id
    assert finish(process)[1] == b"1\n2\n"
    process, _ = cli.sub(topic, "--count", "1", "--resume", str(id), "--timeout", "30")
    assert finish(process)[:2] == (0, b"3\n")


def test_timeout(cli: Cli, topic: str) -> None:
    too_few = cli.run("sub", topic, "--count", "1", "--timeout", "0.2")
    assert too_few.returncode == 1
    assert b"0 of 1 messages came in 0.2 s" in too_few.stderr
    assert cli.run("sub", topic, "--timeout", "0.2").returncode == 0


@pytest.mark.parametrize(("count", "code"), [((), 0), (("--count", "2"), 1)])
def test_interrupt(cli: Cli, topic: str, count: tuple[str, ...], code: int) -> None:
    process, id = cli.sub(topic, *count)
    cli.run("pub", topic, "seen")
    assert process.stdout is not None
    assert process.stdout.readline() == b"seen\n"
    process.send_signal(signal.SIGINT)
    returned, _, error = finish(process)
    assert returned == code
    assert "Traceback" not in error
    again, _ = cli.sub(topic, "--resume", str(id), "--count", "1", "--timeout", "0.5")
    assert finish(again)[:2] == (1, b"")


def test_interrupted_while_waiting_for_input(cli: Cli, topic: str) -> None:
    process = forks.command(["pub", topic], env=cli.environment)
    follower, _ = cli.sub(topic, "--count", "1", "--timeout", "30")
    assert process.stdin is not None
    process.stdin.write(b"a whole line\nhalf a li")
    process.stdin.flush()
    assert finish(follower)[:2] == (0, b"a whole line\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 1
    assert process.stderr is not None
    assert process.stderr.read().decode() == f"quintet: interrupted; 1 message to {topic}: durable\n"
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_a_reader_that_leaves(cli: Cli, topic: str) -> None:
    process, _ = cli.sub(topic)
    assert process.stdout is not None
    process.stdout.close()
    cli.run("pub", topic, "x")
    assert process.wait(WAIT_S) == 1
    assert b"Traceback" not in process.communicate(timeout=WAIT_S)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("pub", "t", "x", "--url", "blipmq://:wrong@HOST"), 1, "invalid API key"),
        (("pub", "t", "x", "--url", "blipmq://:k@127.0.0.1:1"), 1, "quintet serve --dev"),
        (("pub", "t", "x", "--url", "amqp://h"), 2, "known schemes"),
        (("sub", "t", "--url", "nonsense"), 2, "known schemes"),
        (("pub", "", "x"), 2, "1 to 255 bytes"),
        (("sub", ""), 2, "1 to 255 bytes"),
        (("pub", "t", "x", "--qos", "2"), 2, "--qos"),
        (("pub", "t", "x", "--raw"), 2, "--raw reads stdin"),
        (("pub", "t", "--count", "3"), 2, "--count repeats values"),
        (("pub",), 2, "TOPIC"),
        (("sub", "t", "--count", "0"), 2, "--count"),
    ],
)
def test_errors_are_one_clear_line(cli: Cli, server: Server, arguments: tuple[str, ...], code: int, says: str) -> None:
    host = f"127.0.0.1:{server.port}"
    done = cli.run(*(argument.replace("HOST", host) for argument in arguments))
    assert (done.returncode, done.stdout) == (code, b"")
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_help_starts_with_examples(cli: Cli, command: str) -> None:
    text = cli.run(command, "--help").stdout.decode()
    assert 0 < text.index(f"quintet {command} orders") < text.index("--url")


def test_completion(cli: Cli) -> None:
    cli.environment |= {"_QUINTET_COMPLETE": "bash_complete", "COMP_WORDS": "quintet sub --fo", "COMP_CWORD": "2"}
    assert b"--format" in cli.run().stdout
