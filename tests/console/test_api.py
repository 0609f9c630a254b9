"""The console's API without a browser: rights, wrong types, foreign origins, cookies, floods; a change is in the audit."""

import time
from typing import Any

import httpx2
import pytest

from quintet.client.blocking import sync
from quintet.console import app, call, operations, sessions, wire
from quintet.console.pages import search
from quintet.model.errors import AuthError, BadRequest, Busy, ConfigError, Forbidden, TopicNotFound
from quintet.model.rights import check_rights
from tests.client.server import Server
from tests.console.conftest import SAME_SITE, Browser


def person(address: str, name: str) -> Browser:
    return Browser(address).log_in(name, f"{name}-word")


@pytest.fixture
def reader(address: str) -> Browser:
    return person(address, "reader")


# -- what works -------------------------------------------------------------------------------------------------------


def test_a_message_is_published_found_and_followed(admin: Browser) -> None:
    placed = admin.do(
        "/api/publish",
        topic="shop",
        key="k1",
        value='{"id": 9007199254740993}',
        headers=[{"name": "h", "value": "needle"}],
    )
    assert (placed["partition"], placed["offset"]) == (0, 0)
    (row,) = admin.ask("/api/messages", topic="shop")["rows"]
    assert (row["key"]["text"], row["value"]["text"], row["origin"]) == (
        "k1",
        '{"id": 9007199254740993}',
        "console:admin",
    )
    assert admin.ask("/api/message", topic="shop", partition=0, offset=0)["headers"][0][0] == "h"
    found = [
        data["rows"][0]["offset"]
        for event, data in admin.events("/api/search", topic="shop", filter="needle")
        if event == "rows"
    ]
    assert found == [0], "a search looks into headers, too"
    none = [
        event
        for event, _ in admin.events("/api/search", topic="shop", filter="needle", headers="false")
        if event == "rows"
    ]
    assert none == []
    value = admin.get("/api/message/value", topic="shop", partition=0, offset=0)
    assert (
        value.headers["content-type"] == "application/octet-stream"
        and "attachment" in value.headers["content-disposition"]
    )
    steps = admin.ask("/api/journey", topic="shop", partition=0, offset=0)["steps"]
    assert [step["what"] for step in steps][:2] == ["published", "stored"]
    until = time.monotonic() + 10
    while not any(step["what"] == "delivered" and step["who"] == "admin" for step in steps):
        assert time.monotonic() < until, "who looked at it is in __events"
        steps = admin.ask("/api/journey", topic="shop", partition=0, offset=0)["steps"]


def test_the_last_messages_are_shown_however_large_they_are(server: Server, admin: Browser) -> None:
    with sync.connect(server.url) as bus:
        for number in range(8):
            bus.publish("bulky", f"{number} {'x' * 600_000}")
    found = admin.ask("/api/messages", topic="bulky")
    shown = [row["offset"] for row in found["rows"]]
    assert shown == sorted(range(shown[-1], 8), reverse=True) and 0 < shown[-1] < 7, "some of them, up to the newest"
    assert (found["ranges"][0]["first"], found["ranges"][0]["next"]) == (shown[-1], 8)


def test_a_tail_shows_what_comes(admin: Browser) -> None:
    admin.do("/api/topic/create", topic="tailed", partitions=2)
    rows: list[Any] = []
    for event, data in admin.events("/api/tail", topic="tailed"):
        if event == "from":
            for number in range(3):
                admin.do("/api/publish", topic="tailed", value=f"m{number}")
        elif event == "rows":
            rows += data["rows"]
            if len(rows) == 3:
                break
    assert sorted(row["value"]["text"] for row in rows) == ["m0", "m1", "m2"]


def test_a_tail_shows_large_messages_as_they_come(admin: Browser) -> None:
    """Fifty of them are more than one step reads: the newest one is shown all the same."""
    for _ in range(5):
        admin.do("/api/publish", topic="wide", value="w" * 100_000)
    for event, data in admin.events("/api/tail", topic="wide"):
        if event == "from":
            admin.do("/api/publish", topic="wide", value="the newest" + "w" * 100_000)
        elif event == "rows":
            assert [row["value"]["text"][:10] for row in data["rows"]] == ["the newest"] and not data["skipped"]
            break


