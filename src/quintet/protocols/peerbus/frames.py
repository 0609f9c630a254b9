"""The objects of peerbus as data: types, texts, sizes, rights. No logic.

Every frame is one JSON object: a WebSocket text message, or a line that ends with one \\n.

    {"protocol_version":"v1","type":"register","token":S,"name":S}             client, first
    {"protocol_version":"v1","type":"ack","id":DELIVERY_KEY}                   client
    {"protocol_version":"v1","type":"peers"}                                   client
    {"protocol_version":"v1","type":"peers","names":[S,...]}                   broker
    {"protocol_version":"v1","type":"deliver","delivery_key":S,"envelope":E}   broker
    E, by itself, no "type": model/envelope.py draws its nine members          client
"""

from typing import Final

from quintet.model import limits
from quintet.model.rights import Right

VERSION: Final = "v1"

REGISTER: Final = "register"
ACK: Final = "ack"
PEERS: Final = "peers"
DELIVER: Final = "deliver"
ENVELOPE: Final = ""  # no control frame: anything whose type is not one of the four

CONTROL: Final = frozenset({REGISTER, ACK, PEERS, DELIVER})

# What a peer needs to send each frame (model/rights.py).
RIGHTS: Final[dict[str, Right]] = {
    REGISTER: "read",  # of peerbus/NAME; and the name is free, or was registered by the same owner
    ENVELOPE: "write",  # of peerbus/TO; of a broadcast, each recipient's
    ACK: "owner",  # of what was delivered to this very peer
    PEERS: "known",
    DELIVER: "server",  # passed over when a client sends it
}

FRAME_BYTES_MAX: Final = limits.MIB
NAME_BYTES_MAX: Final = 200  # of UTF-8
ID_BYTES_MAX: Final = 256  # of UTF-8
BODY_DEPTH_MAX: Final = 128  # objects and arrays within each other: no reader's recursion ends before that

DELIVER_BYTES_MAX: Final = (
    limits.KIB
)  # what a deliver frame adds to an envelope: its head, and the key with its escapes

DELIVER_HEAD: Final = b'{"protocol_version":"v1","type":"deliver","delivery_key":'
DELIVER_MIDDLE: Final = b',"envelope":'
