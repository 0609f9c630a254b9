"""Durations use the monotonic clock: the rule, the places that are allowed to read or reckon with wall time, and controls.

In `src/` a name `now` (or `trusted`) is a date, microseconds since 1970, and `monotonic` is time that passes (ADR 17). Three
findings: a function reads wall time and is not in READS; a function adds to a date or subtracts from it, which makes a
duration or a time-out of it, and is not in SUMS; one clock is handed on under the name of the other.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_tidy import ROOT, files

CLOCKS = {"now", "now_us", "now_ms"}  # attributes and names
WALL_NAMES = CLOCKS | {"trusted"}
TIMELY = re.compile(r"\bnow|monotonic|trusted|time_ns|\btime\.time|utcnow|today")
WALL_CALLS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}

# What of it is a date -> the functions. One that is not needed is a finding itself.
READS: dict[str, tuple[str, ...]] = {
    "the clock itself": (
        "src/quintet/net/listener.py::Listener.now",
        "src/quintet/net/loop.py::LoopScheduler.now",
        "src/quintet/net/quic/listener.py::QuicListener.now",
        "src/quintet/cli/terminal/common.py::now_ms",
        "src/quintet/cli/folder/repair.py::Inline.now",
        "src/quintet/cli/folder/backup.py::create",
        "src/quintet/spark/lake/delta.py::_now_ms",
        "src/quintet/spark/pipelines/running/runner.py::RealClock.today_us",
    ),
    "handed to `receive` and `ended`, which judge tokens, delays and expiry by it": (
        "src/quintet/net/connection.py::Connection._offer",
        "src/quintet/net/connection.py::Connection.recheck",
        "src/quintet/net/connection.py::Connection.take_over",
        "src/quintet/net/sockets.py::Hub._next",
        "src/quintet/net/quic/listener.py::QuicConnection.recheck",
        "src/quintet/net/quic/streams.py::Stream._offer",
        "src/quintet/net/quic/streams.py::Stream._answers_at_once",
        "src/quintet/net/quic/streams.py::Stream._end_if_done",
        "src/quintet/protocols/felix/session.py::FelixSession._decoded",
        "src/quintet/net/quic/streams.py::Stream.recheck",
        "src/quintet/testing/line.py::Peer._offer",
    ),
    "handed on by who watches for jumps": (
        "src/quintet/broker/core.py::Broker.__init__",
        "src/quintet/broker/core.py::Broker.tick",
        "src/quintet/log/replicated/engine.py::ReplicatedLog._tick",
    ),
    "dates of tokens and keys": (
        "src/quintet/broker/bearer.py::Bearer.check_at",
        "src/quintet/broker/identity/keys.py::Keys.load",
        "src/quintet/broker/identity/keys.py::Keys.create",
        "src/quintet/broker/identity/keys.py::Keys._check_new",
        "src/quintet/broker/identity/keys.py::Keys._follow",
        "src/quintet/broker/identity/keys.py::Keys.take",
        "src/quintet/broker/follower.py::FollowerBroker.tick",
        "src/quintet/broker/doors/queues.py::Queues._valid",
        "src/quintet/cli/manage/user.py::add_key",
        "src/quintet/protocols/felix/mapping.py::Feed._barred",
        "src/quintet/protocols/felix/mapping.py::FelixPeer._look",
        "src/quintet/protocols/felix/session.py::FelixSession.tick",
    ),
    "dates of certificates": (
        "src/quintet/cli/operate/checks.py::_certificate",
        "src/quintet/cli/operate/status.py::doors",
        "src/quintet/net/certificates.py::_serves",
        "src/quintet/net/certificates.py::_make",
        "src/quintet/cli/operate/cluster_files.py::_builder",
        "src/quintet/cli/operate/cluster.py::_shown",
        "src/quintet/cli/operate/cluster.py::_took_over",
        "src/quintet/cli/operate/cluster_view.py::_certificate",
    ),
    "told to other nodes, which compare it with their own": (
        "src/quintet/cell_server.py::CellServer._make_log",
        "src/quintet/cell_server.py::CellServer._took_over",
        "src/quintet/net/cluster/peers.py::Peers._ask",
    ),
    "when a record expires, or a message is due": (
        "src/quintet/broker/doors/cache.py::Cache.put",
        "src/quintet/broker/doors/cache.py::Cache.delete",
        "src/quintet/broker/doors/cache.py::Caches.__init__",
        "src/quintet/broker/doors/cache.py::Caches.load",
        "src/quintet/broker/doors/cache.py::Caches.check_room",
        "src/quintet/broker/atomic/delays.py::Delays.produce",
        "src/quintet/broker/doors/peers.py::Peers._write",
        "src/quintet/broker/consumers/subscriptions.py::Subscriptions._open",
        "src/quintet/console/pages/holdings.py::_cache_keys",
        "src/quintet/console/pages/messages.py::_make_since",
        "src/quintet/console/pages/messages.py::_page",
        "src/quintet/console/pages/messages.py::read",
        "src/quintet/console/pages/search.py::_Scan.look",
        "src/quintet/flight/reading.py::plan",
        "src/quintet/flight/reading.py::_from_files",
        "src/quintet/flight/reading.py::_from_memory",
        "src/quintet/kernel/pure_blip.py::Splitter.publish",
        "src/quintet/kernel/pure_fast.py::Splitter.flush",
        "src/quintet/log/mapped.py::_Segment.read",
        "src/quintet/protocols/felix/watching.py::WatchStream._flush",
        "src/quintet/protocols/felix/watching.py::PublishedWatch._scan",
        "src/quintet/protocols/flymq/message_requests.py::_consume",
        "src/quintet/protocols/flymq/message_requests.py::_fetch",
        "src/quintet/protocols/flymq/message_requests.py::_peek",
        "src/quintet/protocols/flymq/message_requests.py::_produce_with_ttl",
        "src/quintet/protocols/flymq/message_requests.py::_produce_delayed",
        "src/quintet/protocols/blipmq/session.py::BlipSession._publish_records",
        "src/quintet/protocols/flymq/message_requests.py::_txn_produce",
        "src/quintet/protocols/flymq/record_requests.py::produce_one",
        "src/quintet/protocols/flymq/record_requests.py::_only_record",
        "src/quintet/spark/source/reader.py::_from_files",
    ),
    "written down with a record, a row, a file or a report": (
        "src/quintet/bench/machine.py::facts",
        "src/quintet/log/embedded/partitions/lending.py::Lending.append",
        "src/quintet/log/embedded/partitions/lone.py::LoneLending.append_read",
        "src/quintet/net/cells/pins.py::LinkedPins._prune",
        "src/quintet/broker/audit/audit_log.py::Audit._append",
        "src/quintet/broker/atomic/dead_letters.py::DeadLetters.prepare",
        "src/quintet/broker/atomic/dead_letters.py::DeadLetters.bury_rejected",
        "src/quintet/broker/atomic/delays.py::Delays._appends",
        "src/quintet/broker/audit/delivery_events.py::Events.flush",
        "src/quintet/broker/atomic/intents.py::Intents._row",
        "src/quintet/broker/doors/peers.py::Peers._new",
        "src/quintet/broker/doors/peers.py::Peers._keep_seen",
        "src/quintet/broker/atomic/stages.py::Stages._put_fence",
        "src/quintet/broker/identity/users.py::Users.update",
        "src/quintet/broker/identity/users.py::Users.change_password",
        "src/quintet/broker/identity/users.py::Users._configured",
        "src/quintet/broker/identity/users.py::Users._bury",
        "src/quintet/client/links/peerbus_wire.py::Wire._sealed",
        "src/quintet/client/spans.py::Spans.begin",
        "src/quintet/delivery/traces.py::Traces.appended",
        "src/quintet/delivery/traces.py::Traces.delivered",
        "src/quintet/delivery/traces.py::Traces.settled",
        "src/quintet/delivery/traces.py::Traces.watch",
        "src/quintet/log/embedded/anchoring.py::Anchoring._write",
        "src/quintet/log/embedded/compact.py::_last_timed",
        "src/quintet/log/embedded/engine.py::EmbeddedLog._quarantine",
        "src/quintet/log/embedded/engine.py::EmbeddedLog.accept_losses",
        "src/quintet/log/embedded/partitions/memory.py::MemoryTails.seal",
        "src/quintet/log/embedded/partitions/partition.py::FilePartition.renew_begun",
        "src/quintet/log/embedded/partitions/partition.py::FilePartition._gather",
        "src/quintet/log/embedded/partitions/partition.py::FilePartition.begin_empty",
        "src/quintet/log/embedded/partitions/partition.py::FilePartition.adopt",
        "src/quintet/log/replicated/partition.py::CellPartition._first_chunk",
        "src/quintet/log/embedded/stages.py::FileStages.open",
    ),
    "compared, at start, with dates that were written down": (
        "src/quintet/broker/atomic/intents.py::Intents.recover",
        "src/quintet/broker/doors/peers.py::Peers.load",
        "src/quintet/broker/atomic/stages.py::Stages.load",
    ),
    "a number that was not used by an earlier run": (
        "src/quintet/broker/doors/cache.py::Cache.__init__",
        "src/quintet/broker/atomic/dead_letters.py::DeadLetters.__init__",
        "src/quintet/broker/consumers/committed_offsets.py::CommittedOffsets._version",
        "src/quintet/broker/identity/users.py::Users._next_version",
    ),
    "shown to people, or asked by them, as a date": (
        "src/quintet/cli/operate/status.py::facts",
        "src/quintet/console/pages/dead.py::_figures",
        "src/quintet/console/pages/dead.py::_select",
        "src/quintet/console/pages/operators.py::_row",
        "src/quintet/console/sampler.py::Sampler._figures",
        "src/quintet/console/sampler.py::Sampler._look",
        "src/quintet/console/sampler.py::Sampler._look_back",
        "src/quintet/broker/consumers/committed_offsets.py::CommittedOffsets.lag",
        "src/quintet/cli/pipeline.py::_watch",
        "src/quintet/cli/pipeline.py::_show",
        "src/quintet/client/sources/reading.py::milliseconds",
        "src/quintet/flight/cells.py::CellsDoor._groups",
        "src/quintet/flight/verbs.py::groups",
        "src/quintet/flight/verbs.py::pipelines_seen",
        "src/quintet/spark/pipelines/lag.py::sampled",
        "src/quintet/spark/pipelines/lag.py::_latencies",
    ),
    "ages of what another process wrote, of which only the date is known": (
        "src/quintet/spark/lake/iceberg.py::Iceberg._expire",
        "src/quintet/spark/lake/storage/journal.py::Journal.sweep",
    ),
    "the cut of a backup, which divides batches by their dates": (
        "src/quintet/log/embedded/backup/cut.py::Snapshot._take",
        "src/quintet/log/embedded/backup/cut.py::Snapshot._difference",
        "src/quintet/log/embedded/backup/cut.py::Snapshot._wait_for",
        "src/quintet/log/embedded/backup/create.py::create",
    ),
}
SUMS: dict[str, tuple[str, ...]] = {
    "the end of a time to live, a delay or a token: people wrote how long, records carry the date": (
        "src/quintet/broker/doors/cache.py::expires_at",
        "src/quintet/broker/atomic/delays.py::Delays.produce",
        "src/quintet/broker/doors/peers.py::Peers._write",
        "src/quintet/cli/manage/tenant_token.py::mint_for_tenant",
        "src/quintet/cli/manage/token.py::_mint_for_queue",
        "src/quintet/cli/manage/user.py::add_key",
        "src/quintet/kernel/pure_blip.py::Splitter.publish",
        "src/quintet/broker/atomic/delays.py::Delays._appends",
        "src/quintet/kernel/pure_fast.py::Group.item",
        "src/quintet/kernel/pure_records.py::records_split",
        "src/quintet/protocols/fast/session.py::FastSession._publish_records",
        "src/quintet/protocols/flymq/message_requests.py::_produce_with_ttl",
        "src/quintet/protocols/flymq/record_requests.py::produce_one",
        "src/quintet/protocols/flymq/message_requests.py::_produce_delayed",
    ),
    "how far a date is away, looked at again every few seconds": ("src/quintet/broker/bearer.py::Bearer.check_at",),
    "retention by age, by the trusted date": (
        "src/quintet/log/embedded/compact.py::maintain",
        "src/quintet/log/embedded/compact.py::_age",
        "src/quintet/log/embedded/compact.py::_retain",
        "src/quintet/log/embedded/partitions/memory.py::MemoryPartition.maintain",
    ),
    "an age of what was written down, bounded, at start": (
        "src/quintet/broker/doors/peers.py::Peers.load",
        "src/quintet/broker/doors/peers.py::Peers._remember",
        "src/quintet/net/cells/pins.py::LinkedPins._prune",
    ),
    "the date in a message, compared with ours": ("src/quintet/broker/doors/peers.py::Peers._admit",),
    "the comparison of the two clocks": (
        "src/quintet/model/clocks.py::since",
        "src/quintet/kernel/pure_lent.py::following",
        "src/quintet/model/clocks.py::following",
        "src/quintet/model/clocks.py::WallClock.__init__",
        "src/quintet/model/clocks.py::WallClock.look",
        "src/quintet/model/clocks.py::WallClock.trusted",
        "src/quintet/flight/verbs.py::pipelines_seen",
        "src/quintet/log/embedded/backup/cut.py::Snapshot._difference",
        "src/quintet/log/embedded/backup/cut.py::Snapshot._wait_for",
    ),
    "the life of a certificate": (
        "src/quintet/cli/operate/checks.py::_certificate",
        "src/quintet/cli/operate/status.py::doors",
        "src/quintet/net/certificates.py::_serves",
        "src/quintet/net/certificates.py::_make",
        "src/quintet/cli/operate/cluster_files.py::_builder",
        "src/quintet/cli/operate/cluster.py::_shown",
        "src/quintet/cli/operate/cluster.py::_took_over",
        "src/quintet/cli/operate/cluster_view.py::_certificate",
    ),
    "the clock of another node beside ours": ("src/quintet/net/cluster/peers.py::Peers._ask",),
    "shown to people, or asked by them": (
        "src/quintet/cli/operate/status.py::facts",
        "src/quintet/console/pages/dead.py::histograms",
        "src/quintet/broker/consumers/committed_offsets.py::CommittedOffsets.lag",
        "src/quintet/cli/terminal/common.py::moment_ms",
        "src/quintet/cli/pipeline.py::_show",
        "src/quintet/cli/pipeline.py::_row",
        "src/quintet/client/sources/reading.py::milliseconds",
        "src/quintet/spark/pipelines/lag.py::sampled",
        "src/quintet/spark/pipelines/lag.py::_commits",
    ),
    "ages of what another process wrote, of which only the date is known": (
        "src/quintet/spark/lake/iceberg.py::Iceberg._expire",
        "src/quintet/spark/lake/storage/journal.py::Journal.sweep",
    ),
}


@cache
def modules(root: Path) -> list[tuple[str, ast.Module]]:
    """Those that have to do with time."""
    return [
        (name, ast.parse(content))
        for name, path in files(root)
        if name.startswith("src/quintet/") and name.endswith(".py") and TIMELY.search(content := path.read_text())
    ]


def functions(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """(Class.method, node) of all functions and, as "", of what is in none; a nested function is part of its outer one."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.")
            else:
                yield prefix.rstrip("."), child

    yield from visit(module, "")


