"""No operation without a right: every opcode, asked by every kind of principal, of every kind of topic, against an oracle.

The oracle is the two tables below, written by hand from what the roles promise; it knows nothing of frames.py or
access.py. What it refuses must be refused, written down, and have no effect at all: every partition of the log but the
audit's ends where it ended before. What it allows must get past the gate, whatever the operation says then.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from quintet.broker.audit.audit_log import AUDIT_TOPIC, Query
from quintet.protocols.flymq import frames
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import BY_NAME, Client, Refused, error_of, make_sim, parse, request
from tests.wire import records

# What an operation asks for: r read, w write, m manage, e either of read and write (of the topic it names), k anybody
# known, a an administrator, o the owner of the transaction or group alone, p one's own account or an administrator.
NEEDS = {
    "PRODUCE": "w", "CONSUME": "r", "CREATE_TOPIC": "m", "METADATA": "e", "SUBSCRIBE": "r", "COMMIT": "r", "FETCH": "r",
    "LIST_TOPICS": "k", "DELETE_TOPIC": "m", "CONSUME_ZERO_COPY": "r", "FETCH_BINARY": "r", "PEEK": "r",
    "ALTER_TOPIC": "m", "PURGE_TOPIC": "m", "MATCH_TOPICS": "k",
    "PRODUCE_RECORDS": "w", "FETCH_RECORDS": "r",
    "REGISTER_SCHEMA": "w", "GET_SCHEMA": "e", "LIST_SCHEMAS": "k", "VALIDATE_SCHEMA": "e", "PRODUCE_WITH_SCHEMA": "w",
    "DELETE_SCHEMA": "m", "FETCH_DLQ": "r", "REPLAY_DLQ": "w", "PURGE_DLQ": "m", "DEAD_LETTER": "r", "LIST_DLQ": "k",
    "PRODUCE_DELAYED": "w", "CANCEL_DELAYED": "w", "PRODUCE_WITH_TTL": "w", "TXN_BEGIN": "k", "TXN_COMMIT": "o",
    "TXN_ROLLBACK": "o", "TXN_PRODUCE": "w", "CLUSTER_JOIN": "a", "CLUSTER_LEAVE": "a", "CLUSTER_STATUS": "k",
    "CLUSTER_METADATA": "e", "GET_OFFSET": "r", "RESET_OFFSET": "r", "LIST_GROUPS": "k", "DESCRIBE_GROUP": "o",
    "GET_LAG": "r", "DELETE_GROUP": "r", "SEEK_TO_TIMESTAMP": "r", "AUTH": "", "WHOAMI": "", "USER_CREATE": "a",
    "USER_DELETE": "a", "USER_UPDATE": "a", "USER_LIST": "a", "USER_GET": "a", "ACL_SET": "a", "ACL_GET": "a",
    "ACL_DELETE": "a", "ACL_LIST": "a", "PASSWORD_CHANGE": "p", "ROLE_LIST": "k", "AUDIT_QUERY": "a",
    "AUDIT_EXPORT": "a", "AUDIT_QUERY_SDK": "a", "AUDIT_EXPORT_SDK": "a", "KEY_CREATE": "p", "KEY_LIST": "p",
    "KEY_REMOVE": "p", "ACL_EXPLAIN": "a", "QUOTA_SET": "a", "QUOTA_CLEAR": "a", "QUOTA_LIST": "a",
}  # fmt: skip

OF_A_TOPIC = ("r", "w", "m", "e")  # what such an operation changes is the topic that it names

PRINCIPALS = {
    "stranger": "",
    "guest": "guste",
    "consumer": "conny",
    "producer": "paula",
    "tenant": "tina",
    "admin": "admin",
    "revoked": "eve",
}
TOPICS = (
    "there",
    "missing",
    "denied",
    "there-dlq",
    "denied-dlq",
    "__users",
    "public",
    "tenant.a",
    "tenant.b-dlq",
    "tenantX",
)

# What each may do with each topic. Whoever has no row may do nothing.
HAS = {
    ("guest", "public"): "rw",
    ("consumer", "there"): "r", ("consumer", "missing"): "r", ("consumer", "there-dlq"): "r",
    ("consumer", "public"): "rw", ("consumer", "tenant.a"): "r", ("consumer", "tenant.b-dlq"): "r",
    ("consumer", "tenantX"): "r",
    ("producer", "there"): "w", ("producer", "missing"): "w", ("producer", "there-dlq"): "w",
    ("producer", "public"): "rw", ("producer", "tenant.a"): "w", ("producer", "tenant.b-dlq"): "w",
    ("producer", "tenantX"): "w",
    ("tenant", "public"): "rw", ("tenant", "tenant.a"): "rwm", ("tenant", "tenant.b-dlq"): "rwm",
} | {("admin", topic): "rwm" for topic in TOPICS if topic != "__users"}  # fmt: skip

KEY_ID = "qk_62e6e282"  # of bruno's key: the entropy of a simulated broker is the same every time
REFUSALS = {"E1200", "E1201"}  # authenticate first; forbidden


def allowed(name: str, who: str, topic: str) -> bool:
    """The oracle."""
    needs = NEEDS[name]
    if not needs:
        return who != "revoked"  # its connection is closed, whatever it asks
    if who in ("stranger", "revoked"):
        return False
    if needs in "ap":
        return who == "admin"
    if needs == "o":
        return who == "admin" and name == "DESCRIBE_GROUP"
    has = HAS.get((who, topic), "")
    return needs == "k" or (bool(has) if needs == "e" else needs in has)


def fields_of(name: str, topic: str, own_txn: str, foreign_txn: str) -> dict[str, Any]:
    """A request that would do something if it were let through."""
    where = {"topic": topic, "partition": 0}
    group = where | {"group": "own"}
    data = {"topic": topic, "data": b"1"}
    user = {"user": "bruno", "password": "long enough", "old_password": "password", "roles": ["admin"], "enabled": True}
    query = {
        "start_s": 0, "end_s": 0, "types": [], "user": "", "resource": "", "result": "", "search": "", "limit": 5,
        "skip": 0,
    }  # fmt: skip
    at = where | {"offset": 0}
    found: dict[str, dict[str, Any]] = {
        "PRODUCE": where | {"key": b"", "value": b"1"}, "CONSUME": at, "CONSUME_ZERO_COPY": at,
        "CREATE_TOPIC": {"topic": topic, "partitions": 0}, "METADATA": {"topic": topic},
        "SUBSCRIBE": group | {"mode": "earliest"}, "COMMIT": group | {"offset": 0}, "FETCH": at | {"max": 5},
        "PRODUCE_RECORDS": where | {"records": records.pack(records.Record(b"1"))}, "FETCH_RECORDS": at | {"max": 5},
        "FETCH_BINARY": at | {"max": 5}, "PEEK": at | {"max": 5, "since_ms": 0, "filter": ""},
        "LIST_TOPICS": {}, "DELETE_TOPIC": {"topic": topic}, "PURGE_TOPIC": {"topic": topic},
        "ALTER_TOPIC": {"topic": topic, "durability": "", "retention_ms": -1, "retention_bytes": 7},
        "MATCH_TOPICS": {"patterns": ["*"], "version": 0},
        "REGISTER_SCHEMA": {"name": topic, "type": "json", "schema": b'{"type": "integer"}'},
        "GET_SCHEMA": {"topic": topic, "version": 0}, "LIST_SCHEMAS": {"topic": topic},
        "VALIDATE_SCHEMA": {"name": topic, "message": b"1"}, "PRODUCE_WITH_SCHEMA": data | {"schema": "public"},
        "DELETE_SCHEMA": {"topic": topic, "version": 0}, "FETCH_DLQ": {"topic": topic, "max": 5},
        "REPLAY_DLQ": {"topic": topic, "message_id": "0-0"}, "PURGE_DLQ": {"topic": topic},
        "DEAD_LETTER": at | {"error": "x"}, "LIST_DLQ": {}, "PRODUCE_DELAYED": data | {"delay_ms": 1000},
        "CANCEL_DELAYED": {"topic": topic, "handle": 1_700_000_000_000_000}, "PRODUCE_WITH_TTL": data | {"ttl_ms": 1000},
        "TXN_BEGIN": {}, "TXN_COMMIT": {"txn_id": foreign_txn}, "TXN_ROLLBACK": {"txn_id": foreign_txn},
        "TXN_PRODUCE": data | {"txn_id": own_txn}, "CLUSTER_JOIN": {"peer": "10.0.0.1:1"}, "CLUSTER_LEAVE": {},
        "CLUSTER_STATUS": {}, "CLUSTER_METADATA": {"topic": topic}, "GET_OFFSET": group,
        "RESET_OFFSET": group | {"mode": "latest"}, "LIST_GROUPS": {}, "DESCRIBE_GROUP": {"topic": "there", "group": "foreign"},
        "GET_LAG": group, "DELETE_GROUP": {"topic": topic, "group": "own"},
        "SEEK_TO_TIMESTAMP": group | {"timestamp_ms": 0}, "AUTH": {"user": "nobody", "password": "x"}, "WHOAMI": {},
        "USER_CREATE": user | {"user": "fresh"}, "USER_DELETE": {"user": "bruno"}, "USER_UPDATE": user, "USER_LIST": {},
        "USER_GET": {"user": "admin"}, "ACL_SET": {"topic": topic, "public": True, "users": [], "roles": []},
        "ACL_GET": {"topic": topic}, "ACL_DELETE": {"topic": "denied"}, "ACL_LIST": {}, "PASSWORD_CHANGE": user,
        "ROLE_LIST": {}, "AUDIT_QUERY": query, "AUDIT_EXPORT": {"query": query, "format": "json"},
        "AUDIT_QUERY_SDK": query, "AUDIT_EXPORT_SDK": query | {"format": "json"},
        "KEY_CREATE": {"user": "bruno", "name": "mine now", "expires_s": 0}, "KEY_LIST": {"user": "bruno", "everyone": False},
        "KEY_REMOVE": {"user": "bruno", "id": KEY_ID}, "ACL_EXPLAIN": {"who": "bruno", "action": "publish", "topic": topic},
        "QUOTA_SET": {"kind": "user", "name": "bruno", "changes": [{"quota": "topics_max", "value": 9}]},
        "QUOTA_CLEAR": {"kind": "user", "name": "bruno"}, "QUOTA_LIST": {},
    }  # fmt: skip
    return found[name]


class World:
    """A broker with something to lose, and one client of each kind."""

    def __init__(self) -> None:
        self.sim = make_sim()
        admin, bruno = Client(self.sim, "admin"), Client(self.sim, "bruno")
        assert bruno.ask("KEY_CREATE", user="", name="", expires_s=0)["id"] == KEY_ID, (
            "before topics take of the entropy"
        )
        for topic in ("there", "denied", "public", "tenant.a", "tenant.b"):
            admin.produce(topic, b"1", b"2")
            admin.ask("REGISTER_SCHEMA", name=topic, type="json", schema=b'{"type": "integer"}')
            admin.ask("DEAD_LETTER", topic=topic, partition=0, offset=1, error="x")
            admin.ask("PRODUCE_DELAYED", topic=topic, data=b"late", delay_ms=10**9)
        admin.ask("ACL_SET", topic="denied", public=False, users=["bruno"], roles=[])
        admin.ask("ACL_SET", topic="public", public=True, users=[], roles=[])
        bruno.ask("COMMIT", topic="there", group="foreign", partition=0, offset=1)
        self.foreign = bruno.ask("TXN_BEGIN")["txn_id"]
        bruno.ask("TXN_PRODUCE", txn_id=self.foreign, topic="there", data=b"not yours")
        self.clients = {who: Client(self.sim, user) for who, user in PRINCIPALS.items()}
        self.own = {}
        for who, client in self.clients.items():
            self.own[who] = client.ask("TXN_BEGIN")["txn_id"] if PRINCIPALS[who] else "txn-none"
        off = {"user": "eve", "password": "", "old_password": "", "roles": ["producer", "consumer"], "enabled": False}
        admin.ask("USER_UPDATE", **off)

    def state(self) -> object:
        """Where every partition of the log ends, and what only memory knows."""
        broker = self.sim.broker
        ends = {
            (id, partition.number): (partition.start, partition.end)
            for id, partitions in self.sim.log._topics.items()
            for partition in partitions
            if id != AUDIT_TOPIC[0]
        }
        open_txns = {id: (t.state, t.count, len(t.effects)) for id, t in broker.transactions._by_id.items()}
        return ends, open_txns, len(broker.groups), len(broker.delays), len(broker.schemas), broker.access.epoch

    def ask(self, who: str, name: str, topic: str) -> str:
        """ "" if it got past the gate, else the code of the refusal."""
        client = self.clients[who]
        self.sim.scheduler.advance(20_000)  # so that the audit leaves none out
        replies = parse(client.peer.exchange(request(name, **fields_of(name, topic, self.own[who], self.foreign))))
        if client.peer.session.closing is not None:
            assert replies == []
            return "closed"
        (reply,) = replies
        code = error_of(reply, "document").code if reply.code == frames.ERROR else ""
        foreign = name in ("TXN_COMMIT", "TXN_ROLLBACK") and code == "E1330"
        return code if code in REFUSALS or foreign else ""


def noted(sim: SimBroker, who: str, name: str, before: int) -> bool:
    """The newest audit event is about this refusal."""
    if sim.broker.audit.recorded == before:
        return False
    events, _, _ = sim.broker.audit.query(Query(limit=1))
    return events[0].result == "denied" and events[0].user == PRINCIPALS[who]


def cells(names: list[str] | None = None) -> Iterator[tuple[str, str, str]]:
    for name in names or NEEDS:
        for who in PRINCIPALS:
            for topic in TOPICS:
                yield name, who, topic


def disagreements(names: list[str] | None = None) -> tuple[list[str], int]:
    """What broker and oracle do not agree on, and how many cells there are."""
    wrong, count = [], 0
    world = World()
    state = world.state()
    for name, who, topic in cells(names):
        count += 1
        cell = cell_name(name, who, topic)
        if allowed(name, who, topic):
            continue
        recorded = world.sim.broker.audit.recorded
        code = world.ask(who, name, topic)
        if not code:
            wrong.append(f"{cell}: let through")
        if world.state() != state:
            wrong.append(f"{cell}: had an effect")
            world = World()
            state = world.state()
        elif code not in ("closed", "E1330", "") and not noted(world.sim, who, name, recorded):
            wrong.append(f"{cell}: refused with {code} and not written down")
    world, touched = World(), set[str]()
    for name, who, topic in cells(names):
        if not allowed(name, who, topic):
            continue
        if topic in touched:  # what was done to other topics is nothing to this one, and a world takes long to make
            world, touched = World(), set()
        before = world.state()
        if code := world.ask(who, name, topic):
            wrong.append(f"{cell_name(name, who, topic)}: refused with {code}")
        if world.state() != before or who == "stranger":
            touched |= {topic} if NEEDS[name] in OF_A_TOPIC and who != "stranger" else set(TOPICS)
    return wrong, count


def cell_name(name: str, who: str, topic: str) -> str:
    return f"{name} of {topic} by {who}"


def test_every_operation_has_a_row() -> None:
    assert set(NEEDS) == set(BY_NAME)


@pytest.mark.parametrize("part", range(8))
def test_the_matrix(part: int) -> None:
    wrong, count = disagreements(list(NEEDS)[part::8])
    assert wrong == []
    assert count >= 7 * len(PRINCIPALS) * len(TOPICS) * 0.9


@pytest.mark.parametrize(
    "name", ["FETCH", "METADATA", "PURGE_DLQ", "USER_LIST", "AUDIT_QUERY", "DELETE_TOPIC", "GET_LAG"]
)
def test_an_opened_row_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: the same table with one right too many."""
    monkeypatch.setitem(frames.OPERATIONS, BY_NAME[name].code, BY_NAME[name]._replace(right="known"))
    wrong, _ = disagreements([name])
    assert wrong


