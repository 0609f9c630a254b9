"""Fills a broker so that every page of the console has something to show, hostile names among it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from quintet.client.blocking import sync
from tests.client.server import Server
from tests.console.conftest import Browser

MARKUP = "<img src=x onerror=document.title='owned'>"
HOSTILE = {
    "script": b"<script>document.title='owned'</script>",
    "terminal": b"\x1b[31mred\x1b[0m \x07",
    "bidi": "abc \u202egnp.exe \u2066x\u2069".encode(),
    "bytes": bytes(range(256)),
    "large": b"x" * 10_000_000,
    "number": b'{"id": 123456789012345678901234567890, "f": 1.00000000000000000001}',
    "surrogate": b"\xed\xa0\x80 lone",
}
SCHEMAS = ('{"type": "object"}', '{"type": "object", "properties": {"id": {"type": "integer"}}}')
PEER_SECRET = "quintet-development-peerbus-secret"


def fill_topics(server: Server, admin: Browser) -> None:
    """Messages, a group, a dead letter, a schema."""
    with sync.connect(server.url) as bus:
        for value in HOSTILE.values():
            bus.publish("hostile", value)
    admin.do("/api/publish", topic=MARKUP, value="x", key=MARKUP, headers=[{"name": MARKUP, "value": MARKUP}])
    admin.do("/api/publish", topic="sick-dlq", value="v", headers=[{"name": "quintet-dead-cause", "value": MARKUP}])
    admin.do("/api/topic/create", topic="sick")
    with sync.connect(server.fly) as bus, bus.subscribe("hostile", group=MARKUP, start="earliest") as messages:
        for message in messages:
            message.ack()
            break
    for definition in SCHEMAS:
        admin.do("/api/schema/register", topic="sick", type="json", definition=definition, compatibility="none")
    admin.do("/api/rule/set", name=MARKUP, users=["reader"])
    admin.do("/api/quota/set", kind="user", name=MARKUP, connections_max=9, publish_bytes_per_second_max=65_536)


def fill_holdings(server: Server) -> None:
    """A cache, a queue, a peer, a delayed message."""
    with sync.connect(server.felix) as bus:
        cache = bus.kv("shown")
        cache.put(MARKUP, MARKUP)
        cache.put("plain", "value", ttl=3600)
    with sync.connect(server.fast) as bus:
        bus.request("CREATE", topic="keyed", durable=True)
    with sync.peer(f"{server.peer('watcher')}&verify=off"):
        pass
    with sync.connect(server.fly) as bus:
        bus.publish("later", "in an hour", delay=3600, key=MARKUP)


@contextmanager
def filled(server: Server, admin: Browser) -> Iterator[None]:
    """All of it, and a transaction that is open until the end."""
    fill_topics(server, admin)
    fill_holdings(server)
    with ExitStack() as open_until_the_end:
        bus = open_until_the_end.enter_context(sync.connect(server.fly))
        begun = bus.request("TXN_BEGIN", transactional_id="shown", timeout_ms=800_000)
        bus.request("TXN_PRODUCE", txn_id=begun["txn_id"], topic="hostile", data=b"x")
        yield
