"""Carries the WAL of a cell over Apache Kafka: makes and checks its topic, produces to it, reads it from any offset.

librdkafka works in threads of its own. Its answers are handed to the loop by `hand`; nothing else crosses. What a record means is not
known here. The topic must promise what an acknowledgement promises: `prepare` refuses one that promises less than was configured,
because Kafka would say nothing while a broker that loses its page cache loses acknowledged messages for all.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from quintet.log.replicated.records import RECORD_BYTES_MAX, WalError
from quintet.log.replicated.trimming import WalTrimmed
from quintet.model import limits
from quintet.model.errors import StorageError
from quintet.model.extras import needed_by

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

ASK_S: Final = 10.0  # for one question about the cluster or the topic
DELIVERY_MS: Final = (
    30_000  # a fail-over inside Kafka takes up to 20 s; giving up earlier would cost the leader its role
)
LOOK_S: Final = 0.1  # between two looks at a topic that was just made
LOOKS_MAX: Final = 300
POLL_S: Final = 0.2
AGAIN_S: Final = 1.0  # until a producer that failed is made anew
FULL_S: Final = 0.02  # until a node that has much to write is asked again
END_S: Final = 1.0  # for an answer where the WAL ends, or which cluster it is: nothing is read meanwhile
CLUSTER_S: Final = 10.0  # between two looks at which cluster it is
READ_RECORDS_MAX: Final = 500  # handed to the loop at once
READS_AHEAD_MAX: Final = 4  # that the loop has not taken yet
PASSED_ON: Final = ("security.", "ssl.", "sasl.", "enable.ssl.", "client.id", "broker.address.family")
TROUBLES_MAX: Final = 20  # sentences that are said before it is well again
NEVER: Final = "9223372036854775807"  # what Kafka shows for a flush that it leaves to the system

Hand = Callable[[Callable[[], None]], object]
Report = Callable[[str, dict[str, object]], None]
Produced = Callable[[int, str], None]  # offset and "", or -1 and why
Read = Callable[[int, bytes], None]


class WalRefused(WalError):
    """Kafka is there, and what it offers cannot be the WAL of this cell."""

    code = "E1512"


class WalAway(WalError):
    """Kafka does not answer, or not in time."""

    code = "E1513"
    retryable = True


class WalNotStored(WalError):
    """Kafka answers and stores nothing: a disk is full or failed, a quota is used up, too few replicas are in sync."""

    code = "E1514"
    retryable = True


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Where the WAL is, and what it must promise. `client`: options of librdkafka for TLS and SASL."""

    servers: str
    topic: str
    replication: int = 3
    min_insync: int = 2
    flush_messages: int = 1
    client: Mapping[str, str] = field(default_factory=dict)
    partition: int = 0  # of the topic: one for each cell
    partitions: int = 1

    def weaknesses(self) -> list[str]:
        """What an operator chose that is less than the default."""
        found = []
        if self.replication < 3:
            found.append(f"replication {self.replication}: fewer than three brokers keep the WAL")
        if self.min_insync < 2:
            found.append(f"min_insync {self.min_insync}: one broker alone may acknowledge")
        if self.flush_messages != 1:
            found.append("flush_messages is not 1: brokers acknowledge from the page cache")
        return found


@dataclass(frozen=True, slots=True)
class WalIdentity:
    """Which WAL it is: the cluster, the topic as it was made, and which of its partitions. A topic that was deleted and made again has
    another id."""

    cluster: str
    topic: str
    partition: str = ""  # empty: the only one

    def __str__(self) -> str:
        return f"{self.cluster} {self.topic} {self.partition}".rstrip()


