"""What the broker holds beside topics, users and rules, the configuration, and the audit's proof, as the console answers them."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from quintet.cell_cluster import Row
from quintet.client.blocking import sync
from quintet.config import Settings
from quintet.config.options import HIDDEN, option_rows
from quintet.console.pages.cluster import node_of, standing_of
from quintet.net.cluster.wire import NodeSaid
from tests.client.server import Server, running
from tests.console.conftest import Browser
from tests.console.filling import MARKUP, PEER_SECRET, fill_holdings

WAIT_S = 60


def person(address: str, name: str) -> Browser:
    return Browser(address).log_in(name, f"{name}-word")


def until(found: Callable[[], Any]) -> Any:
    """What this gives as soon as it gives something."""
    deadline = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def held(server: Server) -> Iterator[Server]:
    """With a secret for the peer's signatures."""
    before = os.environ.get("QUINTET_PEERBUS_SECRET")
    os.environ["QUINTET_PEERBUS_SECRET"] = PEER_SECRET
    fill_holdings(server)
    yield server
    os.environ.pop("QUINTET_PEERBUS_SECRET")
    if before is not None:
        os.environ["QUINTET_PEERBUS_SECRET"] = before


# -- caches, queues, peers, delayed messages, transactions ------------------------------------------------------------


def test_a_cache_is_listed_with_its_keys(held: Server, admin: Browser) -> None:
    (row,) = admin.ask("/api/caches", filter="SHOWN")["rows"]
    assert (row["tenant"], row["name"], row["keys"], row["expiring"]) == ("default", "shown", 2, 1)
    found = admin.ask("/api/cache", topic=row["topic"])
    assert [entry["key"]["text"] for entry in found["rows"]] == [MARKUP, "plain"]
    assert [entry["value"]["text"] for entry in admin.ask("/api/cache", topic=row["topic"], prefix="pl")["rows"]] == [
        "value"
    ]
    assert admin.get("/api/cache", topic="cache/default/default/none").status_code == 404


def test_a_queue_a_peer_and_a_delayed_message_are_listed(held: Server, admin: Browser) -> None:
    (queue,) = admin.ask("/api/queues", filter="keyed")["rows"]
    assert (queue["flags"], queue["members"], queue["waiting"]) == (["durable"], 0, 0)
    (peer,) = admin.ask("/api/peers", filter="watcher")["rows"]
    assert peer["owner"] == "dev-peer"
    (delayed,) = admin.ask("/api/delayed", filter="later")["rows"]
    assert (delayed["owner"], delayed["key"]["text"]) == ("admin", MARKUP)


def test_others_see_only_what_is_theirs(held: Server, address: str) -> None:
    nobody = person(address, "nobody")
    for path in ("caches", "queues", "peers", "delayed", "transactions"):
        assert nobody.ask(f"/api/{path}")["total"] == 0, path
    assert nobody.get("/api/cache", topic="cache/default/default/shown").status_code == 403


def test_a_delayed_message_is_cancelled_once(server: Server, admin: Browser) -> None:
    with sync.connect(server.fly) as bus:
        bus.publish("cancelled", "x", delay=3600)
    (row,) = admin.ask("/api/delayed", filter="cancelled")["rows"]
    assert admin.post("/api/delayed/cancel", topic="cancelled", handle="12x").status_code == 400
    admin.do("/api/delayed/cancel", topic="cancelled", handle=row["handle"])
    assert admin.post("/api/delayed/cancel", topic="cancelled", handle=row["handle"]).status_code == 404
    assert admin.ask("/api/delayed", filter="cancelled")["total"] == 0


def test_a_transaction_is_rolled_back_by_its_owner_only(server: Server, address: str, admin: Browser) -> None:
    with sync.connect(server.fly) as bus:
        id = bus.request("TXN_BEGIN", transactional_id="mine", timeout_ms=600_000)["txn_id"]
        bus.request("TXN_PRODUCE", txn_id=id, topic="promised", data=b"x")
        (row,) = admin.ask("/api/transactions", filter=id)["rows"]
        assert (row["state"], row["messages"], row["topics"], row["mine"]) == ("open", 1, ["promised"], True)
        other = person(address, "other")
        (seen,) = other.ask("/api/transactions", filter=id)["rows"]
        assert not seen["mine"]
        assert other.post("/api/transaction/abort", id=id).status_code == 404, "on the wire it does not exist for them"
        admin.do("/api/transaction/abort", id=id)
    assert admin.ask("/api/transactions", filter=id)["total"] == 0
    assert admin.ask("/api/audit", search=id)["rows"][0]["type"] == "txn.abort"


