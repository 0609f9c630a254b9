"""Long JSON messages of the Felix door: scanned elsewhere, decoded in slices, answered as if they were short."""

import base64
import json
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.broker.slices import finish
from quintet.model.errors import BadRequest
from quintet.protocols.felix import codec, frames, long_json
from tests.protocols.felix.helpers import FelixSim

VALUE = Random(5).randbytes(3 << 20)
PUBLISH = {"type": "publish", "tenant_id": "t1", "namespace": "default", "stream": "demo", "request_id": 7}


def text(message: dict[str, Any]) -> bytes:
    made = json.dumps(message).encode()
    assert len(made) > long_json.JSON_HERE_BYTES_MAX
    return made


def both(payload: bytes, extended: bool = True) -> tuple[Any, Any]:
    """What decode says at once and in steps: a message, or the kind of refusal."""

    def tried(call: Any) -> Any:
        try:
            return call()
        except BadRequest as error:
            return str(error).split(":")[0]

    head = kernel.json_head(payload, frames.JSON_DEPTH_MAX)
    return tried(lambda: codec.decode(payload, extended)), tried(
        lambda: finish(long_json.decode_steps(payload, codec.extended_too if extended else codec.plain, head))
    )


@pytest.mark.parametrize("size", [0, 1, 2, 3, (3 << 18) - 1, 3 << 18, (3 << 18) + 1, 3 << 20])
def test_base64_in_pieces_is_base64_at_once(size: int) -> None:
    value = VALUE[:size]
    padding = "x" * long_json.JSON_HERE_BYTES_MAX
    once, steps = both(text({**PUBLISH, "payload": base64.b64encode(value).decode(), "ack": "none", "x": padding}))
    assert once == steps
    assert type(steps) is codec.Publish
    assert steps.payload == value


@pytest.mark.parametrize(
    "payload",
    [
        text({**PUBLISH, "payload": "A" * (2 << 20) + "="}),
        text({**PUBLISH, "payload": "A" * (1 << 20) + "AA==" + "A" * (1 << 20)}),
        text({**PUBLISH, "payload": "A" * ((1 << 20) - 2) + "==" + "A" * (1 << 20)}),
        text({**PUBLISH, "payload": "A" * (2 << 20) + "!AAA"}),
        text({**PUBLISH, "payload": ["A" * (2 << 20)]}),
        text({**PUBLISH, "x": "A" * (2 << 20)}),
        text({**PUBLISH, "type": "nothing", "payload": "A" * (2 << 20)}),
        text({**PUBLISH, "type": "publish_batch", "payloads": ["A" * (2 << 20), 5]}),
        text({**PUBLISH, "payload": "A" * (2 << 20)})[:-1],
        text({**PUBLISH, "payload": [{}] * 100_000}),
    ],
)
def test_what_is_refused_at_once_is_refused_in_steps(payload: bytes) -> None:
    once, steps = both(payload)
    assert isinstance(once, str)
    assert once == steps


def test_escaped_base64_and_other_messages_are_read() -> None:
    value = base64.b64encode(VALUE)
    batch = text({**PUBLISH, "type": "publish_batch", "payloads": [value.decode(), "", "QUI="]})
    for payload in (
        text({**PUBLISH, "payload": value.decode()}).replace(b"/", b"\\/"),
        text({**PUBLISH, "payload": value.decode()}).replace(b"/", b"\\u002f"),
        batch,
        text({"type": "cache_put", "key": "k", "value": value.decode(), "if_version": 5}),
        text({"type": "cache_get", "key": "k" * (1 << 20)}),
    ):
        once, steps = both(payload)
        assert once == steps and type(once) is type(steps)
        assert not isinstance(steps, str)


def test_a_long_publish_is_scanned_elsewhere_and_keeps_its_place() -> None:
    sim = FelixSim()
    peer = sim.connect().auth()
    sim.scheduler.held = True
    long = codec.frame(text({**PUBLISH, "payload": base64.b64encode(VALUE).decode(), "ack": "per_message"}))
    short = codec.frame(json.dumps({**PUBLISH, "payload": "QUI=", "ack": "per_message", "request_id": 8}).encode())
    peer.feed(long + short)
    assert peer.session.holding
    assert [work.func for work, _ in sim.scheduler.jobs if hasattr(work, "func")] == [kernel.json_head]
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    topic = sim.broker.topics.find(b"t1/default/demo")
    rows = [row for batch in topic.partitions[0].read_now(0) for row in batch.rows()]
    assert [row[3] for row in rows] == [VALUE, b"AB"]
    assert not peer.session.holding


def test_nothing_is_decoded_for_a_stream_that_has_gone() -> None:
    sim = FelixSim()
    peer = sim.connect().auth()
    sim.scheduler.held = True
    peer.feed(codec.frame(text({**PUBLISH, "payload": base64.b64encode(VALUE).decode()})))
    peer.close()
    while sim.scheduler.jobs:
        sim.scheduler.finish()
    sim.scheduler.run_until_idle()
    assert len(sim.broker.slices) == 0
    assert sim.broker.topics.get(b"t1/default/demo") is None
