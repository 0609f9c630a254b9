"""`quintet quota`: shows and changes what users and tenants may have: bytes a second, connections, topics, storage."""

from typing import Final

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import (
    json_option,
    manage,
    plain,
    plain_fields,
    say,
    say_json,
    say_table,
    url_option,
    yes_option,
)
from quintet.client.manage import Manage
from quintet.client.manage_access import Quota

AS_CONFIGURED: Final = "configured"
NO_LIMIT: Final = "none"

kind_argument: Final = click.argument("kind", type=click.Choice(["user", "tenant"]))
name_argument: Final = click.argument("name")


class Bound(click.ParamType[int]):
    """A number, a size, `none` for no limit, or `configured` for what the configuration says."""

    name = "bound"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        words = {AS_CONFIGURED: -1, NO_LIMIT: 0}
        return words[str(value)] if str(value) in words else common.Size().convert(value, param, ctx)


@click.group()
def quota() -> None:
    """What users and tenants may have: bytes a second, connections, topics, storage.

    \b
    quintet quota show                                            all that have any, and what they use
    quintet quota show user ann
    quintet quota set user ann --publish-rate 1MiB --connections 10
    quintet quota set tenant acme --storage 50GiB --topics 200
    quintet quota set user ann --tenant acme                       ann counts for acme, too: the stricter bound holds
    quintet quota clear user ann
    """


@quota.command()
@url_option
@click.argument("kind", type=click.Choice(["user", "tenant"]), required=False)
@click.argument("name", required=False)
@json_option
def show(url: str, kind: str | None, name: str | None, as_json: bool) -> None:
    """Show quotas, and what is used of them; a star marks who waits for its rate right now.

    \b
    quintet quota show
    quintet quota show tenant acme
    quintet quota show --json | jq '.[] | select(.held)'
    """
    found = [
        each
        for each in manage(url, Manage.quotas)
        if (kind is None or each.kind == kind) and (name is None or each.name == name)
    ]
    if as_json:
        say_json(plain(found))
        return
    heads = ("whose", ">publish/s", ">read/s", ">connections", ">topics", ">storage", ">pauses", ">paused", ">refused")
    say_table(heads, [_row(each) for each in found], "no quotas; `quintet quota set user NAME` sets one")


def _row(each: Quota) -> tuple[object, ...]:
    held, tenant = " *" if each.held else "", f" ({each.tenant})" if each.tenant else ""
    return (
        f"{each.kind} {each.name}{tenant}{held}",
        _size(each.publish_bytes_per_second_max),
        _size(each.read_bytes_per_second_max),
        f"{each.connections} of {_count(each.connections_max)}",
        f"{each.topics} of {_count(each.topics_max)}",
        f"{_size(each.storage_bytes) if each.storage_bytes else '0'} of {_size(each.storage_bytes_max)}",
        each.pauses,
        common.lasting(each.paused_ms / 1000),
        each.refused,
    )


def _size(size: int) -> str:
    """As `--publish-rate` takes it, as short as it is exact to three digits."""
    if not size:
        return "-"
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}{unit}"


def _count(bound: int) -> str:
    return str(bound) if bound else "-"


@quota.command("set")
@url_option
@kind_argument
@name_argument
@click.option(
    "--publish-rate", "publish_bytes_per_second_max", type=Bound(), help="Bytes a second that its connections may send."
)
@click.option(
    "--read-rate", "read_bytes_per_second_max", type=Bound(), help="Bytes a second that its connections are sent."
)
@click.option("--connections", "connections_max", type=Bound(), help="Connections open at once, and Flight streams.")
@click.option("--topics", "topics_max", type=Bound(), help="Topics it may make; of a tenant: of its name.")
@click.option("--storage", "storage_bytes_max", type=Bound(), help="What those topics may keep.")
@click.option("--tenant", help="Tenant that the user counts for, too; an empty name: none.")
@json_option
def set_quota(url: str, kind: str, name: str, tenant: str | None, as_json: bool, **bounds: int | None) -> None:
    """Set what a user or a tenant may have, at once; options that are not given change nothing.

    \b
    quintet quota set user ann --publish-rate 512KiB --read-rate none
    quintet quota set tenant acme --connections configured

    A bound is a number or a size (512KiB), `none` for no limit, or `configured` for what the broker's configuration says. Above a rate a
    client is slowed down and nothing is refused; above the others one more is refused.
    """
    changes = {quota: bound for quota, bound in bounds.items() if bound is not None}
    if not changes and tenant is None:
        raise click.UsageError(
            "Nothing to change: give --publish-rate, --read-rate, --connections, --topics, --storage or --tenant."
        )
    found = manage(url, lambda broker: broker.set_quota(kind, name, changes, tenant))
    say(as_json, plain_fields(found), f"{kind} {name}: {_bounds(found)}")


def _bounds(found: Quota) -> str:
    said = [
        f"publish {_size(found.publish_bytes_per_second_max)}/s" if found.publish_bytes_per_second_max else "",
        f"read {_size(found.read_bytes_per_second_max)}/s" if found.read_bytes_per_second_max else "",
        f"{found.connections_max} connections" if found.connections_max else "",
        f"{found.topics_max} topics" if found.topics_max else "",
        f"storage {_size(found.storage_bytes_max)}" if found.storage_bytes_max else "",
        f"counts for tenant {found.tenant}" if found.tenant else "",
    ]
    return ", ".join(each for each in said if each) or "no limits"


@quota.command()
@url_option
@kind_argument
@name_argument
@yes_option
@json_option
def clear(url: str, kind: str, name: str, yes: bool, as_json: bool) -> None:
    """Forget what was set: the configuration counts again.

    \b
    quintet quota clear user ann
    """
    common.confirm(f"Clear the quotas of {kind} {name}?", yes)
    found = manage(url, lambda broker: broker.clear_quota(kind, name))
    say(as_json, plain_fields(found), f"{kind} {name}: cleared, {_bounds(found)}")
