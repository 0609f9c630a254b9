"""Examines the machine, the data folder, the configuration and a running broker: one function a subject, findings as data.

A finding says what was looked at, the value, the bound, and what to do. `fail` means that the broker does not start, refuses
messages or can lose what it promised; `warn` means that it will, or that somebody should decide. Nothing here changes anything
but a probe file in the data folder, which is removed again.
"""

import ctypes
import fcntl
import json
import os
import resource
import shutil
import socket
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from quintet import kernel
from quintet.cli.operate.scrape import readiness, scrape
from quintet.cli.operate.status import human_bytes
from quintet.cli.terminal.common import lasting
from quintet.model import limits
from quintet.model.errors import QuintetError

if TYPE_CHECKING:
    from quintet.config import Settings

FILES_MIN: Final = 8_192  # open files below which a busy broker runs into the limit
SYNCS: Final = 50  # of the probe
SYNC_BYTES: Final = 4096
SYNC_SLOW_S: Final = 0.020  # median; every acknowledged message waits for one
SYNC_SUSPICIOUS_S: Final = 20e-6  # no disk that keeps its promise is quicker; an NVMe drive with a capacitor takes more
CERTIFICATE_DAYS: Final = 14
LAG_STUCK_S: Final = 3_600
STA_UNSYNC: Final = 0x40  # of adjtimex(2): no time service keeps the clock
VOLATILE: Final = {"tmpfs", "ramfs", "overlay", "aufs"}  # gone with the machine or the container
REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"}  # locks and syncs mean less there

Verdict = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """What was looked at, what was found, and what to do about it if anything."""

    subject: str
    verdict: Verdict
    text: str
    advice: str = ""


# -- the machine ------------------------------------------------------------------------------------------------------


def machine(settings: "Settings") -> Iterator[Finding]:
    """Kernel, open files, clock and memory."""
    if kernel.NATIVE:
        yield Finding("kernel", "ok", "the native kernel is in use")
    else:
        yield Finding(
            "kernel", "warn", "the pure Python kernel is in use", f"{kernel.PURE_HINT}; it is many times faster"
        )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if 0 <= hard < FILES_MIN:
        advice = "raise it: LimitNOFILE= in the systemd unit, ulimit -n in a shell"
        yield Finding("open files", "warn", f"at most {files}; {FILES_MIN:,} are advised", advice)
    else:
        yield Finding("open files", "ok", f"at most {files}")
    yield clock()
    yield memory(settings)


def clock() -> Finding:
    """Whether a time service keeps the clock: tokens, expiry and retention go by it."""
    try:
        buffer = ctypes.create_string_buffer(256)  # struct timex is 208 bytes; modes 0 only reads
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
        unsynced = state < 0 or int.from_bytes(buffer.raw[40:44], "little") & STA_UNSYNC
    except (OSError, AttributeError):
        return Finding(
            "clock", "warn", "the system does not say whether the clock is kept", "run a time service (chrony)"
        )
    if unsynced:
        return Finding("clock", "warn", "no time service keeps the clock", "run chrony or systemd-timesyncd")
    return Finding("clock", "ok", "kept by a time service")


def memory(settings: "Settings") -> Finding:
    """What the configured bounds allow together, beside what the machine or its container has."""
    bounds = settings.limits
    used = bounds.tail_cache_bytes + bounds.memory_topics_bytes + bounds.output_bytes_max + settings.cache.memory_bytes
    used += limits.UNSYNCED_BYTES_MAX
    there = _memory_bytes()
    text = f"bounds add up to {human_bytes(used)} of {human_bytes(there)}"
    if used > there * 0.8:
        advice = (
            "lower limits.tail_cache_bytes, limits.memory_topics_bytes, limits.output_bytes_max or cache.memory_bytes"
        )
        return Finding("memory", "warn", text, advice)
    return Finding("memory", "ok", text)


