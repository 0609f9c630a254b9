"""`quintet upgrade --check`: says what this version would do with a data folder and a configuration. Changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintet import __version__
from quintet.cli.operate.checks import Finding, is_locked
from quintet.cli.operate.doctor import say_findings
from quintet.cli.terminal.common import json_option
from quintet.model.errors import ConfigError

if TYPE_CHECKING:
    from quintet.config.renaming import OldName


@click.command()
@click.option("--check", is_flag=True, help="Look and say; without it nothing is done at all.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), envvar="QUINTET_CONFIG",
    help="TOML file with the configuration (or QUINTET_CONFIG).",
)  # fmt: skip
@click.option("--data", type=click.Path(path_type=Path), help="The data folder, in place of the configured one.")
@json_option
def upgrade(check: bool, config_file: Path | None, data: Path | None, as_json: bool) -> None:
    """Say what this version would do with a data folder and a configuration.

    Run it with the new version before the old one is stopped. There is nothing else to run: the first start of the new version
    upgrades the folder.

    \b
    pip install --target /opt/quintet-new 'quintet[server]'       the new version, beside the old one
    quintet upgrade --check --config /etc/quintet.toml

    Exit codes: 0 it can be started, 1 it would not start, 2 the configuration is not valid for this version.
    """
    if not check:
        raise click.UsageError("only --check is there: the first start of a new version upgrades the folder.")
    say_findings(list(examine(config_file, data)), as_json, strict=False)


def examine(config_file: Path | None, data: Path | None) -> Iterator[Finding]:
    from quintet.config import load_with_origins  # late: pydantic

    old: list[OldName] = []
    settings, _ = load_with_origins(config_file, os.environ, {"data": data}, old.append)
    yield Finding("version", "ok", f"this is Quintet {__version__}")
    for name in old:
        value = f" = {name.value:g}" if name.value is not None else ""
        advice = f"write {name.new}{value}: the old name is taken in this release only"
        yield Finding("configuration", "warn", f"{name.old} ({name.origin}) is now {name.new}", advice)
    if not old:
        yield Finding("configuration", "ok", f"{config_file or 'it'} is valid, no option was renamed")
    yield from _folder(settings.data)


def _folder(path: Path) -> Iterator[Finding]:
    from quintet.log.embedded import versions
    from quintet.log.embedded.files.disk import OsDisk

    try:
        found = versions.read(OsDisk(), str(path))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: {error}", hint="name the data folder with --data") from error
    if not found.data:
        yield Finding("data", "ok", f"{path} is no data folder yet: the first start makes it")
        return
    reads = versions.READS
    if found.newer:
        text = f"{path} has {', '.join(found.newer)}; this version reads {', '.join(f'{kind} {version}' for kind, version in reads.items())}"
        yield Finding("data", "fail", text, "use the version that wrote it, or a newer one")
        return
    now = reads["data folder"]
    if found.data < now:
        advice = (
            f"make a backup first (`quintet backup create`): older versions refuse the folder once it has format {now}"
        )
        yield Finding("data", "warn", f"the first start raises the format of {path} from {found.data} to {now}", advice)
    else:
        yield Finding("data", "ok", f"{path} has format {now}, which is this version's: going back is possible")
    for kind, counts in sorted(found.files.items()):
        said = ", ".join(f"{count} of version {version}" for version, count in sorted(counts.items()))
        yield Finding(kind, "ok", f"{said}; read as they are, new ones are of version {reads[kind]}")
    if is_locked(path / "lock"):
        yield Finding("broker", "ok", "a broker runs in it: stop it (SIGTERM), then start the new version")
    elif found.clean:
        yield Finding("broker", "ok", "it was stopped cleanly")
    else:
        yield Finding(
            "broker",
            "warn",
            "it was not stopped cleanly",
            "the start recovers it; let the version that wrote it do that",
        )
