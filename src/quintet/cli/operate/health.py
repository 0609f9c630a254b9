"""`quintet health`: asks a broker whether it is ready, for containers and scripts."""

from http import HTTPStatus

import click

from quintet.cli.operate.scrape import admin_option, get
from quintet.cli.terminal.output import echo
from quintet.model.errors import QuintetError


class Unhealthy(QuintetError):
    """The broker says that it is not ready."""

    code = "E1602"


@click.command()
@admin_option
@click.option("--live", is_flag=True, help="Only whether it answers at all; one that drains is alive and not ready.")
def health(admin: str, live: bool) -> None:
    """Ask a broker whether it is ready: exit code 0, or 1 and why not.

    \b
    quintet health
    quintet health --live
    """
    status, text = get(admin, "/livez" if live else "/readyz?verbose")
    if status != HTTPStatus.OK:
        raise Unhealthy(f"the broker at {admin} is not ready: {' '.join(text.split())}")
    echo(text.strip())
