"""LIST_DLQ and REPLAY_DLQ of many: counted and sent again by the broker, whatever the suffix and the length of a name."""

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.sections import DeliverySection
from tests.protocols.flymq.helpers import Client, make_sim

LONG = "a" * 255


@pytest.mark.parametrize("suffix", ["-dlq", ".dead"])
def test_topics_with_dead_letters_are_counted_by_the_broker(suffix: str) -> None:
    sim = make_sim(BrokerOptions(delivery=DeliverySection(dead_letter_suffix=suffix)))
    admin, conny = Client(sim, "admin"), Client(sim, "conny")
    assert admin.ask("LIST_DLQ") == {"topics": []}
    for topic, count in (("few", 2), (LONG, 3), ("gone", 1), ("closed", 1), ("none", 0)):
        admin.produce(topic, *[b"x"] * 3)
        for offset in range(count):
            admin.ask("DEAD_LETTER", topic=topic, partition=0, offset=offset, error="e")
    admin.ask("DELETE_TOPIC", topic="gone")
    everything = [(LONG, 3), ("closed", 1), ("few", 2), ("gone", 1)]
    assert [(row["topic"], row["letters"]) for row in admin.ask("LIST_DLQ")["topics"]] == everything
    admin.ask("ACL_SET", topic=f"closed{suffix}", public=False, users=["bruno"], roles=[])
    assert [(row["topic"], row["letters"]) for row in conny.ask("LIST_DLQ")["topics"]] == [
        row for row in everything if row[0] != "closed"
    ]
    assert Client(sim, "guste").ask("LIST_DLQ") == {"topics": []}
    admin.ask("PURGE_DLQ", topic="few")
    assert "few" not in [row["topic"] for row in admin.ask("LIST_DLQ")["topics"]]


def test_many_are_sent_again_in_one_request() -> None:
    client = Client(make_sim(), "admin")
    client.produce("t", *[b"%d" % n for n in range(5)])
    for offset in range(5):
        client.ask("DEAD_LETTER", topic="t", partition=0, offset=offset, error="e")
    answer = client.ask("REPLAY_DLQ", 2, topic="t", ids=["0-3", "0-0", "0-9", "what"])
    assert answer == {"success": True, "message": "OK", "replayed": 2, "missing": ["0-9", "what"]}
    assert client.values("t")[5:] == [b"3", b"0"]
    assert client.ask("LIST_DLQ") == {"topics": [{"topic": "t", "letters": 3}]}
    assert client.ask("REPLAY_DLQ", 2, topic="t", ids=["0-3"])["missing"] == ["0-3"], "once"
    assert client.ask("REPLAY_DLQ", 2, topic="t", ids=[]) == answer | {"replayed": 0, "missing": []}
    assert client.refused("REPLAY_DLQ", 2, topic="t", ids=["0-1"] * 1001) == "E1400"
    for form, name in ((0, "message_id"), (1, "offset")):
        wanted: dict[str, object] = {name: "0-1" if form == 0 else 2}
        assert client.ask("REPLAY_DLQ", form, topic="t", **wanted) == {"success": True, "message": "OK"}