def test_the_map_knows_who_published_from_the_records(admin: Browser) -> None:
    admin.do("/api/publish", topic="mapped", value="x")
    for event, data in admin.events("/api/live", of="/api/map?filter=mapped"):
        if event == "data" and any(edge["to"] == "t:mapped" for edge in data["edges"]):
            assert data["nodes"]["p:console:admin"]["door"] == "console"
            break


def test_pages_of_topics_are_bounded_and_sorted(admin: Browser) -> None:
    for number in range(5):
        admin.do("/api/topic/create", topic=f"paged-{number}", partitions=number + 1)
    found = admin.ask("/api/topics", filter="PAGED-", sort="partitions", limit=2)
    assert (found["total"], [row["name"] for row in found["rows"]]) == (5, ["paged-4", "paged-3"])
    assert admin.get("/api/topics", limit=501).status_code == 400
    assert admin.get("/api/topics", skip=-1).status_code == 400


def test_a_topic_is_deleted_only_with_its_name_typed(admin: Browser) -> None:
    admin.do("/api/topic/create", topic="doomed")
    refused = admin.post("/api/topic/delete", topic="doomed", typed="dooomed")
    assert refused.status_code == 400 and "nothing was deleted" in refused.json()["error"]
    admin.do("/api/topic/delete", topic="doomed", typed="doomed")
    assert admin.get("/api/topic", topic="doomed").status_code == 404


def test_changes_are_in_the_audit_with_the_persons_name(address: str, admin: Browser) -> None:
    other = person(address, "other")
    other.do("/api/topic/create", topic="audited")
    other.do("/api/topic/delete", topic="audited", typed="audited")
    rows = admin.ask("/api/audit", search="audited")["rows"]
    assert [(row["type"], row["user"], row["result"]) for row in rows] == [
        ("topic.delete", "other", "success"),
        ("topic.create", "other", "success"),
    ]


def test_numbers_beyond_what_javascript_keeps_are_text() -> None:
    assert wire.encode({"a": 2**53 - 1, "b": 2**53, "c": -(2**63)}) == (
        b'{"a":9007199254740991,"b":"9007199254740992","c":"-9223372036854775808"}'
    )


def test_settings_are_changed_and_what_is_not_named_stays(admin: Browser) -> None:
    admin.do("/api/topic/create", topic="altered", retention_ms=5000)
    done = admin.do("/api/topic/alter", topic="altered", durability="os", retention_bytes=1_000_000)
    assert done == {"durability": "os", "retention_us": 5_000_000, "retention_bytes": 1_000_000}
    assert admin.post("/api/topic/alter", topic="altered", retention_ms=-7).status_code == 400
    assert admin.ask("/api/topic", topic="altered")["spec"]["retention_us"] == 5_000_000
    assert admin.ask("/api/audit", search="altered")["rows"][0]["type"] == "topic.alter"


def test_a_purge_empties_a_topic_and_keeps_it(admin: Browser) -> None:
    admin.do("/api/publish", topic="emptied", value="x")
    assert admin.post("/api/topic/purge", topic="emptied", typed="").status_code == 400
    assert admin.ask("/api/topic", topic="emptied")["records"] == 1
    admin.do("/api/topic/purge", topic="emptied", typed="emptied")
    assert admin.ask("/api/topic", topic="emptied")["records"] == 0


# -- rights -----------------------------------------------------------------------------------------------------------


def test_a_person_sees_what_the_same_person_may_on_the_wire(admin: Browser, reader: Browser) -> None:
    for name in ("open-a", "secret-a"):
        admin.do("/api/publish", topic=name, value="x")
    assert [row["name"] for row in reader.ask("/api/topics")["rows"]] == ["open-a"]
    assert len(reader.ask("/api/messages", topic="open-a")["rows"]) == 1
    for path in ("/api/topic", "/api/messages", "/api/dead/letters"):
        refused = reader.get(path, topic="secret-a")
        assert refused.status_code == 403 and "secret-a" in refused.json()["error"], path
    missing = reader.get("/api/topic", topic="secret-that-is-not-there")
    assert missing.status_code == 403, "a refusal does not tell whether a topic exists"
    assert reader.ask("/api/map", quiet="true")["nodes"].keys() <= {"t:open-a", "p:console:admin"}


