"""Answers that clients of both dialects read rightly: refusals are ERRORs, forms that are in use are taken, advice is good."""

import struct
from typing import Any

import pytest

from quintet.client.links.flymq import encode
from quintet.protocols.flymq import frames
from tests.protocols.flymq.helpers import DIALECTS, Client, Refused, make_sim, payload_of, raw, request

SCHEMA = b'{"type": "object"}'


@pytest.mark.parametrize("dialect", DIALECTS)
def test_there_is_no_cluster_and_clients_are_told_by_an_error(dialect: frames.Dialect) -> None:
    client = Client(make_sim(), "admin", dialect)
    assert client.refused("CLUSTER_JOIN", peer="10.0.0.1:9093") == "E1101"
    assert client.refused("CLUSTER_LEAVE") == "E1101"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_whoami_is_not_authenticated_before_a_login(dialect: frames.Dialect) -> None:
    sim = make_sim()
    client = Client(sim, dialect=dialect)
    nobody = {"success": False, "username": "", "roles": [], "permissions": []}
    assert client.ask("WHOAMI") == nobody
    assert client.refused("LIST_TOPICS") == "E1200", "nothing else is open"
    client.refused("AUTH", user="admin", password="wrong")
    assert client.ask("WHOAMI") == nobody
    client.login("admin")
    assert client.ask("WHOAMI")["success"]
    anonymous = Client(sim, dialect=dialect, anonymous="consumer")
    told = anonymous.ask("WHOAMI")
    assert (told["success"], told["roles"][0]) == (False, "consumer")
    anonymous.login("conny")
    told = anonymous.ask("WHOAMI")
    assert (told["success"], told["username"]) == (True, "conny")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("more", [{}, {"compatibility": "none"}])
def test_a_schema_type_may_be_a_string_of_either_length(
    dialect: frames.Dialect, form: int, more: dict[str, str]
) -> None:
    client = Client(make_sim(), "admin", dialect)
    answer = client.ask("REGISTER_SCHEMA", form, name="s", type="json", schema=SCHEMA, **more)
    assert answer == {"name": "s", "type": "json", "version": 1}
    assert client.ask("GET_SCHEMA", topic="s", version=0)["definition"] == SCHEMA
    assert client.refused("REGISTER_SCHEMA", form, name="s", type="xml", schema=SCHEMA) == "E1312"


@pytest.mark.parametrize("form", [0, 1])
def test_a_reset_mode_may_be_a_string_of_either_length(form: int) -> None:
    client = Client(make_sim(), "admin")
    client.produce("t", b"a", b"b", b"c")
    where = {"topic": "t", "group": "g", "partition": 0}
    client.ask("COMMIT", **where, offset=1)
    for mode, more, offset in (("earliest", {}, 0), ("latest", {}, 3), ("offset", {"offset": 2}, 2)):
        client.ask("RESET_OFFSET", form, **where, mode=mode, **more)
        assert client.ask("GET_OFFSET", **where)["offset"] == offset, mode
    client.ask("RESET_OFFSET", form, **where, mode="earliest", offset=0)  # some clients always send a number
    assert client.refused("RESET_OFFSET", form, **where, mode="current") == "E1101"


def test_no_other_reading_of_a_form_is_possible() -> None:
    """By the exact length: what one client means is never taken for another thing."""
    where = {"topic": "t", "group": "g", "partition": 0}
    for mode in ("earliest", "latest", "offset", "timestamp", "committed"):
        for more in ({}, {"offset": 1 << 40}):
            first, second = (payload_of("RESET_OFFSET", form, **where, mode=mode, **more) for form in (0, 1))
            assert first != second
            for payload in (first, second):
                client = Client(make_sim(), "admin")
                client.produce("t", b"a")
                client.ask("COMMIT", **where, offset=1)
                try:
                    client.read("RESET_OFFSET", client.exchange(raw(frames.RESET_OFFSET, payload))[0])
                except Refused as refused:
                    assert repr(mode) in refused.text or mode in ("offset", "timestamp")


