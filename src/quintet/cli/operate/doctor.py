"""`quintet doctor`: examines the machine, the data folder, the configuration and the running broker, and says what to do."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import click

from quintet.cli.operate.checks import Finding, configuration, folder, is_broker, machine, running
from quintet.cli.operate.scrape import ADMIN_DEFAULT
from quintet.cli.terminal.common import json_option, say_json
from quintet.cli.terminal.output import echo

MARKS: Final = {"ok": "+", "warn": "!", "fail": "-"}
FAILED: Final = 1


@click.command()
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), envvar="QUINTET_CONFIG",
    help="TOML file with the configuration (or QUINTET_CONFIG).",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder that holds the log, in place of the configured one."
)
@click.option("--dev", is_flag=True, help="Examine what `quintet serve --dev` would use.")
@click.option(
    "--admin",
    envvar="QUINTET_ADMIN",
    help=f"Admin listener of the running broker [the configured one, or {ADMIN_DEFAULT}].",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@json_option
def doctor(
    config_file: Path | None, data: Path | None, dev: bool, admin: str | None, strict: bool, as_json: bool
) -> None:
    """Find what is wrong with a broker or its machine, and say what to do.

    \b
    quintet doctor --config /etc/quintet.toml       before a start, or beside the running broker
    quintet doctor --data /var/lib/quintet
    quintet doctor --strict --json || page-somebody

    Exit codes: 0 nothing fails, 1 something does, 2 the configuration cannot be read.
    """
    say_findings(list(examine(config_file, data, dev, admin)), as_json, strict=strict)


def say_findings(findings: list[Finding], as_json: bool, *, strict: bool) -> NoReturn:
    """Print them, and exit with FAILED if one fails."""
    failed = any(finding.verdict == "fail" for finding in findings)
    warned = sum(finding.verdict == "warn" for finding in findings)
    if as_json:
        say_json([finding._asdict() for finding in findings])
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            echo(f"[{MARKS[finding.verdict]}] {finding.subject:<{width}}  {finding.text}")
            if finding.verdict != "ok":
                echo(f"    {'':<{width}}  {finding.advice}")
        verdicts = [finding.verdict for finding in findings]
        echo(
            f"{len(findings)} checks: {verdicts.count('fail')} failed, {warned} {'warning' if warned == 1 else 'warnings'}"
        )
    sys.exit(FAILED if failed or (strict and warned) else 0)


def examine(config_file: Path | None, data: Path | None, dev: bool, admin: str | None) -> Iterator[Finding]:
    """All findings. ConfigError if the configuration cannot be read: nothing else would mean anything."""
    from quintet.config import Settings  # late: pydantic

    settings = Settings.load(config_file, os.environ, {"data": data, "dev": dev or None})
    yield from machine(settings)
    found = list(folder(settings))
    yield from found
    in_use = any("in use by a running broker" in finding.text for finding in found)
    listener = settings.listeners.admin
    place = admin or (f"http://{listener.host}:{listener.port}" if listener.port else ADMIN_DEFAULT)
    other = not in_use and admin is None and is_broker(place)
    if other:
        text = f"a broker answers at {place}, and its data folder is not {settings.data}"
        advice = (
            "examine that one: with its --config or --data, or with --dev; it has the ports, so they were not tried"
        )
        yield Finding("broker", "warn", text, advice)
    yield from configuration(settings, ports=not (in_use or other))
    if in_use or other or admin is not None:
        yield from running(place)
