"""Joins the sections of all doors to one: those of protocols/doors.py, those that the configuration adds, Flight, console, admin."""

import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field, create_model

from quintet.console.section import ConsoleListener
from quintet.flight.section import FlightListener
from quintet.model.errors import ConfigError
from quintet.model.sections import Port, Section, Unbounded
from quintet.protocols.door import AnyDoor, Door
from quintet.protocols.doors import DOORS, Doors
from quintet.protocols.options import Listener

L = TypeVar("L", bound=Listener)


class AdminListener(Listener):
    """Health and metrics over HTTP."""

    port: Port = Field(default=8080, description="TCP port; 0 picks a free one, which --print-ready reports.")
    labels_max: Unbounded = Field(
        default=1_000, description="Topics, and groups, that get series of their own in /metrics; the others share one."
    )


class _Listeners(Section):
    """The doors."""

    doors: ClassVar[Doors] = ()
    """In the order in which they open."""

    def of(self, door: Door[L]) -> L:
        """The options of a door."""
        options: L = getattr(self, door.key)
        return options


def _fields(doors: Sequence[AnyDoor]) -> dict[str, Any]:
    return {door.key: (door.options, Field(default=door.options(), description=door.about)) for door in doors}


if TYPE_CHECKING:

    class Listeners(_Listeners):
        """As it is made below."""

        flight: FlightListener = FlightListener()
        console: ConsoleListener = ConsoleListener()
        admin: AdminListener = AdminListener()

else:
    flight = FlightListener(), "The Arrow Flight door: columns for Spark, DuckDB, Polars, pandas."
    console = ConsoleListener(), "The web console: off unless it is configured, on in `--dev`."
    admin = AdminListener(), "Health and metrics over HTTP."
    Listeners = create_model(
        "Listeners",
        __base__=_Listeners,
        __doc__=_Listeners.__doc__,
        **_fields(DOORS),
        **{
            name: (type(default), Field(default=default, description=text))
            for name, (default, text) in {"flight": flight, "console": console, "admin": admin}.items()
        },
    )
    Listeners.doors = DOORS


def with_plugins(plugins: Sequence[AnyDoor]) -> type[Listeners]:
    """The listeners that come with Quintet, and these behind them."""
    made = create_model("Listeners", __base__=Listeners, __doc__=_Listeners.__doc__, **_fields(plugins))
    made.doors = (*DOORS, *plugins)
    return made


def load_plugins(names: Sequence[str]) -> list[AnyDoor]:
    """The doors of `plugins.doors`, each "module:NAME". ConfigError if one is not there, is no door, or its name is taken."""
    found: list[AnyDoor] = []
    taken = {*Listeners.model_fields}
    for name in names:
        module, colon, attribute = name.partition(":")
        try:
            door = getattr(import_module(module), attribute) if colon else None
        except Exception as error:  # whatever is wrong with it: it is not our code
            raise ConfigError(
                f"plugins.doors: {name!r} cannot be loaded: {error!r}",
                hint="the module must be installed beside quintet, or its folder be named in PYTHONPATH",
            ) from error
        if not isinstance(door, Door):
            raise ConfigError(f"plugins.doors: {name!r} is no door", hint='write "module:NAME" of a Door')
        if not re.fullmatch(r"[a-z][a-z0-9-]*", door.name):
            raise ConfigError(f"plugins.doors: {name!r}: {door.name!r} is no name of a door (a-z, 0-9 and -)")
        if door.key in taken:
            raise ConfigError(f"plugins.doors: {name!r}: there is a listener {door.key!r} already")
        taken.add(door.key)
        found.append(door)
    return found
