"""Drives bench/quicgen: Felix over QUIC under load, bare quinn beside it, and Redis over TLS for the cache.

quicgen is Rust on quinn, built once by cargo; there is no Python generator for this door, because one would be slower
than everything it measures. A run is one process that prints one JSON line, and a failed count or order fails it.
"""

import contextlib
import csv
import io
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.closed_loop import working_cargo

from bench import peers
from quintet.bench.wire import Address, BenchError

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "quicgen" / "Cargo.toml"
TARGET = HERE / ".peers" / "quicgen"
PROGRAM = TARGET / "release" / "quicgen"
BUILD_S = 600.0
RUN_S_MAX = 180.0
STOP_S = 5.0
# The broker's own transport settings on loopback (kernel/src/quic_tls.rs, net/quic/listener.py), for generators and bare quinn.
TUNED = ("--mtu", "16384", "--window", "1048576", "--burst", "262144", "--buffer", "4194304")
CERTIFICATE = Path("data") / "tls" / "felix-certificate.pem"
KEY = Path("data") / "tls" / "felix-key.pem"
REDIS_KEYS = 10_000
REDIS_VALUE_BYTES = 100
REDIS_CONNECTIONS = 8
REDIS_PIPELINE = 8


@cache
def program() -> Path:
    """The generator, built if its sources are newer. BenchError without a Rust compiler."""
    cargo = working_cargo()
    if cargo is None:
        raise BenchError("NO CARGO: bench/quicgen is Rust, and nothing else drives the Felix loads. Install Rust.")
    print("building bench/quicgen with cargo (a minute or two, once)", flush=True)
    command = [cargo, "build", "--release", "--quiet", "--manifest-path", str(MANIFEST), "--target-dir", str(TARGET)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise BenchError(f"bench/quicgen does not build: {done.stderr[-1000:]}")
    return PROGRAM


@dataclass(frozen=True, slots=True)
class Place:
    """Where a QUIC server listens, and the certificate its clients trust."""

    address: Address
    certificate: Path

    @property
    def options(self) -> tuple[str, ...]:
        host, port = self.address
        return ("--addr", f"{host}:{port}", "--ca", str(self.certificate))


def place(server: peers.Server) -> Place:
    """The Felix door of a broker of ours."""
    host, _, port = server.listeners["felix"].rpartition(":")
    return Place((host, int(port)), server.directory / CERTIFICATE)


def run(what: str, where: Place, *options: object) -> dict[str, float]:
    """One run of quicgen against a server; its figures."""
    words = [str(program()), what, *where.options, *map(str, options)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"quicgen {what}: not through in {RUN_S_MAX:g} s") from error
    if done.returncode:
        raise BenchError(done.stderr.strip() or f"quicgen {what}: exit code {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextlib.contextmanager
def lasting(what: str, *options: object) -> Iterator[dict[str, float]]:
    """A run of quicgen that goes on until its stdin ends; what it printed when it was ready."""
    words = [str(program()), what, *map(str, options)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise BenchError(f"quicgen {what} ended before it was ready: see what it wrote to the terminal")
            yield json.loads(line)
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def bare(kind: str, directory: Path, *options: str) -> Iterator[Place]:
    """A quinn server that does nothing else: `sink` throws bytes away, `echo` sends them back."""
    directory.mkdir(parents=True, exist_ok=True)
    certificate = directory / f"bare-{kind}-{len(options)}.pem"
    with lasting(f"bare-{kind}", "--cert", certificate, *options) as ready:
        yield Place(("127.0.0.1", int(ready["port"])), certificate)


class RedisTls:
    """Redis over TLS 1.3: filled by one connection of ours, asked by redis-benchmark."""

    def __init__(self, address: Address, certificate: Path) -> None:
        self.address = address
        self.certificate = certificate

    def say(self, data: bytes, answers: int) -> bytes:
        """Commands as they are, and so many lines of answer."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        with (
            socket.create_connection(self.address, timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
            sock.makefile("rb") as answer,
        ):
            sock.sendall(data)
            return b"".join(answer.readline() for _ in range(answers))

    def fill(self) -> None:
        value = b"v" * REDIS_VALUE_BYTES
        puts = b"".join(b"SET key:%012d %b\r\n" % (key, value) for key in range(REDIS_KEYS))
        if self.say(puts, REDIS_KEYS) != b"+OK\r\n" * REDIS_KEYS:
            raise BenchError("Redis did not take the keys it is asked for later")

    def misses(self) -> int:
        """Gets that found nothing, since the server started."""
        said = self.say(b"INFO stats\r\n", 50)
        return int(said.split(b"keyspace_misses:")[1].split(b"\r\n")[0])

    def gets(self, count: int) -> dict[str, float]:
        """As many gets as quicgen has under way: 8 connections, 8 in each write."""
        tool = peers.find("redis-benchmark")
        if tool is None:
            raise BenchError("redis-benchmark is not installed. Run: python bench/peers.py --install")
        host, port = self.address
        words = [tool, "-h", host, "-p", str(port), "--tls", "--cacert", str(self.certificate), "--sni", "localhost"]
        words += ["-t", "get", "-r", str(REDIS_KEYS), "-c", str(REDIS_CONNECTIONS), "-P", str(REDIS_PIPELINE)]
        words += ["-n", str(count), "--csv"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        if done.returncode or len(rows) != 1:
            raise BenchError(f"redis-benchmark: {done.stderr.strip() or done.stdout.strip()}")
        row = rows[0]
        p50, p99 = (float(row[name]) * 1e3 for name in ("p50_latency_ms", "p99_latency_ms"))
        return {"rate": float(row["rps"]), "p50_us": p50, "p99_us": p99}
