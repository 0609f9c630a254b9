"""A login storm: everybody comes back at once after a restart, over real sockets, and everybody gets in."""

import selectors
import signal
import socket
from pathlib import Path

from argon2 import low_level

from tests.abuse.process import Broker, config
from tests.wire.flymq import AUTH_RESPONSE, auth

CLIENTS = 500
HANG_S = 30.0


def user(number: int) -> str:
    """Each has a password of its own, so that no two logins are one hash; the costs are as low as argon2 has them."""
    salt = f"{number:016}".encode()
    hashed = low_level.hash_secret(f"password {number}".encode(), salt, 1, 64, 1, 32, low_level.Type.ID).decode()
    return f'[[users]]\nname = "user{number}"\npassword_argon2 = "{hashed}"\nroles = ["consumer"]\n'


def storm(address: str) -> list[bytes]:
    """All connect, then all send AUTH, then all wait: what each was answered first."""
    host, _, port = address.rpartition(":")
    peers = [socket.create_connection((host, int(port)), HANG_S) for _ in range(CLIENTS)]
    for number, peer in enumerate(peers):
        peer.sendall(auth(f"user{number}", f"password {number}"))
    answers: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as waiting:
        for peer in peers:
            waiting.register(peer, selectors.EVENT_READ)
        while len(answers) < CLIENTS:
            ready = waiting.select(HANG_S)
            assert ready, f"{len(answers)} of {CLIENTS} were answered, then nobody for {HANG_S} s"
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                waiting.unregister(key.fileobj)
                answers[key.fileobj] = key.fileobj.recv(4096)
    for peer in peers:
        peer.close()
    return [answers[peer] for peer in peers]


def test_500_reconnects_after_a_restart_all_get_in(tmp_path: Path) -> None:
    people = "".join(user(number) for number in range(CLIENTS))
    settings = config(listener="[listeners.flymq]\nport = 0\n", rest="[limits]\ndisk_free_bytes_min = 0\n" + people)
    for _ in range(2):
        with Broker(tmp_path, settings) as broker:
            answers = storm(broker.listeners["flymq"])
            assert [answer[2] for answer in answers] == [AUTH_RESPONSE] * CLIENTS
            assert all(answer[8] == 1 for answer in answers), "success is false"
            broker.process.send_signal(signal.SIGTERM)
            assert broker.process.wait(HANG_S) == 0
