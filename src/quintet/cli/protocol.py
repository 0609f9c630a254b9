"""`quintet protocol`: prints the reference of a wire protocol, and takes its frames apart.

All of it is drawn from the one table in protocols/flymq/frames.py; the table of operations in that folder's README is the
same text, written there by `make docs`.
"""

import json
import sys
from pathlib import Path
from typing import Final

import click

from quintet.cli.terminal import hexview
from quintet.cli.terminal.output import echo
from quintet.model.errors import BadRequest, ConfigError
from quintet.protocols.flymq import frames

BEGIN: Final = "<!-- operations: written by `make docs` from frames.py -->"
END: Final = "<!-- end of operations -->"
PASTE_BYTES_MAX: Final = 128 * 1024 * 1024  # of text on stdin: a frame of 32 MiB with blanks


@click.group()
def protocol() -> None:
    """Wire protocols: list operations, decode frames.

    \b
    quintet protocol flymq                      every operation with its fields
    quintet protocol flymq FETCH                one of them
    quintet protocol flymq --decode 'AF 01 08 01 00 00 00 00'
    """


@protocol.command()
@click.argument("operation", required=False)
@click.option("--decode", "pasted", metavar="HEX", help="Decode frames: hex, or - for hex on stdin.")
@click.option(
    "--as", "kind", type=click.Choice(["request", "reply", "sdk"]), help="With --decode: read the frames as this."
)
@click.option("--markdown", is_flag=True, help="The table as in the README.")
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="Write the table into this README.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def flymq(
    operation: str | None, pasted: str | None, kind: str | None, markdown: bool, into: Path | None, as_json: bool
) -> None:
    """FlyMQ's operations with codes, rights and fields; or, with --decode, the fields of frames.

    \b
    quintet protocol flymq                      every operation
    quintet protocol flymq produce              one, by name or code (0x01)
    quintet protocol flymq --json | jq '.[].name'
    quintet protocol flymq --decode 'AF 01 08 01 00 00 00 00'
    xxd -p frame.bin | quintet protocol flymq --decode -

    OPERATION is a name or a code. A frame does not say whether it is a request or a reply: the first that fits is shown, --as chooses.
    """
    if pasted is not None:
        return _decode(pasted, kind, as_json)
    if into is not None:
        return _write(into)
    if markdown:
        return echo(table())
    chosen = list(frames.OPERATIONS.values()) if operation is None else [_find(operation)]
    if as_json:
        rows = [describe(each) for each in chosen]
        return echo(json.dumps(rows if operation is None else rows[0], indent=2))
    for each in chosen:
        _print(each)
    if operation is None:
        echo("Types: bool i32 u32 i64 u64, str8/str16 (length, UTF-8), bytes32 (length, bytes); ! not empty,")
        echo("* a u32 count and as many, *16 a u16 count, name# only the count, + only the items, {..} a structure,")
        echo("({..}) one behind its u32 length, [..] may be left off the end. Integers are big-endian.")
    return None


def _find(word: str) -> frames.Operation:
    wanted = word.upper().replace("-", "_")
    for code, operation in frames.OPERATIONS.items():
        if wanted in (operation.name, f"0X{code:02X}", f"{code:02X}", f"{code}"):
            return operation
    near = [name for name in frames.NAMES.values() if wanted in name][:5]
    hint = f"did you mean {', '.join(near)}?" if near else "`quintet protocol flymq` lists them"
    raise click.UsageError(f"FlyMQ has no operation {word!r}: {hint}")


def describe(operation: frames.Operation) -> dict[str, object]:
    """One row of the table as plain data."""
    return {
        "code": operation.code,
        "name": operation.name,
        "about": operation.about,
        "right": operation.right,
        "requests": list(operation.asks),
        "reply_code": operation.answer_code,
        "reply": operation.answer,
        "reply_sdk": operation.answer_sdk,
        "ours": operation.ours or None,
    }


def _print(operation: frames.Operation) -> None:
    head = click.style(f"0x{operation.code:02x} {operation.name}", bold=True)
    hexview.show(f"{head}: {operation.about}  ({operation.right})")
    rows = [("asks", ask or "nothing") for ask in operation.asks]
    rows.append(("answers", operation.answer))
    if operation.answer_sdk != operation.answer:
        rows.append(("sdk", operation.answer_sdk))
    if operation.answer_code != operation.code:
        rows.append(("code", f"0x{operation.answer_code:02x} of the answer"))
    if operation.ours:
        rows.append(("ours", operation.ours))
    for name, text in rows:
        hexview.show(f"     {click.style(f'{name:8}', fg='cyan')} {text}")
    echo()


def table() -> str:
    """The operations as Markdown."""
    lines = [
        "| code | operation | right | request | reply | beyond the document |",
        "|---|---|---|---|---|---|",
    ]
    for operation in frames.OPERATIONS.values():
        asks = "<br>or ".join(_code(ask) for ask in operation.asks)
        answer = _code(operation.answer)
        if operation.answer_code != operation.code:
            answer = f"as `0x{operation.answer_code:02X}`: {answer}"
        if operation.answer_sdk != operation.answer:
            answer += f"<br>sdk: {_code(operation.answer_sdk)}"
        lines.append(
            f"| `0x{operation.code:02X}` | {operation.name}: {operation.about} | {operation.right} | {asks} | {answer} "
            f"| {operation.ours} |"
        )
    error = " <br>sdk: ".join(_code(frames.ERROR_LAYOUT[dialect]) for dialect in ("document", "sdk"))
    lines.append(f"| `0x{frames.ERROR:02X}` | ERROR: what went wrong | | | {error} | |")
    return "\n".join(lines)


def _code(layout: str) -> str:
    return f"`{layout}`" if layout else "-"


def with_table(text: str, where: str) -> str:
    """A README with the block between the markers made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"{where}: the lines {BEGIN!r} and {END!r} are not there", hint="the table goes between them")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _write(into: Path) -> None:
    try:
        into.write_text(with_table(into.read_text(), str(into)))
    except OSError as error:
        raise ConfigError(f"{into}: {error.strerror}") from error


def _decode(pasted: str, kind: str | None, as_json: bool) -> None:
    text = sys.stdin.read(PASTE_BYTES_MAX) if pasted == "-" else pasted
    data = hexview.from_hex(text)
    if not data:
        raise BadRequest("there is nothing to decode", hint="paste bytes such as AF 01 08 01 00 00 00 00")
    kinds: dict[str | None, hexview.Kind] = {"request": "request", "reply": "reply", "sdk": "reply (sdk)"}
    found = list(hexview.dissect_all(data, kinds.get(kind)))
    if as_json:
        echo(json.dumps([hexview.as_json(each) for each in found], indent=2))
    else:
        for each in found:
            for line in hexview.lines(each):
                hexview.show(line)
            echo()
    if any(each.error for each in found):
        sys.exit(1)
