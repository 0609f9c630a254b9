"""Three brokers of Kafka (bench/peers.py installs it) that are killed, stopped and started again, each in a group of its own.

They are as Kafka comes, but for a small heap, and for how long a broker may be silent before another one leads its partitions: with
Kafka's own 9 s the lease of a node is over by then, with less it goes on.
"""

import signal
import socket
import subprocess
import time
from pathlib import Path

from bench import peers
from tests.cell_faults.world import BROKERS, broker_group, broker_host
from tests.crash.cells import SMALL_JAVA

PORT, CONTROL_PORT = 9092, 9093
START_S = 180.0  # three JVMs at once on a busy machine
LOOK_S = 0.2
HEARTBEATS = 6  # of a broker before it counts as gone
CLUSTER = "CellFaultsCellFaults0w"
SERVERS = ",".join(f"{broker_host(number)}:{PORT}" for number in BROKERS)


class KafkaBroker:
    """One of them, broker and controller in one."""

    def __init__(self, folder: Path, number: int, silent_ms: int) -> None:
        self.number = number
        self._group = broker_group(number)
        self._folder = folder / f"kafka{number}"
        self._folder.mkdir(parents=True)
        self._config = self._folder / "server.properties"
        host = broker_host(number)
        voters = ",".join(f"{each}@{broker_host(each)}:{CONTROL_PORT}" for each in BROKERS)
        self._config.write_text(
            f"process.roles=broker,controller\nnode.id={number}\ncontroller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://{host}:{PORT},CONTROLLER://{host}:{CONTROL_PORT}\n"
            f"advertised.listeners=PLAINTEXT://{host}:{PORT}\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={self._folder / 'data'}\noffsets.topic.replication.factor=3\n"
            f"broker.session.timeout.ms={silent_ms}\nbroker.heartbeat.interval.ms={silent_ms // HEARTBEATS}\n"
        )
        self._java = [str(peers.find("java")), *SMALL_JAVA, "-cp", f"{peers.KAFKA_JARS}/*"]
        make = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._config)]
        made = subprocess.run(make, capture_output=True, text=True, group=self._group, cwd=self._folder, check=False)
        assert made.returncode == 0, made.stderr[-600:]
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        command = [*self._java, "kafka.Kafka", str(self._config)]
        with (self._folder / "server.log").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self._folder, group=self._group)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(LOOK_S)
            return probe.connect_ex((broker_host(self.number), PORT)) == 0

    def said(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")


class KafkaCluster:
    """All of them."""

    def __init__(self, folder: Path, silent_ms: int) -> None:
        self.brokers = {number: KafkaBroker(folder, number, silent_ms) for number in BROKERS}
        for broker in self.brokers.values():
            broker.start()
        self.wait()

    def wait(self) -> None:
        """Until all of them listen."""
        until = time.monotonic() + START_S
        while not all(broker.listens() for broker in self.brokers.values()):
            assert time.monotonic() < until, "\n".join(broker.said()[-2000:] for broker in self.brokers.values())
            time.sleep(LOOK_S)

    def leader(self, topic: str, partition: int) -> int:
        """Which broker leads it; 0: Kafka does not say."""
        return self._partitions(topic).get(partition, (0, 0))[0]

    def in_sync(self, topic: str) -> int:
        """How many brokers are in sync, of the partition that has the fewest; 0: Kafka does not say."""
        return min((count for _, count in self._partitions(topic).values()), default=0)

    @staticmethod
    def _partitions(topic: str) -> dict[int, tuple[int, int]]:
        """Of each, who leads it and how many are in sync."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": SERVERS, "log_level": 0})
        try:
            found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        except KafkaException:
            return {}
        return {number: (one.leader, len(one.isrs)) for number, one in found.items()}

    def end(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
