"""Decides which node should lead each cell: evenly, the same on all nodes that know the same nodes, few moves when one comes or goes.

Every cell ranks the nodes by a hash of both names (rendezvous hashing) and takes the first that has room. No node has more than one
cell more than another. Does no I/O; who leads is decided by claims in the WAL, and this only says who should claim first (ADR 47).
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

RANK_BYTES: Final = 8


def share(cells: int, nodes: Iterable[str]) -> list[str]:
    """The node of each cell; [] if there are no nodes."""
    names = sorted(set(nodes))
    if not names:
        return []
    least, more = divmod(cells, len(names))  # `more` nodes have one cell more
    loads = dict.fromkeys(names, 0)
    found: list[str] = []
    for cell in range(cells):
        ranked = sorted(names, key=lambda name: _rank(cell, name))
        chosen = next(name for name in ranked if loads[name] < least or (loads[name] == least and more > 0))
        more -= loads[chosen] == least
        loads[chosen] += 1
        found.append(chosen)
    return found


def wanted(cell: int, cells: int, nodes: Iterable[str], moved: str = "", avoided: Iterable[str] = ()) -> str:
    """The node that should lead a cell; empty: there is none. nodes: that are up. moved: where an operator moved it, which counts while
    that node is up. avoided: nodes that are drained; if there is no other one, they do not count."""
    up = set(nodes)
    left = up - set(avoided) or up
    if moved in left:
        return moved
    return share(cells, left)[cell] if left else ""


def _rank(cell: int, name: str) -> bytes:
    return blake2b(f"{cell} {name}".encode(), digest_size=RANK_BYTES).digest()
