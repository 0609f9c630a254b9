"""Says whether buses make spans and metrics of OpenTelemetry, and with which providers. Imports nothing of OpenTelemetry itself.

`connect(..., telemetry=True)` asks for it for one bus, `instrument()` for all that are made from then on. Nobody who asks for
neither loads or pays anything: client/traced.py has the classes that do the work in place of the plain ones.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class Telemetry(NamedTuple):
    """The providers to use; None is the global one of the process."""

    tracer_provider: "TracerProvider | None" = None
    meter_provider: "MeterProvider | None" = None


_of_all: list[Telemetry] = []  # at most one


def instrument(
    *, tracer_provider: "TracerProvider | None" = None, meter_provider: "MeterProvider | None" = None
) -> None:
    """Every bus that is made from now on has telemetry, but those made with `telemetry=False`."""
    _of_all[:] = [Telemetry(tracer_provider, meter_provider)]


def uninstrument() -> None:
    """Buses that are made from now on have no telemetry, unless they ask for it."""
    _of_all.clear()


def chosen(given: "Telemetry | bool | None") -> Telemetry | None:
    """What a bus is to use; None: none."""
    if given is None:
        return _of_all[0] if _of_all else None
    if isinstance(given, bool):
        return (_of_all[0] if _of_all else Telemetry()) if given else None
    return given