# -- beyond the matrix ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "topics"),
    [
        ("guest", {"public"}),
        ("consumer", {"there", "public", "tenant.a", "tenant.b"}),
        ("producer", {"there", "public", "tenant.a", "tenant.b"}),
        ("tenant", {"public", "tenant.a", "tenant.b"}),
        ("admin", {"there", "denied", "public", "tenant.a", "tenant.b"}),
    ],
)
def test_lists_show_what_one_may_see(who: str, topics: set[str]) -> None:
    world = World()
    client = world.clients[who]
    shown = set(client.ask("LIST_TOPICS")["topics"])
    assert {name for name in shown if not name.endswith("-dlq")} == topics
    assert {name.removesuffix("-dlq") for name in shown} == topics
    assert {schema["name"] for schema in client.ask("LIST_SCHEMAS")["schemas"]} == {f"{name}-v1" for name in topics}
    assert {row["topic"] for row in client.ask("CLUSTER_METADATA")["topics"]} == shown
    assert [g["group"] for g in client.ask("LIST_GROUPS")["groups"]] == (["foreign"] if who == "admin" else [])


TWINS = (
    "Denied",
    "denied ",
    " denied",
    "./denied",
    "denied/../denied",
    "denied\u200b",
    "de\u0301nied",
    "deni\u0435d",
    "denied\\",
    "denied/",
)


