"""Quintet: one broker, five wire protocols, one durable log.

The client's names are here and loaded when first used, because `import quintet` must stay quick: `connect`, `peer`,
`sync`, `Ack`, `Message`, `MessageBatch`, `Bus`, `Producer`, `Retry`, `Subscription`, `Transaction`, `Peer`, `PeerMessage`,
`Telemetry`, `instrument`, `uninstrument` and `errors`.
"""

TYPE_CHECKING = False  # type checkers take it for true by its name; importing typing for it would be half the cost
if TYPE_CHECKING:
    from quintet.client.agents.peer import Peer as Peer
    from quintet.client.agents.peer import PeerMessage as PeerMessage
    from quintet.client.agents.peer import peer as peer
    from quintet.client.blocking import sync as sync
    from quintet.client.bus import Bus as Bus
    from quintet.client.bus import connect as connect
    from quintet.client.consuming import Retry as Retry
    from quintet.client.core import errors as errors
    from quintet.client.core.message import Ack as Ack
    from quintet.client.core.message import Message as Message
    from quintet.client.core.message import MessageBatch as MessageBatch
    from quintet.client.core.subscription import Subscription as Subscription
    from quintet.client.core.telemetry import Telemetry as Telemetry
    from quintet.client.core.telemetry import instrument as instrument
    from quintet.client.core.telemetry import uninstrument as uninstrument
    from quintet.client.producer import Producer as Producer
    from quintet.client.transaction import Transaction as Transaction

__version__ = "0.1.0"

# name -> the module it is in, or the package of a name that is a module itself
_LAZY = {
    "Ack": "quintet.client.core.message",
    "Bus": "quintet.client.bus",
    "Message": "quintet.client.core.message",
    "MessageBatch": "quintet.client.core.message",
    "Peer": "quintet.client.agents.peer",
    "PeerMessage": "quintet.client.agents.peer",
    "Producer": "quintet.client.producer",
    "Retry": "quintet.client.consuming",
    "Subscription": "quintet.client.core.subscription",
    "Telemetry": "quintet.client.core.telemetry",
    "Transaction": "quintet.client.transaction",
    "connect": "quintet.client.bus",
    "errors": "quintet.client.core",
    "instrument": "quintet.client.core.telemetry",
    "peer": "quintet.client.agents.peer",
    "sync": "quintet.client.blocking",
    "uninstrument": "quintet.client.core.telemetry",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'quintet' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LAZY[name])
    found: object = getattr(module, name) if hasattr(module, name) else import_module(f"{module.__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
