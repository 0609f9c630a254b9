"""Who changes its own password is told so before its connection, which has the old one, ends; also on a slow disk."""

from typing import Any

from quintet.protocols.flymq.session import FlySession
from tests.protocols.flymq.helpers import PASSWORD, Client, make_sim, parse, request


def test_the_answer_comes_before_the_end() -> None:
    sim = make_sim()
    client = Client(sim, "conny")
    session = client.peer.session
    assert isinstance(session, FlySession)
    sim.scheduler.held = True
    known = sim.broker.access.epoch
    change: dict[str, Any] = {
        "user": "conny",
        "password": "another-secret",
        "old_password": PASSWORD,
        "roles": [],
        "enabled": True,
    }
    client.peer.feed(request("PASSWORD_CHANGE", **change))
    while sim.broker.access.epoch == known:
        sim.scheduler.finish()  # the hashes; then the row waits for the disk
        sim.scheduler.run_until_idle()
    session.receive(memoryview(b""), sim.scheduler.now())  # rights changed: everybody is looked at
    assert session.closing is None
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    (reply,) = parse(client.peer.take())
    assert client.read("PASSWORD_CHANGE", reply)["success"]
    assert session.closing == "the user was deleted, disabled, or has another password now"
