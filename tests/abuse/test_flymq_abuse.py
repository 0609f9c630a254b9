"""Hostile and broken FlyMQ peers, over real sockets, against one running broker that must serve others on.

Each test ends with the broker alive and the connection usable unless the protocol says it is closed. Peers are made of
tests/wire/flymq.py, which shares no code with the broker.
"""

import gzip
import json
import os
import random
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest
from backports.zstd import ZstdCompressor
from cramjam import lz4

from tests.abuse.process import Broker, config
from tests.wire import flymq
from tests.wire.flymq import (
    AUTH,
    AUTH_RESPONSE,
    ERROR,
    HEAD,
    WHOAMI,
    Closed,
    blob,
    fetch,
    frame,
    produce,
    text,
    values_of,
)

MIB = 1024 * 1024
PEOPLE = {"admin": "admin", "bruno": "producer", "conny": "consumer", "guste": "guest"}
FREED_S = 25.0  # less than a long poll lasts
BOMBS = 100
BOMB_BYTES = 64 * MIB
BOMB_GROWTH_BYTES_MAX = 64 * MIB
I32 = (-(2**31), -2, 1, 2**31 - 1)
U64 = (10**6, 2**63 - 1, 2**63, 2**64 - 1)


class Wire(flymq.Client):
    """Its users have passwords made of their names."""

    def login(self, user: str = "admin", password: str = "") -> Self:
        return super().login(user, password or f"{user}-password")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    people = "".join(
        f'[[users]]\nname = "{name}"\npassword = "{name}-password"\nroles = ["{role}"]\n'
        for name, role in PEOPLE.items()
    )
    rest = "[limits]\ndisk_free_bytes_min = 0\nauth_failures_per_minute_max = 100000\ntail_cache_bytes = 16777216\n"
    folder = tmp_path_factory.mktemp("flymq")
    with Broker(folder, config(listener="[listeners.flymq]\nport = 0\n", rest=rest + people)) as broker:
        yield broker


@pytest.fixture(scope="module")
def served(running: Broker) -> Iterator[Wire]:
    """Somebody else, all the time."""
    with Wire(running.listeners["flymq"]).login("admin") as peer:
        assert peer.ask(produce("served", b"x")).code == 1
        yield peer


@pytest.fixture
def broker(running: Broker, served: Wire) -> Iterator[Broker]:
    yield running
    assert served.ask(produce("served", b"x")).code == 1, "the broker must still serve others"


@pytest.fixture
def address(broker: Broker) -> str:
    return broker.listeners["flymq"]


@pytest.fixture(scope="module")
def admin(running: Broker) -> Iterator[Wire]:
    with Wire(running.listeners["flymq"]).login("admin") as peer:
        assert peer.ask(produce("t", b"value", partition=0)).code == 1
        yield peer


def closed_without_a_word(peer: Wire) -> None:
    with pytest.raises(Closed):
        pytest.fail(f"expected the end of the connection, got {peer.read()}")


