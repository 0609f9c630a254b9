"""`quintet protocol flymq`: the reference is the table, and every byte of every frame has a name."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintet.cli import protocol
from quintet.cli.main import cli
from quintet.cli.terminal import hexview
from quintet.protocols.flymq import codec, frames

README = Path(protocol.__file__).parent.parent / "protocols" / "flymq" / "README.md"
PRODUCE = "AF 01 01 01 00 00 00 17 00 04 74 65 73 74 00 00 00 00 00 00 00 05 68 65 6C 6C 6F FF FF FF FF"
EVERY = [(f"{op.name}-{number}", op, text) for op in frames.OPERATIONS.values() for number, text in enumerate(
    dict.fromkeys((*op.asks, op.answer, op.answer_sdk)))]  # fmt: skip


def run(*arguments: str, data: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["protocol", "flymq", *arguments], input=data)
    return done.exit_code, done.stdout, done.stderr


# -- the reference ----------------------------------------------------------------------------------------------------


def test_the_readme_has_the_table_as_it_is() -> None:
    text = README.read_text()
    assert protocol.with_table(text, "README") == text, "run `make docs`"


def test_a_readme_without_its_markers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("nothing")
    done = subprocess.run(
        [sys.executable, "-m", "quintet", "protocol", "flymq", "--into", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "are not there" in done.stderr
    assert file.read_text() == "nothing"


def test_into_replaces_the_block_only(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text(f"before\n{protocol.BEGIN}\nOLD BLOCK\n{protocol.END}\nafter\n")
    assert run("--into", str(file))[0] == 0
    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "OLD BLOCK" not in text
    assert protocol.table() in text


def test_every_operation_is_printed_once() -> None:
    _, text, _ = run()
    for operation in frames.OPERATIONS.values():
        assert text.count(f"0x{operation.code:02x} {operation.name}:") == 1
    rows = json.loads(run("--json")[1])
    assert [row["code"] for row in rows] == list(frames.OPERATIONS)
    assert rows[0]["requests"] == list(frames.OPERATIONS[frames.PRODUCE].asks)


@pytest.mark.parametrize("word", ["FETCH", "fetch", "0x07", "7"])
def test_one_operation(word: str) -> None:
    assert run(word)[1].startswith("0x07 FETCH:")
    assert json.loads(run(word, "--json")[1])["name"] == "FETCH"


def test_an_operation_that_is_not_there() -> None:
    code, _, error = run("topic")
    assert code == 2
    assert "did you mean CREATE_TOPIC" in error


# -- layouts and bytes ------------------------------------------------------------------------------------------------


def sample(layout: codec.Layout, count: int, tails: int) -> dict[str, Any]:
    """Values for a layout: lists of `count`, and that many of the brackets at its end."""
    found: dict[str, Any] = {}
    for node in layout.nodes:
        found |= {} if isinstance(node, codec.Count) else {node.name: value(node, count, tails)}
    if layout.tail is not None and tails:
        found |= sample(layout.tail, count, tails - 1)
    return found


def value(node: codec.Node, count: int, tails: int) -> Any:
    if isinstance(node, codec.Scalar):
        return node.kind == "bool" or {"i32": -2, "u32": 3, "i64": -4, "u64": 5}[node.kind]
    if isinstance(node, codec.Text):
        return b"\xffraw" if node.kind == "bytes32" else "t\u00e4xt"
    if isinstance(node, codec.Framed):
        return sample(node.item, count, tails)
    assert isinstance(node, codec.Items)
    one = sample(node.item, count, tails) if isinstance(node.item, codec.Layout) else value(node.item, count, tails)
    return [one] * count


@pytest.mark.parametrize(("operation", "text"), [row[1:] for row in EVERY], ids=[row[0] for row in EVERY])
def test_every_layout_parses_and_every_byte_has_a_name(operation: frames.Operation, text: str) -> None:
    layout = codec.layout(text)
    names = set(re.findall(r"(\w+)[:#]", text))
    for count, tails in ((0, 0), (1, 1), (3, 2)):
        values = sample(layout, count, tails)
        data = layout.encode(values)
        assert layout.decode(memoryview(data)) == values
        spans = list(layout.spans(memoryview(data), 0, {}, ""))
        places = [0, *(span.end for span in spans)]
        assert [span.start for span in spans] == places[:-1], "no gap, no overlap"
        assert places[-1] == len(data)
        for span in spans:
            assert set(re.findall(r"[a-z_]+", re.sub(r" (length|count)$", "", span.name))) <= names, operation.name


@pytest.mark.parametrize(("operation", "text"), [row[1:] for row in EVERY], ids=[row[0] for row in EVERY])
def test_a_frame_cut_anywhere_is_shown_up_to_there(operation: frames.Operation, text: str) -> None:
    layout = codec.layout(text)
    whole = codec.frame(operation.code, layout.encode(sample(layout, 1, 2)))
    for size in range(1, len(whole)):
        found = hexview.dissect(whole[:size])
        assert found.error
        assert found.size == size
        shown = b"".join(found.data[span.start : span.end] for span in found.spans) + found.rest
        assert shown == whole[:size]
        assert list(hexview.lines(found))


def test_the_example_that_the_document_got_wrong() -> None:
    """The README's corrected bytes are what our encoder makes, in both directions."""
    text = README.read_text().partition("Its example of a PRODUCE")[2].partition("It names METADATA")[0]
    rows = re.findall(r"^ {4}(request|reply|) +((?:[0-9A-F]{2} )+) ", text, re.MULTILINE)
    start = [word for word, _ in rows].index("reply")
    blocks = [bytes.fromhex("".join(digits for _, digits in part)) for part in (rows[:start], rows[start:])]
    layout = codec.layout(frames.OPERATIONS[frames.PRODUCE].asks[0])
    ask = {"topic": "test", "key": b"", "value": b"hello", "partition": -1}
    assert blocks[0] == codec.frame(frames.PRODUCE, layout.encode(ask))
    answer = {"topic": "test", "partition": 0, "offset": 42, "timestamp_ms": 1705123456000, "key_size": -1}
    operation = frames.OPERATIONS[frames.PRODUCE]
    assert blocks[1] == codec.encode_answer(operation, "document", answer | {"value_size": 5}, 0)


