"""The doors that come with Quintet, one row for each. Everything that means "all doors" is derived from this tuple.

Arrow Flight, the console and admin are no rows: they stand above net/ and have neither sessions nor a folder here.
"""

from collections.abc import Iterable
from typing import Final

from quintet.protocols.blipmq.door import BLIPMQ
from quintet.protocols.door import AnyDoor
from quintet.protocols.fast.door import FAST
from quintet.protocols.felix.door import FELIX
from quintet.protocols.flymq.door import FLYMQ, FLYMQ_SDK
from quintet.protocols.peerbus.door import PEERBUS, PEERBUS_TCP

Doors = tuple[AnyDoor, ...]

DOORS: Final[Doors] = (BLIPMQ, FLYMQ, FLYMQ_SDK, FAST, PEERBUS, PEERBUS_TCP, FELIX)
PROTOCOLS: Final = tuple(dict.fromkeys(door.protocol for door in DOORS))
FLIGHT: Final = "flight"
CONSOLE: Final = "console"


def origins(doors: Iterable[AnyDoor] = DOORS) -> frozenset[str]:
    """What the origin of a record that came by one of these doors begins with; by Flight or the console, too."""
    return frozenset({FLIGHT, CONSOLE, *(door.protocol for door in doors)})
