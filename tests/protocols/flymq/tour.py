"""Every operation of the table once, as an administrator would use it, with what it must answer: a script for the laws
and the happy path of both dialects. `tour` returns the bytes it sent; a broker of the same make answers them the same."""

import json
from typing import Any

import pytest

from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import PASSWORD, Client, Refused, request
from tests.wire import records

NOW_MS = 1_700_000_000_000
SCHEMA = json.dumps({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}).encode()
AUDIT = {
    "start_s": 0, "end_s": 0, "types": ["topic.create"], "user": "", "resource": "", "result": "", "search": "",
    "limit": 10, "skip": 0,
}  # fmt: skip


class Tour:
    """One client that remembers what it sent."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: list[bytes] = []
        self.seen: set[str] = set()

    def ask(self, name: str, form: int = 0, /, **fields: Any) -> dict[str, Any]:
        self.seen.add(name)
        self.sent.append(request(name, form, **fields))
        return self.client.ask(name, form, **fields)

    def expect(self, expected: dict[str, Any], name: str, form: int = 0, /, **fields: Any) -> None:
        answer = self.ask(name, form, **fields)
        assert answer == expected, f"{name}: {answer}"

    # -- the rooms of the tour -------------------------------------------------------------------------------------

    def records(self) -> None:
        """With headers, together with a schema, a delay and a transaction where these are asked for elsewhere."""
        sent = records.pack(records.Record(b"v", b"k", ((b"h", None),)), records.Record(b"w", ttl_ms=1_000))
        where = {"partition": 0, "offset": 0, "count": 2, "timestamp_ms": NOW_MS}
        self.expect({"groups": [where], "order": b""}, "PRODUCE_RECORDS", topic="t", partition=0, records=sent)
        found = self.ask("FETCH_RECORDS", topic="t", partition=0, offset=0, max=10)
        origin, time = b"flymq:admin", NOW_MS * 1000
        expected = [records.Record(b"v", b"k", ((b"h", None),), None, 0, time, origin), records.Record(b"w")]
        assert (records.split(found["records"]), found["next_offset"]) == (expected, 2)
        found = self.ask("FETCH_RECORDS", topic="t", partition=0, offset=0, max=10, filter="text:w")
        assert [record.value for record in records.split(found["records"])] == [b"w"]

    def messages(self) -> None:
        self.expect({"success": True, "message": "created"}, "CREATE_TOPIC", topic="t", partitions=2)
        self.expect({"success": True, "message": "exists"}, "CREATE_TOPIC", topic="t", partitions=2)
        record = {"topic": "t", "partition": 1, "offset": 0, "timestamp_ms": NOW_MS, "key_size": -1, "value_size": 5}
        self.expect(record, "PRODUCE", topic="t", key=b"", value=b"hello", partition=1)
        twice = {"topic": "t", "key": b"k", "value": b"once", "partition": 1, "producer_id": 7, "sequence": 0}
        self.expect(record | {"offset": 1, "key_size": 1, "value_size": 4}, "PRODUCE", **twice)
        self.expect(record | {"offset": 1, "key_size": 1, "value_size": 4}, "PRODUCE", **twice)
        for name in ("CONSUME", "CONSUME_ZERO_COPY"):
            self.expect({"key": b"k", "value": b"once"}, name, topic="t", partition=1, offset=1)
        both = [
            {"key": b"", "value": b"hello", "offset": 0},
            {"key": b"k", "value": b"once", "offset": 1},
        ]
        for name in ("FETCH", "FETCH_BINARY"):
            self.expect({"messages": both, "next_offset": 2}, name, topic="t", partition=1, offset=0, max=10)
            found = {"messages": both[1:], "next_offset": 2}
            self.expect(found, name, topic="t", partition=1, offset=0, max=10, filter="ONCE")
        peeked = self.ask("PEEK", topic="t", partition=1, offset=0, max=10, since_ms=0, filter="")["messages"]
        assert [(m["offset"], m["key"], m["timestamp_ms"], m["origin"]) for m in peeked] == [
            (0, b"", NOW_MS, "flymq:admin"), (1, b"k", NOW_MS, "flymq:admin"),
        ]  # fmt: skip
        self.records()
        self.expect({"topics": ["t"]}, "LIST_TOPICS")
        self.expect(
            record | {"offset": 2, "value_size": 1},
            "PRODUCE_WITH_TTL",
            topic="t",
            data=b"x",
            ttl_ms=5,
            key=b"",
            partition=1,
        )
        rows = [{"id": 0, "leader": 0, "oldest": 0, "newest": 2}, {"id": 1, "leader": 0, "oldest": 0, "newest": 3}]
        self.expect({"topic": "t", "partitions": rows}, "METADATA", topic="t")
        handle = self.ask("PRODUCE_DELAYED", topic="t", data=b"late", delay_ms=60_000)["offset"]
        self.expect({"success": True, "message": "cancelled"}, "CANCEL_DELAYED", topic="t", handle=handle)

    def schemas(self) -> None:
        made = {"name": "s", "type": "json", "version": 1}
        self.expect(made, "REGISTER_SCHEMA", name="s", type="json", schema=SCHEMA)
        row = {"name": "s-v1", "type": "json", "version": 1}
        self.expect({"schemas": [row]}, "LIST_SCHEMAS")
        self.expect({"schemas": [row]}, "LIST_SCHEMAS", topic="s")
        got = {
            "id": "s-v1",
            "topic": "s",
            "version": 1,
            "type": "json",
            "definition": SCHEMA,
            "compatibility": "backward",
        }
        if self.client.dialect == "sdk":
            got |= {"schemas": [row]}
        self.expect(got, "GET_SCHEMA", topic="s", version=0)
        self.expect({"valid": True, "errors": []}, "VALIDATE_SCHEMA", name="s", message=b'{"n": 1}')
        assert not self.ask("VALIDATE_SCHEMA", name="s", message=b'{"n": "one"}')["valid"]
        for offset, form in ((0, 0), (1, 1)):
            answer = self.ask("PRODUCE_WITH_SCHEMA", form, topic="s", schema="s", data=b'{"n": 2}')
            assert (answer["topic"], answer["offset"], answer["value_size"]) == ("s", offset, 8)
        self.expect({"success": True, "message": "OK"}, "DELETE_SCHEMA", topic="s", version=0)

    def dead_letters(self) -> None:
        for offset in range(2):
            self.expect(
                {"success": True, "message": "OK"},
                "DEAD_LETTER",
                topic="t",
                partition=1,
                offset=offset,
                error="no good",
            )
        found = self.ask("FETCH_DLQ", topic="t", max=10)["messages"]
        assert [(m["data"], m["error"]) for m in found] == [(b"hello", "no good"), (b"once", "no good")]
        assert "details" in self.ask("FETCH_DLQ", topic="t", max=10, after="")
        self.expect({"topics": [{"topic": "t", "letters": 2}]}, "LIST_DLQ")
        self.expect({"success": True, "message": "OK"}, "REPLAY_DLQ", topic="t", message_id=found[0]["id"])
        self.expect({"success": True, "message": "1 forgotten"}, "PURGE_DLQ", topic="t")

    def transactions(self) -> None:
        for end in ("TXN_COMMIT", "TXN_ROLLBACK"):
            txn = self.ask("TXN_BEGIN")["txn_id"]
            record = {
                "topic": "x",
                "partition": 0,
                "offset": 0,
                "timestamp_ms": NOW_MS,
                "key_size": -1,
                "value_size": 2,
            }
            self.expect(record, "TXN_PRODUCE", txn_id=txn, topic="x", data=end[4:6].encode())
            self.expect({"txn_id": txn, "success": True}, end, txn_id=txn)
        messages = [{"key": b"", "value": b"CO", "offset": 0}]
        self.expect({"messages": messages, "next_offset": 1}, "FETCH", topic="x", partition=0, offset=0, max=9)

    def cluster(self) -> None:
        for name, fields in (("CLUSTER_JOIN", {"peer": "10.0.0.1:9093"}), ("CLUSTER_LEAVE", {})):
            with pytest.raises(Refused, match="one node"):
                self.ask(name, **fields)
        status = self.ask("CLUSTER_STATUS")
        assert (status["cluster_id"], status["state"]) == ("standalone", "online")
        place = {
            "partition": 0, "leader_id": "quintet", "leader_address": "127.0.0.1:9092", "epoch": 1, "state": "online",
            "replicas": ["quintet"], "isr": ["quintet"],
        }  # fmt: skip
        wanted = {"cluster_id": "standalone", "topics": [{"topic": "x", "partitions": [place]}]}
        self.expect(wanted, "CLUSTER_METADATA", topic="x")
        assert len(self.ask("CLUSTER_METADATA")["topics"]) >= 3

    def groups(self) -> None:
        where = {"topic": "t", "group": "g", "partition": 1}
        self.expect({"offset": 0}, "SUBSCRIBE", **where, mode="earliest")
        self.expect({"offset": 0}, "SUBSCRIBE", 1, **where, mode="commit")
        self.expect({"success": True, "message": ""}, "COMMIT", **where, offset=2)
        self.expect({"offset": 2}, "GET_OFFSET", **where)
        lag = self.ask("GET_LAG", **where)
        assert (lag["committed"], lag["lag"]) == (2, lag["latest"] - 2)
        self.expect({"success": True, "message": "at 1"}, "RESET_OFFSET", **where, mode="offset", offset=1)
        self.expect({"success": True, "message": "at 0"}, "RESET_OFFSET", **where, mode="earliest")
        assert self.ask("SEEK_TO_TIMESTAMP", **where, timestamp_ms=NOW_MS)["offset"] == 0
        joined = self.ask("SUBSCRIBE", topic="t", group="h", partition=-1, mode="earliest", member="m")
        assert [row["partition"] for row in joined["assigned"]] == [0, 1]
        assert [g["group"] for g in self.ask("LIST_GROUPS")["groups"]] == ["g", "h"]
        assert self.ask("DESCRIBE_GROUP", topic="t", group="g")["owner"] == "admin"
        assert self.ask("DESCRIBE_GROUP", 1, group="h")["generation"] == joined["generation"]

    def people(self) -> None:
        assert self.ask("WHOAMI")["username"] == "admin"
        ask = {"user": "new", "password": "long enough", "old_password": "", "roles": ["consumer"], "enabled": True}
        assert self.ask("USER_CREATE", **ask)["permissions"] == ["read"]
        self.expect({"success": True, "user": "new"}, "USER_UPDATE", **ask | {"password": "", "roles": ["producer"]})
        assert self.ask("USER_GET", user="new")["roles"] == ["producer"]
        assert "new" in [user["user"] for user in self.ask("USER_LIST")["users"]]
        self.expect({"success": True, "user": "new"}, "PASSWORD_CHANGE", **ask | {"password": "even longer"})
        self.expect({"success": True, "user": "new"}, "USER_DELETE", user="new")
        assert {role["name"] for role in self.ask("ROLE_LIST")["roles"]} >= {"admin", "producer", "consumer", "guest"}
        rule = {"topic": "t", "public": False, "users": ["conny"], "roles": []}
        self.expect({"success": True, "topic": "t"}, "ACL_SET", **rule)
        self.expect(rule | {"exists": True, "default_public": False}, "ACL_GET", topic="t")
        self.expect({"rules": [rule | {"exists": True}], "default_public": False}, "ACL_LIST")
        self.expect({"success": True, "topic": "t"}, "ACL_DELETE", topic="t")

    def quotas(self) -> None:
        asked = {"kind": "user", "name": "conny", "changes": [{"quota": "topics_max", "value": 7}], "tenant": "t1"}
        made = self.ask("QUOTA_SET", **asked)
        assert (made["topics_max"], made["connections_max"], made["tenant"], made["set"]) == (7, 0, "t1", True)
        self.expect({"quotas": [made]}, "QUOTA_LIST")
        assert not self.ask("QUOTA_CLEAR", kind="user", name="conny")["set"]

    def keys(self) -> None:
        made = self.ask("KEY_CREATE", user="conny", name="laptop", expires_s=NOW_MS // 1000 + 60)
        secret = made.pop("secret")
        assert secret.startswith(made["id"]) and len(secret) == len("qk_1a2b3c4d_") + 64
        assert (made["user"], made["name"], made["expires_s"]) == ("conny", "laptop", NOW_MS // 1000 + 60)
        self.expect({"keys": [made]}, "KEY_LIST", user="conny", everyone=False)
        assert made in self.ask("KEY_LIST", user="", everyone=True)["keys"]
        why = self.ask("ACL_EXPLAIN", who=made["id"], action="publish", topic="t")
        assert (why["allowed"], why["kind"], why["steps"][-1]["rule"]) == (False, "key", "role or key pattern")
        assert self.ask("ACL_EXPLAIN", who="conny", action="subscribe", topic="t")["allowed"]
        self.expect({"success": True, "message": ""}, "KEY_REMOVE", user="conny", id=made["id"])

    def audit(self) -> None:
        for name in ("AUDIT_QUERY", "AUDIT_QUERY_SDK"):
            found = self.ask(name, **AUDIT)
            assert [event["resource"] for event in found["events"]] == ["t", "t"] and found["total"] == 2
        assert b"topic.create" in self.ask("AUDIT_EXPORT", query=AUDIT, format="json")["data"]
        assert b"topic.create" in self.ask("AUDIT_EXPORT_SDK", **AUDIT, format="csv")["data"]


def tour(sim: SimBroker, dialect: Any) -> Tour:
    made = Tour(Client(sim, dialect=dialect))
    answer = made.ask("AUTH", user="admin", password=PASSWORD)
    assert answer == {"success": True, "error": "", "username": "admin", "roles": ["admin"]}
    for room in (
        made.messages, made.schemas, made.dead_letters, made.transactions, made.cluster, made.groups, made.people,
        made.keys, made.quotas, made.audit,
    ):  # fmt: skip
        room()
    made.expect({"success": True, "message": ""}, "DELETE_GROUP", topic="t", group="g")
    kept = made.ask("ALTER_TOPIC", topic="t", durability="", retention_ms=60_000, retention_bytes=-1)
    assert (kept["durability"], kept["retention_ms"]) == ("fsync", 60_000)
    assert "t" in made.ask("MATCH_TOPICS", patterns=["t*"], version=0)["topics"]
    made.expect({"success": True, "message": "purged"}, "PURGE_TOPIC", topic="t")
    made.expect({"success": True, "message": "deleted"}, "DELETE_TOPIC", topic="t")
    made.expect({"success": True, "message": "there was no such topic"}, "DELETE_TOPIC", topic="t")
    return made