def test_twins_of_a_name_are_other_names() -> None:
    world = World()
    client = world.clients["consumer"]
    for name in TWINS:
        with pytest.raises(Refused) as refused:
            client.ask("FETCH", topic=name, partition=0, offset=0, max=5)
        assert refused.value.code == "E1301", "there is no such topic, whatever it looks like"
    for name in ("denied\0", "", "x" * 256, "x" * 65_535):
        assert client.refused("FETCH", topic=name, partition=0, offset=0, max=5)


def test_nobody_makes_itself_more_than_it_is() -> None:
    sim = make_sim()
    eve = Client(sim, "eve")
    user = {"user": "eve", "password": "", "old_password": "", "roles": ["admin"], "enabled": True}
    assert eve.refused("USER_UPDATE", **user) == "E1201"
    assert eve.refused("ACL_SET", topic="*", public=True, users=[], roles=[]) == "E1201"
    changed = user | {"password": "another one", "old_password": "password"}
    assert eve.ask("PASSWORD_CHANGE", **changed) == {"success": True, "user": "eve"}
    again = Client(sim)
    again.login("eve", "another one")
    assert again.ask("WHOAMI")["roles"] == ["producer", "consumer"], "roles in a change of password mean nothing"
    assert again.refused("PASSWORD_CHANGE", **changed | {"user": "admin"}) == "E1201"
    assert again.refused("PASSWORD_CHANGE", **changed | {"old_password": "wrong"}) in ("E1200", "E1201")
    assert eve.peer.exchange(request("WHOAMI")) == b"" and eve.peer.session.closing is not None