class KafkaWal:
    """`prepare` first, which blocks; everything else is called on the loop. What goes wrong later is reported once as `wal_trouble`, with
    its sentence, and `wal_well` when a record came through again; librdkafka goes on trying."""

    def __init__(self, options: WalOptions, hand: Hand, report: Report = lambda event, fields: None) -> None:
        for name in options.client:
            if not name.startswith(PASSED_ON):
                raise WalRefused(
                    f'option "{name}" is not passed on to Kafka',
                    hint=f"those that begin with {', '.join(PASSED_ON)} are",
                )
        self.options = options
        self._hand = hand
        self._report = report
        self._troubles: set[str] = set()  # that were reported since it was well
        self._client: dict[str, Any] = {"bootstrap.servers": options.servers, **options.client}
        self._producer: Producer | None = None
        self._refusals: tuple[type[Exception], ...] = ()
        self._threads: list[threading.Thread] = []
        self._cluster = ""  # its id, when `prepare` has asked
        self.on_replaced: Callable[[StorageError], None] = lambda error: None  # another cluster is behind its addresses
        self._closed = threading.Event()
        self._reading: _Reading | None = None
        self.end = -1  # one past the last record that a reading thread knows of
        self.begin = 0  # the first record that is there, as it was when somebody asked last

    @property
    def weaknesses(self) -> list[str]:
        return self.options.weaknesses()

    def _saw(self, end: int, found: bool) -> None:
        """A reading thread: where the WAL ends, and whether a record came."""
        self.end = max(self.end, end)
        if found and self._troubles:
            self._hand(self._well)

    # -- the topic -----------------------------------------------------------------------------------------------------

    def prepare(self, known: WalIdentity | None) -> WalIdentity:
        """Make the topic if there is none, and check it. known: as this node saw it the last time. Blocks; raises WalRefused, WalAway."""
        with needed_by("a WAL on Kafka", "kafka"):
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        heard: list[KafkaError] = []  # a question that is not answered does not say why: who asked is not accepted
        admin = AdminClient({**self._client, "log_level": 0, "error_cb": heard.append})  # type: ignore[dict-item]  # its types know no callbacks
        try:
            found = self._look(admin)
            if found is None:
                self._make(admin)
                found = self._look_again(admin)
            self._check_settings(admin)
            self.begin = self._first(admin)
        except (KafkaException, TimeoutError) as error:
            while admin.poll(0):  # calls `heard`
                continue
            asked = error.args[0] if isinstance(error, KafkaException) else None
            raise self._explained(next(filter(_is_identity, heard), asked)) from error
        if known is not None and found.cluster != known.cluster:
            raise self._other_cluster(found.cluster, known.cluster)
        if known is not None and found.topic != known.topic:
            raise WalRefused(
                f'topic "{self.options.topic}" was deleted and made again: its id is {found.topic} and was {known.topic}',
                hint="restore the topic, or begin a new cell from the data directory that has most",
            )
        self._cluster = found.cluster
        return found

    def _other_cluster(self, found: str, known: str) -> WalRefused:
        return WalRefused(
            f"{self.options.servers} is the Kafka cluster {found}; this node's log belongs to {known}",
            hint="name the brokers of that cluster; a data directory follows one WAL only",
        )

    def check_cluster(self, client: "Consumer | Producer") -> WalRefused | None:
        """In a thread: is another cluster behind the addresses since this node was started? None: no, or it does not answer."""
        from confluent_kafka import KafkaException

        found: str | None = None
        with suppress(KafkaException):
            found = client.list_topics(self.options.topic, timeout=END_S).cluster_id
        return self._other_cluster(found, self._cluster) if found and self._cluster and found != self._cluster else None

    def _watch_cluster(self) -> None:
        """By the consumer of whoever reads, in its own thread; by the producer while nothing is read."""
        while not self._closed.wait(CLUSTER_S):
            producer, reading = self._producer, self._reading
            if reading is not None:
                reading.looks_at_cluster = True
            elif producer is not None:
                refused = self.check_cluster(producer)
                if refused is not None:
                    self._hand(partial(self.on_replaced, refused))

    def examine(self) -> WalIdentity | None:
        """Check the topic as `prepare` does, and make nothing; None: there is none. Blocks; raises WalRefused, WalAway."""
        with needed_by("a WAL on Kafka", "kafka"):
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        admin = AdminClient({**self._client, "log_level": 0})
        try:
            found = self._look(admin)
            if found is not None:
                self._check_settings(admin)
                self.begin = self._first(admin)
        except KafkaException as error:
            raise self._explained(error.args[0]) from error
        except TimeoutError as error:
            raise self._explained(None) from error
        return found

    def _look_again(self, admin: "AdminClient") -> WalIdentity:
        """A broker answers that a topic is made before all of them know it."""
        for _ in range(LOOKS_MAX):
            found = self._look(admin)
            if found is not None:
                return found
            self._closed.wait(LOOK_S)
        raise WalAway(f'topic "{self.options.topic}" was made and is not there yet', hint="try again")

    def _look(self, admin: "AdminClient") -> WalIdentity | None:
        """None: there is no such topic."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        name = self.options.topic
        cluster = admin.describe_cluster(request_timeout=ASK_S).result(2 * ASK_S)
        try:
            topic = admin.describe_topics(TopicCollection([name]), request_timeout=ASK_S)[name].result(2 * ASK_S)
            self._config(admin)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        options = self.options
        if len(topic.partitions) != options.partitions:
            raise WalRefused(
                f'topic "{name}" has {len(topic.partitions)} partitions; a WAL of {options.partitions} cells has {options.partitions}',
                hint="name another topic, or the number of cells that it was made for (cell.cells)",
            )
        copies = min(len(partition.replicas) for partition in topic.partitions)
        if copies < self.options.replication:
            raise WalRefused(
                f'topic "{name}" has {copies} replicas; {self.options.replication} are configured (replication)',
                hint="add replicas in Kafka, or configure fewer and lose what they protect",
            )
        which = f"{options.partition}/{options.partitions}" if options.partitions > 1 else ""
        return WalIdentity(str(cluster.cluster_id), str(topic.topic_id), which)

    def _make(self, admin: "AdminClient") -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, and not in its __all__

        options = self.options
        topic = NewTopic(options.topic, options.partitions, options.replication, config=self._settings())
        try:
            admin.create_topics([topic], operation_timeout=ASK_S, request_timeout=ASK_S)[options.topic].result(
                2 * ASK_S
            )
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR:
                raise WalRefused(
                    f'topic "{options.topic}" cannot have {options.replication} replicas: {error.args[0].str()}',
                    hint="start more brokers of Kafka, or configure `replication`: fewer replicas are a weaker promise",
                ) from error
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another node was faster
                raise

    def _settings(self) -> dict[str, str]:
        return {
            "min.insync.replicas": str(self.options.min_insync),
            "flush.messages": str(self.options.flush_messages) if self.options.flush_messages else NEVER,
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(RECORD_BYTES_MAX),
            "unclean.leader.election.enable": "false",
        }

    def _check_settings(self, admin: "AdminClient") -> None:
        found = self._config(admin)
        for name, wanted in self._settings().items():
            value = found[name]
            if not _is_enough(name, value, wanted):
                raise WalRefused(
                    f'topic "{self.options.topic}" has {name}={value}; the WAL needs {wanted}',
                    hint=f"kafka-configs --alter --entity-type topics --entity-name {self.options.topic}"
                    f" --add-config {name}={wanted}",
                )

    def _config(self, admin: "AdminClient") -> dict[str, str]:
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # as NewTopic

        resource = ConfigResource(ResourceType.TOPIC, self.options.topic)
        found = admin.describe_configs([resource], request_timeout=ASK_S)[resource].result(2 * ASK_S)
        return {name: str(entry.value) for name, entry in found.items()}

    def _first(self, admin: "AdminClient") -> int:
        """Of a partition that was just made nobody may know the leader yet."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # as NewTopic

        young = (
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )
        asked = {TopicPartition(self.options.topic, self.options.partition): OffsetSpec.earliest()}  # type: ignore[no-untyped-call]
        for looks_left in reversed(range(LOOKS_MAX)):
            [found] = admin.list_offsets(asked, request_timeout=ASK_S).values()
            try:
                return int(found.result(2 * ASK_S).offset)
            except KafkaException as error:
                if not looks_left or error.args[0].code() not in young:
                    raise
            self._closed.wait(LOOK_S)
        raise AssertionError("not reached")

    def trim(self, before: int) -> int:
        """Have Kafka remove everything below an offset; where the topic begins then. Blocks; raises WalRefused, WalAway."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({**self._client, "log_level": 0})
        place = TopicPartition(self.options.topic, self.options.partition, before)
        try:
            [found] = admin.delete_records([place], request_timeout=ASK_S).values()
            self.begin = max(self.begin, int(found.result(2 * ASK_S).low_watermark))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise WalRefused(
                    f'this node may not remove records of topic "{self.options.topic}": {error.args[0].str()}',
                    hint="grant its user Delete on the topic, or say cluster.trim = false",
                ) from error
            raise self._explained(error.args[0]) from error
        except TimeoutError as error:
            raise self._explained(None) from error
        return self.begin

    def _explained(self, error: "KafkaError | None") -> WalError:
        """None: there was no answer."""
        from confluent_kafka import KafkaError

        servers, topic = self.options.servers, self.options.topic
        if error is None:
            return WalAway(f"Kafka at {servers} does not answer within {ASK_S:.0f} s", hint="is it running?")
        code, text = error.code(), error.str()
        if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return WalRefused(
                f'Kafka at {servers} does not let this node use topic "{topic}": {text}',
                hint="grant its user Describe, Create, DescribeConfigs, Read and Write on the topic",
            )
        if _is_identity(error):
            return WalRefused(
                f"Kafka at {servers} does not accept who this node is: {text}", hint="check cell.sasl_* and cell.tls_*"
            )
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return WalAway(
                f'Kafka at {servers} has no topic "{topic}"',
                hint="if it was deleted, restore it: it is the log of this cell",
            )
        if code in (
            KafkaError.KAFKA_STORAGE_ERROR,
            KafkaError.THROTTLING_QUOTA_EXCEEDED,
            KafkaError.NOT_ENOUGH_REPLICAS,
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ):
            return WalNotStored(
                f'Kafka at {servers} stores nothing in topic "{topic}": {text}',
                hint="look at the disks and quotas of its brokers, and how many of them are in sync",
            )
        if code in (KafkaError.LEADER_NOT_AVAILABLE, KafkaError._NOENT):  # the latter: of a question for a leader
            return WalNotStored(
                f'no broker of Kafka at {servers} leads topic "{topic}": {text}',
                hint="look at the disks of its brokers: one that was full is used again when its broker is started again",
            )
        if code < 0 or error.retriable():  # librdkafka's own, or one that it tries again
            return WalAway(f"Kafka at {servers} does not answer: {text}", hint="is it running?")
        return WalRefused(f'Kafka at {servers} refuses topic "{topic}": {text}', hint="its brokers' logs say more")

    def _trouble(self, error: "KafkaError", answers: bool = False) -> None:
        """answers: Kafka does, although this write got no answer in time."""
        explained = self._explained(error)
        if answers and isinstance(explained, WalAway):
            explained = WalNotStored(
                f'Kafka at {self.options.servers} answers, and has stored nothing in topic "{self.options.topic}" for'
                f" {DELIVERY_MS // 1000} s",
                hint="look at the disks and quotas of its brokers, and how many of them are in sync",
            )
        said = str(explained)
        if said not in self._troubles and len(self._troubles) < TROUBLES_MAX:
            self._troubles.add(said)
            self._report("wal_trouble", {"code": explained.code, "problem": explained.message, "hint": explained.hint})

    def _well(self) -> None:
        if self._troubles:
            self._troubles.clear()
            self._report("wal_well", {"topic": self.options.topic})

    # -- producing -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Be ready to produce."""
        from confluent_kafka import KafkaException

        self._refusals = (BufferError, KafkaException)
        self._producer = self._new_producer()
        self._threads = [
            threading.Thread(target=call, name=name, daemon=True)
            for call, name in ((self._serve_producer, "quintet-wal"), (self._watch_cluster, "quintet-wal-cluster"))
        ]
        for thread in self._threads:
            thread.start()

    def _new_producer(self) -> "Producer":
        from confluent_kafka import Producer

        return Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.max.bytes": RECORD_BYTES_MAX,
                "message.timeout.ms": DELIVERY_MS,
                "log_level": 0,
                "error_cb": self._heard,
            }
        )

    def _heard(self, error: "KafkaError") -> None:
        """In a thread of librdkafka's."""
        self._hand(partial(self._trouble, error))

    def _serve_producer(self) -> None:
        from confluent_kafka import KafkaException

        assert self._producer is not None
        while not self._closed.is_set():
            try:
                self._producer.poll(POLL_S)
            except KafkaException as error:  # it is of no use any more: a right that it needs is missing, say
                self._heard(error.args[0])
                self._producer = self._successor_of(self._producer)

    def _successor_of(self, failed: "Producer") -> "Producer":
        """What was not answered is answered as failed. Not at once: what failed may fail again."""
        from confluent_kafka import KafkaException

        failed.purge()
        with suppress(KafkaException):
            failed.poll(POLL_S)
        self._closed.wait(AGAIN_S)
        return self._new_producer()

    def produce(self, record: bytes, done: Produced) -> None:
        """done(offset, "") when Kafka has it as the topic promises, or done(-1, why): it may be there or not. Never inside this call."""
        assert self._producer is not None
        try:
            place = self.options.partition
            self._producer.produce(
                self.options.topic, record, partition=place, on_delivery=partial(self._delivered, done)
            )
        except (
            self._refusals
        ) as error:  # so much waits already that the leader cannot be ahead by more; or see `_serve_producer`
            self._hand(partial(done, -1, str(error)))

    def _answers(self, error: "KafkaError") -> bool:
        """In a thread, of a write that got no answer in time: does any broker answer a question that needs no disk?"""
        from confluent_kafka import KafkaError, KafkaException

        producer = self._producer
        if error.code() != KafkaError._MSG_TIMED_OUT or producer is None:
            return False
        try:
            return bool(producer.list_topics(self.options.topic, timeout=END_S).brokers)
        except KafkaException:
            return False

    def _delivered(self, done: Produced, error: "KafkaError | None", message: "Message") -> None:
        offset = message.offset()
        if error is not None:
            self._hand(partial(done, -1, error.str()))
            self._hand(partial(self._trouble, error, self._answers(error)))
        elif offset is None:
            self._hand(partial(done, -1, "Kafka named no offset"))
        else:
            if self._troubles:
                self._hand(self._well)
            self._hand(partial(done, offset, ""))

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_from(
        self, offset: int, read: Read, failed: Callable[[StorageError], None], full: Callable[[], bool]
    ) -> None:
        """Read on from here until `stop_reading`: read(offset, record) for each, but not while it is full(), which is asked in another
        thread. failed: nothing more comes."""
        self.stop_reading()
        options = {
            **self._client,
            "group.id": "quintet",  # never joined: offsets are the node's own affair
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": RECORD_BYTES_MAX,
            "fetch.max.bytes": RECORD_BYTES_MAX,
            "receive.message.max.bytes": RECORD_BYTES_MAX + limits.MIB,
            "check.crcs": True,
            "log_level": 0,
            "error_cb": self._heard,
        }
        place = (self.options.topic, self.options.partition)
        self._reading = _Reading(options, place, offset, self._hand, read, failed, full, self)

    def stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.stopped.set()
            self._reading = None

    def ask_end(self, told: Callable[[int], None]) -> None:
        """told(end) on the loop, by an answer to a request that is sent after this call; told(-1): there was none."""
        if self._reading is None:
            self._hand(partial(told, -1))
        else:
            self._reading.asks.append(told)

    def close(self) -> None:
        """Give up what was not delivered, and end the threads."""
        self.stop_reading()
        self._closed.set()
        for thread in self._threads:
            thread.join()
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


