"""One population for the rights of all doors: users of every kind with a key and a token each, topics in every state, and
the oracle that says who may what. The oracle is the table HAS, written by hand from what the roles promise: it knows
nothing of frames.py or access.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

from quintet.broker.audit.audit_log import AUDIT_TOPIC, Query
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Acl, Principal, Role
from quintet.broker.identity.keys import NewKey
from quintet.broker.identity.tokens import TokenOptions, mint
from quintet.broker.identity.users import ConfiguredUser
from quintet.broker.sections import QueueSection
from quintet.model.tasks import Verb, start
from quintet.testing.line import SimBroker

SECRET: Final = b"a master secret of more than 32 bytes"
# argon2id of "password", cheap: what is tested here is not how slow a login is.
CHEAP: Final = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHRzb21l$" + "A" * 43
ROOT: Final = Principal("root", ("*",), ("*",), ("*",), ("admin",))
OWN: Final = ("tenant.*", "peerbus/tenant.*", "felix/x/tenant.*", "cache/felix/x/tenant.*")
TENANT: Final = Role("tenant", OWN, OWN, OWN)

USERS: Final = {
    "guest": ("guest",),
    "consumer": ("consumer",),
    "producer": ("producer",),
    "tenant": ("tenant",),
    "admin": ("admin",),
    "revoked": ("consumer", "producer"),
    "bruno": ("consumer", "producer"),
}
# "worker" is known by its token alone: there is no such user. "stranger" has no credential that anybody gave out.
WHO: Final = ("stranger", "guest", "consumer", "producer", "tenant", "admin", "revoked", "worker")
STATES: Final = (
    "there", "missing", "denied", "there-dlq", "denied-dlq", "__users", "public", "tenant.a", "tenant.b-dlq", "tenantX",
)  # fmt: skip
MADE: Final = tuple(state for state in STATES if state not in ("missing", "__users"))

# What each may do with each topic: r read, w write. Whoever has no row may do nothing.
HAS: Final = {
    ("guest", "public"): "rw",
    ("consumer", "there"): "r", ("consumer", "missing"): "r", ("consumer", "there-dlq"): "r",
    ("consumer", "public"): "rw", ("consumer", "tenant.a"): "r", ("consumer", "tenant.b-dlq"): "r",
    ("consumer", "tenantX"): "r",
    ("producer", "there"): "w", ("producer", "missing"): "w", ("producer", "there-dlq"): "w",
    ("producer", "public"): "rw", ("producer", "tenant.a"): "w", ("producer", "tenant.b-dlq"): "w",
    ("producer", "tenantX"): "w",
    ("tenant", "public"): "rw", ("tenant", "tenant.a"): "rw", ("tenant", "tenant.b-dlq"): "rw",
} | {("admin", state): "rw" for state in STATES if state != "__users"} | {
    ("worker", state): "rw" for state in STATES if state not in ("__users", "denied", "denied-dlq")
}  # fmt: skip


def allowed(need: str, who: str, state: str) -> bool:
    """The oracle. `need`: a anybody, h whoever is let into the handshake, i whose credential is good (it is being shown),
    k known, r read, w write, e either of them, o it is somebody else's, s only the server sends it."""
    if need == "a":
        return True
    if need == "h":
        return who != "revoked"  # its connection is closed, whatever it asks
    if who in ("stranger", "revoked") or need in "os":
        return False
    has = HAS.get((who, state), "")
    return need in "ik" or (bool(has) if need == "e" else need in has)