# -- framing and time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [False, True], ids=["before AUTH", "after AUTH"])
@pytest.mark.parametrize("length", [32 * MIB + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_length_out_of_bounds_closes(broker: Broker, address: str, length: int, ready: bool) -> None:
    with Wire(address) as peer:
        if ready:
            peer.login("bruno")
        before = broker.resident_bytes()
        peer.send(HEAD.pack(0xAF, 1, 1, 1, length))
        closed_without_a_word(peer)
        assert broker.resident_bytes() - before < 8 * MIB, "nothing may be allocated for a length that is a lie"


@pytest.mark.parametrize("first", [b"\xae", b"\x00", b"\xaf\x00", b"\xaf\x02", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01"])
def test_another_magic_or_version_closes(address: str, first: bytes) -> None:
    with Wire(address) as peer:
        peer.send(first)
        closed_without_a_word(peer)
    with Wire(address).login("bruno") as peer:
        peer.send(frame(0x72) + first)
        assert peer.read().code == 0x72, "what came before it is answered"
        closed_without_a_word(peer)


def test_large_frames_of_strangers_are_refused_unread(address: str) -> None:
    with Wire(address) as peer:
        peer.send(HEAD.pack(0xAF, 1, AUTH, 1, 16 * 1024 + 1))
        closed_without_a_word(peer)


def test_clients_that_do_not_authenticate_are_closed(broker: Broker, address: str) -> None:
    """Silent, stuck in a header, stuck in a payload, asking what needs a name: each has five seconds."""
    peers = [Wire(address) for _ in range(4)]
    for peer, sent in zip(peers, (b"", b"\xaf\x01", frame(AUTH, b"\0\5adm")[:-2], frame(0x08)), strict=True):
        peer.send(sent)
    assert "authenticate first" in peers[3].read().error
    for peer in peers:
        with peer, pytest.raises(Closed):
            peer.read(15)
    broker.await_said("no authentication within 5 seconds", 4)


def test_an_unfinished_large_frame_costs_only_what_was_sent(broker: Broker, address: str) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(Wire(address).login("bruno")) for _ in range(20)]
        other = stack.enter_context(Wire(address).login("conny"))  # before: a login takes 19 MiB for its hash
        before = broker.resident_bytes()
        for peer in peers:
            peer.send(HEAD.pack(0xAF, 1, 1, 1, 32 * MIB) + bytes(1000))
        assert other.usable()
        assert broker.resident_bytes() - before < 16 * MIB


def test_a_thousand_frames_in_one_segment_and_one_frame_in_pieces(admin: Wire) -> None:
    run = produce("many", b"x", partition=0) * 999 + frame(0x72)
    admin.send(run)
    assert [admin.read().code for _ in range(1000)] == [1] * 999 + [0x72]
    for byte in produce("many", b"in pieces", partition=0):
        admin.send(bytes((byte,)))
    assert admin.read().code == 1
    values, following = values_of(admin.ask(fetch("many", 999)).payload)
    assert (values, following) == ([b"in pieces"], 1000)


def test_every_code_is_answered_and_the_connection_stays(admin: Wire) -> None:
    """Codes of replies, unknown ones, and every operation with a payload that is none of its own."""
    chance = random.Random(2)
    for op in range(256):
        for payload in (b"", b"\0", b"\xff" * 40, chance.randbytes(30)):
            reply = admin.ask(frame(op, payload))
            expected = AUTH_RESPONSE if op == AUTH else op
            assert reply.code in (ERROR, expected), op
    assert admin.usable()


def test_random_bytes_never_hurt(address: str) -> None:
    chance = random.Random(5)
    for _ in range(100):
        with Wire(address) as peer:
            peer.send(
                frame(chance.randrange(256), chance.randbytes(chance.randrange(64)))
                + chance.randbytes(chance.randrange(200))
            )


# -- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [b"", b"\xff\xfe", b"a\0b", b"x" * 256, b"x" * 65535, b"__topics", b"__x", b"\xed\xa0\x80"]
)
def test_names_that_are_none_are_refused(admin: Wire, name: bytes) -> None:
    for op, rest in ((0x01, blob(b"") + blob(b"v") + struct.pack(">i", -1)), (0x03, struct.pack(">i", 1)), (0x09, b"")):
        reply = admin.ask(frame(op, text(name) + rest))
        assert reply.code == ERROR or (op == 0x09 and not name.startswith(b"__")), reply
    assert admin.usable()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "a\\b", "\u202egnp", "%2e%2e", "nul", "a\nb"]
)
def test_names_never_become_paths(running: Broker, admin: Wire, name: str) -> None:
    admin.ask(produce(name, b"x"))
    found = [str(path.relative_to(running.data)) for path in Path(running.data).rglob("*")]
    assert not [path for path in found if "passwd" in path or ".." in path or "\n" in path or "nul" in path]
    values, _ = values_of(admin.ask(fetch(name)).payload)
    assert values == [b"x"], "a name like any other"


