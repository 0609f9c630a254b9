"""What one client and one door say when one message is under way: the bytes of the opening and of one round, per TCP door.

A Dialogue says what the client sends; `learn` has it once with a real broker and keeps what that answered. From both come
the load (bench/loadgen, as a script) and the servers that only answer bytes of the same sizes (floors.py).

    BlipMQ   HELLO, AUTH | PUBLISH of QoS 1 and PING: PONG
    FlyMQ    AUTH | PRODUCE: its answer
    Fast     EXTEND 1, CREATE of a durable topic | PUBLISH with its token: OK
    peerbus  upgrade to WebSocket, register | the ack of the delivery before and an envelope to oneself: its delivery
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

from bench import peerbus
from quintet.bench import blipmq, fast, flymq
from quintet.bench.generators import payload_of
from quintet.bench.wire import Address, open_socket, read_until

SIZE = 128
TOPIC = "alone"
TOKEN = "dev-token"
DURABLE = 1  # of the flags of Fast's CREATE

Whole = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What a client of a door says: each part with the test of whether its answer is whole."""

    door: str
    opening: tuple[tuple[bytes, Whole], ...]
    request: bytes
    whole: Whole
    fixed: int  # bytes at the start of an answer that are the same in all of them
    now_at: int | None = None  # where the number of the round stands in the request
    last_at: int | None = None  # and that of the round before


@dataclass(frozen=True, slots=True)
class Learned:
    """A dialogue with the answers a broker gave."""

    dialogue: Dialogue
    answers: tuple[bytes, ...]  # to the parts of the opening, and to the request

    @property
    def exchanges(self) -> list[tuple[int, bytes]]:
        """How many bytes are answered by which; the last pair repeats."""
        sizes = [len(sent) for sent, _ in self.dialogue.opening] + [len(self.dialogue.request)]
        return list(zip(sizes, self.answers, strict=True))

    def options(self, dialogue: Dialogue | None = None) -> dict[str, str | float]:
        """The script of this dialogue for bench/loadgen, or of one like it under another name."""
        said = dialogue or self.dialogue
        opening = [f"{sent.hex()}:{len(answer)}" for (sent, _), answer in zip(said.opening, self.answers, strict=False)]
        options: dict[str, str | float] = {
            "opening": ",".join(opening),
            "request": said.request.hex(),
            "answer": len(self.answers[-1]),
            "starts": self.answers[-1][: said.fixed].hex(),
        }
        places = {"now-at": said.now_at, "last-at": said.last_at}
        return options | {name: place for name, place in places.items() if place is not None}


def learn(dialogue: Dialogue, address: Address) -> Learned:
    """Have the dialogue with a broker."""
    answers = []
    with open_socket(address) as sock:
        for sent, whole in (*dialogue.opening, (dialogue.request, dialogue.whole)):
            sock.sendall(sent)
            answers.append(read_until(sock, whole, f"answer of the {dialogue.door} door"))
    return Learned(dialogue, tuple(answers))


def blipmq_dialogue() -> Dialogue:
    key = b"dev-key"
    auth = blipmq.frame(blipmq.AUTH, 2, struct.pack(">H", len(key)) + key)
    hello = blipmq.frame(blipmq.HELLO, 1, struct.pack(">H", 1)) + auth
    wire = blipmq.BlipmqWire()
    request = wire.encode(TOPIC, payload_of(SIZE), 1, 1) + wire.barrier(1)
    opening = ((hello, lambda data: len(blipmq.split(data)) >= 2),)
    return Dialogue("blipmq", opening, request, lambda data: bool(blipmq.split(data)), len(blipmq.PONG_FRAME))


def flymq_dialogue(topic: str = TOPIC, size: int = SIZE) -> Dialogue:
    auth = flymq.frame(flymq.AUTH, flymq.str16("admin"), flymq.str16("admin"))

    def whole(data: bytes) -> bool:
        return bool(flymq.split(data)[0])

    request = flymq.FlymqWire().encode(topic, payload_of(size), 1, 1)
    return Dialogue("flymq", ((auth, whole),), request, whole, flymq.HEAD.size + len(flymq.str16(topic)))


def fast_dialogue() -> Dialogue:
    wire = fast.FastWire(topics=(TOPIC,), flags=DURABLE)
    opening = ((fast.EXTEND_PACKET + wire.create(TOPIC), lambda data: len(data) >= 2 * fast.ANSWER.size),)
    request = wire.encode(TOPIC, payload_of(SIZE), 1, 1)
    return Dialogue("fast", opening, request, lambda data: len(data) >= fast.ANSWER.size, fast.ANSWER.size)


def peerbus_dialogue(number: int = 0) -> Dialogue:
    """Each run has a name of its own: what the last round of a run left without an ack would come again."""
    name = f"solo{number:05d}"
    hello = {"protocol_version": "v1", "type": "register", "token": TOKEN, "name": name}
    opening: tuple[tuple[bytes, Whole], ...] = (
        (peerbus.handshake(("127.0.0.1", 0)), lambda data: data.endswith(b"\r\n\r\n")),
        (peerbus.short_frame(json.dumps(hello).encode()), lambda data: bool(peerbus.split(data)[0])),
    )
    place = peerbus.ID_PLACE.encode()
    ack = peerbus.short_frame(b'{"protocol_version":"v1","type":"ack","id":"' + place + b'"}')
    frame = peerbus.client_frame(peerbus.envelope(name, name, SIZE))
    now_at = len(ack) + frame.index(place)
    return Dialogue(
        "peerbus", opening, ack + frame, lambda data: bool(peerbus.split(data)[0]), 4, now_at, ack.index(place)
    )


# By the name of the listener, with a number for runs that need a name of their own.
DIALOGUES: dict[str, Callable[[int], Dialogue]] = {
    "blipmq": lambda _: blipmq_dialogue(),
    "flymq": lambda _: flymq_dialogue(),
    "fast": lambda _: fast_dialogue(),
    "peerbus": peerbus_dialogue,
}
