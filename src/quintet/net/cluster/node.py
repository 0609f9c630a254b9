"""Puts together what one node needs to talk to the others: its listener, those it asks, what it says of itself.

The loop puts down what the node says (`say`); threads of the listener and of the peers read it. Nothing here decides who leads.
"""

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from quintet.net.cluster.listener import ClusterListener, Report
from quintet.net.cluster.peers import Peer, Peers
from quintet.net.cluster.trust import Trust
from quintet.net.cluster.wire import Hello, NodeSaid, PeerRefused, PlaceAsked
from quintet.protocols.options import split_address

ANY: Final = ("0.0.0.0", "::")  # listened on, and nowhere to be reached


class ClusterNode:
    """Listens from the beginning on; `introduce` when the log is known, `start` when the node takes part."""

    def __init__(
        self,
        listen: str,
        peers: Sequence[str],
        trust: Trust,
        node: str,
        host: str,
        instance: str,
        now_us: Callable[[], int],
        hand: Callable[[Callable[[], None]], object],
        report: Report,
    ) -> None:
        """listen, peers: HOST:PORT. host: by which others reach this node, if it listens on all of its addresses. hand: calls on the loop, from any thread."""

        def report_from_thread(event: str, fields: dict[str, object]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node has stopped
                hand(lambda: report(event, fields))

        self._addresses = peers
        self._node, self._instance, self._now_us = node, instance, now_us
        self._report = report_from_thread
        self.trust = trust
        self.trust.check(node)
        listens, port = split_address(listen)
        self.listener = ClusterListener(listens, port, self.trust, report_from_thread)
        reached = host if listens in ANY else listens
        self.address = f"[{reached}]:{self.listener.port}" if ":" in reached else f"{reached}:{self.listener.port}"
        self.hello: Hello
        self.peers: Peers
        self._said = NodeSaid(node)

    def introduce(self, log: str) -> None:
        """log: identity of the log that this node has, or is about to have."""
        self.hello = Hello(self._node, self._instance, log, self.address)
        self.peers = Peers(self._addresses, self.trust, self.hello, self._now_us, self._report)

    def start(self) -> None:
        self.listener.start(self.hello, self.own, self._copy, self._place, self.peers.met)
        self.peers.start()

    def stop(self) -> None:
        self.listener.stop()
        self.peers.stop()

    def say(self, said: NodeSaid) -> None:
        """On the loop: what this node says of itself from now on."""
        self._said = said

    def own(self) -> NodeSaid:
        """In any thread."""
        return msgspec.structs.replace(
            self._said, now_us=self._now_us(), nodes=self.peers.addresses(), certificate_expires=self.trust.expires()
        )

    def known(self) -> list[Peer]:
        return self.peers.known()

    def _copy(self, link: socket.socket, node: str) -> None:
        """In a thread: send a copy of this node's files. CellCluster can."""
        raise PeerRefused(f"this node makes no copies, and {node} asked for one")

    def _place(self, asked: PlaceAsked) -> None:
        """In a thread: place the cell of this node as an operator wants it."""
        raise PeerRefused("this is the only cell of its nodes", reason="place", hint="cell.cells makes several")