def test_committed_means_commit() -> None:
    client = Client(make_sim(), "admin")
    client.produce("t", b"a", b"b")
    where = {"topic": "t", "group": "g", "partition": 0}
    client.ask("COMMIT", **where, offset=1)
    for form in (0, 1):
        assert client.ask("SUBSCRIBE", form, **where, mode="committed") == {"offset": 1}


def test_a_group_is_deleted_without_its_topic() -> None:
    sim = make_sim()
    admin, conny, eve = Client(sim, "admin"), Client(sim, "conny"), Client(sim, "eve")
    for topic in ("a", "b"):
        admin.produce(topic, b"x")
    admin.ask("COMMIT", topic="a", group="g", partition=0, offset=1)
    conny.ask("COMMIT", topic="b", group="g", partition=0, offset=1)
    assert eve.refused("DELETE_GROUP", topic="", group="g") == "E1201", "it is somebody else's"
    assert conny.ask("DELETE_GROUP", topic="", group="g")["success"], "its own before others"
    assert [(g["topic"], g["group"]) for g in admin.ask("LIST_GROUPS")["groups"]] == [("a", "g")]
    assert admin.ask("DELETE_GROUP", 1, group="g")["success"]
    assert admin.ask("LIST_GROUPS")["groups"] == []
    assert admin.refused("DELETE_GROUP", topic="", group="g") == "E1320"
    conny.ask("COMMIT", topic="a", group="h", partition=0, offset=1)
    admin.ask("ACL_SET", topic="a", public=False, users=["bruno"], roles=[])
    assert conny.refused("DELETE_GROUP", topic="", group="h") == "E1201", "it may no longer read the topic"


def test_who_reads_is_not_advised_to_let_the_broker_choose() -> None:
    client = Client(make_sim(), "admin")
    client.produce("t", b"x")
    at = {"topic": "t", "partition": -1, "offset": 0}
    for name, more in (("FETCH", {"max": 1}), ("CONSUME", {}), ("PEEK", {"max": 1, "since_ms": 0, "filter": ""})):
        with pytest.raises(Refused) as refused:
            client.ask(name, **at, **more)
        assert (refused.value.code, "-1 to" in refused.value.text) == ("E1303", False), name
        assert "use 0 to 0" in refused.value.text
    with pytest.raises(Refused, match="or -1 to let the broker choose"):
        client.ask("PRODUCE", topic="t", key=b"", value=b"x", partition=7)


def test_a_published_client_on_the_port_of_the_document_is_told() -> None:
    """All of them end FETCH with an empty filter, and read ERROR as i32 and str16."""
    client = Client(make_sim(), anonymous="admin")
    client.produce("t", b"x")
    ask: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 0, "max": 10}
    for name in ("FETCH", "FETCH_BINARY"):
        (reply,) = client.exchange(request(name, **ask, filter=""))
        assert reply.code == frames.ERROR
        _, length = struct.unpack_from(">iH", reply.payload)
        text = reply.payload[6:].decode()
        assert len(text) == length and "flymq-sdk" in text and "9192" in text
        success, length = struct.unpack_from(">?H", reply.payload)
        assert (success, reply.payload[3:].decode()[3:], len(reply.payload)) == (False, text, 3 + length)
    assert client.values("t") == [b"x"], "the connection goes on"
    assert client.ask("FETCH", **ask, filter="x")["messages"]
    assert Client(make_sim(), "admin", "sdk").refused("FETCH", **ask, filter="") == "E1301", "there it is the form"


def test_our_own_client_leaves_an_empty_filter_off() -> None:
    ask = {"topic": "t", "partition": 0, "offset": 0, "max": 10}
    assert encode("FETCH", ask | {"filter": ""}) == encode("FETCH", ask)
    assert encode("FETCH", ask | {"filter": "", "wait_ms": 5}) != encode("FETCH", ask)
    assert encode("FETCH", ask | {"filter": "x"}) != encode("FETCH", ask)
