"""The blocking twin: it is what the generator writes, and it works from ordinary threads."""

import ast
import threading
from importlib import import_module

import pytest

import quintet
from quintet.client.blocking import generate, sync
from quintet.client.core.errors import AuthError, Closed, Timeout
from tests.client.server import Server


def test_it_is_up_to_date() -> None:
    """A wheel is always; a checkout is after `make setup`."""
    assert generate.TARGET.read_text() == generate.generate(), "the client was changed: make setup"


def test_every_name_of_it_says_what_it_is() -> None:
    """It is read in an editor as often as the asynchronous one."""
    tree = ast.parse(generate.TARGET.read_text())
    for twin in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        assert ast.get_docstring(twin), twin.name
        original = getattr(import_module(f"quintet.client.{generate.TWINS[twin.name]}"), twin.name)
        for method in (node for node in twin.body if isinstance(node, ast.FunctionDef)):
            typed = [argument.annotation for argument in (*method.args.args[1:], *method.args.kwonlyargs)]
            assert method.returns is not None and all(typed), method.name
            said = None if method.name.startswith("__") else getattr(original, method.name, None).__doc__
            assert not said or ast.get_docstring(method), method.name


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
    before = set(threading.enumerate())  # threads of earlier tests may end meanwhile, so none of them is counted
    bus = quintet.sync.connect(url)
    with bus:
        assert len(set(threading.enumerate()) - before) == 1
    with pytest.raises(Closed):
        bus.ping()
    with pytest.raises(AuthError), quintet.sync.connect(f"blipmq://:wrong@127.0.0.1:{server.port}"):
        pass
    assert not set(threading.enumerate()) - before


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