# -- decode -----------------------------------------------------------------------------------------------------------


def test_decode_names_every_byte() -> None:
    code, text, _ = run("--decode", PRODUCE)
    assert code == 0
    assert text.startswith("PRODUCE request, 31 bytes\n")
    assert re.search(r"00000a  74 65 73 74 +topic +'test'\n", text)
    assert re.search(r"00001b  ff ff ff ff +partition +-1\n", text)


def test_decode_says_what_is_wrong() -> None:
    code, text, _ = run("--decode", PRODUCE.replace("17", "13"))
    assert code == 1
    assert "partition: 4 bytes are needed, 0 are left" in text
    assert "a header has 8 bytes, here are 4" in text


@pytest.mark.parametrize(
    "pasted",
    [
        "af01080100000000",
        "0xAF, 0x01, 0x08, 0x01, 0, 0".replace(" 0, 0", " 0x00, 0x00, 0x00, 0x00"),
        r"\xaf\x01\x08\x01\x00\x00\x00\x00",
        "00000000: af01 0801 0000 0000                      ........",
        "00000000  af 01 08 01 00 00 00 00                           |........|",
        "af:01:08:01\n00:00:00:00\n",
    ],
)
def test_hex_as_tools_write_it(pasted: str) -> None:
    code, text, error = run("--decode", "-", data=pasted)
    assert code == 0, error
    assert text.startswith("LIST_TOPICS request, 8 bytes\n")


def test_decode_as_json() -> None:
    found = json.loads(run("--decode", PRODUCE, "--json")[1])
    assert found[0]["operation"] == "PRODUCE"
    assert found[0]["fields"][6] == {"offset": 10, "hex": "74657374", "name": "topic", "value": "test"}
    assert "".join(field["hex"] for field in found[0]["fields"]) == PRODUCE.replace(" ", "").lower()


def test_requests_and_replies_in_one_paste() -> None:
    reply = codec.encode_answer(frames.OPERATIONS[frames.LIST_TOPICS], "document", {"topics": ["a", "b"]}, 0)
    _, text, _ = run("--decode", "af01080100000000" + reply.hex())
    assert "LIST_TOPICS request, 8 bytes" in text
    assert "LIST_TOPICS reply, 18 bytes" in text
    assert re.search(r"topics\[1\] +'b'", text)


def test_what_fits_twice_is_told_and_chosen_by_as() -> None:
    """1301 is 00 00 05 15: false, and a text of five bytes."""
    frame = codec.frame(frames.ERROR, codec.layout(frames.ERROR_LAYOUT["sdk"]).encode({"code": 1301, "message": "no"}))
    assert "(fits reply (sdk) too: --as says which)" in run("--decode", frame.hex())[1]
    assert re.search(r"code +1301\n", run("--decode", frame.hex(), "--as", "sdk")[1])
    assert run("--decode", frame.hex(), "--as", "request")[0] == 1
    done = codec.frame(frames.CONSUME_ZERO_COPY, b"\0" * 8)
    assert "CONSUME_ZERO_COPY reply, 16 bytes" in run("--decode", done.hex())[1]


@pytest.mark.parametrize("number", sorted(frames.CODECS))
def test_compressed_frames_are_inflated(number: int) -> None:
    topics = [f"topic-{i}" for i in range(500)]
    reply = codec.encode_answer(frames.OPERATIONS[frames.LIST_TOPICS], "document", {"topics": topics}, number)
    code, text, _ = run("--decode", "-", "--as", "reply", data=reply.hex())
    assert code == 0
    assert f"the payload was {frames.CODECS[number]}" in text
    assert "'topic-499'" in text
    broken = run("--decode", reply[:-9].hex())
    assert broken[0] == 1


@pytest.mark.parametrize(
    ("pasted", "says"),
    [("AF 0", "a digit is missing"), ("xyz", "'x' is no hex digit"), ("", "nothing to decode")],
)
def test_what_is_not_hex_is_one_clear_line(pasted: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quintet", "protocol", "flymq", "--decode", pasted],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
