"""Listens for other nodes: each connection is a thread that greets, and answers WHO, COPY and PLACE until the other side ends it.

Threads and not the loop, because a copy reads files for minutes and a handshake may wait for a peer. What they tell is what the loop
last put down (`own`); but for PLACE they change nothing of the node. A connection is refused with a sentence, reported and counted by its reason.
"""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from quintet.model.errors import ConfigError, QuintetError
from quintet.net.cluster.trust import Trust
from quintet.net.cluster.wire import (
    CONTROL_BYTES_MAX,
    Hello,
    Kind,
    NodeSaid,
    PeerRefused,
    PlaceAsked,
    check_hello,
    decode,
    expect,
    receive,
    send,
    send_json,
)

CONNECTIONS_MAX: Final = 128  # two for each of the nodes that one may know
GREETING_S: Final = 5.0  # for a handshake and HELLO
IDLE_S: Final = 30.0  # without a question; nodes ask every second
BACKLOG: Final = 16
LOOK_S: Final = 0.5  # between two looks whether it was stopped

Report = Callable[[str, dict[str, object]], None]


class ClusterListener:
    """`start` when the node knows who it is; `address` is known from the beginning on."""

    def __init__(self, host: str, port: int, trust: Trust, report: Report) -> None:
        self._trust = trust
        self._report = report
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._served = 0
        self._threads: set[threading.Thread] = set()
        self.refused: Counter[str] = Counter()  # by reason
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cluster.listen: cannot listen on {host}:{port}: {error.strerror or error}",
                hint="another process may have the port; name another one",
            ) from error
        self._socket.settimeout(LOOK_S)
        self.port: int = self._socket.getsockname()[1]
        self._hello: Hello
        self._own: Callable[[], NodeSaid]
        self._copy: Callable[[socket.socket, str], None]
        self._place: Callable[[PlaceAsked], None]
        self._met: Callable[[Hello], None]

    def start(
        self,
        hello: Hello,
        own: Callable[[], NodeSaid],
        copy: Callable[[socket.socket, str], None],
        place: Callable[[PlaceAsked], None],
        met: Callable[[Hello], None],
    ) -> None:
        """own: what this node says of itself; copy: sends a copy to a node; place: what an operator asked for counts when it returns; met: a
        node introduced itself. All are called in threads."""
        self._hello, self._own, self._copy, self._place, self._met = hello, own, copy, place, met
        accepting = threading.Thread(target=self._accept, name="quintet-cluster", daemon=True)
        self._threads.add(accepting)
        accepting.start()

    def stop(self) -> None:
        """Ends its threads, and returns when they have ended."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends accept at once, where the system does that
        self._socket.close()
        with self._lock:
            threads = [*self._threads]
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()

    @property
    def connections(self) -> int:
        """Threads that serve a node, or somebody who has not said yet who it is."""
        return self._served

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                plain, address = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._stopped.wait(LOOK_S):
                    self._report("cluster_not_accepting", {"error": str(error)})
                continue
            place = f"{address[0]}:{address[1]}"
            if self._served >= CONNECTIONS_MAX:
                plain.close()
                self._refuse(place, PeerRefused(f"{CONNECTIONS_MAX} connections of nodes are open", reason="full"))
                continue
            serving = threading.Thread(target=self._run, args=(plain, place), name="quintet-cluster", daemon=True)
            with self._lock:
                self._served += 1
                self._open.add(plain)
                self._threads.add(serving)
            serving.start()

    def _run(self, plain: socket.socket, place: str) -> None:
        try:
            self._serve(plain, place)
        except PeerRefused as error:
            self._refuse(place, error)
        except ConfigError as error:  # its own files cannot be read any more
            self._refuse(place, PeerRefused(error.message, reason="certificate", hint=error.hint))
        except OSError:
            pass  # it went away, or said nothing
        finally:
            with self._lock:
                self._served -= 1
                self._open.discard(plain)
                self._threads.discard(threading.current_thread())
            plain.close()

    def _serve(self, plain: socket.socket, place: str) -> None:
        plain.settimeout(GREETING_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link, certified = self._trust.accept(plain)
        with self._lock:
            self._open.add(link)
        try:
            theirs = decode(expect(link, Kind.HELLO), Hello)
            try:
                check_hello(self._hello, theirs, certified)
            except PeerRefused as error:
                send(link, Kind.REFUSED, str(error).encode()[:CONTROL_BYTES_MAX])
                raise
            send_json(link, Kind.HELLO, self._hello)
            if theirs.log and theirs.instance != self._hello.instance:
                self._met(theirs)
            link.settimeout(IDLE_S)
            while not self._stopped.is_set():
                self._answer(link, theirs)
        finally:
            with self._lock:
                self._open.discard(link)
            link.close()

    def _answer(self, link: socket.socket, theirs: Hello) -> None:
        kind, body = receive(link)
        if kind is Kind.WHO:
            send_json(link, Kind.STATUS, self._own())
        elif kind is Kind.PLACE:
            try:
                self._place(decode(body, PlaceAsked))
            except QuintetError as error:
                send(link, Kind.REFUSED, str(error).encode()[:CONTROL_BYTES_MAX])
                raise PeerRefused(f"{theirs.node} asked for another place: {error}", reason="place") from error
            send_json(link, Kind.STATUS, self._own())
        elif kind is Kind.COPY and theirs.log:
            try:
                self._copy(link, theirs.node)
            except QuintetError as error:
                send(link, Kind.REFUSED, str(error).encode()[:CONTROL_BYTES_MAX])
                raise PeerRefused(f"no copy was made for {theirs.node}: {error}", reason="copy") from error
        else:
            raise PeerRefused(f"{kind.name} is no question")

    def _refuse(self, place: str, error: PeerRefused) -> None:
        self._report("cluster_refused", {"from": place, "reason": error.message, "hint": error.hint})
        self.refused[error.reason] += 1
