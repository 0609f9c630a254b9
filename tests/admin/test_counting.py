"""Counters of /metrics that alerts and `quintet status` use count what happens at every door."""

import pytest

from quintet import sync
from quintet.cli.operate.scrape import scrape
from tests.client.server import Server, running

MESSAGES = 5


def counted(server: Server, name: str) -> float:
    return scrape(f"http://127.0.0.1:{server.ports['admin']}").one(name)


def take(server: Server, door: str) -> None:
    """Read all messages of a topic by one door."""
    url, topic = {"blipmq": server.url, "felix": server.felix}.get(door, server.fly), f"read-by-{door}"
    with sync.connect(url) as bus:
        if door == "blipmq":
            with bus.subscribe(topic) as sub:
                bus.publish_batch(topic, ["x"] * MESSAGES)
                for _ in range(MESSAGES):
                    sub.get(timeout=30).ack()
            return
        bus.publish_batch(topic, ["x"] * MESSAGES)
        if door == "fetch":
            assert len(bus.fetch(topic, offset=0, max=MESSAGES).values) == MESSAGES
        elif door == "flight":
            flight = pytest.importorskip("pyarrow.flight", reason="the Flight door needs pyarrow")
            with flight.FlightClient(f"grpc://127.0.0.1:{server.ports['flight']}") as client:
                login = flight.FlightCallOptions(headers=[client.authenticate_basic_token("admin", "admin")])
                info = client.get_flight_info(flight.FlightDescriptor.for_path(topic), login)
                assert client.do_get(info.endpoints[0].ticket, login).read_all().num_rows == MESSAGES
        else:
            with bus.subscribe(topic, group="g", start="earliest") as sub:
                for _ in range(MESSAGES):
                    sub.get(timeout=30).ack()


def test_messages_are_counted_by_whichever_door_they_go_out() -> None:
    with running() as server:
        for door in ("blipmq", "felix", "group", "fetch", "flight"):
            before = counted(server, "quintet_delivered_messages_total")
            take(server, door)
            assert counted(server, "quintet_delivered_messages_total") - before == MESSAGES, door


def test_dead_letters_are_counted_whoever_made_them() -> None:
    """The alert on them fires for a consumer of FlyMQ, which gives up by itself, and for a schema, as for the broker's own count."""
    name = "quintet_dead_lettered_messages_total"
    with running(QUINTET_DELIVERY__ATTEMPTS_MAX="1") as server, sync.connect(server.fly) as bus:
        assert counted(server, name) == 0
        bus.publish("given-up", "x")
        with bus.subscribe("given-up", group="g", start="earliest") as sub:
            sub.get(timeout=30).reject("never works")
            sub.flush()
        assert counted(server, name) == 1
        with sync.connect(server.url) as other, other.subscribe("used-up") as sub:
            bus.publish("used-up", "x")
            sub.get(timeout=30).nack()
            sub.flush()
            until = 300
            while counted(server, name) < 2 and until:
                until -= 1
                bus.publish("time-passes", "x")
        assert counted(server, name) == 2
