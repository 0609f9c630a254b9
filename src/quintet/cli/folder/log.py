"""`quintet log`: check and read a data folder also while a broker runs. Read-only but for `repair` (cli/folder/repair.py); the work
is done by quintet.log.embedded.inspect, this file only chooses and prints."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintet.cli.folder.repair import repair
from quintet.cli.terminal.common import text_or_base64
from quintet.cli.terminal.output import echo
from quintet.model.errors import DataDirError, TopicNotFound

if TYPE_CHECKING:
    from quintet.model.batch import Row

TOPICS_TABLE = 1  # docs/LOG_FORMAT.md section 1: JSON rows with id and name
INTERNAL = {1: "__topics", 2: "__credentials", 3: "__subscriptions"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group()
def log() -> None:
    """Verify, read and repair a data folder. Only `repair --accept-loss` changes anything.

    \b
    quintet log verify /var/lib/quintet
    quintet log repair /var/lib/quintet
    quintet log dump /var/lib/quintet --topic orders --from 100 --limit 10
    quintet log dump /var/lib/quintet --format json | jq .value
    """


log.add_command(repair)


@log.command()
@FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: each finding, then the summary.")
@click.pass_context
def verify(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Check every byte in DIR. Exit code 1 if anything is corrupt; a torn tail of the last segment is only noted.

    \b
    quintet log verify /var/lib/quintet
    """
    from quintet.log.embedded.files.disk import OsDisk
    from quintet.log.embedded.inspect import Summary, verify

    summary = Summary()
    for finding in verify(OsDisk(), _folder(folder), summary):
        echo(json.dumps({"finding": asdict(finding)}) if as_json else str(finding))
    if as_json:
        echo(json.dumps({"summary": asdict(summary)}))
    else:
        verdict = "corrupt" if summary.status else "sound"
        echo(
            f"{verdict}: {summary.segments} segments, {summary.batches} batches, {summary.records} records, "
            f"{summary.bytes} bytes, {summary.findings} findings"
        )
    ctx.exit(summary.status)


@log.command()
@FOLDER
@click.option("--topic", help="Only this topic; internal ones such as __topics, too.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--from", "first", type=click.IntRange(min=0), default=0, help="Lowest offset to print.")
@click.option("--limit", type=click.IntRange(min=1), help="Print at most this many records.")
@click.option("--format", "form", type=click.Choice(["text", "json", "hex"]), default="text", show_default=True)
def dump(folder: Path, topic: str | None, partition: int | None, first: int, limit: int | None, form: str) -> None:
    """Print the intact records in DIR.

    \b
    quintet log dump /var/lib/quintet --topic orders --limit 10
    quintet log dump /var/lib/quintet --topic __topics --format json
    """
    from quintet.log.embedded.files.disk import OsDisk
    from quintet.log.embedded.inspect import dump

    disk, where = OsDisk(), _folder(folder)
    names = dict(INTERNAL)
    for _, _, row in dump(disk, where, TOPICS_TABLE):
        if row[3] is not None:
            known = json.loads(row[3])
            names[known["id"]] = known["name"]
    wanted = None
    if topic is not None:
        wanted = next((number for number, name in names.items() if name == topic), None)
        if wanted is None:
            raise TopicNotFound(f"{folder}: no topic {topic!r}; there are {', '.join(sorted(names.values()))}")
    printed = 0
    for number, part, row in dump(disk, where, wanted):
        if row[0] < first or partition not in (None, part):
            continue
        echo(render(names.get(number, f"#{number}"), part, row, form))
        printed += 1
        if printed == limit:
            break


def _folder(folder: Path) -> str:
    if not (folder / "topics").is_dir():
        raise DataDirError(f"{folder} is not a data folder of Quintet: there is no folder 'topics' in it")
    return str(folder)


def render(topic: str, partition: int, row: "Row", form: str) -> str:
    """One record as one line."""
    offset, timestamp, key, value, headers, expiry, origin = row
    if form == "json":
        fields: dict[str, object] = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp_us": timestamp,
        }
        fields |= text_or_base64("key", key) | text_or_base64("value", value)
        if headers:
            fields["headers"] = [text_or_base64("name", name) | text_or_base64("value", text) for name, text in headers]
        if expiry:
            fields["expiry_us"] = expiry
        return json.dumps(fields | text_or_base64("origin", origin), ensure_ascii=False)
    place = f"{topic}/{partition}@{offset}"
    if form == "hex":
        return f"{place} {'-' if key is None else key.hex()} {'-' if value is None else value.hex()}"
    when = (EPOCH + timedelta(microseconds=timestamp)).isoformat(timespec="microseconds")
    return f"{place} {when} {_shown(key)} {_shown(value)}"


def _shown(data: bytes | None) -> str:
    return "-" if data is None else ascii(data)[1:]
