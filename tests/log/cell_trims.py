"""Adds to the simulated cell (cell_world.py): a WAL that leaders trim, nodes that lose their disks, and copies from one node to another.

One disk may be lost at a time: the next one only when the one before has a copy. What two nodes have synced is then always on one of them. The WAL itself stays whole in the simulation, to judge by; `begin` is where nodes may read from.

    python -m tests.log.cell_trims --seeds 100000 [--first 0]
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

from quintet.log.replicated.trimming import trim_point
from tests.log.cell_files import Files, Wrong
from tests.log.cell_world import CALM, LEASE, STORM, Node, World

TRIM_EVERY = LEASE // 2
LOSSES_MAX = 3  # of disks in one history
COPY = LEASE // 5  # how long a copy takes

Rule = Callable[[int, Sequence[int]], int]


class TrimmingNode(Node):
    """Copies from another node when the WAL begins above its mark."""

    world: "TrimmingWorld"

    def start(self) -> None:
        if self.files.fold.next >= self.world.begin:
            super().start()
            return
        sources = [node for node in self.world.nodes if node.files.fold.next >= self.world.begin]
        if not sources:
            raise Wrong(f"nobody has what was trimmed below {self.world.begin}")
        running = [node for node in sources if node.replica is not None]
        if running:
            self.files = self.world.copy(self.world.rng.choice(running).files)
            self.world.counts["copies"] += 1
        self.world.at(COPY, None, partial(self._start_again, self.life))

    def _start_again(self, life: int) -> None:
        if life == self.life and self.replica is None:
            self.start()

    def _poll(self, reader: int, offset: int) -> None:
        if offset >= self.world.begin:
            super()._poll(reader, offset)
            return
        assert self.replica is not None
        if self.replica.leads and self.files.fold.next >= self.world.begin:
            raise Wrong(f"{self.name} leads and needs {offset}, the WAL begins at {self.world.begin}")
        self.world.counts["fell behind"] += 1  # also a leader that was replaced meanwhile, and reads its gap
        self.world.restart(self)


class TrimmingWorld(World):
    """rule: where a leader trims, of its own mark and those of the others that answer."""

    def __init__(self, seed: int, rule: Rule = trim_point, mark_last: bool = False) -> None:
        super().__init__(seed, node=TrimmingNode)
        self.begin = 0
        self._lost: Node | None = None  # the last one that lost its disk
        self._rule = rule
        self._mark_last = mark_last

    def run(self) -> None:
        for time in range(LEASE, STORM + CALM - 3 * LEASE, TRIM_EVERY):
            self.at(time, None, self._trim)
        for _ in range(self.rng.randint(0, LOSSES_MAX)):
            self.at(self.rng.randint(LEASE, STORM), None, self._lose_disk)
        super().run()

    def _trim(self) -> None:
        for node in self.nodes:
            if node.replica is not None and node.replica.leads and node.paused_to <= self.time:
                others = [
                    other.files.fold.next for other in self.nodes if other is not node and other.replica is not None
                ]
                before = self._rule(node.files.fold.next, others)
                if before > self.begin:
                    self.begin = before
                    self.counts["trims"] += 1

    def _lose_disk(self) -> None:
        if self._lost is None or self._lost.files.fold.next >= self.begin:
            node = self._lost = self.rng.choice(self.nodes)
            node.files = Files()
            node.paused_to = 0
            self.counts["lost disks"] += 1
            self.restart(node)

    def copy(self, source: Files) -> Files:
        """What a node has on its disk now, all of it synced at the new place."""
        found = deepcopy(source)
        if self._mark_last:  # sabotage: the mark of a moment later
            for rows in found.partitions.values():
                del rows[max(len(rows) - 2, 0) :]
        found.restart()
        found._synced = {place: len(rows) for place, rows in found.partitions.items()}
        found._starts, found._stages = dict(found.starts), set(found.stages)
        found._parts = {stage: set(parts) for stage, parts in found.parts.items()}
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        world = TrimmingWorld(seed)
        try:
            world.run()
        except Wrong as error:
            wrong[seed] = str(error)
        counts += world.counts
    verdict = {"first": arguments.first, "seeds": arguments.seeds, "wrong": len(wrong), **counts}
    sys.stdout.write(json.dumps(verdict | {"seeds_wrong": dict(list(wrong.items())[:10])}) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