# -- users and rules --------------------------------------------------------------------------------------------------


def test_a_user_is_made_changed_and_deleted_and_each_is_audited(address: str, admin: Browser) -> None:
    admin.do("/api/user/create", name="temp", password="a long password", roles=["consumer"])
    ann = Browser(address).log_in("temp", "a long password")
    assert ann.ask("/api/me")["roles"] == ["consumer"]
    admin.do("/api/user/update", name="temp", roles=["producer"])
    assert ann.ask("/api/me")["roles"] == ["producer"], "rights are asked for with every request"
    admin.do("/api/user/update", name="temp", password="another password")
    assert ann.get("/api/topics").status_code == 401, "a new password ends the sessions"
    ann.log_in("temp", "another password")
    admin.do("/api/user/update", name="temp", enabled=False)
    assert ann.get("/api/topics").status_code == 401
    assert admin.post("/api/user/delete", name="temp", typed="tmp").status_code == 400
    admin.do("/api/user/delete", name="temp", typed="temp")
    assert admin.ask("/api/users", filter="temp")["total"] == 0
    rows = admin.ask("/api/audit", search="temp", user="admin")["rows"]
    assert [row["type"] for row in rows if row["result"] == "success"] == [
        "user.delete",
        *["user.update"] * 3,
        "user.create",
    ]


def test_a_quota_is_set_shown_and_cleared_and_each_is_audited(admin: Browser) -> None:
    admin.do("/api/quota/set", kind="user", name="slow", connections_max=3, publish_bytes_per_second_max=4096)
    admin.do("/api/quota/set", kind="user", name="slow", tenant="acme", connections_max=0)
    (row,) = admin.ask("/api/quotas", filter="slow")["rows"]
    assert (row["bounds"]["publish_bytes_per_second_max"], row["bounds"]["connections_max"]) == (4096, 0)
    assert (row["tenant"], row["connections"], row["held"]) == ("acme", 0, False)
    refused = admin.post("/api/quota/set", kind="user", name="slow", publish_bytes_per_second_max=1)
    assert refused.status_code == 400 and "1024" in refused.text
    assert admin.post("/api/quota/set", kind="group", name="slow").status_code == 400
    admin.do("/api/quota/clear", kind="user", name="slow")
    assert admin.ask("/api/quotas", filter="slow")["total"] == 0
    rows = admin.ask("/api/audit", search="slow", user="admin")["rows"]
    assert [(row["type"], row["result"]) for row in rows] == [
        ("quota.clear", "success"), ("quota.set", "failure"), ("quota.set", "success"), ("quota.set", "success"),
    ]  # fmt: skip


def test_mistakes_with_users_are_refused_as_on_the_wire(admin: Browser) -> None:
    refused = {
        "short": admin.post("/api/user/create", name="shorty", password="x", roles=[]),
        "role": admin.post("/api/user/create", name="roly", password="a long password", roles=["no such role"]),
        "twice": admin.post("/api/user/create", name="reader", password="a long password", roles=[]),
        "self": admin.post("/api/user/delete", name="admin", typed="admin"),
        "missing": admin.post("/api/user/update", name="nobody-at-all", enabled=True),
    }
    assert {name: answer.status_code for name, answer in refused.items()} == {
        "short": 400, "role": 400, "twice": 400, "self": 403, "missing": 404,
    }  # fmt: skip
    assert all(answer.json()["error"] for answer in refused.values())


