"""Names what the console is shown of the running server beside the broker: its listeners, its pipelines, its configuration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.broker.doors.pipelines import Status
    from quintet.console.connections import Listeners


class ConfiguredOption(Protocol):
    """One option of the configuration, for people: its value is text, a secret is hidden."""

    @property
    def key(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def waits(self) -> bool: ...

    def _asdict(self) -> dict[str, Any]: ...


class Surroundings(Protocol):
    """Implemented by server.py."""

    @property
    def broker(self) -> "Broker": ...

    @property
    def watched(self) -> "Listeners": ...

    @property
    def log(self) -> object: ...

    def addresses(self) -> dict[str, str]: ...

    def configuration(self) -> "Sequence[ConfiguredOption]": ...

    def verify_command(self) -> list[str]: ...

    def pipelines(self, owner: str, everything: bool) -> "Sequence[Status]": ...

    def stop_pipeline(self, owner: str, everything: bool, name: str) -> None: ...