def is_wall(node: ast.AST) -> bool:
    """An expression that is a date: a name for one, or a clock that is read or could be."""
    if isinstance(node, ast.Call):
        return is_wall(node.func)
    if isinstance(node, ast.Attribute):
        owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
        return node.attr in CLOCKS or (owner, node.attr) in WALL_CALLS
    return isinstance(node, ast.Name) and node.id in (*WALL_NAMES, "time_ns")


def reads(node: ast.AST) -> bool:
    """Somebody's clock, not a name that was given: `x.now`, `time.time()`."""
    return isinstance(node, ast.Attribute | ast.Name) and is_wall(node) and getattr(node, "id", "") not in WALL_NAMES


def is_monotonic(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in ("monotonic", "monotonic_ns")


def wall_time_is_read_where_dates_are(root: Path) -> list[str]:
    return _listed(root, READS, lambda node: reads(node) and isinstance(getattr(node, "ctx", None), ast.Load))


def durations_are_not_made_of_dates(root: Path) -> list[str]:
    def sums(node: ast.AST) -> bool:
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, ast.Add | ast.Sub) and (is_wall(node.target) or is_wall(node.value))
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add | ast.Sub)
            and (is_wall(node.left) or is_wall(node.right))
        )

    return _listed(root, SUMS, sums)


