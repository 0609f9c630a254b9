"""An intent that waits long for one of its parts: what it did elsewhere meanwhile may be gone again, and is not done twice."""

from quintet import kernel
from quintet.broker.atomic.intent_rows import Adding
from quintet.broker.atomic.intents import NotYetVisible
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import PartitionFailed
from tests.broker.parts import SECOND, Parts, Told, tell


class Refusing:
    """A partition that takes nothing until the next start, and would not have said so before."""

    failure = None

    def __init__(self, topic: Topic) -> None:
        self._real = topic.partitions[0]
        self.number = self._real.number

    start = property(lambda self: self._real.start)
    visible = property(lambda self: self._real.visible)

    def append(self, _batch: bytearray, _done: object) -> int:
        raise PartitionFailed("a sync failed")


def test_what_retention_took_while_the_rest_waited_is_not_appended_again() -> None:
    parts = Parts()
    kept = parts.topics.create(b"kept", 1, retention_us=10 * SECOND)[0]
    broken = parts.topic(b"broken")
    parts.scheduler.run_until_idle()
    broken.partitions = [Refusing(broken)]  # type: ignore[list-item]
    told = Told()
    appends: list[Adding] = [(topic, 0, kernel.build([b"once"], origin=b"test:1")) for topic in (kept, broken)]
    tell(parts.intents.commit(appends, ()), told)
    parts.scheduler.run_until_idle()
    assert [type(error) for error in told] == [NotYetVisible]
    assert parts.values(b"kept") == [b"once"]
    parts.advance(60 * SECOND, 500_000)
    parts.publish(b"kept", b"later")
    parts.advance(2 * SECOND)
    assert parts.values(b"kept") == [b"later"], "retention took nothing: the test tests nothing"
    written = parts.disk.calls["pwritev"]
    parts.advance(5 * SECOND)
    assert parts.disk.calls["pwritev"] == written, "it is noted once, not with every attempt"
    parts.log.abandon()
    parts.disk.kill()
    parts = Parts(parts.disk, time=parts.scheduler.now())
    assert parts.values(b"kept") == [b"later"]
    assert parts.values(b"broken") == [b"once"]
    assert parts.intents.unfinished == 0 and len(parts.intent_rows) == 0
