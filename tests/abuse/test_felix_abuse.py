"""Hostile and broken Felix clients over real QUIC: what is inside the streams. Each test ends with the broker serving others.

Clients are aioquic's with frames packed by hand (tests/wire), tokens PyJWT's. Abuse of QUIC: test_felix_quic_abuse.py.
"""

import base64
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest

from tests.abuse.felix_clients import Client, probe
from tests.abuse.process import Broker, config
from tests.wire.felix import ACKED, ALL_FLAGS, BATCH, ZSTD, Closed, auth, b64, batch, frame, message, names, values

MIB = 1024 * 1024
SECRET = "the master secret of this very test run"
FELIX = "[listeners.felix]\nport = 0\n"
SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "n", "stream": "s"}
CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "n", "cache": "c"}
PROTOCOL_ERROR = 0x46


def settings(rest: str = "", limits: str = "auth_failures_per_minute_max = 100000") -> str:
    secret = f'[[tokens.secrets]]\nsecret = "{SECRET}"\n'
    return config(rest=f"[limits]\ndisk_free_bytes_min = 0\n{limits}\n{secret}{FELIX}{rest}")


def development(rest: str = "") -> str:
    """Where a client that never heard of `auth` is let in."""
    return f"dev = true\n{settings(rest)}[listeners.flymq_sdk]\nenabled = false\n"


def token(tenant: str = "t1", *perms: str, **more: Any) -> str:
    claims = {"iss": "felix-auth", "aud": "felix-broker", "sub": "ann", "tid": tenant, "exp": int(time.time()) + 600}
    allowed = perms or tuple(f"{kind}.{verb}:{kind}:*" for kind, verbs in
                             (("stream", ("publish", "subscribe")), ("cache", ("read", "write"))) for verb in verbs)  # fmt: skip
    return pyjwt.encode({**claims, "perms": list(allowed), **more}, SECRET, "HS256")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("felix"), development()) as broker:
        yield broker