def _listed(root: Path, listed: dict[str, tuple[str, ...]], bad: Callable[[ast.AST], bool]) -> list[str]:
    known = [place for places in listed.values() for place in places]
    found: dict[str, int] = {}
    for name, module in modules(root):
        for function, body in functions(module):
            for node in ast.walk(body):
                if bad(node):
                    found.setdefault(f"{name}::{function}", getattr(node, "lineno", 0))
    fresh = [f"{place}:{line}: wall time" for place, line in found.items() if place not in known]
    return fresh + (
        [f"{place}: no longer an exception" for place in known if place not in found] if root == ROOT else []
    )


def clocks_keep_their_names(root: Path) -> list[str]:
    """A date is not called monotonic, nor the other way round, when it is bound or handed to a parameter. Parameters are
    known by the name of their function, where all functions of that name agree."""
    wants: dict[str, list[list[str]]] = {}
    for _, module in modules(root):
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                wants.setdefault(node.name, []).append([a.arg for a in node.args.args if a.arg != "self"])
    found = []
    for name, module in modules(root):
        for node in ast.walk(module):
            pairs: list[tuple[str, ast.AST]] = []
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                pairs = [(node.targets[0].id, node.value)]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                if isinstance(node.value, ast.Tuple):
                    pairs = [
                        (getattr(t, "id", ""), v) for t, v in zip(node.targets[0].elts, node.value.elts, strict=True)
                    ]
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                pairs = [(word.arg or "", word.value) for word in node.keywords]
                for at, given in enumerate(node.args):
                    names = {args[at] if at < len(args) else "" for args in wants.get(called, [])}
                    pairs += [(names.pop(), given)] if len(names) == 1 else []
            for called, value in pairs:
                if (called in WALL_NAMES and is_monotonic(value)) or (called == "monotonic" and is_wall(value)):
                    found.append(f"{name}:{getattr(node, 'lineno', 0)}: {ast.unparse(value)} as {called}")
    return found