def test_writes_need_their_right_and_refusals_are_audited(admin: Browser, reader: Browser) -> None:
    assert reader.post("/api/publish", topic="open-a", value="x").status_code == 403
    assert reader.post("/api/topic/create", topic="open-new").status_code == 403
    assert reader.post("/api/topic/delete", topic="open-a", typed="open-a").status_code == 403
    assert admin.get("/api/topic", topic="open-new").status_code == 404
    denied = admin.ask("/api/audit", result="denied", search="/api/topic/delete")
    assert denied["rows"][0]["user"] == "reader"


def test_a_live_stream_ends_with_the_right(admin: Browser, reader: Browser) -> None:
    refused = [data for event, data in reader.events("/api/live", of="/api/topic?topic=secret") if event == "refused"]
    assert refused[0]["status"] == 403


def test_every_operation_has_a_right_and_one_without_stops_the_start() -> None:
    operations.check()
    table = {place: operation.right for place, operation in operations.BY_PLACE.items()}
    table.pop(("POST", "/api/publish"))
    with pytest.raises(ConfigError, match="/api/publish"):
        check_rights("console", operations.BY_PLACE.keys(), table)
    assert len(operations.BY_PLACE) == len(operations.OPERATIONS), "no two operations share an address"
    assert {one.right for one in operations.OPERATIONS if one.method == "POST"} <= {
        "open",
        "known",
        "read",
        "read or write",
        "write",
        "manage",
        "admin",
        "owner",
    }


# -- groups and dead letters ------------------------------------------------------------------------------------------


def test_a_reset_does_what_the_preview_showed_or_nothing(server: Any, admin: Browser) -> None:
    for number in range(5):
        admin.do("/api/publish", topic="grouped", value=f"{number}")
    with sync.connect(server.fly) as bus, bus.subscribe("grouped", group="g", start="earliest") as messages:
        for message in messages:
            message.ack()
            break
    until = time.monotonic() + 15
    while admin.ask("/api/group", topic="grouped", group="g")["members"]:
        assert time.monotonic() < until
        time.sleep(0.1)
    preview = admin.do("/api/group/preview", topic="grouped", group="g", to="latest")
    (move,) = preview["moves"]
    assert (move["at"], move["then"], move["skipped"]) == (1, 5, 4)
    stale = {"partition": 0, "at": 0, "then": 5}
    refused = admin.post("/api/group/reset", topic="grouped", group="g", moves=[stale])
    assert refused.status_code == 400 and "nothing was moved" in refused.json()["error"]
    admin.do("/api/group/reset", topic="grouped", group="g", moves=[{"partition": 0, "at": 1, "then": 5}])
    assert admin.ask("/api/group", topic="grouped", group="g")["lag"] in (0, 4)  # the figure is of the last walk
    assert admin.ask("/api/group", topic="grouped", group="g")["partitions"][0]["lag"] == 0


def test_a_frozen_selection_is_replayed_with_a_result_for_each(admin: Browser) -> None:
    """A letter that somebody published by hand is one as any other."""
    for number in range(3):
        admin.do(
            "/api/publish",
            topic="sick-dlq",
            value=f"letter {number}",
            headers=[{"name": "quintet-dead-cause", "value": "tired"}],
        )
    admin.do("/api/topic/create", topic="sick")
    assert {"topic": "sick", "letters": 3} in admin.ask("/api/dead")["rows"]
    chosen = admin.do("/api/dead/select", topic="sick", cause="tired")
    assert (chosen["count"], chosen["causes"]) == (3, [["tired", 3]])
    admin.do("/api/dead/edit", topic="sick", id="0-1", value="healed")
    admin.do(
        "/api/publish", topic="sick-dlq", value="later", headers=[{"name": "quintet-dead-cause", "value": "tired"}]
    )
    done = admin.do("/api/dead/replay", topic="sick", selection=chosen["selection"])
    assert [result["error"] is None for result in done["results"]] == [True, False, True], "0-1 was replayed before"
    values = {row["value"]["text"] for row in admin.ask("/api/messages", topic="sick")["rows"]}
    assert values == {"healed", "letter 0", "letter 2"}, "what died after the selection was not sent"
    assert admin.post("/api/dead/replay", topic="sick", selection="0" * 32).status_code == 400
    assert admin.do("/api/dead/purge", topic="sick", typed="sick")["purged"] == 1