@pytest.fixture(scope="module")
def shut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that lets nobody in without a token; its caches are small."""
    with Broker(tmp_path_factory.mktemp("shut"), settings(f"[cache]\nmemory_bytes = {4 * MIB}\n")) as broker:
        yield broker


@pytest.fixture(autouse=True)
def served(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("dev", "shut"):
        if name in request.fixturenames:
            broker = request.getfixturevalue(name)
            probe(broker)
            assert "Traceback" not in broker.said()


def error_of(said: dict[str, Any]) -> str:
    assert said["type"] in ("error", "publish_error"), said
    message = said["message"]
    assert isinstance(message, str) and message
    return message


def alive(client: Client, stream: int) -> None:
    """The stream still takes a message, and answers everything before it."""
    client.send(stream, batch(("t1", "n", "alive"), b"x", request=999_999))
    assert client.acked(stream)[:2] == (0, 999_999)


# -- headers, lengths, splits -----------------------------------------------------------------------------------------

HEADERS = {
    "magic": frame(b"{}", magic=0x464C5832),
    "version 0": frame(b"{}", version=0),
    "version 2": frame(b"{}", version=2),
    "length max + 1": frame(b"", length=16 * MIB + 1),
    "length 2^31 - 1": frame(b"", length=2**31 - 1),
    "length 2^32 - 1": frame(b"", BATCH, length=2**32 - 1),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "known"])
@pytest.mark.parametrize("name", list(HEADERS))
def test_a_malformed_header_closes_the_connection_and_no_other(shut: Broker, name: str, known: bool) -> None:
    before = shut.resident_bytes()
    with Client(shut) as other, Client(shut) as client:
        stream = other.login()
        if known:
            client.send(client.login(), HEADERS[name])
        else:
            client.open(HEADERS[name])
        assert client.closed().code == PROTOCOL_ERROR
        alive(other, stream)
    assert shut.resident_bytes() - before < 8 * MIB


def test_a_stranger_cannot_announce_a_large_frame(shut: Broker) -> None:
    with Client(shut) as client:
        stream = client.open(frame(b"", length=16 * 1024 + 1))
        assert error_of(client.read(stream)) == "auth required"
        client.wait(lambda: stream in client.fin)


def test_the_largest_frame_is_taken(dev: Broker) -> None:
    large = bytes(range(256)) * (MIB // 256)
    with Client(dev, max_stream_data=32 * MIB) as client:
        stream = client.login()
        client.send(stream, batch(("t1", "n", "large"), *[large] * 15, request=1))
        assert client.acked(stream) == (0, 1, "")
        said = client.ask(
            stream, message("subscribe", **SCOPE | {"stream": "large"}, subscription_id=1, start="earliest")
        )
        assert said["type"] == "subscribed"
        found = client.event_stream()
        assert client.read(found)["type"] == "event_stream_hello"
        client.resets.clear()


def test_frames_split_at_every_byte_and_byte_by_byte_say_the_same(dev: Broker) -> None:
    whole = (
        auth(flags=ALL_FLAGS & ~ZSTD)
        + batch(("t1", "n", "split"), b"one", request=1)
        + message("publish", **SCOPE | {"stream": "split"}, payload=b64(b"two"), request_id=2, ack="per_message")
    )
    with Client(dev) as client:
        streams = []
        for cut in range(1, len(whole)):
            streams.append(client.open(whole[:cut]))
            client.turn(0)
        for cut, stream in enumerate(streams, 1):
            client.send(stream, whole[cut:])
        slow = client.open()
        for byte in whole:
            client.send(slow, bytes((byte,)))
            client.turn(0)
        for stream in (*streams, slow):
            assert client.read(stream)["type"] == "auth_ok"
            assert client.acked(stream) == (0, 1, "")
            assert client.read(stream) == {"type": "publish_ok", "request_id": 2}
        many = client.login()
        client.send(many, b"".join(batch(("t1", "n", "split"), b"x", request=n) for n in range(1000)))
        assert [client.acked(many)[1] for _ in range(1000)] == list(range(1000))


# -- flags ------------------------------------------------------------------------------------------------------------


def test_a_published_client_hears_of_every_flag_that_is_not_known(dev: Broker) -> None:
    body = names("t1", "n", "flags") + values(b"x")
    with Client(dev) as client:
        for flags in (None, 0x3F, ALL_FLAGS):
            stream = client.login(flags=flags)
            for bit in range(5, 16):
                assert error_of(client.ask(stream, frame(body, 1 << bit))) == "unsupported frame flags", bit
                client.send(stream, frame(body, 1 << bit | BATCH))  # nobody waits for an answer
                if 1 << bit != ZSTD:  # a key, or packed: known
                    client.send(stream, frame(struct.pack(">QB", bit, 1) + body, 1 << bit | BATCH | ACKED))
                    assert client.acked(stream) == (1, bit, "unsupported frame flags")
            for odd in (ACKED, ACKED | 0x10, 0x2, 0x4, 0x10, 0x24):
                assert error_of(client.ask(stream, frame(body, odd))) == "unsupported frame flags"
            alive(client, stream)


def test_a_document_client_may_set_flags_that_nobody_knows(dev: Broker) -> None:
    ask = {"type": "publish", **SCOPE, "stream": "doc-flags", "payload": b64(b"x"), "ack": "per_message"}
    with Client(dev) as client:
        stream = client.open(message("publish", **SCOPE, payload="", request_id="first", ack="per_message"))
        assert client.read(stream) == {"type": "ok", "request_id": "first"}
        for bit in (3, *range(5, 16)):
            payload = json.dumps({**ask, "request_id": f"bit {bit}"}).encode()
            assert client.ask(stream, frame(payload, 1 << bit)) == {"type": "ok", "request_id": f"bit {bit}"}
        with Client(dev) as reader:
            control = reader.open(message("subscribe", **SCOPE | {"stream": "doc-flags"}))
            assert reader.read(control) == {"type": "ok"}
            events = reader.event_stream()
            assert reader.read(events)["type"] == "event_stream_hello"
            for bit in range(5, 16):
                body = names("t1", "n", "doc-flags") + values(b"%d" % bit)
                client.send(stream, frame(body, BATCH | 1 << bit))
            assert reader.events(events, 11) == [b"%d" % bit for bit in range(5, 16)]


# -- binary batches ---------------------------------------------------------------------------------------------------


def test_a_batch_that_does_not_add_up_is_refused_before_it_costs_anything(dev: Broker) -> None:
    where, head = names("t1", "n", "lies"), struct.pack(">QB", 7, 1)
    bodies = {
        "count 2^32 - 1": where + values(count=2**32 - 1),
        "count one too many": where + values(b"x", count=2),
        "count one too few": where + values(b"x", b"y", count=1),
        "value of 2^32 - 1": where + struct.pack(">II", 1, 2**32 - 1),
        "no count": where,
        "half a name": names("t1", "n")[:-1],
        "name of 65535": struct.pack(">H", 65_535) + b"t1",
        "name not UTF-8": names(b"\xff\xfe", "n", "lies") + values(b"x"),
        "surrogate": names(b"\xed\xa0\x80", "n", "lies") + values(b"x"),
        "empty": b"",
    }
    before = dev.resident_bytes()
    with Client(dev) as client:
        stream = client.login()
        for name, body in bodies.items():
            client.send(stream, frame(body, BATCH))  # nobody waits for an answer
            client.send(stream, frame(head + body, BATCH | ACKED))
            assert client.acked(stream)[:2] == (1, 7), name
        client.send(stream, frame(b"", BATCH | ACKED))  # whose answer it would be, nobody can tell
        for odd in (head[:8], struct.pack(">QB", 8, 0) + where + values(b"x"), struct.pack(">QB", 8, 3) + where):
            client.send(stream, frame(odd, BATCH | ACKED))
            client.take(stream)
        client.send(stream, frame(b"not zstd", BATCH | ZSTD))
        assert error_of(client.ask(stream, frame(b"not zstd", BATCH | ACKED | ZSTD)))
        alive(client, stream)
    assert dev.resident_bytes() - before < 16 * MIB


def test_a_zstd_bomb_is_stopped_at_the_limit_of_a_frame(dev: Broker) -> None:
    from backports import zstd

    bomb = zstd.compress(names("t1", "n", "bomb") + values(bytes(200 * MIB)))
    before = dev.resident_bytes()
    with Client(dev) as client:
        stream = client.login()
        for _ in range(20):
            client.send(stream, frame(bomb, BATCH | ZSTD))  # nobody waits for an answer
            client.send(stream, frame(bomb, BATCH | ACKED | ZSTD))
        for _ in range(20):
            assert error_of(client.read(stream))
        alive(client, stream)
    assert len(bomb) < MIB
    assert dev.peak_bytes() - before < 96 * MIB


# -- JSON -------------------------------------------------------------------------------------------------------------

NOT_TEXT: list[Any] = [5, 1.5, True, [], {}]
NOT_NUMBER: list[Any] = ["x", 1.5, True, [], {}]
NOT_ID: list[Any] = ["x", 1.5, True, [], {}, -1, 2**64, 10**40]
NOT_BYTES: list[Any] = [*NOT_TEXT, "A", "AB", "=", "AA=A", "é", "QQ==\n"]
NAMED = {"tenant_id": NOT_TEXT, "namespace": NOT_TEXT, "stream": NOT_TEXT}
CACHED = {"tenant_id": NOT_TEXT, "namespace": NOT_TEXT, "cache": NOT_TEXT}
WRONG: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "publish": (
        {**SCOPE, "payload": "QQ==", "request_id": 1, "ack": "per_message"},
        {**NAMED, "payload": [*NOT_BYTES, None], "request_id": NOT_ID, "ack": [*NOT_TEXT, "maybe"]},
    ),
    "publish_batch": (
        {**SCOPE, "payloads": ["QQ=="], "request_id": 1, "ack": "per_batch"},
        {**NAMED, "payloads": [5, "QQ==", None, {}, *([one] for one in NOT_BYTES)], "request_id": NOT_ID, "ack": NOT_TEXT},
    ),
    "subscribe": (
        {**SCOPE, "subscription_id": 5, "start": "latest", "request_id": 1},
        {
            **NAMED,
            "subscription_id": NOT_ID,
            "request_id": NOT_ID,
            "start": [5, "middle", [], {}, True, {"offset": "x"}, {"offset": -1}, {"offset": 2**64}, {"time_ms": "x"},
                      {"offsets": [1, 2, 3]}, {"offsets": "x"}, {"offsets": [-1]}, {"offset": 2**63}, {"offset": 1.5}],
            "ack": [*NOT_TEXT, "sometimes"],
            "durable": [*NOT_TEXT, "", "a/b", "__x", "a\0b", "x" * 201],
            "group": [*NOT_TEXT, ""],
            "credit": [*NOT_NUMBER, 0, -1, 2**63],
        },
    ),
    "cache_put": (
        {**CACHE, "key": "k", "value": "QQ==", "request_id": 1, "ttl_ms": None, "if_version": 0},
        {**CACHED, "key": [*NOT_TEXT, None], "value": [*NOT_BYTES, None], "request_id": NOT_ID, "ttl_ms": [*NOT_NUMBER, -1],
         "if_version": [*NOT_NUMBER, -1, 2**64]},
    ),
    "cache_get": ({**CACHE, "key": "k", "request_id": 1}, {**CACHED, "key": [*NOT_TEXT, None], "request_id": NOT_ID}),
    "cache_delete": (
        {**CACHE, "key": "k", "request_id": 1},
        {**CACHED, "key": [*NOT_TEXT, None], "request_id": NOT_ID, "if_version": [*NOT_NUMBER, -1, 2**64]},
    ),
    "cache_incr": (
        {**CACHE, "key": "k", "delta": 1, "request_id": 1},
        {**CACHED, "key": [*NOT_TEXT, None], "request_id": NOT_ID, "ttl_ms": [*NOT_NUMBER, -1],
         "delta": [*NOT_NUMBER, None, 2**63, -(2**63) - 1, 10**40]},
    ),
    "cache_get_many": (
        {**CACHE, "keys": ["k"], "request_id": 1},
        {**CACHED, "keys": [5, "k", None, {}, [5], [None], ["k"] * 10_001], "request_id": NOT_ID},
    ),
    "cache_keys": (
        {**CACHE, "request_id": 1},
        {**CACHED, "prefix": NOT_TEXT, "after": NOT_TEXT, "limit": [*NOT_NUMBER, -1, 10_001], "request_id": NOT_ID},
    ),
    "cache_watch": (
        {**CACHE, "subscription_id": 9, "request_id": 1},
        {**CACHED, "key": NOT_TEXT, "prefix": NOT_TEXT, "subscription_id": NOT_ID, "request_id": NOT_ID},
    ),
    "ack": (
        {"subscription_id": 5, "ranges": [[0, 1]], "request_id": 1},
        {"subscription_id": [*NOT_ID, None], "request_id": NOT_ID,
         "ranges": [5, None, "x", {}, [5], [[1]], [[1, 2, 3]], [["x", 1]], [[0, 0]], [[0, -1]], [[0, 2**63]], [[-1, 1]],
                    [[2**64, 1]], [[2**63, 1]]]},
    ),
    "unsubscribe": (
        {"subscription_id": 5, "request_id": 1},
        {"subscription_id": [*NOT_ID, None], "delete": ["x", 5, []], "request_id": NOT_ID},
    ),
}  # fmt: skip


@pytest.mark.parametrize("type", list(WRONG))
def test_a_wrong_type_in_any_field_is_an_error_and_nothing_else(dev: Broker, type: str) -> None:
    good, wrong = WRONG[type]
    good = good | ({"key": type} if "key" in good else {})  # the other types have put theirs on this broker
    with Client(dev) as client:
        stream = client.login()
        made = client.ask(stream, message("subscribe", **SCOPE | {"stream": "mine"}, subscription_id=5))
        assert made["type"] == "subscribed"
        for name, bad in wrong.items():
            for value in bad:
                said = client.ask(stream, message(type, **{**good, name: value}))
                assert error_of(said), (name, value)
            if name in good and name not in ("request_id", "ack", "start", "ttl_ms", "if_version", "subscription_id"):
                left = {key: value for key, value in good.items() if key != name}
                assert error_of(client.ask(stream, message(type, **left))), name
        other = client.login()
        if type in ("subscribe", "cache_watch"):
            good = {**good, "subscription_id": 77}
        said = client.ask(other, message(type, **good))
        assert said["type"] not in ("error", "publish_error"), f"the control, with nothing wrong: {said}"
        alive(client, stream)


@pytest.mark.parametrize("bad", [
    {"tenant_id": 5}, {"token": 5}, {"token": None}, {"client_flags": "x"}, {"client_flags": -1}, {"client_flags": 65_536},
    {"client_flags": 2**64}, {"client_flags": 1.5}, {"tenant_id": None}, {"token": "x" * 15_000}, {"token": "a.b.c"},
    {"token": ""}, {"token": "\0"},
], ids=str)  # fmt: skip
def test_a_wrong_auth_ends_its_stream_only(shut: Broker, bad: dict[str, Any]) -> None:
    with Client(shut) as client:
        good = client.login()
        fields = {"tenant_id": "t1", "token": "alice-key", "client_flags": 255, "quintet": 1, **bad}
        stream = client.open(message("auth", **fields))
        assert error_of(client.read(stream))
        client.wait(lambda: stream in client.fin)
        alive(client, good)


def nested(depth: int) -> bytes:
    """A cache_get whose field `x` makes it so deep."""
    inner = b"[" * (depth - 1) + b"]" * (depth - 1)
    return (
        b'{"type":"cache_get","tenant_id":"t1","namespace":"n","cache":"c","key":"k","request_id":1,"x":' + inner + b"}"
    )


TEXTS = {
    "empty": b"",
    "not an object": b"[]",
    "a number": b"5",
    "null": b"null",
    "two objects": b"{}{}",
    "no type": b"{}",
    "unknown type": b'{"type":"\xf0\x9f\xa6\x86"}',
    "a server's": b'{"type":"auth_ok","server_flags":255}',
    "type not text": b'{"type":5}',
    "type twice": b'{"type":"cache_get","type":"cache_put"}',
    "type twice, escaped": b'{"type":"cache_get","\\u0074ype":"cache_get","key":"k"}',
    "key twice": b'{"type":"cache_get","key":"a","key":"b","request_id":1}',
    "key twice inside": b'{"type":"cache_get","key":"a","x":{"y":1,"y":2}}',
    "depth 33": nested(33),
    "depth 10000": nested(10_000),
    "a million of [": b"[" * MIB,
    "NaN": b'{"type":"cache_get","key":"a","request_id":NaN}',
    "Infinity": b'{"type":"cache_get","key":"a","request_id":-Infinity}',
    "1e400": b'{"type":"cache_get","key":"a","request_id":1e400}',
    "a number of 100000 digits": b'{"type":"cache_get","key":"a","request_id":' + b"9" * 100_000 + b"}",
    "invalid UTF-8": b'{"type":"cache_get","key":"\xff\xfe"}',
    "overlong": b'{"type":"cache_get","key":"\xc0\xaf"}',
    "surrogate bytes": b'{"type":"cache_get","key":"\xed\xa0\x80"}',
    "lone surrogate": b'{"type":"cache_get","tenant_id":"t1","namespace":"n","cache":"c","key":"\\ud800"}',
    "a NUL behind": b'{"type":"cache_get","key":"k"}\0',
    "BOM": b'\xef\xbb\xbf{"type":"cache_get","key":"k"}',
    "cut off": b'{"type":"cache_get","key":"k',
    "comment": b'{"type":"cache_get",/**/"key":"k"}',
    "control character": b'{"type":"cache_get","key":"\x01"}',
    "trailing comma": b'{"type":"cache_get","key":"k",}',
}


@pytest.mark.parametrize("published", [True, False], ids=["published", "document"])
def test_a_text_that_is_no_message_is_an_error_on_its_stream(dev: Broker, published: bool) -> None:
    """Each on a stream that goes on, while another stream and another connection notice nothing."""
    with Client(dev) as client, Client(dev) as elsewhere:
        far, near = elsewhere.login(), client.login()
        stream = client.login() if published else client.open(message("cache_get", key="k"))
        if not published:
            assert client.read(stream)["type"] == "cache_value"
        for name, payload in TEXTS.items():
            assert error_of(client.ask(stream, frame(payload))), name
            if name.startswith(("depth", "a million", "key twice")):
                alive(client, near)
                alive(elsewhere, far)
        assert client.ask(stream, frame(nested(32)))["type"] == "cache_value", "the control: one less is fine"


def test_sixteen_mebibytes_of_brackets_are_one_error(dev: Broker) -> None:
    with Client(dev) as client:
        stream = client.login()
        for text_ in (b"[" * 16 * MIB, b'{"a":' * (16 * MIB // 5)):
            client.send(stream, frame(text_))
            with Client(dev) as other:
                alive(other, other.login())
            assert error_of(client.read(stream))
        alive(client, stream)


def test_base64_has_one_form(dev: Broker) -> None:
    tricks = ["A", "AB", "ABC", "AB=C", "A===", "====", "=", "AB==CD==", "QQ=", "QQ===", "-_-_", "QQ==\n", " QQ==",
              "Q Q=", "QQ==QQ==", "QQ\u200b==", "QUJD=", "QUJD====", "\u0430QQ="]  # fmt: skip
    with Client(dev) as client:
        stream = client.login()
        for trick in tricks:
            asked = message("publish", **SCOPE, payload=trick, request_id=1, ack="per_message")
            assert error_of(client.ask(stream, asked)), trick
            asked = message("publish_batch", **SCOPE, payloads=["QQ==", trick], request_id=1, ack="per_batch")
            assert error_of(client.ask(stream, asked)), trick
            asked = message("cache_put", **CACHE, key="k64", value=trick, request_id=1, ttl_ms=None)
            assert error_of(client.ask(stream, asked)), trick
        assert client.ask(stream, message("cache_get", **CACHE, key="k64", request_id=1))["value"] is None
        fine = message("publish", **SCOPE, payload="QQ==", request_id=1, ack="per_message")
        assert client.ask(stream, fine)["type"] == "publish_ok"


# -- names and tenants ------------------------------------------------------------------------------------------------

BAD_PARTS = ["", "a/b", "/", "../x", "a\0b", "\0", "__audit", "__", "x" * 201, "é" * 101]
ODD_PARTS = ["*", "..", ".", "a\\b", "\u202etxt", "caf\u00e9", "cafe\u0301", "x" * 80, "~", "$(id)", "a b", "\n"]


UNANSWERED = ("publish unasked", "batch unasked")  # nobody waits for an answer: a refusal is not told


def asking(scope: tuple[str, str, str]) -> dict[str, bytes]:
    """Every message that names a stream or a cache, about this one."""
    stream = dict(zip(("tenant_id", "namespace", "stream"), scope, strict=True))
    cache = dict(zip(("tenant_id", "namespace", "cache"), scope, strict=True))
    return {
        "publish": message("publish", **stream, payload="QQ==", request_id=1, ack="per_message"),
        "publish unasked": message("publish", **stream, payload="QQ=="),
        "publish_batch": message("publish_batch", **stream, payloads=["QQ=="], request_id=1, ack="per_batch"),
        "empty batch": message("publish_batch", **stream, payloads=[], request_id=1, ack="per_batch"),
        "batch": batch(scope, b"x", request=1),
        "batch unasked": batch(scope, b"x"),
        "subscribe": message("subscribe", **stream),
        "durable": message("subscribe", **stream, durable="d"),
        "group": message("subscribe", **stream, group="g"),
        "cache_put": message("cache_put", **cache, key="k", value="QQ==", request_id=1, ttl_ms=None),
        "cache_get": message("cache_get", **cache, key="k", request_id=1),
        "cache_delete": message("cache_delete", **cache, key="k", request_id=1),
        "cache_incr": message("cache_incr", **cache, key="k", delta=1, request_id=1),
        "cache_get_many": message("cache_get_many", **cache, keys=["k"], request_id=1),
        "cache_keys": message("cache_keys", **cache, request_id=1),
        "cache_watch": message("cache_watch", **cache),
    }


def refusal(client: Client, stream: int) -> str:
    """The words of the next frame, which must be a refusal of any form."""
    flags, payload = client.take(stream)
    if flags:
        assert payload[0] == 1, payload
        return payload[11:].decode()
    return error_of(json.loads(payload))


@pytest.mark.parametrize("where", [0, 1, 2], ids=["tenant", "namespace", "stream"])
def test_names_that_cannot_be_are_refused_in_every_message(dev: Broker, where: int) -> None:
    with Client(dev) as client:
        for part in BAD_PARTS:
            scope = ["t1", "n", "s"]
            scope[where] = part
            for name, asked in asking((scope[0], scope[1], scope[2])).items():
                stream = client.login()
                client.send(stream, asked)
                if name in UNANSWERED:
                    alive(client, stream)
                else:
                    assert refusal(client, stream), (name, part)
                client.send(stream, b"", end=True)


def test_strange_names_are_names_and_never_paths_or_patterns(dev: Broker) -> None:
    before = {path for path in dev.folder.rglob("*") if dev.data not in path.parents}
    with Client(dev) as client:
        stream = client.login()
        for number, part in enumerate(ODD_PARTS):
            client.send(stream, batch((part, part, part), b"%d" % number, request=number))
            assert client.acked(stream) == (0, number, "")
            said = client.ask(
                stream, message("subscribe", tenant_id=part, namespace=part, stream=part, start="earliest")
            )
            assert said["type"] == "subscribed"
            client.wait(lambda: len([one for one in client.data if one & 3 == 3]) > number)  # noqa: B023
            events = client.event_stream()
            assert client.read(events)["type"] == "event_stream_hello"
            assert client.events(events, 1) == [b"%d" % number], "its own alone: twins are two, and * is no pattern"
    assert {path for path in dev.folder.rglob("*") if dev.data not in path.parents} == before
    assert not any("id)" in path.name or "txt" in path.name for path in dev.data.rglob("*"))


FOREIGN = {"another": ("t2", "n", "s"), "bare": ("", "", "s"), "a cache's": ("cache", "t2", "c"), "twin": ("T1", "n", "s"),
           "pattern": ("*", "n", "s"), "longer": ("t1x", "n", "s")}  # fmt: skip


UNNAMEABLE = ("bare", "a cache's")  # these are no tenants at all, which may be said instead


@pytest.mark.parametrize("whose", list(FOREIGN))
def test_a_tenants_token_reaches_no_other_tenant(shut: Broker, whose: str) -> None:
    """In any message; the control is the same message about its own."""
    mine = token("t1")
    with Client(shut) as client:
        for name, asked in asking(FOREIGN[whose]).items():
            stream = client.login(mine)
            client.send(stream, asked)
            if name in UNANSWERED:
                alive(client, stream)
                continue
            said = refusal(client, stream)
            if whose not in UNNAMEABLE:
                assert said == "tenant mismatch", name
                client.wait(lambda: stream in client.fin)  # noqa: B023
        for name, asked in asking(("t1", "n", "s")).items():
            stream = client.login(mine)
            client.send(stream, asked + message("cache_get", **CACHE, key="own", request_id=2))
            flags, payload = client.take(stream)
            assert b"error" not in payload and b"mismatch" not in payload, (name, flags, payload)
        stream = client.open(auth(mine, "t2"))
        assert error_of(client.read(stream)) == "tenant mismatch"


def test_permissions_are_matched_to_the_end_and_names_are_no_patterns(shut: Broker) -> None:
    narrow = token("t1", "stream.publish:stream:t1/n/a*", "stream.subscribe:stream:t1/n/b", "cache.read:cache:t1/n/c")
    with Client(shut) as client:
        cases = {
            ("t1", "n", "abc"): True, ("t1", "n", "b"): False, ("t1", "nn", "a"): False, ("t1", "n", "*"): False,
            ("t1", "*", "a"): False, ("t1", "N", "a"): False, ("t1", "n", "A"): False, ("t1", "n", ".a"): False,
        }  # fmt: skip
        for scope, fine in cases.items():
            stream = client.login(narrow)
            client.send(stream, batch(scope, b"x", request=1))
            status, _, said = client.acked(stream)
            assert (status, said) == ((0, "") if fine else (1, "forbidden")), scope
        for type_, allowed in (
            ("cache_get", True),
            ("cache_put", False),
            ("cache_delete", False),
            ("cache_incr", False),
        ):
            stream = client.login(narrow)
            fields = {**CACHE, "key": "k", "request_id": 1, "value": "QQ==", "ttl_ms": None, "delta": 1}
            said_ = client.ask(stream, message(type_, **fields))
            assert (said_["type"] != "error") is allowed, (type_, said_)


def test_forged_and_expired_tokens_are_refused(shut: Broker) -> None:
    good = token()
    head, claims, signature = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    forged = [
        token(exp=int(time.time()) - 3600), token(exp="never"), token(tid="t2"), token(iss="felix"), token(aud="other"),
        token(nbf=int(time.time()) + 3600), f"{none}.{claims}.", f"{none}.{claims}.{signature}", f"{head}.{claims}.",
        good[:-2], good + "=", good + "\n", pyjwt.encode({"tid": "t1"}, SECRET, "HS256"), "..", "." * 1000,
        pyjwt.encode(pyjwt.decode(good, options={"verify_signature": False}), "x" * 40, "HS256"),
    ]  # fmt: skip
    with Client(shut) as client:
        for number, one in enumerate(forged):
            stream = client.open(auth(one), batch(("t1", "n", "s"), b"early", request=1))
            assert error_of(client.read(stream)) in ("auth failed", "tenant mismatch"), number
            with pytest.raises(EOFError):
                client.take(stream)
        client.login(good)
    assert good not in shut.said() and SECRET not in shut.said()


def test_subscriptions_of_others_cannot_be_guessed(shut: Broker) -> None:
    with Client(shut) as owner, Client(shut) as thief:
        control = owner.login(token("t1"))
        assert (
            owner.ask(control, message("subscribe", **SCOPE, subscription_id=41, ack="explicit"))["type"]
            == "subscribed"
        )
        stream, same = thief.login(token("t1")), owner.login(token("t1", sub="eve"))
        for guess in (*range(50), "41", 2**63):
            for client, where in ((thief, stream), (owner, same)):
                for asked in (message("unsubscribe", subscription_id=guess, delete=True, request_id=1),
                                message("ack", subscription_id=guess, ranges=[[0, 1]], request_id=1)):  # fmt: skip
                    assert error_of(client.ask(where, asked)), guess
        owner.send(control, batch(("t1", "n", "s"), b"still", request=3))
        assert owner.acked(control)[0] == 0
        events = owner.event_stream()
        assert owner.read(events)["subscription_id"] == 41
        assert owner.events(events, 1) == [b"still"]


def test_brute_force_shuts_the_address_out(tmp_path: Path) -> None:
    with Broker(tmp_path, settings(limits="auth_failures_per_minute_max = 15")) as broker:
        with Client(broker, source="127.0.0.9") as client, pytest.raises(Closed):
            for number in range(40):
                stream = client.open(auth(f"guess-{number}"))
                assert error_of(client.read(stream)) == "auth failed"
        with pytest.raises(Closed), Client(broker, source="127.0.0.9") as again:
            again.login()
        probe(broker)
        assert "guess-" not in broker.said() and "alice-key" not in broker.said()


# -- caches -----------------------------------------------------------------------------------------------------------


def test_a_flood_of_keys_stays_within_the_memory_of_caches(shut: Broker) -> None:
    """100,000 keys of 300 bytes into 4 MiB: old ones go, the newest is there, the process stays small."""
    before = shut.resident_bytes()
    value = b64(bytes(100))
    with Client(shut) as client:
        stream = client.login(token("t1"))
        done = 0
        for first in range(0, 100_000, 2_000):
            puts = [message("cache_put", **CACHE, key=f"key-{n}", value=value, request_id=n, ttl_ms=None)
                    for n in range(first, first + 2_000)]  # fmt: skip
            client.send(stream, b"".join(puts))
            while done < first + 2_000 - 4_000:
                assert client.read(stream)["type"] == "cache_ok"
                done += 1
        while done < 100_000:
            assert client.read(stream)["type"] == "cache_ok"
            done += 1
        assert client.ask(stream, message("cache_get", **CACHE, key="key-99999", request_id=1))["value"] == value
        found = 0
        for first in range(0, 100_000, 10_000):
            many = message(
                "cache_get_many", **CACHE, keys=[f"key-{n}" for n in range(first, first + 10_000)], request_id=1
            )
            found += sum(one is not None for one in client.ask(stream, many)["values"])
        assert 0 < found < 4 * MIB // 300, "the limit was at work"
    assert shut.resident_bytes() - before < 96 * MIB


def test_times_to_live_and_numbers_at_their_ends(dev: Broker) -> None:
    with Client(dev) as client:
        stream = client.login()
        for ttl in (2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30):
            put = message("cache_put", **CACHE, key=f"ttl{ttl}", value="QQ==", request_id=1, ttl_ms=ttl)
            said = client.ask(stream, put)
            got = client.ask(stream, message("cache_get", **CACHE, key=f"ttl{ttl}", request_id=2))
            assert (said["type"], got["value"]) in (("cache_ok", "QQ=="), ("error", None)), (ttl, said, got)
        client.ask(stream, message("cache_put", **CACHE, key="now", value="QQ==", request_id=1, ttl_ms=0))
        assert client.ask(stream, message("cache_get", **CACHE, key="now", request_id=1))["value"] is None
        number = {**CACHE, "key": "number", "request_id": 1}
        assert client.ask(stream, message("cache_incr", **number, delta=2**63 - 1))["number"] == 2**63 - 1
        assert error_of(client.ask(stream, message("cache_incr", **number, delta=1)))
        assert client.ask(stream, message("cache_incr", **number, delta=-(2**63) + 1))["number"] == 0
        client.ask(stream, message("cache_put", **CACHE, key="word", value="QQ==", request_id=1, ttl_ms=None))
        assert error_of(client.ask(stream, message("cache_incr", **number | {"key": "word"}, delta=1)))
        for key in ("", "x" * 5000):
            put = message("cache_put", **CACHE, key=key, value="QQ==", request_id=1, ttl_ms=None)
            said = client.ask(stream, put)
            assert said["type"] == ("cache_ok" if not key else "error") or error_of(said)
        large = message("cache_put", **CACHE, key="large", value=b64(bytes(2 * MIB + 1)), request_id=1, ttl_ms=None)
        assert error_of(client.ask(stream, large))


def test_the_key_of_another_tenant_is_another_key(shut: Broker) -> None:
    with Client(shut) as client:
        for tenant in ("t1", "t2"):
            stream = client.login(token(tenant), tenant)
            fields = {**CACHE, "tenant_id": tenant, "key": "shared", "request_id": 1}
            assert client.ask(stream, message("cache_get", **fields))["value"] is None
            put = client.ask(stream, message("cache_put", **fields, value=b64(tenant.encode()), ttl_ms=None))
            assert put["type"] == "cache_ok"
            assert client.ask(stream, message("cache_get", **fields))["value"] == b64(tenant.encode())
            for key in ("../../t2/n/c/shared", "t2\0n\0c\0shared", "\0n\0c\0shared"):
                assert client.ask(stream, message("cache_get", **fields | {"key": key}))["value"] is None
            for parts in (("t1\0n", "c", "c"), (f"{tenant}\0n\0c", "", "")):
                scope = dict(zip(("tenant_id", "namespace", "cache"), parts, strict=True))
                other = client.login(token(tenant), tenant)
                assert error_of(client.ask(other, message("cache_get", **scope, key="shared", request_id=1)))