def _memory_bytes() -> int:
    """Of the machine, or of the control group if it has less."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return there
    return min(there, int(text)) if text.isdecimal() else there


# -- the data folder --------------------------------------------------------------------------------------------------


def folder(settings: "Settings") -> Iterator[Finding]:
    """Its file system, space, syncs, damage, and who has it."""
    path = settings.data
    if not path.exists():
        parent = next(each for each in path.absolute().parents if each.exists())
        if os.access(parent, os.W_OK):
            yield Finding("data", "ok", f"{path} does not exist yet; the first start makes it")
        else:
            yield Finding(
                "data", "fail", f"{path} does not exist and {parent} is not writable", "create it for the broker's user"
            )
        return
    if not path.is_dir() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "data", "fail", f"{path} is no folder that this user can read and write", "give it to the broker's user"
        )
        return
    running = is_locked(path / "lock")
    yield Finding(
        "data", "ok", f"{path} is {'in use by a running broker' if running else 'there, and no broker has it'}"
    )
    yield from _file_system(path)
    yield _space(path, settings.limits.disk_free_bytes_min)
    yield _syncs(path)
    yield _damage(path)


def is_locked(file: Path) -> bool:
    try:
        with file.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _file_system(path: Path) -> Iterator[Finding]:
    kind = file_system(path)
    if kind in VOLATILE:
        advice = "mount a volume there: what is acknowledged must outlive the container and the machine"
        yield Finding("file system", "fail", f"{path} is on {kind}, which is not kept", advice)
    elif kind in REMOTE:
        yield Finding(
            "file system", "warn", f"{path} is on {kind}", "use a local disk: locks and syncs mean less over a network"
        )
    elif kind:
        yield Finding("file system", "ok", kind)


def file_system(path: Path) -> str:
    """The type of the mount that holds a path; "" where it cannot be known."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    whole = str(path.resolve())
    best, kind = -1, ""
    for line in mounts.splitlines():
        point, found = line.split(" ")[1:3]
        if (whole == point or whole.startswith(point.rstrip("/") + "/")) and len(point) > best:
            best, kind = len(point), found
    return kind


def _space(path: Path, floor: int | None) -> Finding:
    usage = shutil.disk_usage(path)
    least = floor if floor is not None else min(256 * limits.MIB, usage.total // 20)
    text = f"{human_bytes(usage.free)} free of {human_bytes(usage.total)}; below {human_bytes(least)} publishes are refused"
    if usage.free < least:
        return Finding("disk space", "fail", text, "free some space, or lower limits.disk_free_bytes_min")
    if usage.free < 2 * least or usage.free < usage.total // 10:
        return Finding("disk space", "warn", text, "shorten retention, or give it a larger disk")
    return Finding("disk space", "ok", text)


def _syncs(path: Path) -> Finding:
    """How long a sync takes, and whether it can be true."""
    probe = path / f"doctor-{os.getpid()}.tmp"
    try:
        times = _probe_syncs(probe)
    except OSError as error:
        return Finding("disk syncs", "fail", f"writing {probe} failed: {error.strerror or error}", "check the disk")
    middle, worst = statistics.median(times), max(times)
    text = f"a sync of {SYNC_BYTES} bytes takes {middle * 1000:.2f} ms, the slowest of {SYNCS} {worst * 1000:.1f} ms"
    if middle < SYNC_SUSPICIOUS_S:
        advice = "the device or the hypervisor may answer before data is safe: ask for a write-through cache"
        return Finding("disk syncs", "warn", text, advice)
    if middle > SYNC_SLOW_S:
        return Finding(
            "disk syncs", "warn", text, "every durable publish waits for one: use a quicker disk, or one of its own"
        )
    return Finding("disk syncs", "ok", text)


def _probe_syncs(probe: Path) -> list[float]:
    times = []
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.pwrite(handle, bytes(SYNC_BYTES * SYNCS), 0)
        os.fsync(handle)
        for number in range(SYNCS):
            began = time.perf_counter()
            os.pwrite(handle, os.urandom(SYNC_BYTES), number * SYNC_BYTES)
            os.fdatasync(handle)
            times.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        probe.unlink()
    return times


def _damage(path: Path) -> Finding:
    lost = 0
    try:
        for line in (path / "quarantine.jsonl").read_text(encoding="utf-8").splitlines():
            lost += not json.loads(line).get("accepted")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, AttributeError):
        return Finding(
            "damage", "warn", f"{path / 'quarantine.jsonl'} cannot be read", f"run quintet log verify {path}"
        )
    journals = [file.name for file in path.glob("journal.*.damaged")]
    if lost or journals:
        text = f"{lost} damaged ranges" + (f", damaged journals {', '.join(sorted(journals))}" if journals else "")
        return Finding("damage", "fail", text, f"run quintet log verify {path}; docs/DAMAGE.md says what can be done")
    return Finding("damage", "ok", "none known")


# -- the configuration ------------------------------------------------------------------------------------------------