def test_the_last_administrator_stays_and_has_no_twin() -> None:
    sim = make_sim(users={"root": ("admin",), "eve": ("producer",)})
    root = Client(sim, "root")
    user = {"user": "root", "password": "", "old_password": "", "roles": ["producer"], "enabled": True}
    assert root.refused("USER_DELETE", user="root")
    assert root.refused("USER_UPDATE", **user)
    assert root.refused("USER_UPDATE", **user | {"roles": ["admin"], "enabled": False})
    for twin in ("Root", "ROOT", "r\u043eot", "root\u200b", "root ", "\uff52oot", "(anonymous)", "", "x" * 256):
        assert root.refused("USER_CREATE", **user | {"user": twin, "password": "long enough"}), twin
    assert root.ask("USER_GET", user="root")["roles"] == ["admin"]


@pytest.mark.parametrize("change", ["disable", "delete", "password", "role", "acl"])
def test_revocation_evicts_at_once(change: str) -> None:
    """After the change is answered, not one operation of the revoked user is carried out."""
    for _ in range(20):
        sim = make_sim()
        admin, eve = Client(sim, "admin"), Client(sim, "eve")
        eve.produce("t", b"before")
        user = {"user": "eve", "password": "", "old_password": "", "roles": ["producer", "consumer"], "enabled": True}
        if change == "disable":
            admin.ask("USER_UPDATE", **user | {"enabled": False})
        elif change == "password":
            admin.ask("PASSWORD_CHANGE", **user | {"password": "another one"})
        elif change == "role":
            admin.ask("USER_UPDATE", **user | {"roles": ["guest"]})
        elif change == "acl":
            admin.ask("ACL_SET", topic="*", public=False, users=["conny"], roles=[])
        else:
            admin.ask("USER_DELETE", user="eve")
        run = request("PRODUCE", topic="t", key=b"", value=b"after", partition=0)
        replies = eve.exchange(run * 3 + request("FETCH", topic="t", partition=0, offset=0, max=9) + run)
        assert all(reply.code == frames.ERROR for reply in replies)
        assert admin.values("t") == [b"before"]