Rule = Callable[[Path], list[str]]
RULES: tuple[Rule, ...] = (wall_time_is_read_where_dates_are, durations_are_not_made_of_dates, clocks_keep_their_names)
D = '"""Doc."""\n'
CONTROLS: list[tuple[Rule, str]] = [
    (wall_time_is_read_where_dates_are, D + "def f(self):\n    return self._scheduler.now()\n"),
    (wall_time_is_read_where_dates_are, D + "class A:\n    def f(self):\n        self.clock = self.listener.now\n"),
    (wall_time_is_read_where_dates_are, D + "import time\n\n\ndef f():\n    return time.time_ns() // 1000\n"),
    (wall_time_is_read_where_dates_are, D + "from time import time_ns\n\n\ndef f():\n    return time_ns() // 1000\n"),
    (wall_time_is_read_where_dates_are, D + "import datetime\n\n\ndef f():\n    return datetime.datetime.now()\n"),
    (durations_are_not_made_of_dates, D + "def f(self, now):\n    if now - self._at >= 5:\n        pass\n"),
    (durations_are_not_made_of_dates, D + "def f(now):\n    return now + 5\n"),
    (durations_are_not_made_of_dates, D + "def f(now):\n    now += 5\n"),
    (clocks_keep_their_names, D + "def f(self):\n    now = self.scheduler.monotonic()\n"),
    (clocks_keep_their_names, D + "def f(self):\n    a, monotonic = 1, self.scheduler.now()\n"),
    (clocks_keep_their_names, D + "def take(monotonic):\n    pass\n\n\ndef f(now):\n    take(now)\n"),
    (
        clocks_keep_their_names,
        D + "def take(x, *, monotonic):\n    pass\n\n\ndef f(now):\n    take(1, monotonic=now)\n",
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_clocks_apart(rule: Rule) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize(
    ("rule", "content"), CONTROLS, ids=[f"{rule.__name__}-{n}" for n, (rule, _) in enumerate(CONTROLS)]
)
def test_a_planted_violation_is_found(rule: Rule, content: str, tmp_path: Path) -> None:
    place = tmp_path / "src/quintet/broker/x.py"
    place.parent.mkdir(parents=True)
    place.write_text(content)
    assert len(rule(tmp_path)) == 1
    modules.cache_clear()
    place.write_text(D + "def f(self, now, monotonic):\n    return monotonic - self._at > 5 and now >= self.date\n")
    assert rule(tmp_path) == []