def test_a_selection_belongs_to_who_made_it(address: str, admin: Browser) -> None:
    admin.do("/api/publish", topic="theirs-dlq", value="x")
    admin.do("/api/topic/create", topic="theirs")
    chosen = admin.do("/api/dead/select", topic="theirs")
    refused = person(address, "other").post("/api/dead/replay", topic="theirs", selection=chosen["selection"])
    assert refused.status_code == 400 and "somebody else" in refused.json()["error"]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/publish", {"topic": 5, "value": "x"}),
        ("/api/publish", {"topic": "t", "value": {"a": 1}}),
        ("/api/publish", {"topic": "t", "value": "x", "more": 1}),
        ("/api/publish", {"topic": "t", "value_base64": "%%%"}),
        ("/api/publish", {"topic": "t", "value": "x", "partition": "0"}),
        ("/api/publish", {"topic": "", "value": "x"}),
        ("/api/publish", {"topic": "x" * 10_000, "value": "x"}),
        ("/api/publish", {"topic": "t", "value": "x", "headers": [{"name": "h", "value": "v"}] * 101}),
        ("/api/topic/create", {"topic": "t", "partitions": -1}),
        ("/api/topic/create", {"topic": "t", "partitions": 10**6}),
        ("/api/topic/create", {"topic": "t", "durability": "hope"}),
        ("/api/topic/create", {"topic": "t", "retention_ms": -5}),
        ("/api/topic/delete", {"topic": "t"}),
        ("/api/group/preview", {"topic": "t", "group": "g", "to": "nowhere"}),
        ("/api/group/reset", {"topic": "t", "group": "g", "moves": "all"}),
        ("/api/dead/select", {"topic": "t", "ids": [1]}),
        ("/api/login", {"name": "admin", "password": None}),
    ],
)
def test_wrong_types_are_refused_clearly_and_change_nothing(admin: Browser, path: str, body: dict[str, object]) -> None:
    before = admin.ask("/api/topics", filter="t", limit=500)["total"]
    answer = admin.post(path, **body)
    assert answer.status_code in (400, 409) and answer.json()["error"], answer.text
    assert admin.ask("/api/topics", filter="t", limit=500)["total"] == before


@pytest.mark.parametrize(
    "query",
    [
        "topic=t&partition=x",
        "topic=t&limit=0",
        "topic=t&limit=99999999999999999999999",
        "topic=t&nothing=1",
        "topic=t&topic=u",
        "topic=%ff%fe",
        "topic=" + "x" * 20_000,
        "&".join(f"a{number}=1" for number in range(1000)),
        "topic=t&offset=one",
    ],
)
def test_wrong_queries_are_refused(admin: Browser, query: str) -> None:
    admin.do("/api/topic/create", topic="t")
    answer = admin.client.get(f"/api/messages?{query}")
    assert answer.status_code == 400 and answer.json()["error"], answer.text


def test_a_filter_runs_no_code_and_a_costly_one_is_refused(admin: Browser) -> None:
    admin.do("/api/publish", topic="filtered", value="a" * 1000)
    for bad in ("regex:(?P<x>a)(?P=x)", "regex:(a{1,900}){1,900}", "$.a[", "x" * 2000):
        said = [data for event, data in admin.events("/api/search", topic="filtered", filter=bad) if event == "refused"]
        assert said and said[0]["status"] == 400, bad
    assert [data["status"] for event, data in admin.events("/api/search", topic="filtered") if event == "refused"] == [
        400
    ]


