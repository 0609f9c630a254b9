"""A BlipMQ client written from the published document alone (version 1): plain sockets, no Quintet code.

    python examples/blipmq_v1.py TOPIC [COUNT [PORT]]

Subscribes, polls, prints each message and acknowledges it; ends after COUNT messages (1 by default).
"""

import itertools
import socket
import struct
import sys
import time

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, POLL = 1, 2, 3, 4, 5, 6, 9
IDS = itertools.count(1)


def send(peer: socket.socket, kind: int, correlation_id: int, payload: bytes) -> None:
    peer.sendall(struct.pack(">IBQ", 9 + len(payload), kind, correlation_id) + payload)


def receive(peer: socket.socket) -> tuple[int, int, bytes]:
    """(type, correlation id, payload) of the next frame."""
    stream = peer.makefile("rb", buffering=0)
    length, kind, correlation_id = struct.unpack(">IBQ", stream.read(13) or bytes(13))
    return kind, correlation_id, stream.read(length - 9) if length > 9 else b""


def call(peer: socket.socket, kind: int, payload: bytes) -> bytes:
    """A request that is answered by ACK; anything else ends the program."""
    send(peer, kind, next(IDS), payload)
    answer, _, body = receive(peer)
    if answer != ACK:
        sys.exit(f"refused: {body[4:].decode(errors='replace') if answer == NACK else answer}")
    return body


def main(topic: bytes, count: int = 1, port: int = 5555) -> None:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        call(peer, HELLO, struct.pack(">H", 1))
        call(peer, AUTH, struct.pack(">H", 7) + b"dev-key")
        subscription = call(peer, SUBSCRIBE, struct.pack(">H", len(topic)) + topic + b"\x01")
        print("subscribed to", topic.decode(), flush=True)
        while count:
            send(peer, POLL, next(IDS), subscription)
            peer.settimeout(0.05)
            try:
                _, tag, body = receive(peer)
            except TimeoutError:  # nothing there: the document says to wait a little and ask again
                time.sleep(0.005)
                continue
            peer.settimeout(None)
            print(body[3 + len(topic) :].decode(), flush=True)
            send(peer, ACK, tag, subscription)
            count -= 1


if __name__ == "__main__":
    main(sys.argv[1].encode(), *map(int, sys.argv[2:]))
