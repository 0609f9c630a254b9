"""What `/readyz` asks: a list of named checks, made anew for each request by whoever knows (server.py)."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Check(NamedTuple):
    """One thing that must be so before traffic is sent here: `listener:blipmq`, `log`, `disk`, `draining`."""

    name: str
    ok: bool
    detail: str = ""  # why not, in words; or a figure worth showing


class Health(Protocol):
    """Implemented by server.py."""

    def checks(self) -> Sequence[Check]:
        """Every check, cheap enough to be asked each second."""


def report(checks: Sequence[Check], verbose: bool) -> tuple[bool, str]:
    """(ready, text): all checks if verbose, else only those that fail."""
    failing = [check for check in checks if not check.ok]
    shown = checks if verbose else failing
    lines = [
        f"[{'+' if check.ok else '-'}] {check.name}{': ' + check.detail if check.detail else ''}" for check in shown
    ]
    lines.append("not ready: " + ", ".join(check.name for check in failing) if failing else "ready")
    return not failing, "\n".join(lines) + "\n"
