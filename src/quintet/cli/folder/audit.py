"""`quintet audit`: shows who did what, from the broker's audit."""

import sys
from typing import Final

import click

from quintet.cli.folder import audit_tail, chain
from quintet.cli.terminal import common
from quintet.cli.terminal.common import json_option, manage, plain, say_json, say_table, url_option, when
from quintet.cli.terminal.output import echo
from quintet.client.manage_access import Asked

EVENTS_DEFAULT: Final = 50
EVENTS_MAX: Final = 1_000  # of one answer of the broker; an export has no limit of its own


@click.group(invoke_without_command=True)
@url_option
@click.option("--since", type=common.Moment(), help="-1h, or a time as in 2026-11-15T12:00.")
@click.option("--until", type=common.Moment(), help="The same, for the end.")
@click.option("--user", default="", help="Only what this user did.")
@click.option("--type", "types", multiple=True, help="auth.failure, access.denied, topic.delete, ...; repeatable.")
@click.option("--resource", default="", help="Only about this topic, user or group.")
@click.option("--result", type=click.Choice(["success", "denied", "failure"]), help="Only with this result.")
@click.option("--search", default="", help="Only events that contain this text.")
@click.option("-n", "--count", type=click.IntRange(1, EVENTS_MAX), help=f"At most so many [{EVENTS_DEFAULT}].")
@click.option("--export", type=click.Choice(["json", "csv"]), help="Everything that matches, as the broker exports it.")
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    url: str,
    since: int | None,
    until: int | None,
    user: str,
    types: tuple[str, ...],
    resource: str,
    result: str | None,
    search: str,
    count: int | None,
    export: str | None,
    as_json: bool,
) -> None:
    """Who did what, newest first.

    \b
    quintet audit                                the last 50
    quintet audit --since -1h --type auth.failure --type access.denied
    quintet audit --user ann --json
    quintet audit --since -7d --export csv > audit.csv
    quintet audit verify --data /var/lib/quintet  was the log altered?
    """
    if ctx.invoked_subcommand is not None:
        return
    start = 0 if since is None else max(since // 1000, 1)
    end = 0 if until is None else max(until // 1000, 1)
    limit = (count or 0) if export else (count or EVENTS_DEFAULT)
    asked = Asked(start, end, types, user, resource, result or "", search, limit)
    if export is not None:
        data = manage(url, lambda broker: broker.export_audit(asked, export))
        sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
        return
    events, total = manage(url, lambda broker: broker.audit(asked))
    if as_json:
        say_json(plain(events))
        return
    rows = [
        (
            when(each.ts_ms),
            each.type,
            each.user or "-",
            each.resource or "-",
            each.result,
            each.client_ip or "-",
            " ".join([each.action, *(f"{key}={value}" for key, value in each.details.items())]).strip(),
        )
        for each in events
    ]
    say_table(
        ("time", "what", "user", "about", "result", "from", "more"), rows, "nothing that matches was written down"
    )
    if total > len(events):
        echo(f"{total - len(events):,} more match: -n, or --export", err=True)


audit.add_command(chain.verify)
audit.add_command(chain.head)
audit.add_command(audit_tail.tail)
