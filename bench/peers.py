"""The servers of a side-by-side run: found or installed, started on loopback, stopped again.

    python bench/peers.py            says which peers are there, in which version
    python bench/peers.py --install kafka   gets this one only
    python bench/peers.py --install  gets the missing ones: nats-server by the Go tool and Kafka by Maven into bench/.peers,
                                     the others by the system's package manager

A peer that is not there is skipped by the harness, loudly. Nothing here measures.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quintet.bench.wire import Address, BenchError
from quintet.protocols import doors

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
PEERS = HERE / ".peers"
DOORS = (*(door.key.upper() for door in doors.DOORS), "FLIGHT", "CONSOLE", "ADMIN")
START_S = 20.0
STOP_S = 20.0
INSTALL_S = 900.0
APT_INSTALL = (  # two installs at once wait for each other
    "apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends",
)  # fmt: skip
GO_PLACES = ("go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go")
NATS_MODULE = "github.com/nats-io/nats-server/v2@latest"
KAFKA_JARS = PEERS / "kafka"
KAFKA_VERSION = "[4.1,5)"  # 4.x runs without ZooKeeper; the newest is taken
KAFKA_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>quintet</groupId><artifactId>kafka-for-bench</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{version}</version></dependency></dependencies></project>
"""
# What Kafka's own start script gives the broker.
KAFKA_JAVA = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExplicitGCInvokesConcurrent",
)
KAFKA_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
KAFKA_START_S = 180.0  # beside other tests on two cores
KAFKA_STARTS_MAX = 3
RABBITMQ_START_S = 90.0
RABBITMQ_HOME = Path("/usr/lib/rabbitmq")  # its own scripts: those on PATH change to the user of the package first


@dataclass(frozen=True, slots=True)
class Peer:
    """A program the harness may start, and where it comes from."""

    name: str
    program: str
    version_flag: str
    package: str


PEER_TABLE = (
    Peer("nats", "nats-server", "--version", "nats-server"),
    Peer("redis", "redis-server", "--version", "redis-server"),
    Peer("mosquitto", "mosquitto", "-h", "mosquitto"),
    Peer("kafka", "java", "-version", "default-jre-headless"),
    Peer("rabbitmq", "rabbitmq-server", "", "rabbitmq-server"),
)