class World:
    """A broker with something to lose."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.sim = self.simulated(BrokerOptions(queues=QueueSection()))
        self.broker = self.sim.broker
        self.broker.set_tokens(TokenOptions(secrets=(SECRET,)))
        told: list[Exception | None] = []
        people = [ConfiguredUser(name, roles, password_hash=CHEAP) for name, roles in USERS.items()]
        self.broker.configure_users([TENANT], people, told.append)
        self.sim.scheduler.run_until_idle()
        assert told == [None]
        self.rules(prefix)
        self.keys = {name: self._key(name) for name in USERS}
        self.keys |= {"stranger": b"qk_00000000_" + b"0" * 64, "worker": b"no key, a token"}

    def simulated(self, options: BrokerOptions) -> SimBroker:
        return SimBroker(options=options)

    def rules(self, prefix: str) -> None:
        for acl in (Acl("denied", users=("bruno",)), Acl("public", public=True), Acl("me.*", public=True)):
            self.done(self.broker.users.rules.set, ROOT, replace(acl, pattern=prefix + acl.pattern))

    def done(self, verb: Callable[..., Verb[Any]], *arguments: Any) -> Any:
        """What a verb of (result, error) tells."""
        told: list[tuple[Any, Exception | None]] = []
        start(verb(*arguments)).then(lambda result, error: told.append((result, error)))
        self.sim.scheduler.run_until_idle()
        ((result, error),) = told
        assert error is None, error
        return result

    def _key(self, name: str) -> bytes:
        made = self.done(self.broker.keys.create, ROOT, name, "", 0)
        assert isinstance(made, NewKey)
        return made.secret.encode()

    def token(self, who: str, key: str = "k1", secret: bytes = SECRET, **claims: object) -> bytes:
        rights = ["publish", "subscribe", "rotate", "create"]
        return mint(secret, {"sub": who, "queue_key": key, "permissions": rights} | claims, typ=False)

    def revoke(self, enabled: bool = False) -> None:
        self.done(self.broker.users.update, ROOT, "revoked", None, enabled, None)

    def topic(self, state: str) -> str:
        return state if state == "__users" else self.prefix + state

    def state(self) -> object:
        """Where every partition of the log ends, and what only memory knows."""
        broker = self.broker
        ends = {
            (id, partition.number): (partition.start, partition.end)
            for id, partitions in self.sim.log._topics.items()
            for partition in partitions
            if id != AUDIT_TOPIC[0]
        }
        positions = {s.id: [(lane.position, lane.pending) for lane in s.lanes] for s in broker.subscriptions.all()}
        queues = {id: (queue.key, len(queue.members)) for id, queue in broker.queues._by_id.items()}
        return (
            ends,
            positions,
            queues,
            len(broker.topics),
            len(broker.peers),
            broker.peers.connected,
            broker.access.epoch,
        )

    def tick(self) -> None:
        """Time passes: the audit leaves out none of what is refused."""
        self.sim.scheduler.advance(20_000)

    def noted(self, before: int, who: str) -> bool:
        """The newest audit event is a refusal of this one (of nobody, where it is not known who it is)."""
        if self.broker.audit.recorded == before:
            return False
        events, _, _ = self.broker.audit.query(Query(limit=1))
        return events[0].result == "denied" and events[0].user in (who, "")


class Door:
    """One door in this world. `ask` says "" if the request got past the gate, "refused" if the answer was about rights,
    "closed" if the connection is closed."""

    operations: ClassVar[dict[str, str]]
    skip: frozenset[str] = frozenset()
    changes_its_topic_alone = (
        False  # a request that is allowed: a world in which it was done serves on for other topics
    )

    def make(self) -> World:
        raise NotImplementedError

    def ready(self, world: Any, who: str) -> None:
        """Before a cell: whoever was told off in the one before is let in again."""

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        raise NotImplementedError

    def allowed(self, operation: str, who: str, state: str) -> bool:
        return allowed(self.operations[operation], who, state)

    def known_as(self, who: str) -> str:
        """What the audit calls it."""
        return who

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        """Refusals that need not be written down: they only say that there is no such thing of yours."""
        return False


def disagreements(door: Door, operations: list[str] | None = None) -> tuple[list[str], int]:
    """What broker and oracle do not agree on, and how many cells there are."""
    wrong, count = [], 0
    world, touched = door.make(), set[str]()
    for operation in operations or list(door.operations):
        for who in WHO:
            for state in STATES:
                if who in door.skip or state in door.skip:
                    continue
                count += 1
                cell = f"{operation} of {state} by {who}"
                if state in touched:  # a world takes 15 times as long to make as a cell to ask
                    world, touched = door.make(), set()
                door.ready(world, who)
                world.tick()
                before, recorded = world.state(), world.broker.audit.recorded
                answer = door.ask(world, operation, who, state)
                fresh, may = world.state() == before, door.allowed(operation, who, state)
                if not fresh:
                    touched |= {state} if may and door.changes_its_topic_alone else set(STATES)
                if may:
                    if answer:
                        wrong.append(f"{cell}: {answer}")
                    continue
                if not answer:
                    wrong.append(f"{cell}: let through")
                if not fresh:
                    wrong.append(f"{cell}: had an effect")
                elif (
                    answer
                    and not door.unaudited(operation, state, answer)
                    and not world.noted(recorded, door.known_as(who))
                ):
                    wrong.append(f"{cell}: {answer} and not written down")
    return wrong, count