# -- numbers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", I32)
def test_partitions_out_of_range(admin: Wire, partition: int) -> None:
    p, t, g = struct.pack(">i", partition), text("t"), text("g")
    zero = struct.pack(">Q", 0)
    for name, raw in {
        "PRODUCE": frame(0x01, t + blob(b"") + blob(b"v") + p),
        "CONSUME": frame(0x02, t + p + zero),
        "SUBSCRIBE": frame(0x05, t + g + p + text("earliest")),
        "COMMIT": frame(0x06, t + g + p + zero),
        "FETCH": frame(0x07, t + p + zero + struct.pack(">i", 5)),
        "CONSUME_ZERO_COPY": frame(0x0A, t + p + zero),
        "FETCH_BINARY": frame(0x0B, t + p + zero + struct.pack(">i", 5)),
        "DEAD_LETTER": frame(0x23, t + p + zero + text("")),
        "PRODUCE_WITH_TTL": frame(0x35, t + blob(b"v") + struct.pack(">q", 5) + blob(b"") + p),
        "GET_OFFSET": frame(0x60, t + g + p),
        "RESET_OFFSET": frame(0x61, t + g + p + b"\6latest"),
        "GET_LAG": frame(0x64, t + g + p),
        "SEEK": frame(0x66, t + g + p + struct.pack(">q", 0)),
    }.items():
        assert admin.ask(raw).code == ERROR, name
    assert admin.usable()


@pytest.mark.parametrize("partitions", [*I32[:2], -1, 1001, 2**31 - 1])
def test_numbers_of_partitions_out_of_range(admin: Wire, partitions: int) -> None:
    assert "partitions" in admin.ask(frame(0x03, text("fresh") + struct.pack(">i", partitions))).error
    assert "not found" in admin.ask(fetch("fresh")).error


@pytest.mark.parametrize("offset", U64)
def test_offsets_past_the_end(admin: Wire, offset: int) -> None:
    o, t, g, p = struct.pack(">Q", offset), text("t"), text("numbers"), struct.pack(">i", 0)
    for op in (0x07, 0x0B):
        reply = admin.ask(frame(op, t + p + o + struct.pack(">i", 2**31 - 1)))
        assert values_of(reply.payload) == ([], offset)
    for op, payload in ((0x02, t + p + o), (0x0A, t + p + o), (0x06, t + g + p + o), (0x21, t + o), (0x31, t + o)):
        assert admin.ask(frame(op, payload)).code == ERROR, hex(op)
    for mode in (b"\6offset", b"\x09timestamp"):
        assert admin.ask(frame(0x61, t + g + p + mode + o)).code == ERROR
    assert admin.usable()


@pytest.mark.parametrize("count", [2**32 - 1, 2**31, 10_001])
def test_counts_that_lie(broker: Broker, admin: Wire, count: int) -> None:
    """Also with the bytes there that the count needs: each of them would become an object."""
    before = broker.peak_bytes()
    user, many = text("u") + text("long enough") + text(""), struct.pack(">I", count)
    there = bytes(2 * count) if count < 10**6 else b""
    for op, payload in {
        0x73: user + many + there + b"\1",
        0x75: user + many + there + b"\1",
        0x7C: user + many + there + b"\1",
        0x78: text("t") + b"\0" + many + there + many + there,
        0x80: struct.pack(">qq", 0, 0) + many + there + text("") * 4 + struct.pack(">ii", 5, 0),
        0x81: struct.pack(">I", count),
    }.items():
        assert admin.ask(frame(op, payload)).code == ERROR, hex(op)
    assert broker.peak_bytes() - before < 8 * MIB
    assert admin.usable()


@pytest.mark.parametrize("milliseconds", [-(2**63), -1, 2**62, 2**63 - 1])
def test_times_out_of_range(admin: Wire, milliseconds: int) -> None:
    for op in (0x30, 0x35):
        assert admin.ask(frame(op, text("t") + blob(b"v") + struct.pack(">q", milliseconds))).code == ERROR
    assert admin.usable()


# -- compression --------------------------------------------------------------------------------------------------------


def zstd_of(size: int) -> bytes:
    packer = ZstdCompressor(level=3)
    out = b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB))
    return out + packer.flush()


def gzip_of(size: int) -> bytes:
    packer = zlib.compressobj(level=9, wbits=31)
    out = b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB))
    return out + packer.flush()


def snappy_of(size: int) -> bytes:
    """Its length, and nothing that makes it true; then copies of one zero."""
    head, value = bytearray(), size
    while value >= 0x80:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*head, value)) + b"\0\0" + b"\xfe\1\0" * 5000


