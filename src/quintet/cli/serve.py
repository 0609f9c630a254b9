"""`quintet serve`: reads the configuration and hands it to server.py, which owns the broker's life."""

import gc
import importlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from quintet.config import Settings
    from quintet.config.renaming import OldName

NO_PLUGINS: Final = "__all__"  # of PYDANTIC_DISABLE_PLUGINS


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
@click.option(
    "--cells",
    type=click.IntRange(2, 64),
    help="Run so many cells, each a process with its share of the topics, at the same addresses.",
)
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="PREFIX=CELL",
    help="With --cells, when the folder is made: topics whose names begin so belong to that cell. May be repeated.",
)
def serve(
    config_file: Path | None,
    data: Path | None,
    dev: bool,
    print_ready: bool,
    cells: int | None,
    places: tuple[str, ...],
) -> None:
    """Run the broker.

    \b
    quintet serve --dev                              to try it: loopback only, fixed credentials
    quintet serve --config /etc/quintet.toml         with a configuration
    QUINTET_LISTENERS__BLIPMQ__PORT=0 quintet serve --dev --print-ready
    quintet serve --config /etc/quintet.toml --cells 4     on four cores; what that means is in docs/CELLS.md

    Environment variables QUINTET_SECTION__KEY override the file, flags override both. SIGTERM drains and stops;
    SIGHUP reloads certificates and credentials. QUINTET_TELEMETRY__ENDPOINT=http://HOST:4318 exports spans of sampled messages.
    """
    _load_quickly()
    from quintet.config import Settings
    from quintet.config.renaming import OldName

    flags = {"data": data, "dev": dev or None}
    old_names: list[OldName] = []  # the log is not open before the configuration is read
    settings = Settings.load(config_file, os.environ, flags, old_names.append)

    several = cells or (settings.cell.cells if settings.engine == "kafka" and settings.cell.cells > 1 else None)
    if several is not None:
        sys.exit(_serve_cells(config_file, flags, settings, old_names, print_ready, cells, places))
    if places:
        raise click.UsageError("--place is of no use without --cells")

    from quintet import server

    make: type[server.Server] | None = None
    if settings.engine == "kafka":
        from quintet.cell_server import CellServer  # late: who has no cell does not load it

        make = CellServer

    def reload() -> Settings:
        return Settings.load(config_file, os.environ, flags, server.warn_of_old_name)

    sys.exit(server.serve(settings, print_ready=print_ready, reload=reload, old_names=old_names, make=make))


def _serve_cells(
    config_file: "Path | None",
    flags: "Mapping[str, object]",
    settings: "Settings",
    old_names: "list[OldName]",
    print_ready: bool,
    cells: int | None,
    places: tuple[str, ...],
) -> int:
    from quintet import server
    from quintet.cells.supervisor import serve_cells  # late: who has one cell does not load it
    from quintet.config import Settings
    from quintet.model.cells import parse_place
    from quintet.model.errors import ConfigError

    def load(more: "dict[str, object]") -> "Settings":
        return Settings.load(config_file, os.environ, {**flags, **more}, server.warn_of_old_name)

    if cells is None:
        from quintet.cells.node import serve_node  # late: who has no cells over Kafka does not load it

        if places:
            raise click.UsageError("--place is of no use without --cells: with engine = kafka say cell.places")
        return serve_node(settings, load, print_ready=print_ready, old_names=old_names)
    try:
        named = [parse_place(text) for text in places]
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return serve_cells(settings, load, cells, named, print_ready=print_ready, old_names=old_names)


def _load_quickly() -> None:
    """Before the broker is imported: what makes imports slow and gives it nothing."""
    gc.disable()  # hardly anything that an import makes is garbage; server.py switches it on again
    # pydantic would read the metadata of every installed package, to look for plugins of its own.
    if os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", NO_PLUGINS) == NO_PLUGINS:
        # What would look for them loads importlib.metadata, with mail and archives (12 ms), before it reads that variable.
        loader = ModuleType("pydantic.plugin._loader")
        loader.__dict__.update(get_plugins=tuple, __getattr__=partial(_loaders_own, loader.__name__))
        sys.modules.setdefault(loader.__name__, loader)


def _loaders_own(module: str, name: str) -> object:
    """Any other name of pydantic's module: a release may have more of them than the one that is asked for."""
    if name.startswith("__"):  # Python asks whether it is a package
        raise AttributeError(name)
    del sys.modules[module]
    return getattr(importlib.import_module(module), name)