def configuration(settings: "Settings", ports: bool) -> Iterator[Finding]:
    """Weak or doubtful settings, certificates, and (with `ports`) whether each listener can be opened."""
    if settings.dev:
        yield Finding("settings", "warn", "dev = true: everybody knows these passwords", "only on your own machine")
    if settings.topics.durability != "fsync":
        text = f"topics.durability = {settings.topics.durability}: a power cut may take what was acknowledged"
        yield Finding("settings", "warn", text, "say it for single topics in [[topics.overrides]]")
    if settings.audit.chain == "off":
        yield Finding(
            "settings", "warn", "audit.chain = off: nothing shows that the log was changed", "use durable or all"
        )
    listeners = settings.listeners
    everything = [(door.key, listeners.of(door)) for door in listeners.doors]
    everything += [("flight", listeners.flight), ("console", listeners.console), ("admin", listeners.admin)]
    for name, listener in everything:
        if not listener.enabled:
            continue
        if getattr(listener, "insecure", False) and not _is_local(listener.host):
            text = f"listeners.{name} is plaintext on {listener.host}: passwords can be read on the way"
            yield Finding("settings", "warn", text, "set tls_cert and tls_key")
        certificate = getattr(listener, "tls_cert", None)
        if certificate is not None:
            yield _certificate(name, certificate)
        if ports and listener.port:
            kind = socket.SOCK_DGRAM if name == "felix" else socket.SOCK_STREAM
            yield _port(name, listener.host, listener.port, kind)


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _certificate(name: str, file: Path) -> Finding:
    from cryptography import x509

    try:
        leaf = x509.load_pem_x509_certificates(file.read_bytes())[0]
    except (OSError, ValueError) as error:
        return Finding(
            "certificate", "fail", f"listeners.{name}: {file} cannot be used: {error}", "give a PEM certificate chain"
        )
    left = leaf.not_valid_after_utc - datetime.now(UTC)
    end = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if left.total_seconds() <= 0:
        text = f"listeners.{name}: {file} expired {end}, {lasting(-left.total_seconds())} ago"
        return Finding("certificate", "fail", text, "renew it and send SIGHUP: clients refuse it")
    text = f"listeners.{name}: {file} expires {end}, in {lasting(left.total_seconds())}"
    if left.days < CERTIFICATE_DAYS:
        return Finding("certificate", "warn", text, "renew it and send SIGHUP")
    return Finding("certificate", "ok", text)


def _port(name: str, host: str, port: int, kind: socket.SocketKind) -> Finding:
    try:
        family = socket.getaddrinfo(host, port, type=kind)[0][0]
        with socket.socket(family, kind) as probe:
            if kind is socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        text = f"listeners.{name} cannot listen on {host}:{port}: {error.strerror or error}"
        return Finding("ports", "fail", text, f"stop what uses it, or set listeners.{name}.port")
    return Finding("ports", "ok", f"listeners.{name} can listen on {host}:{port}")


# -- a running broker -------------------------------------------------------------------------------------------------


def is_broker(admin: str) -> bool:
    """Does a broker answer at this address of an admin listener?"""
    try:
        return any(name.startswith("quintet_") for name in scrape(admin).values)
    except QuintetError:
        return False


def running(admin: str) -> Iterator[Finding]:
    """What a broker that answers says of itself."""
    try:
        ready, failing = readiness(admin)
        now = scrape(admin)
    except QuintetError as error:
        yield Finding(
            "broker", "warn", f"no broker answers: {error.message}", "start it, or name its listener with --admin"
        )
        return
    if ready:
        yield Finding("broker", "ok", f"{admin} is ready")
    for line in failing:
        yield Finding("broker", "fail", f"{admin} is not ready: {line}", "see its log")
    ages = now.by("quintet_group_lag_seconds", "topic", "group")
    for (topic, group), age in sorted(ages.items(), key=lambda each: -each[1]):
        if age >= LAG_STUCK_S:
            text = f"group {group} on {topic} has left messages for {lasting(age)}"
            yield Finding(
                "groups", "warn", text, f"quintet group lag {group} --watch; delete the group if nobody reads with it"
            )
    if now.one("quintet_intents_unfinished"):
        count = int(now.one("quintet_intents_unfinished"))
        yield Finding(
            "transactions",
            "warn",
            f"{count} commits wait to be carried out",
            "a partition refuses appends: see its log",
        )
    damaged = int(now.one("quintet_log_damaged_ranges"))
    if damaged:
        yield Finding(
            "damage", "fail", f"{damaged} damaged ranges in the log", "quintet log verify FOLDER; docs/DAMAGE.md"
        )
    used, most = now.one("process_open_fds"), now.one("process_max_fds")
    if most and used > 0.8 * most:
        yield Finding("open files", "warn", f"{used:,.0f} of {most:,.0f} are open", "raise LimitNOFILE=")