def test_ones_own_password_needs_the_old_one(address: str, admin: Browser) -> None:
    admin.do("/api/user/create", name="own", password="the first password", roles=["admin"])
    own = Browser(address).log_in("own", "the first password")
    wrong = own.post("/api/password", old="not this one", new="the second password")
    assert wrong.status_code == 403 and "nothing was changed" in wrong.json()["hint"]
    own.do("/api/password", old="the first password", new="the second password")
    assert own.get("/api/topics").status_code == 401
    own.log_in("own", "the second password")
    admin.do("/api/user/delete", name="own", typed="own")


def test_a_rule_decides_and_the_reason_is_told(admin: Browser) -> None:
    admin.do("/api/rule/set", name="ruled-*", users=["other"])
    (row,) = admin.ask("/api/rules", filter="ruled")["rows"]
    assert (row["pattern"], row["users"], row["public"]) == ("ruled-*", ["other"], False)
    ask = {"who": "reader", "action": "subscribe", "resource": "ruled-x"}
    no = admin.ask("/api/explain", **ask)
    assert not no["allowed"] and any("ruled-*" in step["why"] for step in no["steps"])
    admin.do("/api/rule/delete", name="ruled-*", typed="ruled-*")
    assert admin.post("/api/rule/delete", name="ruled-*", typed="ruled-*").status_code == 404
    assert admin.ask("/api/audit", type="acl.delete", search="ruled-*", result="success")["total"] == 1


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_a_schema_is_compared_before_it_is_registered(admin: Browser) -> None:
    integer, text = ({"type": "object", "properties": {"id": {"type": kind}}} for kind in ("integer", "string"))
    admin.do("/api/schema/register", topic="typed", type="json", definition=json.dumps(integer))
    compared = admin.do("/api/schema/compare", topic="typed", type="json", definition=json.dumps(text))
    assert "integer" in compared["reasons"][0]
    assert (
        admin.post("/api/schema/register", topic="typed", type="json", definition=json.dumps(text)).status_code == 400
    )
    assert [one["version"] for one in admin.ask("/api/schema", topic="typed")["versions"]] == [1], "nothing was changed"
    relaxed = {"topic": "typed", "type": "json", "definition": json.dumps(text), "compatibility": "none"}
    assert admin.do("/api/schema/compare", **relaxed)["reasons"] == []
    assert admin.do("/api/schema/register", **relaxed)["version"] == 2
    assert admin.post("/api/schema/compare", topic="typed", type="json", definition="{").status_code == 400


# -- the configuration ------------------------------------------------------------------------------------------------


def test_every_option_has_its_value_and_where_it_comes_from(admin: Browser) -> None:
    rows = {row["key"]: row for row in admin.ask("/api/configuration", limit=500)["rows"]}
    assert rows["topics.topics_max"]["source"] == "environment variable QUINTET_TOPICS__TOPICS_MAX"
    assert (rows["topics.topics_max"]["value"], rows["dev"]["source"]) == ("20000", "flag --dev")
    assert rows["limits.connections_max"]["source"] == "default"
    assert rows["peers.hmac_secret"]["value"] == HIDDEN and rows["peers.hmac_secret"]["source"] == "preset of dev"
    set_ones = admin.ask("/api/configuration", changed="true", limit=500)["rows"]
    assert set_ones and all(row["source"] != "default" for row in set_ones)


class Standing(NamedTuple):
    """As log/replicated/engine.py says it."""

    node: str = "a"
    role: str = "leader"
    epoch: int = 3
    leader: Any = SimpleNamespace(name="a", host="a.example")
    applied: int = 77
    lag_records: int = 2
    lag_seconds: float = 0.25
    weaknesses: tuple[str, ...] = ("one replica",)


def test_a_node_says_which_part_it_has_in_its_cell(admin: Browser) -> None:
    assert admin.ask("/api/cluster") == {"replicated": False, "role": "alone"}
    said = standing_of(SimpleNamespace(status=Standing))
    assert (said["replicated"], said["role"], said["epoch"], said["lag_records"]) == (True, "leader", 3, 2)
    assert said["leader"] == {"name": "a", "host": "a.example"}
    nobody = standing_of(SimpleNamespace(status=lambda: Standing(role="follower", leader=None)))
    assert (nobody["role"], nobody["leader"]) == ("follower", None)


