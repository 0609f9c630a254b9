"""Names what the console is shown of the running server beside the broker: its listeners, its pipelines, its configuration, its nodes."""

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


class NodeSaid(Protocol):
    """What a node says of itself to the others."""

    @property
    def role(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def applied(self) -> int: ...

    @property
    def lag_records(self) -> int: ...

    @property
    def lag_seconds(self) -> float: ...

    @property
    def version(self) -> str: ...

    @property
    def certificate_expires(self) -> float: ...

    @property
    def take_over_seconds(self) -> float: ...

    @property
    def take_over_at(self) -> float: ...


class KnownNode(Protocol):
    """A node as this one knows it. `name` is empty if it never answered."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def up(self) -> bool: ...

    @property
    def clock_seconds(self) -> float: ...

    @property
    def error(self) -> str: ...

    @property
    def said(self) -> NodeSaid: ...


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

    def nodes(self) -> Sequence[KnownNode]: ...

    def pipelines(self, owner: str, everything: bool) -> "Sequence[Status]": ...

    def stop_pipeline(self, owner: str, everything: bool, name: str) -> None: ...
