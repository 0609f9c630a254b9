"""`quintet cluster status` and `doctor`: what a node's metrics say of all nodes, and what is found wrong between them."""

import re
import time
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from quintet.admin.exposition import Exposition
from quintet.admin.metrics import Family
from quintet.cell_cluster import Row, node_families
from quintet.cli.operate import scrape
from quintet.cli.operate.cluster import _shown, _took_over
from quintet.cli.operate.cluster_view import findings, rows
from quintet.cli.operate.scrape import Sample
from quintet.net.cluster.wire import NodeSaid

NOW = time.time()
SAID = NodeSaid(
    "n1", role="leader", epoch=7, applied=900, synced=890, wal_begin=100, wal_end=1_000, version="1.2.0", lease_seconds=5.0,
    hold_seconds=6.25, chain="durable ab12", certificate_expires=NOW + 300 * 86_400,
)  # fmt: skip


class Source:
    def __init__(self, found: Sequence[Row]) -> None:
        self._found = found

    def families(self) -> Sequence[Family]:
        return node_families(self._found)


def row(name: str, *, up: bool = True, clock: float = 0.0, error: str = "", **more: Any) -> Row:
    role = {"role": "leader" if name == "n1" else "follower"}
    said = structs.replace(SAID, node=name, **(role | more)) if name else NodeSaid("")
    return Row(name, f"10.0.0.{name[1:]}:7790", said, up, clock, error)


def sample(*found: Row) -> Sample:
    """As a client reads it from /metrics."""
    text, _ = Exposition(Source(found)).render("text/plain")
    return Sample(0.0, scrape.parse(text.decode()))


def judged(*found: Row) -> dict[str, str]:
    """The worst finding of each subject that is not right."""
    now = sample(*found)
    return {finding.subject: finding.text for finding in findings(now, rows(now)) if finding.verdict != "ok"}


def test_all_nodes_are_shown_as_one_of_them_knows_them() -> None:
    now = sample(row("n1", take_over_seconds=8.5, take_over_at=NOW - 60), row("n2"), row("", up=False, error="refused"))
    found = rows(now)
    assert [(each.node, each.up, each.role) for each in found] == [
        ("n1", True, "leader"),
        ("n2", True, "follower"),
        ("", False, ""),
    ]
    shown = _shown(found[0])
    assert shown[:6] == ("n1", "leader", "7", "900", "890", "0, 0 s")
    assert shown[8] in ("300 days", "299 days")
    assert _shown(found[2])[0] == "?"
    assert re.fullmatch(r"n1 took over .+ ago, in 8.5 s", _took_over(found))


def test_a_cell_that_is_right_has_no_findings() -> None:
    assert judged(row("n1"), row("n2"), row("n3")) == {}


def test_what_is_wrong_between_nodes_is_found() -> None:
    two = (row("n1"), row("n2"))
    assert "n3 at 10.0.0.3:7790 does not answer: refused" in judged(*two, row("n3", up=False, error="refused"))["nodes"]
    assert "1 node answers" in judged(row("n1"))["nodes"]
    assert judged(*two, row("n3", role="leader"))["leader"] == "2 nodes lead: n1, n3"
    assert judged(row("n1", role="follower"), row("n2"))["leader"] == "0 nodes lead"
    assert "epochs differ" in judged(*two, row("n3", epoch=6))["leader"]
    assert judged(*two, row("n3", lease_seconds=9.0))["lease"] == "differs: n1 5 s, n2 5 s, n3 9 s"
    assert "n3 durable other" in judged(*two, row("n3", chain="durable other"))["audit"]
    assert "n3 1.3.0" in judged(*two, row("n3", version="1.3.0"))["version"]
    assert "n3 is 90.000 s ahead" in judged(*two, row("n3", clock=90.0))["clock"]
    assert "n3: 9 days left" in judged(*two, row("n3", certificate_expires=NOW + 9.5 * 86_400))["certificate"]
    assert "n3 lags 500 records, 20 s" in judged(*two, row("n3", lag_records=500, lag_seconds=20.0))["lag"]
    assert "is it trimmed?" in judged(row("n1", wal_begin=0, wal_end=5_000_000), row("n2"))["wal"]
    newer = row("n1", wal_writes=2, wal_reads=2)
    assert judged(newer, row("n2", wal_reads=2), row("n3"))["wal version"] == "the leader writes 2; n3 reads up to 1"
    assert "and all nodes read 2" in judged(row("n1", wal_reads=2), row("n2", wal_reads=2))["wal version"]
