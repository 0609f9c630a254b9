"""No command lets a name, a key or an error steer the terminal: all that name topics are run against names full of escapes.

The walk is over the tree of commands itself: one more command below GROUPS fails until WALK has it. What the walk cannot
reach is kept by a rule on the source: commands print through `echo`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from quintet.cli.main import cli
from quintet.cli.terminal.output import printable
from tests.cli.conftest import Commands
from tests.client.server import Server, running

EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b31m\u202etopic"
T, G, NONE = EVIL, f"{EVIL}-group", f"{EVIL}-none"
GROUPS = ("topic", "group", "schema", "dlq", "txn", "acl", "log")
SCHEMA = '{"type": "object", "required": ["n"]}'

# In this order, each with its arguments; {data}, {schema} and {txn} are files and an id of the test.
WALK: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("topic create", ((T,), (T, "--json"), (f"{T}-gone",), (T, "--partitions", "7"))),
    ("topic list", ((), ("--json",))),
    ("pub", ((T, '{"n": 1}', "--key", EVIL), (T, "hello", "--json"))),
    ("sub", ((T, "--group", G, "--from", "earliest", "--count", "1", "--format", "json", "--timeout", "20"),)),
    ("tail", ((T, "--from", "earliest"), (T, "--from", "earliest", "--json"), (T, "--from", "earliest", "--hex"))),
    ("topic describe", ((T,), (T, "--json"), (NONE,))),
    ("topic alter", ((T,), (T, "--json"), (NONE,))),
    ("topic purge", ((f"{T}-gone", "--yes"), (NONE, "--yes", "--json"))),
    ("topic delete", ((f"{T}-gone", "--yes"), (NONE, "--yes", "--json"))),
    ("group list", ((), ("--json",))),
    ("group describe", ((G, "--topic", T), (G, "--topic", T, "--json"), (NONE,))),
    ("group lag", ((), (G,), ("--json",))),
    ("group reset", ((G, "--topic", T, "--to", "earliest"), (G, "--topic", T, "--to", "latest", "--json"))),
    ("group delete", ((G, "--topic", T, "--yes"), (G, "--topic", T, "--yes"))),
    ("schema register", ((T, "{schema}", "--type", "json"), (T, "{schema}", "--type", "json", "--json"))),
    ("schema list", ((), ("--json",))),
    ("schema get", ((T,), (T, "--json"), (NONE,))),
    ("schema validate", ((T, '{"n": 1}', '{"\\u001b[31m": 1}', EVIL), (T, EVIL, "--json"))),
    ("schema compat", ((T,), (T, "none"))),
    ("schema delete", ((T, "--yes"), (T, "--yes"))),
    ("dlq send", ((T, "0", "0", "--error", EVIL), (T, "0", "9"))),
    ("dlq list", ((), (T,), ("--json",), (T, "--json"), (NONE,))),
    ("dlq show", ((T, "0-0"), (T, "0-0", "--json"), (T, "9-9"))),
    ("dlq replay", ((T, "0-0", "--dry-run"), (T, "--all"), (T, "0-0", "--json"))),
    ("dlq purge", ((T, "--yes"), (T, "--yes", "--json"))),
    ("txn begin", (("--name", EVIL),)),
    ("txn produce", ((EVIL, T, "x"), ("{txn}", T, "x"), ("{txn}", T, "x", "--json"))),
    ("txn commit", (("{txn}",), (EVIL,))),
    ("txn rollback", (("{txn}",), (EVIL,))),
    ("txn run", (("{schema}",),)),
    ("acl set", ((T, "--user", EVIL), (T, "--role", "admin"), (T, "--role", "admin", "--json"))),
    ("acl get", ((T,), (T, "--json"), (NONE,))),
    ("acl list", ((), ("--json",))),
    ("acl explain", (("admin", "publish", T), ("admin", "publish", T, "--json"), (EVIL, "publish", T))),
    ("acl delete", ((T, "--yes"), (NONE, "--yes"))),
    ("audit", ((), ("--json",))),
    ("audit tail", (("--data", "{data}"), ("--data", "{data}", "--json"))),
    ("log repair", (("{data}",),)),
    ("log verify", (("{data}",), ("{data}", "--json"))),
    ("log dump", (("{data}",), ("{data}", "--format", "json"), ("{data}", "--format", "hex"), ("{data}", "--topic", NONE))),
)  # fmt: skip


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A broker of its own: these names are not for the others to list."""
    with running() as server:
        yield server


def leaves(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, f"{path} {name}".strip())
    else:
        yield path


def steering(text: str) -> list[str]:
    return [each for each in text if not each.isprintable() and each not in "\n\t"]


def test_the_walk_reaches_every_command_that_names_topics() -> None:
    walked = {path for path, _ in WALK}
    assert {path for path in leaves(cli, "") if path.split()[0] in GROUPS} <= walked


def test_no_name_steers_the_terminal(own: Server, tmp_path: Path) -> None:
    commands = Commands(own.fly)
    schema = tmp_path / "schema"
    schema.write_text(SCHEMA)
    txn = commands("txn", "begin", "--json").json["txn_id"]
    places = {"{data}": str(own.folder / "data"), "{schema}": str(schema), "{txn}": txn}
    named = 0
    for path, calls in WALK:
        for arguments in calls:
            filled = tuple(places.get(each, each) for each in arguments)
            said = commands(*path.split(), *filled, code=None)
            text = said.out + said.err
            assert steering(text) == [], f"quintet {path} {arguments}: {text!r}"
            named += "evil" in text
    assert named > 60, f"only {named} of them said the name: the walk sees nothing"


def test_what_is_escaped_stays_readable() -> None:
    assert (
        printable("a\x1b[31m\x9b\u202e\ttab\nline é 漢 \U0001f600")
        == "a\\u001b[31m\\u009b\\u202e\ttab\nline é 漢 \U0001f600"
    )
    assert printable("plain") == "plain"


# -- the rule ---------------------------------------------------------------------------------------------------------

RAW = re.compile(r"\bclick\.(?:secho|echo)\(|(?<![\w.])print\(")
# Help and completion of our own making; colours around escaped values; a progress line.
ALLOWED = {"main.py": 4, "backup.py": 1, "output.py": 1, "hexview.py": 1, "pubsub.py": 2}


def raw_prints(folder: Path) -> dict[str, int]:
    counts = {path.name: len(RAW.findall(path.read_text())) for path in sorted(folder.rglob("*.py"))}
    return {name: count for name, count in counts.items() if count}


def test_commands_print_through_echo(tmp_path: Path) -> None:
    assert raw_prints(Path(__file__).parents[2] / "src/quintet/cli") == ALLOWED
    (tmp_path / "x.py").write_text("click.echo(name)\nprint(name)\nself.print(name)\necho(name)\n")
    assert raw_prints(tmp_path) == {"x.py": 2}, "the rule finds what it is for"
