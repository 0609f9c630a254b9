"""`quintet conn`: lists, shows and ends connections. `quintet explain`: the journey of one message."""

from collections.abc import Iterator
from typing import Final

import click

from quintet.cli.operate.api import Answer, Api, ca_option, console_option
from quintet.cli.operate.status import human_bytes
from quintet.cli.terminal.common import confirm, json_option, lasting, say_json, say_table, when
from quintet.cli.terminal.output import echo
from quintet.model.errors import UnknownSubscription

PAGE_ROWS: Final = 500
SHOWN_DEFAULT: Final = 100
SORTS: Final = ("who", "door", "peer", "age", "idle", "in", "out", "unsent")


@click.group()
def conn() -> None:
    """Connections of a running broker. Only administrators may.

    \b
    quintet conn list
    quintet conn list --filter sensor --json | jq '.[].peer'
    quintet conn list --sort in
    quintet conn show 17                     by its number, as in the log
    quintet conn kick 10.0.0.7:51820
    """


def _rows(api: Api, filter: str, most: int, sort: str = "who") -> Iterator[dict[str, Answer]]:
    skip = 0
    while skip < most:
        page = api.get("/api/connections", filter=filter, sort=sort, skip=skip, limit=min(PAGE_ROWS, most - skip))
        yield from page["rows"]
        skip += PAGE_ROWS
        if skip >= page["total"]:
            return


@conn.command("list")
@console_option
@ca_option
@click.option(
    "--filter", default="", help="Only those with this text in the door, the address, the name or the number."
)
@click.option("--sort", type=click.Choice(SORTS), default="who", show_default=True, help="The largest figures first.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 1_000_000),
    default=SHOWN_DEFAULT,
    show_default=True,
    help="At most so many.",
)
@json_option
def list_connections(console: str, ca: str | None, filter: str, sort: str, count: int, as_json: bool) -> None:
    """List connections: who is there, since when, what each moves, and what waits for it."""
    with Api(console, ca) as api:
        rows = list(_rows(api, filter, count, sort))
    if as_json:
        say_json(rows)
        return
    say_table(
        ("number", "door", "peer", "who", "for", "idle", "in", "out", "unsent", "TLS"),
        [
            (
                row["id"],
                row["door"],
                row["peer"],
                row["who"] or "-",
                lasting(row["seconds"]),
                lasting(row["idle_seconds"]),
                f"{human_bytes(row['rate_in'])}/s",
                f"{human_bytes(row['rate_out'])}/s",
                human_bytes(row["unsent_bytes"]),
                row["tls"] or "-",
            )
            for row in rows
        ],
        f"no connection has {filter!r} in it" if filter else "nobody is connected",
    )


def _one(api: Api, peer: str, door: str) -> dict[str, Answer]:
    everyone = _rows(api, peer, 1_000_000)
    found = [row for row in everyone if peer in (row["peer"], str(row["id"])) and door in ("", row["door"])]
    if not found:
        raise UnknownSubscription(f"there is no connection {peer}", hint="`quintet conn list` shows who is connected")
    if len(found) > 1:
        doors = ", ".join(row["door"] for row in found)
        raise click.UsageError(f"{peer} is connected to {doors}: name one with --door.")
    return found[0]


_PEER = click.argument("peer", metavar="ADDRESS:PORT|NUMBER")
_DOOR = click.option("--door", default="", help="If the same address is connected to more than one.")


@conn.command()
@_PEER
@_DOOR
@console_option
@ca_option
@json_option
def show(peer: str, door: str, console: str, ca: str | None, as_json: bool) -> None:
    """Show one connection. Rates are of the last 2 seconds, or of 30 if nobody looked; so is what is known of its last activity."""
    with Api(console, ca) as api:
        row = _one(api, peer, door)
    if as_json:
        say_json(row)
        return
    shown = {
        "number": row["id"],
        "door": row["door"],
        "peer": row["peer"],
        "who": row["who"] or "not logged in",
        "since": f"{when(row['since_ms'])}, for {lasting(row['seconds'])}",
        "last activity": f"{lasting(row['idle_seconds'])} ago" if row["idle_seconds"] else "now",
        "in": f"{human_bytes(row['rate_in'])}/s, {human_bytes(row['bytes_in'])} in all",
        "out": f"{human_bytes(row['rate_out'])}/s, {human_bytes(row['bytes_out'])} in all",
        "backlog": f"{human_bytes(row['unsent_bytes'])} not taken by its client, {row['unanswered']} requests not answered",
        "reading": "paused: it waits for the disk, for a slow reader or for its own answers"
        if row["paused"]
        else "yes",
        "TLS": f"{row['tls']} {row['cipher']}".strip() or "none",
    }
    for name, value in shown.items():
        echo(f"{name:14} {value}")


@conn.command()
@_PEER
@_DOOR
@click.option("--yes", is_flag=True, help="Do not ask.")
@console_option
@ca_option
def kick(peer: str, door: str, yes: bool, console: str, ca: str | None) -> None:
    """End a connection. Its client may connect again: to keep it out, delete its user or key."""
    with Api(console, ca) as api:
        row = _one(api, peer, door)
        confirm(f"End the connection of {row['who'] or 'nobody yet'} at {row['peer']} ({row['door']})?", yes)
        api.post("/api/connection/kick", {"door": row["door"], "peer": row["peer"]})
    echo(f"ended {row['peer']} ({row['door']}, {row['who'] or 'not logged in'})")


@click.command()
@click.argument("topic")
@click.argument("place", metavar="[PARTITION@]OFFSET")
@console_option
@ca_option
@json_option
def explain(topic: str, place: str, console: str, ca: str | None, as_json: bool) -> None:
    """Show the journey of one message: who published it, how it was stored, to whom it was delivered, who acknowledged it.

    \b
    quintet explain orders 4711             in partition 0
    quintet explain orders 2@4711
    quintet explain orders 2@4711 --json | jq '.steps[] | select(.what == "delivered")'

    Who may read the topic sees its own deliveries; administrators see all.
    """
    before, at, after = place.partition("@")
    partition, offset = (before, after) if at else ("0", before)
    if not (partition.isdecimal() and offset.isdecimal()):
        raise click.UsageError(f"{place!r} is not OFFSET or PARTITION@OFFSET, as in 4711 or 2@4711.")
    with Api(console, ca) as api:
        found = api.get("/api/journey", topic=topic, partition=partition, offset=offset)
    if as_json:
        say_json(found)
        return
    rows = [
        (when(step["time_us"] // 1000) if step["time_us"] else "-", step["what"], step["who"] or "-", step["note"])
        for step in found["steps"]
    ]
    say_table(("time", "what", "who", "more"), rows, "nothing is known of it")
    if found["link"]:
        echo(f"audit chain: batch from offset {found['batch']} on, link {found['link']}")
    if not found["whole"]:
        echo(
            "the audit has more rows than were looked at: what came much later is missing (--json: whole = false)",
            err=True,
        )
    if not found["all"]:
        echo("deliveries to others are shown to administrators only", err=True)
