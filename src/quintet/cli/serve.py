"""`quintet serve`: reads the configuration and hands it to server.py, which owns the broker's life."""

import os
import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="QUINTET_CONFIG",
    help="TOML file with the configuration (or QUINTET_CONFIG).",
)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, readable=False), help="Folder that holds the log."
)
@click.option("--dev", is_flag=True, help="Loopback only, fixed credentials, data in .quintet.")
@click.option(
    "--print-ready", is_flag=True, help="Print one JSON line on stdout when every listener accepts connections."
)
def serve(config_file: Path | None, data: Path | None, dev: bool, print_ready: bool) -> None:
    """Run the broker.

    \b
    quintet serve --dev                              to try it: loopback only, fixed credentials
    quintet serve --config /etc/quintet.toml         with a configuration
    QUINTET_LISTENERS__BLIPMQ__PORT=0 quintet serve --dev --print-ready

    Environment variables QUINTET_SECTION__KEY override the file, flags override both. SIGTERM drains and stops;
    SIGHUP reloads certificates and credentials.
    """
    from quintet.config import Settings

    flags = {"data": data, "dev": dev or None}

    def load() -> Settings:
        return Settings.load(config_file, os.environ, flags)

    settings = load()

    from quintet import server

    sys.exit(server.serve(settings, print_ready=print_ready, reload=load))
