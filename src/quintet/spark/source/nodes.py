"""Decides which node of a cell a connection uses: a follower, the leader, or any, and another one when that fails.

A node says itself what it is (the action `node`), and it is asked when a connection is made and every ASK_AGAIN_SECONDS: a follower may
have become the leader meanwhile, and one that was away may be back. A node that failed is passed over for a while. Offsets are the same
on all nodes, so whoever was reading goes on at another one behind its last row. How a node is reached, and what is asked of it, is
connection.py's affair.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from quintet.spark.source.options import Host, Target

ASK_AGAIN_SECONDS: Final = 30.0
PASS_OVER_SECONDS: Final = 5.0
LEADER: Final = "leader"
FOLLOWER: Final = "follower"

_log = logging.getLogger("quintet.spark")


class Nodes:
    """The nodes of one target, as one connection sees them."""

    def __init__(
        self, target: Target, wanted: str, monotonic: Callable[[], float] = time.monotonic, process: int | None = None
    ) -> None:
        """wanted: follower, leader or any. process: a number by which processes differ; None: that of this one."""
        self._hosts = target.hosts
        self._wanted = wanted
        self._monotonic = monotonic
        number = os.getpid() if process is None else process
        self._first = number % len(self._hosts)  # processes of one job use different followers
        self._failed: dict[Host, float] = {}
        self._chosen_at = 0.0
        self._complained = False
        self.current: Host | None = None

    def line(self) -> list[Host]:
        """All of them, in the order in which they are tried now; those that failed lately come last."""
        monotonic = self._monotonic()
        hosts = [*self._hosts[self._first :], *self._hosts[: self._first]]
        return sorted(hosts, key=lambda host: max(self._failed.get(host, 0.0) - monotonic, 0.0))

    def choose(self, role_of: Callable[[Host], str | None]) -> Host | None:
        """The node to use; None: none that is wanted answers. role_of asks a node; None: it does not answer."""
        spare: Host | None = None
        for host in self.line():
            role = role_of(host)
            if role is None:
                self.fail(host)
            elif self._wanted in ("any", role):
                if self._failed.get(host, 0.0) <= self._monotonic():
                    return self._take(host, role)
                spare = spare or host
            elif self._wanted == FOLLOWER:
                spare = host  # the leader, which has all of it; also in place of a follower that failed a moment ago
        if spare is not None:
            role = role_of(spare)
            return None if role is None else self._take(spare, role)
        return None

    def _take(self, host: Host, role: str) -> Host:
        self.current, self._chosen_at = host, self._monotonic()
        if self._wanted == FOLLOWER and role == LEADER:
            if not self._complained:
                _log.warning("quintet: no follower of %s can be read from; reading from the leader, %s:%d", self, *host)
            self._complained = True
        else:
            self._complained = False
        return host

    def fail(self, host: Host | None) -> None:
        """It is away, too old, behind, or no longer what is wanted."""
        if host is not None:
            self._failed[host] = self._monotonic() + PASS_OVER_SECONDS
        self.current = None

    @property
    def is_due(self) -> bool:
        """Is it time to ask again who is what?"""
        return self.current is not None and self._monotonic() - self._chosen_at > ASK_AGAIN_SECONDS

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._hosts)