def test_foreign_origins_change_nothing(address: str, admin: Browser) -> None:
    ask = {"topic": "forged", "value": "x"}
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://{address}"},
        {"sec-fetch-site": "same-origin", "origin": "http://evil.example"},
        {},
    ):
        assert admin.client.post("/api/publish", json=ask, headers=headers).status_code == 403, headers
    plain = admin.client.post(
        "/api/publish", content=b'{"topic":"forged"}', headers=SAME_SITE | {"content-type": "text/plain"}
    )
    assert plain.status_code == 415
    assert admin.get("/api/topic", topic="forged").status_code == 404
    assert admin.client.post("/api/publish", json=ask, headers={"origin": f"http://{address}"}).status_code == 200


def test_a_foreign_name_that_leads_here_is_refused(address: str) -> None:
    for host in ("evil.example", "evil.example:8090", "", "127.0.0.1.evil.example"):
        answer = httpx2.post(
            f"http://{address}/api/login", json={"name": "admin", "password": "admin"},
            headers=SAME_SITE | {"host": host}, trust_env=False,
        )  # fmt: skip
        assert answer.status_code in (400, 421), host
    assert (
        httpx2.get(f"http://{address}/", headers={"host": "localhost"}, trust_env=False, timeout=60).status_code == 200
    )


def test_forged_and_replayed_cookies_are_worth_nothing(address: str, admin: Browser) -> None:
    for forged in ("", "x", "0" * 64, "a" * 10_000, "%00", "admin"):
        answer = httpx2.get(
            f"http://{address}/api/topics", headers={"cookie": f"{app.COOKIE}={forged}"}, trust_env=False
        )
        assert answer.status_code == 401
    token = admin.client.cookies[app.COOKIE]
    admin.do("/api/logout")
    answer = httpx2.get(
        f"http://{address}/api/topics", headers={"cookie": f"{app.COOKIE}={token}"}, trust_env=False, timeout=60
    )
    assert answer.status_code == 401, "after the logout it is no session's any more"


def test_the_cookie_cannot_be_read_or_sent_along(address: str) -> None:
    answer = Browser(address).post("/api/login", name="admin", password="admin")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Domain" not in cookie


def test_every_answer_has_the_policy(address: str) -> None:
    for path in ("/", "/static/app.js", "/api/me", "/api/topics", "/static/nothing", "/any/page?x=1"):
        headers = httpx2.get(f"http://{address}{path}", trust_env=False, timeout=60).headers
        assert "require-trusted-types-for 'script'" in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-opener-policy"] == "same-origin"


def test_paths_that_are_no_files_are_not_read(address: str) -> None:
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/api/../static/app.py",
        "/static/",
    ):
        answer = httpx2.get(f"http://{address}{path}", trust_env=False, timeout=60)
        assert answer.status_code == 404 or answer.headers["content-type"].startswith("text/html"), path


def test_a_flood_is_refused_and_others_are_served(admin: Browser) -> None:
    """By the bucket itself: a test that sends as fast as it can would measure the machine."""
    rates = sessions.Rates(100)
    answered = sum(rates.allow("a", 1_000_000 + number) for number in range(100_000))
    assert 100 <= answered <= 112
    assert rates.allow("b", 1_100_000)
    for number in range(sessions.ADDRESSES_MAX + 10):
        rates.allow(str(number), 2_000_000)
    assert len(rates._buckets) == sessions.ADDRESSES_MAX


def test_refusals_have_their_status() -> None:
    found = [
        call.status_of(error)
        for error in (AuthError("a"), Forbidden("b"), TopicNotFound("c"), BadRequest("d"), Busy("e"))
    ]
    assert found == [401, 403, 404, 400, 503]


def test_a_search_says_why_it_stops() -> None:
    assert search._over(0, 0, 0.0) == ""
    assert "matches" in search._over(search.MATCHES_MAX, 0, 0.0)
    assert "bytes" in search._over(0, search.SEARCH_BYTES_MAX, 0.0)
    assert "seconds" in search._over(0, 0, search.SEARCH_SECONDS_MAX)