def find(program: str) -> str | None:
    """The program's path: what was installed here first, then the system's."""
    places = os.pathsep.join([str(PEERS / "bin"), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=places)


def version(peer: Peer) -> str | None:
    """What the program says of itself, or None if it is not there."""
    path = find(peer.program)
    if path is None:
        return None
    if peer.name == "kafka":
        jar = next(KAFKA_JARS.glob("kafka_2.13-*.jar"), None)
        return jar.stem.rpartition("-")[2] if jar else None
    if peer.name == "rabbitmq":
        # The program itself would start Erlang to say it.
        folder = next((RABBITMQ_HOME / "lib").glob("rabbitmq_server-*"), None)
        return folder.name.rpartition("-")[2] if folder else None
    said = subprocess.run([path, peer.version_flag], capture_output=True, text=True, timeout=10, check=False)
    words = (said.stdout or said.stderr).splitlines()[0].replace("v=", "").split()
    return next((word.lstrip("v") for word in words if word.lstrip("v")[:1].isdigit()), "unknown")


def versions() -> dict[str, str | None]:
    """Every peer with its version; None where it is missing."""
    return {peer.name: version(peer) for peer in PEER_TABLE}


def install(peer: Peer) -> str:
    """Get a peer, the newest first; says what was done or why not."""
    if peer.name == "nats":
        go = next((found for place in GO_PLACES if (found := shutil.which(place))), None)
        if go is not None:
            (PEERS / "bin").mkdir(parents=True, exist_ok=True)
            environment = os.environ | {"GOBIN": str(PEERS / "bin")}
            done = subprocess.run([go, "install", NATS_MODULE], env=environment, timeout=INSTALL_S, check=False)
            if done.returncode == 0:
                return f"{peer.name}: built {version(peer)} with the Go tool"
    if peer.name == "kafka" and find(peer.program) is not None:
        return _install_kafka(peer)
    if shutil.which("apt-get") is None:
        return f"{peer.name}: no package manager known here; install {peer.program} by hand and put it on PATH"
    done = subprocess.run([*APT_INSTALL, peer.package], check=False)
    return f"{peer.name}: {'installed' if done.returncode == 0 else 'apt-get failed'}, version {version(peer)}"


def _install_kafka(peer: Peer) -> str:
    """The broker with everything it needs, as Maven resolves it; apt has the resolver but not the broker."""
    if shutil.which("mvn") is None and shutil.which("apt-get") is not None:
        subprocess.run([*APT_INSTALL, "maven"], check=False)
    maven = shutil.which("mvn")
    if maven is None:
        return f"{peer.name}: needs Maven; install mvn and put it on PATH"
    KAFKA_JARS.mkdir(parents=True, exist_ok=True)
    pom = KAFKA_JARS / "pom.xml"
    pom.write_text(KAFKA_POM.format(version=KAFKA_VERSION))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={KAFKA_JARS}", "-DincludeScope=runtime"]
    done = subprocess.run([maven, "-q", "-B", "-f", str(pom), *goal], timeout=INSTALL_S, check=False)
    return f"{peer.name}: {'installed' if done.returncode == 0 else 'Maven failed'}, version {version(peer)}"


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(slots=True)
class Server:
    """A running server."""

    name: str
    address: Address
    process: subprocess.Popen[bytes]
    directory: Path
    listeners: dict[str, str]
    ready_s: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None


def _wait_port(process: subprocess.Popen[bytes], port: int, log: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise BenchError(f"server did not come up; its log ends: {log.read_text(errors='replace')[-600:]}")


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    port: int,
    directory: Path,
    within_s: float = START_S,
    settings: dict[str, str] | None = None,
) -> Iterator[Server]:
    """A server that listens on this port once it is ready; `settings` go into its environment."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "server.log"
    start = time.monotonic()
    with log.open("wb") as out:
        environment = os.environ | (settings or {})
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=directory, env=environment)
    try:
        _wait_port(process, port, log, within_s)
        yield Server(name, ("127.0.0.1", port), process, directory, {}, time.monotonic() - start)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ask it to end, then end it; its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return process.returncode


def _program(program: str) -> str:
    path = find(program)
    if path is None:
        raise BenchError(f"{program} is not installed. Run: python bench/peers.py --install")
    return path


@contextlib.contextmanager
def nats(directory: Path, jetstream: bool, synced: bool = True) -> Iterator[Server]:
    """nats-server; with jetstream, every stored message is synced before it is answered, or (`synced` false) as it comes."""
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    config = f'listen: "127.0.0.1:{port}"\nping_interval: "1h"\n'
    if jetstream:
        interval = ", sync_interval: always" if synced else ""
        config += f'jetstream {{ store_dir: "{directory / "store"}"{interval} }}\n'
    (directory / "nats.conf").write_text(config)
    name = "nats jetstream" if jetstream else "nats core"
    command = [_program("nats-server"), "-c", str(directory / "nats.conf")]
    with running(name, command, port, directory) as server:
        yield server


@contextlib.contextmanager
def redis(directory: Path, durable: bool) -> Iterator[Server]:
    """redis-server; with durable, every command is synced before it is answered."""
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    command = [_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command += ["--save", "", "--appendonly", "yes" if durable else "no", "--appendfsync", "always"]
    # A rewrite of the file in the middle of a run would be measured as Redis being slow.
    command += ["--auto-aof-rewrite-percentage", "0"]
    with running("redis streams", command, port, directory) as server:
        yield server


@contextlib.contextmanager
def redis_tls(directory: Path, certificate: Path, key: Path) -> Iterator[Server]:
    """redis-server that keeps nothing on disk and is reached over TLS only."""
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    command = [_program("redis-server"), "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1"]
    command += ["--dir", str(directory), "--save", "", "--appendonly", "no", "--tls-auth-clients", "no"]
    command += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
    with running("redis over TLS", command, port, directory) as server:
        yield server


@contextlib.contextmanager
def mosquitto(directory: Path) -> Iterator[Server]:
    """mosquitto, anonymous, without limits on what is queued or in flight."""
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n"
        "set_tcp_nodelay true\nlog_type error\npersistence false\n"
    )
    command = [_program("mosquitto"), "-c", str(directory / "mosquitto.conf")]
    with running("mosquitto", command, port, directory) as server:
        yield server


def has_kafka() -> bool:
    """Whether Java and Kafka's jars are there."""
    return find("java") is not None and any(KAFKA_JARS.glob("kafka_2.13-*.jar"))


@contextlib.contextmanager
def kafka(directory: Path, java_options: Sequence[str] = KAFKA_JAVA, more: str = "") -> Iterator[Server]:
    """One Kafka node, broker and controller in one, with the defaults of its own configuration (no flush of its own). more: lines
    behind it, in which {port} and {control} stand for its ports."""
    with kafka_cluster(directory, 1, java_options, more) as (server,):
        yield server


@contextlib.contextmanager
def kafka_cluster(
    directory: Path, count: int, java_options: Sequence[str] = KAFKA_JAVA, more: str = ""
) -> Iterator[list[Server]]:
    """Some Kafka nodes, each broker and controller in one. What was in the directory is used again."""
    if not has_kafka():
        raise BenchError("Kafka is not installed. Run: python bench/peers.py --install kafka")
    places = directory / "ports.json"  # a node is known by its address
    kept = places.exists()
    with contextlib.ExitStack() as stack:
        for attempt in range(1, KAFKA_STARTS_MAX + 1):
            directory.mkdir(parents=True, exist_ok=True)
            ports = json.loads(places.read_text()) if kept else [(free_port(), free_port()) for _ in range(count)]
            places.write_text(json.dumps(ports))
            try:
                servers = stack.enter_context(_kafka_nodes(directory, ports, java_options, more))
                break
            except BenchError:
                if kept or attempt == KAFKA_STARTS_MAX:
                    raise
                shutil.rmtree(directory)  # somebody took one of the ports meanwhile: others, and new nodes
        yield servers


@contextlib.contextmanager
def _kafka_nodes(
    directory: Path, ports: Sequence[tuple[int, int]], java_options: Sequence[str], more: str
) -> Iterator[list[Server]]:
    voters = ",".join(f"{number}@127.0.0.1:{control}" for number, (_, control) in enumerate(ports, 1))
    run = [_program("java"), *java_options, "-cp", f"{KAFKA_JARS}/*"]
    start, count = time.monotonic(), len(ports)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        folders = [directory if count == 1 else directory / f"kafka{number}" for number in range(1, count + 1)]
        for number, (port, control) in enumerate(ports, 1):
            folder = folders[number - 1]
            config = _kafka_config(folder, number, port, control, voters, count, more)
            _format(folder / "data", number)
            command = [*run, "kafka.Kafka", str(config)]
            with (folder / "server.log").open("wb") as out:
                # Of its own session: Ctrl-C is for whoever started it, who ends it last.
                process = subprocess.Popen(
                    command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True
                )
            processes.append(process)
        for process, (port, _), folder in zip(processes, ports, folders, strict=True):
            _wait_port(process, port, folder / "server.log", KAFKA_START_S)
        took = time.monotonic() - start
        started = zip(processes, ports, folders, strict=True)
        yield [Server("kafka", ("127.0.0.1", port), each, folder, {}, took) for each, (port, _), folder in started]
    finally:
        _terminate(processes)
        for process in processes:
            stop(process)


def _format(data: Path, number: int) -> None:
    """Makes the directory of a node as Kafka's StorageTool does, without its 1.4 s of Java. The node adds an id of its own, and begins with
    the newest metadata version that is released, which is the tool's choice, too."""
    if not (data / "meta.properties").exists():
        data.mkdir(exist_ok=True)
        (data / "meta.properties").write_text(f"version=1\ncluster.id={KAFKA_CLUSTER}\nnode.id={number}\n")


def _terminate(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """All at once: one that ends alone waits for the others."""
    for process in processes:
        process.terminate()


def _kafka_config(folder: Path, number: int, port: int, control: int, voters: str, count: int, more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "server.properties"
    copies = min(count, 3)
    config.write_text(
        f"process.roles=broker,controller\nnode.id={number}\ncontroller.quorum.voters={voters}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={folder / 'data'}\noffsets.topic.replication.factor={copies}\n"
        + ("controlled.shutdown.enable=false\n" if count > 1 else "")  # all end together: nobody takes over
        + more.format(port=port, control=control)
    )
    return config


@contextlib.contextmanager
def rabbitmq(directory: Path) -> Iterator[Server]:
    """One RabbitMQ node with its defaults. What quorum queues confirm is on its disk (their log syncs every batch)."""
    port, distribution, mapper = free_port(), free_port(), free_port()
    if find("rabbitmq-server") is None or find("epmd") is None:
        raise BenchError("rabbitmq-server is not installed. Run: python bench/peers.py --install")
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "rabbitmq.conf"
    config.write_text(f"listeners.tcp.default = 127.0.0.1:{port}\nlog.file.level = warning\n")
    (directory / "plugins").write_text("[].\n")
    settings = {
        "HOME": str(directory),  # where Erlang keeps its cookie
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(config),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(mapper),
    }
    # Erlang's own name server: started here, so that it ends here, too.
    names = [_program("epmd"), "-port", str(mapper), "-address", "127.0.0.1"]
    server = str(RABBITMQ_HOME / "bin" / "rabbitmq-server")
    with (
        running("epmd", names, mapper, directory / "epmd"),
        running("rabbitmq quorum", [server], port, directory, RABBITMQ_START_S, settings) as found,
    ):
        yield found


@contextlib.contextmanager
def picows(directory: Path) -> Iterator[Server]:
    """A WebSocket server that only echoes."""
    port = free_port()
    command = [sys.executable, str(Path(__file__).parent / "picows_echo.py"), str(port)]
    with running("picows echo", command, port, directory) as server:
        yield server


@contextlib.contextmanager
def quintet(
    directory: Path, settings: dict[str, str] | None = None, ready_within_s: float = START_S, door: str = "blipmq"
) -> Iterator[Server]:
    """Our own server, as a user starts it; ready_s is from exec to the ready line. The address is that of `door`."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = {f"QUINTET_LISTENERS__{name}__PORT": "0" for name in DOORS}
    environment = os.environ | ports
    command = [sys.executable, "-m", "quintet", "serve", "--dev", "--data", str(directory / "data"), "--print-ready"]
    log = directory / "server.log"
    with log.open("wb") as out:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=out, cwd=directory, env=environment | (settings or {})
        )
    try:
        listeners = _ready_line(process, log, start + ready_within_s)
        ready_s = time.monotonic() - start
        host, _, port = listeners[door].rpartition(":")
        yield Server("quintet", (host, int(port)), process, directory, listeners, ready_s)
    finally:
        stop(process)


def _ready_line(process: subprocess.Popen[bytes], log: Path, deadline: float) -> dict[str, str]:
    """Read lines until the ready line. Other lines (what --dev prints for people) are passed over."""
    assert process.stdout is not None
    data = b""
    while (left := deadline - time.monotonic()) > 0 and select.select([process.stdout], [], [], left)[0]:
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        data += piece
        for line in data.split(b"\n")[:-1]:
            if line.startswith(b"{") and b'"ready"' in line:
                return dict(json.loads(line)["listeners"])
    raise BenchError(f"quintet did not become ready; its log ends: {log.read_text(errors='replace')[-1000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Find or install the peers of the side-by-side benchmarks.")
    names = [peer.name for peer in PEER_TABLE]
    parser.add_argument(
        "--install",
        nargs="?",
        const="all",
        choices=["all", *names],
        help="get what is missing, or this one; of nats-server the newest",
    )
    wanted = parser.parse_args()
    missing = False
    for peer in PEER_TABLE:
        if wanted.install not in (None, "all", peer.name):
            continue
        local = (PEERS / "bin" / peer.program).exists()
        if wanted.install and (version(peer) is None or (peer.name == "nats" and not local)):
            print(install(peer))
        found = version(peer)
        missing |= found is None
        print(f"{peer.name}: {found} at {find(peer.program)}" if found else f"{peer.name}: MISSING")
    sys.exit(missing and wanted.install not in (None, "all"))


if __name__ == "__main__":
    main()