def test_the_page_of_a_cell_has_a_row_for_each_node() -> None:
    said = NodeSaid(
        "n2", role="follower", version="0.1.0", epoch=3, applied=70, lag_records=7, lag_seconds=0.26, take_over_at=5.0
    )
    shown = node_of(Row("n2", "10.0.0.2:7790", said, True, -0.0421, ""))
    assert (shown["name"], shown["role"], shown["epoch"], shown["applied"]) == ("n2", "follower", 3, 70)
    assert (shown["lag_records"], shown["lag_seconds"], shown["clock_seconds"]) == (7, 0.3, -0.042)
    silent = node_of(Row("", "10.0.0.3:7790", NodeSaid(""), False, 0.0, "connection refused"))
    assert (silent["name"], silent["up"], silent["error"]) == ("", False, "connection refused")


def test_no_secret_is_in_the_options(tmp_path: Path) -> None:
    secrets = ["the-password-itself", "the-key-itself-of-a-bus", "hmac-secret-of-more-than-32-bytes-in-all", "m" * 40]
    file = tmp_path / "q.toml"
    file.write_text(
        f'[[users]]\nname = "a"\npassword = "{secrets[0]}"\n[[keys]]\nname = "k"\nkey = "{secrets[1]}"\n'
        f'[peers]\nhmac_secret = "{secrets[2]}"\n[[tokens.secrets]]\nsecret = "{secrets[3]}"\n'
    )
    settings = Settings.load(file, {}, {})
    told = repr(list(option_rows(settings, ())))
    assert not any(secret in told for secret in secrets)
    assert str(settings.keys[0].key_sha256) not in told
    assert "users.0.name" in told and str(file) in told


def test_a_reload_moves_where_values_come_from_and_says_what_waits(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("[peers]\nmailbox_messages_max = 100\n")
    with running(QUINTET_CONFIG=str(file), QUINTET_LISTENERS__FLIGHT__ENABLED="false") as server:
        admin = Browser(server.console).log_in("admin", "admin")

        def option(key: str) -> Any:
            return next(
                row for row in admin.ask("/api/configuration", filter=key, limit=500)["rows"] if row["key"] == key
            )

        assert option("peers.mailbox_messages_max")["source"] == str(file)
        file.write_text("[peers]\nmailbox_ttl_seconds = 60\n[limits]\nconnections_max = 77\n")
        server._signal(signal.SIGHUP)
        until(lambda: option("peers.mailbox_ttl_seconds")["value"] == "60")
        assert option("peers.mailbox_ttl_seconds")["source"] == str(file)
        assert option("peers.mailbox_messages_max")["source"] == "default"
        waits = option("limits.connections_max")
        assert waits["waits"] and waits["value"] != "77", "it keeps its value until a restart"
        assert not option("peers.mailbox_ttl_seconds")["waits"]


# -- the audit's proof ------------------------------------------------------------------------------------------------


def verdict(browser: Browser) -> tuple[list[Any], Any]:
    said = list(browser.events("/api/audit/verify"))
    return [data for event, data in said if event == "progress"], next(
        data for event, data in said if event == "verdict"
    )


def test_the_audit_is_verified_and_a_changed_byte_is_found() -> None:
    with running(QUINTET_LISTENERS__FLIGHT__ENABLED="false") as server:
        admin = Browser(server.console).log_in("admin", "admin")
        for number in range(20):
            admin.do("/api/publish", topic="proved", value=f"message {number} of the proof")
        progress, sound = verdict(admin)
        assert sound["status"] == "sound" and sound["chained"] >= 1
        assert progress[-1]["partitions"] == progress[-1]["of"] == sound["partitions"]
        found = [
            file
            for file in server.folder.rglob("*.*")
            if file.parent.name != "journal" and b"message 7 of the proof" in file.read_bytes()
        ]
        with found[0].open("r+b") as segment:
            segment.seek(found[0].read_bytes().index(b"message 7 of the proof") + len("message "))
            segment.write(b"8")
        _, broken = verdict(admin)
        assert broken["status"] == "broken" and broken["broken_partitions"][0]["topic"] == "proved"