@pytest.fixture(scope="module")
def bombs() -> dict[int, bytes]:
    """By the number of their compression."""
    return {
        1: gzip_of(BOMB_BYTES),
        2: bytes(lz4.compress(bytes(BOMB_BYTES))),
        3: zstd_of(BOMB_BYTES),
        4: snappy_of(2**32 - 1),
    }


def test_nothing_is_inflated_for_strangers(broker: Broker, address: str) -> None:
    small = {1: gzip_of(8 * MIB), 2: bytes(lz4.compress(bytes(3 * MIB))), 3: zstd_of(64 * MIB), 4: snappy_of(2**32 - 1)}
    before = broker.peak_bytes()
    for _ in range(10):
        with Wire(address) as peer:
            for number, bomb in small.items():
                assert len(bomb) <= 16 * 1024
                assert "authenti" in peer.ask(frame(AUTH, bomb, 1 | number << 1)).error
                assert "authenti" in peer.ask(frame(0x01, bomb, 1 | number << 1)).error
    assert broker.peak_bytes() - before < 4 * MIB


def test_bombs_are_refused_at_the_limit(broker: Broker, address: str, bombs: dict[int, bytes]) -> None:
    with Wire(address).login("guste") as peer:
        before = broker.peak_bytes()
        for count in range(BOMBS):
            number = count % 4 + 1
            for op in (0x01, 0x07, 0x73)[count % 3 :][:1]:
                assert "inflates to more than" in peer.ask(frame(op, bombs[number], 1 | number << 1)).error
        growth = broker.peak_bytes() - before
        assert growth <= BOMB_GROWTH_BYTES_MAX, f"{growth // MIB} MiB more for {BOMBS} bombs"
        assert peer.usable()


def test_compressed_nonsense(admin: Wire) -> None:
    chance = random.Random(3)
    good = gzip.compress(text("t") + struct.pack(">iQi", 0, 0, 5))
    for flags in range(1, 256, 2):
        if flags & 0x0E:
            for payload in (b"", b"\0", chance.randbytes(50), good[:-1], good + b"x", good + good):
                assert admin.ask(frame(0x07, payload, flags)).code == ERROR
    reply = admin.ask(frame(0x07, good, 3))
    assert values_of(reply.payload)[0][:1] == [b"value"]


# -- what costs time ----------------------------------------------------------------------------------------------------

REGEXES = [
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(?:a?){500}a{500}", "a{1000}{1000}",
    "((((((((((a*)*)*)*)*)*)*)*)*)*)*b", "(" * 1000 + ")" * 1000, "[" * 5000, "\\", "(?=a)a", "(a)\\1", "\\p{L}{1000}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", REGEXES, ids=range(len(REGEXES)))
def test_no_filter_takes_for_ever(admin: Wire, pattern: str) -> None:
    if (
        values_of(admin.ask(fetch("slow")).payload if admin.ask(frame(0x04, text("slow"))).code == 4 else bytes(12))[0]
        == []
    ):
        for _ in range(50):
            assert admin.ask(produce("slow", b"a" * 5000 + b"!", partition=0)).code == 1
    reply = admin.ask(fetch("slow", filter=pattern))
    assert reply.code in (7, ERROR)
    assert admin.usable()


@pytest.mark.parametrize(
    "filter", [b"x" * 65535, b"(a|b)" * 13000, b"$." + b"a." * 32000, b"$." + b"[" * 60000, b"\xff" * 100]
)
def test_huge_filters(admin: Wire, filter: bytes) -> None:
    assert admin.ask(fetch("t", filter=filter)).code in (7, ERROR)
    assert admin.usable()


