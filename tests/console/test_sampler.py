"""Of very many topics the console keeps figures of those that something came to, and of some idle ones."""

import asyncio
from collections.abc import Iterator

import pytest

from quintet import kernel
from quintet.broker.topics.catalog import Topic
from quintet.console import sampler
from quintet.console.sampler import Sampler, TopicFigures
from quintet.testing.line import SimBroker

TOPICS = 30


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "IDLE_TOPICS_MAX", 4)
    monkeypatch.setattr(sampler, "SAMPLE_TOPICS_MAX", 3)


def walk(watching: Sampler, at: float) -> list[tuple[Topic, TopicFigures, int, float]]:
    """One walk at this second."""
    watching._elapsed = lambda: at  # type: ignore[method-assign]
    steps: Iterator[None] = watching._figures()
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: list[tuple[Topic, TopicFigures, int, float]] = ended.value
            return found


def filled() -> tuple[SimBroker, Sampler]:
    """A broker that found all its topics at its start."""
    sim = SimBroker()
    for number in range(TOPICS):
        topic = sim.broker.topics.ensure(b"t%d" % number, durable=True)
        topic.publish(kernel.build([b"first"]), 1, False, None)
    sim.scheduler.run_until_idle()
    sim.restart()
    return sim, Sampler(sim.broker, dict)


@pytest.mark.usefixtures("few")
def test_idle_topics_have_no_figures_beyond_a_bound() -> None:
    async def run() -> None:
        _, watching = filled()
        for second in range(1, 10):
            for _, figures, _, _ in walk(watching, second)[: sampler.SAMPLE_TOPICS_MAX]:
                figures.looked = [1]
        assert len(watching.topics) == sampler.IDLE_TOPICS_MAX

    asyncio.run(run())


@pytest.mark.usefixtures("few")
def test_the_first_message_of_an_idle_topic_counts() -> None:
    async def run() -> None:
        sim, watching = filled()
        walk(watching, 1.0)
        last = sim.broker.topics.find(b"t%d" % (TOPICS - 1))
        assert last.name not in watching.topics
        last.publish(kernel.build([b"a", b"b"]), 2, False, None)
        sim.scheduler.run_until_idle()
        grown = walk(watching, 3.0)
        assert (last, watching.topics[last.name], 2, 2.0) in grown
        assert watching.topics[last.name].rate == watching.publish_rate == 1.0
        walk(watching, 5.0)
        assert watching.topics[last.name].rate == watching.publish_rate == 0.0

    asyncio.run(run())


@pytest.mark.usefixtures("few")
def test_without_a_bound_every_topic_would_have_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "IDLE_TOPICS_MAX", TOPICS)

    async def run() -> None:
        _, watching = filled()
        for second in range(1, 20):
            for _, figures, _, _ in walk(watching, second)[: sampler.SAMPLE_TOPICS_MAX]:
                figures.looked = [1]
        assert len(watching.topics) == TOPICS

    asyncio.run(run())
