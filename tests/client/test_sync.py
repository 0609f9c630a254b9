"""The blocking twin: it is what the generator writes, and it works from ordinary threads."""

import threading
from importlib import import_module

import pytest

import quintet
from quintet.client.blocking import generate, sync
from quintet.client.core.errors import AuthError, Closed, Timeout
from tests.client.server import Server


@pytest.mark.parametrize("target", generate.TARGETS)
def test_it_is_up_to_date(target: str) -> None:
    """If this fails: python -m quintet.client.blocking.generate"""
    assert (generate.HERE / f"{target}.py").read_text() == generate.generate(target)


def test_same_names() -> None:
    for name in generate.TWINS:
        module = import_module(f"quintet.client.{generate.TWINS[name]}")
        wanted = {n for n in vars(getattr(module, name)) if not n.startswith("_")} - generate.HIDDEN
        there = {n for n in vars(getattr(sync, name)) if not n.startswith("_")}
        assert wanted <= there


def test_publish_and_receive(url: str, topic: str) -> None:
    with quintet.sync.connect(url, name="blocking") as bus, bus.subscribe(topic) as sub:
        assert bus.publish(topic, {"n": 0}) == quintet.Ack(topic, 1, True)
        bus.publish_batch(topic, [{"n": n} for n in range(1, 6)])
        with bus.producer(topic) as producer:
            producer.send({"n": 6})
            producer.flush()
            assert producer.confirmed == 1
        got = []
        for msg in sub:
            with msg.process():
                got.append(msg.json()["n"])
            if got[-1] == 2:
                break
        for batch in sub.batches(max=2, wait=5):
            assert len(batch.values) == len(batch)
            got += [msg.json()["n"] for msg in batch]
            batch.ack()
            if got[-1] == 6:
                break
        assert got == list(range(7))
        sub.flush()
        assert sub.refused == 0
        with pytest.raises(Timeout):
            sub.get(timeout=0.05)
        bus.ping()


def test_process_leaves_what_failed(url: str, topic: str) -> None:
    with quintet.sync.connect(url) as bus:
        with bus.subscribe(topic) as sub:
            bus.publish(topic, "x")
            with sub.get().process():
                raise ValueError("not now")
        with bus.subscribe(topic, resume=sub.id) as again:
            assert again.get().text() == "x"


def test_many_threads(url: str, topic: str) -> None:
    with quintet.sync.connect(url) as bus, bus.subscribe(topic) as sub:
        threads = [threading.Thread(target=bus.publish, args=(topic, n)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sub.get().json() for _ in range(20)) == list(range(20))


def test_no_thread_is_left(server: Server, url: str) -> None:
    before = threading.active_count()
    bus = quintet.sync.connect(url)
    with bus:
        assert threading.active_count() == before + 1
    with pytest.raises(Closed):
        bus.ping()
    with pytest.raises(AuthError), quintet.sync.connect(f"blipmq://:wrong@127.0.0.1:{server.port}"):
        pass
    assert threading.active_count() == before


def test_closing_ends_a_waiting_iterator(url: str, topic: str) -> None:
    with quintet.sync.connect(url) as bus:
        sub = bus.subscribe(topic)
        sub.open()
        seen: list[quintet.sync.Message] = []
        thread = threading.Thread(target=lambda: seen.extend(sub))
        thread.start()
        sub.close()
        thread.join()
        assert seen == []