SCHEMAS = {
    "itself": ("json", b'{"$ref": "#"}'),
    "each other": ("json", b'{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'),
    "deep": ("json", b'{"not": ' * 20_000 + b"{}" + b"}" * 20_000),
    "from the net": ("json", b'{"$ref": "http://127.0.0.1:9/secret.json"}'),
    "from a file": ("json", b'{"$ref": "file:///etc/passwd"}'),
    "a slow pattern": ("json", b'{"type": "string", "pattern": "(a+)+$"}'),
    "wide": ("json", json.dumps({"anyOf": [{"anyOf": [{"type": "integer"}] * 300}] * 300}).encode()),
    "avro of itself": ("avro", b'{"type": "record", "name": "r", "fields": [{"name": "r", "type": "r"}]}'),
    "avro, deep": ("avro", b'{"type": "array", "items": ' * 5000 + b'"int"' + b"}" * 5000),
    "proto of itself": ("protobuf", b'syntax = "proto3"; message M { M m = 1; }'),
    "proto, deep": ("protobuf", b'syntax = "proto3";' + b"message M {" * 5000 + b"}" * 5000),
    "proto, imports": ("protobuf", b'syntax = "proto3"; import "/etc/passwd"; message M {}'),
    "nothing": ("json", b""),
    "no JSON": ("json", b"\xff\xfe{"),
    "another type": ("xml", b"<a/>"),
}
MESSAGES = (
    b"1",
    b'"' + b"a" * 5000 + b'!"',
    b"[" * 20_000,
    b'{"r":' * 5000 + b"1" + b"}" * 5000,
    b"\x0a\xff" * 5000,
    b"\xff" * 5000,
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_that_never_end(admin: Wire, name: str) -> None:
    kind, definition = SCHEMAS[name]
    admin.ask(frame(0x10, text(f"s {name}") + bytes((len(kind),)) + kind.encode() + blob(definition)))
    for message in MESSAGES:
        assert admin.ask(frame(0x13, text(f"s {name}") + blob(message))).code in (0x13, ERROR)
        assert admin.ask(frame(0x14, text("t2") + text(f"s {name}") + blob(message))).code in (0x14, ERROR)
    assert admin.usable()


# -- floods -------------------------------------------------------------------------------------------------------------


def test_ten_thousand_transactions_never_finished(address: str) -> None:
    with Wire(address).login("bruno") as peer:
        peer.send(frame(0x40) * 10_000)
        ops = [peer.read().code for _ in range(10_000)]
        assert ops == [0x40] * 100 + [ERROR] * 9_900
        assert peer.usable()


def test_a_storm_of_members(address: str, admin: Wire) -> None:
    """They come and go while others join; in the end whoever is left has all partitions."""
    admin.ask(frame(0x03, text("stormy") + struct.pack(">i", 8)))
    join = frame(0x05, text("stormy") + text("storm") + struct.pack(">i", -1) + text("earliest") + text(""))
    peers = [Wire(address).login("conny") for _ in range(30)]
    for peer in peers:
        peer.send(join * 5)
    for peer in peers[:20]:
        peer.socket.close()
    last = peers[20]
    for peer in peers[20:]:
        for _ in range(5):
            assert peer.read().code in (0x05, ERROR)
    for peer in peers[21:]:
        peer.socket.close()
    for _ in range(50):
        reply = last.ask(join)
        if reply.code == 0x05 and struct.unpack_from(">I", reply.payload, 12)[0] == 8:
            break
    else:
        pytest.fail("the partitions of those who left were never given to who is there")
    last.socket.close()


def test_a_client_that_never_reads_its_answers_costs_little(broker: Broker, address: str, admin: Wire) -> None:
    for _ in range(16):
        assert admin.ask(produce("large", bytes(256 * 1024), partition=0)).code == 1
    before = most = broker.resident_bytes()
    with Wire(address, receive_buffer=4096).login("conny") as peer:
        peer.socket.settimeout(1)
        try:
            for _ in range(200):
                peer.socket.sendall(fetch("large") * 50)
                most = max(most, broker.resident_bytes())
        except OSError:
            pass  # the broker reads no more, or has cut the connection: both are right
        most = max(most, broker.resident_bytes())
    assert most - before < 64 * MIB, f"{(most - before) // MIB} MiB of answers nobody reads"


def test_guessing_passwords_ends_the_connection_and_tells_nothing(broker: Broker, address: str) -> None:
    told = set()
    with Wire(address) as peer, pytest.raises(Closed):
        for number in range(100):
            user = ("admin", "nobody", "Admin", "\u0430dmin")[number % 4]
            reply = peer.ask(frame(AUTH, text(user) + text(f"guess {number}")))
            told.add(reply.payload)
        pytest.fail("a hundred guesses on one connection")
    assert len(told) == 1, "the same words whoever is asked for"
    assert "guess" not in broker.said()


# -- rights -------------------------------------------------------------------------------------------------------------


def test_nobody_promotes_itself_and_the_last_administrator_stays(address: str, admin: Wire) -> None:
    def user(name: str, role: str, password: str = "") -> bytes:
        return text(name) + text(password) + text("") + struct.pack(">I", 1) + text(role) + b"\1"

    with Wire(address).login("bruno") as peer:
        for op, payload in (
            (0x75, user("bruno", "admin")),
            (0x73, user("evil", "admin", "long enough")),
            (0x74, text("admin")),
        ):
            assert "administrator" in peer.ask(frame(op, payload)).error
        assert "administrator" in peer.ask(frame(0x50, text("10.0.0.1:9093"))).error
        assert "may not" in peer.ask(fetch("t")).error, "a producer does not read"
        assert peer.usable()
    for op, payload in ((0x74, text("admin")), (0x75, user("admin", "guest"))):
        assert admin.ask(frame(op, payload)).code == ERROR
    for twin in ("Admin", "\u0430dmin", "admin\u200b", "admin "):
        assert admin.ask(frame(0x73, user(twin, "admin", "long enough"))).code == ERROR
    assert "one node" in admin.ask(frame(0x50, text("10.0.0.1:9093"))).error, "there is no cluster to join"
    assert admin.usable()


def test_passwords_are_nowhere(running: Broker, admin: Wire) -> None:
    admin.ask(frame(0x73, text("new") + text("a secret one") + text("") + struct.pack(">I", 0) + b"\1"))
    admin.ask(frame(0x7C, text("new") + text("another secret") + text("") + struct.pack(">I", 0) + b"\1"))
    said = running.said().encode()
    for secret in (b"a secret one", b"another secret", b"admin-password"):
        assert secret not in said
        for path in Path(running.data).rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes(), path
    assert "Traceback" not in running.said()


# -- long polls ---------------------------------------------------------------------------------------------------------


def sockets(broker: Broker) -> set[str]:
    """The inodes of those that the broker's process has open."""
    found = set()
    for link in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            kind, _, inode = os.readlink(link).partition(":")
            if kind == "socket":
                found.add(inode.strip("[]"))
    return found


def accepted(peers: list[Wire]) -> set[str]:
    """The inodes of the other ends of these connections. Those of earlier tests, which the broker may be about to close, are not among them."""
    ports = {peer.socket.getsockname()[1] for peer in peers}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if int(row[2].rpartition(":")[2], 16) in ports}