class _Reading:
    """One thread that reads until it is stopped; what it has read by then is dropped on the loop."""

    def __init__(
        self,
        options: dict[str, Any],
        place: tuple[str, int],
        offset: int,
        hand: Hand,
        read: Read,
        failed: Callable[[StorageError], None],
        full: Callable[[], bool],
        wal: KafkaWal,
    ) -> None:
        self.stopped = threading.Event()
        self.asks: deque[Callable[[int], None]] = deque()  # who wants to know where the WAL ends
        self._options = options
        self._topic, self._partition = place
        self._offset = offset
        self._hand = hand
        self._read = read
        self._failed = failed
        self._full = full
        self._wal = wal
        self.looks_at_cluster = False  # which it is, before it reads on
        self._room = threading.Semaphore(READS_AHEAD_MAX)
        threading.Thread(target=self._run, name="quintet-wal-read", daemon=True).start()

    def _run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self._options)
        place = TopicPartition(self._topic, self._partition, self._offset)
        try:
            consumer.assign([place])
            while not self.stopped.is_set():
                if self.asks:
                    self._tell_end(consumer, place)
                if self.looks_at_cluster:
                    self._look_at_cluster(consumer)
                if self._full():
                    self.stopped.wait(FULL_S)
                    continue
                found = self._next(consumer)
                if found is None:
                    return
                marks = consumer.get_watermark_offsets(place, cached=True)
                if marks is not None:
                    self._wal._saw(marks[1], bool(found))  # below 0, if Kafka has not said it yet
                while found and not self._room.acquire(timeout=POLL_S):
                    if self.stopped.is_set():
                        return
                if found:
                    self._hand(partial(self._deliver, found))
        finally:
            consumer.close()

    def _look_at_cluster(self, consumer: "Consumer") -> None:
        self.looks_at_cluster = False
        refused = self._wal.check_cluster(consumer)
        if refused is not None:
            self._hand(partial(self._wal.on_replaced, refused))

    def _tell_end(self, consumer: "Consumer", place: "TopicPartition") -> None:
        """By a request of its own: what a fetch said may be older than the question."""
        from confluent_kafka import KafkaException

        asked = [self.asks.popleft() for _ in range(len(self.asks))]
        end = -1
        with suppress(
            KafkaException, TypeError
        ):  # Kafka is away or slow (None: no answer in time): what is known grows older
            end = consumer.get_watermark_offsets(place, timeout=END_S)[1]
        for told in asked:
            self._hand(partial(self._told, told, end))

    def _told(self, told: Callable[[int], None], end: int) -> None:
        if not self.stopped.is_set():
            told(end)

    def _next(self, consumer: "Consumer") -> list[tuple[int, bytes]] | None:
        """None: it cannot go on."""
        from confluent_kafka import KafkaError

        found: list[tuple[int, bytes]] = []
        for message in consumer.consume(READ_RECORDS_MAX, POLL_S):
            error = message.error()
            if error is None:
                found.append((message.offset() or 0, message.value() or b""))
                self._offset = found[-1][0] + 1
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                refused: StorageError | None = self._wal.check_cluster(consumer) or self._trimmed(consumer)
                refused = refused or WalRefused(
                    f'topic "{self._topic}" no longer has WAL offset {self._offset}: {error.str()}',
                    hint="it was made anew: make this node's data directory anew from a peer",
                )
                self._hand(partial(self._fail, refused))
                return None
            elif not error.retriable() and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused = WalRefused(
                    f'this node may not read topic "{self._topic}": {error.str()}', hint="grant it Read"
                )
                self._hand(partial(self._fail, refused))
                return None
            else:  # librdkafka tries again by itself
                self._options["error_cb"](error)
        return found

    def _trimmed(self, consumer: "Consumer") -> WalTrimmed | None:
        """None: the WAL does not begin above what was asked for."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            marks = consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), timeout=ASK_S)
        except KafkaException:
            return None
        found = cast(
            "tuple[int, int] | None", marks
        )  # its stub does not know that it is None if Kafka did not answer in time
        return WalTrimmed(found[0], self._offset) if found is not None and self._offset < found[0] else None

    def _deliver(self, found: list[tuple[int, bytes]]) -> None:
        self._room.release()
        for offset, record in found:
            if self.stopped.is_set():
                return
            self._read(offset, record)

    def _fail(self, error: StorageError) -> None:
        if not self.stopped.is_set():
            self._failed(error)


def _is_identity(error: "KafkaError") -> bool:
    """Does Kafka not accept who this node is?"""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)


def _is_enough(name: str, value: str, wanted: str) -> bool:
    """May a topic have this value where another one is wanted?"""
    if name in ("min.insync.replicas", "max.message.bytes"):
        return int(value) >= int(wanted)
    if name == "flush.messages":
        return int(value) <= int(wanted)
    return value == wanted
