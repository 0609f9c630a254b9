"""Adds to the site what is not a page of docs/: the reference, made from the code, and the READMEs of the protocols.

Pages are written for readers of the repository, too. A link that leaves docs/ becomes one to the page that shows the file; if none
does, it becomes its text.
"""

import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
LINK: Final = re.compile(r"\[([^\]\n]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
SIGNATURE_CHARACTERS_MAX: Final = 60  # more do not fit into a line of the page
BOUND: Final = re.compile(r"_(?:MAX|MIN|BYTES|S|MS|US)$")  # of a constant's name
README: Final = re.compile(r"^<!-- readme: (\S+) -->$", re.MULTILINE)
PAGES: Final = {  # file of the repository -> page that shows it
    **{
        f"src/quintet/protocols/{name}/README.md": f"protocols/{name}.md"
        for name in ("blipmq", "flymq", "fast", "peerbus", "felix")
    },
    "src/quintet/flight/README.md": "protocols/flight.md",
    "deploy/README.md": "running.md",
    "README.md": "index.md",
    "docs/adr": "adr/index.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {
        "reference/cli.md": commands(),
        "reference/python.md": api(),
        "reference/errors.md": errors(),
        "reference/limits.md": limits(),
        "reference/metrics.md": metrics(),
        "running.md": "<!-- readme: deploy/README.md -->\n",
        "adr/index.md": decisions(),
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put READMEs in, and turn links to where the site has their target."""

    def readme(found: re.Match[str]) -> str:
        text = (ROOT / found[1]).read_text()
        text = re.sub(r"\A# .*\n", "", text) if page.file.src_uri.startswith("protocols/") else text
        return relinked(text, found[1], page.file.src_uri)

    return README.sub(readme, relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri))


def relinked(text: str, source: str, page: str) -> str:
    """The text of a file of the repository, with links as they are on a page of the site."""

    def link(found: re.Match[str]) -> str:
        target, hash, anchor = found[2].partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        shown = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if shown is None:
            return found[1]
        return f"[{found[1]}]({posixpath.relpath(shown, posixpath.dirname(page) or '.')}{hash}{anchor})"

    return LINK.sub(link, text)


# -- the reference ----------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its help, as the terminal shows it."""
    from quintet.cli.main import cli

    lines = [
        "# Commands",
        "",
        "What `--help` says of each. `QUINTET_URL` or a profile names the broker where no `--url` does.",
        "",
    ]
    for path, command in walk(cli, ("quintet",)):
        context = click.Context(command, info_name=" ".join(path), max_content_width=100)
        lines += [
            f"{'##' if len(path) < 3 else '###'} {' '.join(path)}",
            "",
            "```text",
            command.get_help(context),
            "```",
            "",
        ]
    return "\n".join(lines)


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, (*path, name))


def api() -> str:
    """The names of `import quintet` with their signatures and docstrings."""
    import quintet

    lines = ["# Python", "", "The names of `import quintet`. [The guide](../CLIENT.md) shows them at work.", ""]
    for name in sorted(quintet._LAZY):
        value = getattr(quintet, name)
        if inspect.ismodule(value):
            continue
        lines += described(name, value, "##")
        if inspect.isclass(value):
            for member, inner in inspect.getmembers(value):
                if (
                    not member.startswith("_")
                    and (inspect.isfunction(inner) or isinstance(inner, property))
                    and inspect.getdoc(inner)
                ):
                    lines += described(f"{name}.{member}", inner, "###")
    return "\n".join(lines)


def described(name: str, value: Any, heading: str) -> list[str]:
    try:
        signature = "" if isinstance(value, property) else str(inspect.signature(value))
    except ValueError:
        signature = ""
    text = inspect.getdoc(value) or ""
    word = "async def " if inspect.iscoroutinefunction(value) else "class " if inspect.isclass(value) else ""
    code = f"{word}{name}{wrapped(signature)}" if signature else name
    return [f"{heading} {name}", "", "```python", code, "```", "", *([escaped(text), ""] if text else [])]


def wrapped(signature: str) -> str:
    """A signature without quotes and modules, a long one with a line for each parameter."""
    short = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", signature.replace("'", ""))
    if len(short) < SIGNATURE_CHARACTERS_MAX:
        return short
    inner, _, answer = short[1:].rpartition(")")
    parts = re.split(r", (?![^\[(]*[\])])", inner)
    return "(\n    " + ",\n    ".join(parts) + f",\n){answer}"


def escaped(text: str) -> str:
    """A docstring as Markdown: angle brackets and stars are meant as they are."""
    return re.sub(r"(?<!`)([<*_])(?![^`\n]*`)", r"\\\1", text)


def errors() -> str:
    """Every error with its code and what it says of itself."""
    from quintet.client.core import errors as _client  # noqa: F401  # its classes are found below
    from quintet.model import extras as _extras  # noqa: F401
    from quintet.model.errors import QuintetError

    found: dict[str, type[QuintetError]] = {}
    waiting: list[type[QuintetError]] = [QuintetError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("quintet."):
            found.setdefault(f"{kind.code}{kind.__name__}", kind)
    lines = [
        "# Errors",
        "",
        "Codes stay what they are. 1xxx: said by the broker or a command; 2xxx: by the client.",
        "",
    ]
    lines += ["| code | name | meaning |", "|---|---|---|"]
    for _, kind in sorted(found.items()):
        meaning = " ".join((inspect.getdoc(kind) or "").split()).replace("|", "\\|")
        lines.append(f"| {kind.code} | `{kind.__name__}` | {escaped(meaning)} |")
    return "\n".join(lines) + "\n"


def limits() -> str:
    """Every named bound of the source, by package, with its value and the comment beside it."""
    lines = [
        "# Limits",
        "",
        "Everything is bounded, and a bound has a name with its unit: `_BYTES`, `_S`, `_MS`, `_US`, else a count. It stands in the",
        "module that enforces it; those that several layers share are in `quintet.model.limits`. What an operator may change is a",
        "key of the [configuration](../CONFIGURATION.md).",
    ]
    shown = ""
    for file in sorted((ROOT / "src" / "quintet").rglob("*.py")):
        if "bench" in file.parts:
            continue
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for name, value, reason in bounds(file):
            if module != shown:
                lines += ["", f"## {module}", "", "| bound | value | |", "|---|---|---|"]
                shown = module
            lines.append(f"| `{name}` | {value} | {escaped(reason).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def bounds(file: Path) -> Iterator[tuple[str, str, str]]:
    """Name, value and comment of each bound of a module. A comment of its own line above belongs to it, too."""
    text = file.read_text()
    source = text.splitlines()
    values: dict[str, float] = {"KIB": 1024, "MIB": 1024 * 1024, "GIB": 1024**3}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if not isinstance(target, ast.Name) or not BOUND.search(target.id):
            continue
        number = computed(node.value, values)
        if number is None:
            continue
        values[target.id] = number
        above = source[node.lineno - 2].strip() if node.lineno > 1 else ""
        beside = [line.partition("  # ")[2] for line in source[node.lineno - 1 : node.end_lineno]]
        reason = " ".join(filter(None, beside)) or (above.removeprefix("# ") if above.startswith("# ") else "")
        yield target.id, f"{number:,}", reason.removesuffix("fmt: skip").strip()


def computed(value: ast.expr, known: dict[str, float]) -> float | None:
    """The number that an expression of literals and of constants before it is."""
    text = ast.unparse(value).replace("limits.", "")
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    if not names <= known.keys() or not re.fullmatch(r"[\w\s.*+/()<-]+", text):
        return None
    number = eval(text, {"__builtins__": {}}, dict(known))  # arithmetic of this repository's own source
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


def metrics() -> str:
    """Every family of `/metrics`, as figures.py writes them."""
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` of the admin listener, in Prometheus' text format.",
        "",
        "| name | kind | meaning |",
        "|---|---|---|",
    ]
    for file in sorted((ROOT / "src" / "quintet").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())) if "quintet_" in file.read_text() else ():
            words = (
                [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                if isinstance(node, ast.Call)
                else []
            )
            if len(words) >= 3 and words[0].startswith("quintet_") and words[1] in ("counter", "gauge", "histogram"):
                lines.append(f"| `{words[0]}` | {words[1]} | {escaped(words[2])} |")
    return "\n".join(lines) + "\n"


def decisions() -> str:
    lines = ["# Decisions", "", "Where a real alternative lost.", ""]
    for file in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        title = file.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})")
    return "\n".join(lines) + "\n"
