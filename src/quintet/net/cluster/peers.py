"""Asks the other nodes every second who they are and how far, and remembers what they said.

It begins with the configured addresses. A node that introduces itself, or that another one knows, is asked too; it is forgotten when it
has not answered for FORGET_S. Each address has a thread. What is known is read by the loop at any time (`known`), and is as old as it
says: who decides something by it asks for what was heard lately (`lately`).
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from quintet.model.errors import ConfigError
from quintet.net.cluster.listener import GREETING_S, Report
from quintet.net.cluster.trust import Trust, handshake_sentence
from quintet.net.cluster.wire import (
    NODES_MAX,
    Hello,
    Kind,
    NodeSaid,
    PeerRefused,
    PlaceAsked,
    check_hello,
    decode,
    expect,
    send,
    send_json,
)
from quintet.protocols.options import split_address

ASK_S: Final = 1.0  # between two questions, and two attempts
ANSWER_S: Final = 5.0
LATELY_S: Final = 10.0  # what was heard within this time is what a node is now
FORGET_S: Final = 3600.0  # of a node that is not configured


@dataclass(frozen=True, slots=True)
class Peer:
    """What is known of the node at one address."""

    address: str
    said: NodeSaid | None = None  # the last that it said
    heard: float = 0.0  # when, by the monotonic clock; 0: never
    clock_seconds: float = 0.0  # how far its clock is ahead of this node's
    error: str = ""  # why it was not reached the last time
    is_self: bool = False

    def is_up(self, monotonic: float) -> bool:
        """It answered lately, and its connection has not ended since."""
        return self.said is not None and not self.error and monotonic - self.heard <= LATELY_S


class Link:
    """One connection to another node, greeted."""

    def __init__(self, address: str, trust: Trust, own: Hello, expected: str = "") -> None:
        """expected: the name of the node; empty: whoever is there. Raises PeerRefused, ConfigError, OSError."""
        self.socket = socket.create_connection(split_address(address), timeout=GREETING_S)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket, certified = trust.dial(self.socket)
            try:
                send_json(self.socket, Kind.HELLO, own)
                self.hello = decode(expect(self.socket, Kind.HELLO), Hello)
            except ssl.SSLError as error:  # with TLS 1.3 the other side judges our certificate after the handshake
                raise PeerRefused(handshake_sentence(error), reason="certificate") from error
            check_hello(own, self.hello, certified)
            if expected and self.hello.node != expected:
                raise PeerRefused(f"{self.hello.node} answers where {expected} was", reason="name")
            self.socket.settimeout(ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ask(self) -> NodeSaid:
        send(self.socket, Kind.WHO)
        return decode(expect(self.socket, Kind.STATUS), NodeSaid)

    def place(self, asked: PlaceAsked) -> NodeSaid:
        """What the leader of the cell says when it counts; PeerRefused if it does not do so."""
        send_json(self.socket, Kind.PLACE, asked)
        return decode(expect(self.socket, Kind.STATUS), NodeSaid)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


class Peers:
    """`start` begins to ask. `met` may be called in any thread."""

    def __init__(self, addresses: Iterable[str], trust: Trust, hello: Hello, now_us: Callable[[], int], report: Report):
        self._configured = frozenset(addresses)
        self._trust = trust
        self._hello = hello
        self._now_us = now_us
        self._report = report
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._links: dict[str, Link] = {}  # open ones, by address
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for address in sorted(self._configured):
            self._add(address, "")

    def stop(self) -> None:
        """Ends its threads, and returns when they have ended."""
        self._stopped.set()
        with self._lock:
            for link in self._links.values():
                with contextlib.suppress(OSError):
                    link.socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def known(self) -> list[Peer]:
        """All other nodes, by address; one that has two addresses once, as it was heard last."""
        with self._lock:
            found = [peer for peer in self._peers.values() if not peer.is_self]
        by_name: dict[str, Peer] = {}
        for peer in sorted(found, key=lambda each: each.heard):
            by_name[peer.said.node if peer.said is not None else peer.address] = peer
        return sorted(by_name.values(), key=lambda each: each.address)

    def lately(self) -> list[NodeSaid]:
        """What the others said that are up."""
        return [said for _, said in self._up()]

    def addresses(self) -> tuple[tuple[str, str], ...]:
        """(name, address) of those that are up: what this node tells others."""
        return tuple((said.node, address) for address, said in self._up())

    def _up(self) -> list[tuple[str, NodeSaid]]:
        monotonic = time.monotonic()
        return [(peer.address, peer.said) for peer in self.known() if peer.said is not None and peer.is_up(monotonic)]

    def met(self, hello: Hello) -> None:
        """A node introduced itself."""
        self._learn(((hello.node, hello.address),))

    def _learn(self, nodes: Iterable[tuple[str, str]]) -> None:
        names = {said.node for said in self.lately()} | {self._hello.node}
        for name, address in nodes:
            if name not in names and all(split_address(address)):
                self._add(address, name)

    def _add(self, address: str, expected: str) -> None:
        with self._lock:
            if address in self._peers or len(self._peers) >= NODES_MAX or self._stopped.is_set():
                return
            self._peers[address] = Peer(address)
            thread = threading.Thread(target=self._run, args=(address, expected), name="quintet-peer", daemon=True)
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            thread.start()

    def _run(self, address: str, expected: str) -> None:
        began = time.monotonic()
        while not self._stopped.is_set():
            try:
                self._talk(address, expected)
                return
            except (PeerRefused, ConfigError) as error:
                self._failed(address, str(error))
            except OSError as error:
                self._failed(address, (error.strerror or str(error) or "no answer in time").lower())
            peer = self._peers[address]
            if address not in self._configured and time.monotonic() - max(peer.heard, began) > FORGET_S:
                with self._lock:
                    del self._peers[address]
                return
            self._stopped.wait(ASK_S)

    def _failed(self, address: str, error: str) -> None:
        peer = self._peers[address]
        if peer.error != error:
            self._report("peer_unreachable", {"address": address, "error": error})
            self._set(replace(peer, error=error))

    def _talk(self, address: str, expected: str) -> None:
        """Until the connection ends, or this node is stopped, or it finds itself at the other end."""
        link = Link(address, self._trust, self._hello, expected)
        with self._lock:
            self._links[address] = link
        try:
            if link.hello.node == self._hello.node:
                if link.hello.instance == self._hello.instance:
                    self._set(replace(self._peers[address], is_self=True, error=""))
                    return
                raise PeerRefused(
                    f"the node at {address} is called {link.hello.node} as this one is",
                    reason="name",
                    hint="each node of a cell needs a cell.node of its own",
                )
            while not self._stopped.is_set():
                self._ask(address, link)
                self._stopped.wait(ASK_S)
        finally:
            with self._lock:
                del self._links[address]
            link.close()

    def _ask(self, address: str, link: Link) -> None:
        asked, asked_us = time.monotonic(), self._now_us()
        said = link.ask()
        heard, heard_us = time.monotonic(), self._now_us()
        if said.node != link.hello.node:
            raise PeerRefused(f"{link.hello.node} speaks of itself as {said.node}", reason="name")
        ahead = (said.now_us - (asked_us + heard_us) // 2) / 1e6
        before = self._peers[address]
        if before.said is None or before.error:
            self._report("peer_reached", {"node": said.node, "address": address, "took_s": round(heard - asked, 3)})
        self._set(Peer(address, said, heard, ahead))
        self._learn(said.nodes)

    def _set(self, peer: Peer) -> None:
        with self._lock:
            self._peers[peer.address] = peer