@pytest.mark.parametrize("behind", [b"", frame(WHOAMI), frame(WHOAMI) * 1000])
def test_a_client_that_goes_during_a_long_poll_frees_its_handle(running: Broker, admin: Wire, behind: bytes) -> None:
    """Also with requests behind it that wait their turn; the poll itself would last 30 s."""
    poll = frame(0x07, text("t") + struct.pack(">iQi", 0, 1 << 40, 10) + text("") + struct.pack(">I", 30_000))
    peers = [Wire(running.listeners["flymq"]).login("admin") for _ in range(10)]
    for peer in peers:
        peer.send(poll + behind)
    held = accepted(peers)
    assert len(held & sockets(running)) == 10
    for peer in peers:
        peer.socket.close()
    until = time.monotonic() + FREED_S
    while left := held & sockets(running):
        assert time.monotonic() < until, f"{len(left)} handles are still open"
        time.sleep(0.02)


def test_what_is_sent_during_a_long_poll_is_answered_behind_it(running: Broker, admin: Wire) -> None:
    end = struct.unpack(">Q", admin.ask(fetch("t", 1 << 40)).payload[-8:])[0]
    assert end == 1 << 40
    with Wire(running.listeners["flymq"]).login("admin") as peer:
        poll = frame(0x07, text("poll") + struct.pack(">iQi", 0, 1, 10) + text("") + struct.pack(">I", 30_000))
        assert peer.ask(produce("poll", b"first")).code == 1
        peer.send(poll)
        for _ in range(300):  # more than is read while the poll waits
            peer.send(frame(WHOAMI) * 30)
        assert admin.ask(produce("poll", b"second")).code == 1
        assert values_of(peer.read().payload)[0] == [b"second"]
        assert {peer.read().code for _ in range(300 * 30)} == {WHOAMI}
