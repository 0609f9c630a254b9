"""The packets of Fast TCP Pub/Sub as data: types, sizes, flags, rights. No logic.

Every packet begins with its type; there is no outer length, so a type that is not here cannot be passed over. Numbers
are big-endian. `jwt` is [u8 n][n bytes]; behind EXTEND n may be 0: the last token that was accepted on this connection.

    0x01 CREATE       | 01 | n | jwt | t | name | flags |
    0x02 SUBSCRIBE    | 02 | n | jwt | topic u32 |
    0x03 PUBLISH      | 03 | n | jwt | topic u32 | length u32 | payload |
    0x04 MESSAGE      | 04 | topic u32 | length u32 | payload |
    0x05 UNSUBSCRIBE  | 05 | n | jwt | topic u32 |
    0x06 KEY_UPDATE   | 06 | topic u32 | m | key |
    0x07 ROTATE_KEY   | 07 | n | jwt | topic u32 | m | new key |

Ours, on codes the document leaves free; a client that never sends EXTEND to a strict listener never sees the others:

    0x70 EXTEND       | 70 | version |         1: every request is answered, jwt may be empty; 2: jwt may be empty;
                                               3: as 1, and messages come as MESSAGES
    0x71 RECORDS      | 71 | n | jwt | topic u32 | length u32 | record set |      behind any EXTEND
    0x72 MESSAGES     | 72 | topic u32 | length u32 | record set |
    0x7E OK           | 7e | request type | topic u32 | 00 00 | 00 |
    0x7F ERROR        | 7f | request type | topic u32 | code u16 | l | text |
"""

import struct
from typing import Final

from quintet.model.rights import Right

CREATE: Final = 0x01
SUBSCRIBE: Final = 0x02
PUBLISH: Final = 0x03
MESSAGE: Final = 0x04
UNSUBSCRIBE: Final = 0x05
KEY_UPDATE: Final = 0x06
ROTATE_KEY: Final = 0x07
EXTEND: Final = 0x70
RECORDS: Final = 0x71
MESSAGES: Final = 0x72
OK: Final = 0x7E
ERROR: Final = 0x7F

NAMES: Final = {
    CREATE: "CREATE",
    SUBSCRIBE: "SUBSCRIBE",
    PUBLISH: "PUBLISH",
    MESSAGE: "MESSAGE",
    UNSUBSCRIBE: "UNSUBSCRIBE",
    KEY_UPDATE: "KEY_UPDATE",
    ROTATE_KEY: "ROTATE_KEY",
    EXTEND: "EXTEND",
    RECORDS: "RECORDS",
    MESSAGES: "MESSAGES",
    OK: "OK",
    ERROR: "ERROR",
}

# What a client needs to send it, of the broker's own rights. Besides: a valid token, whose queue_key is the topic's
# (CREATE binds it), and which has the permission.
RIGHTS: Final[dict[int, Right]] = {
    CREATE: "read or write",  # permission create, where the listener says require_create
    SUBSCRIBE: "read",  # permission subscribe
    PUBLISH: "write",  # permission publish
    MESSAGE: "server",
    UNSUBSCRIBE: "read",  # or being subscribed on this connection
    KEY_UPDATE: "server",
    ROTATE_KEY: "read or write",  # permission rotate
    EXTEND: "open",  # changes nothing but the answers
    RECORDS: "write",  # as PUBLISH
    MESSAGES: "server",
    OK: "server",
    ERROR: "server",
}

# CREATE flags; other bits mean nothing and are ignored.
DURABLE: Final = 0x01
EXCLUSIVE: Final = 0x02
COMPETING: Final = 0x04
TTL: Final = 0x08

VERSION: Final = 1  # of EXTEND: answers and empty tokens
QUIET: Final = 2  # of EXTEND: empty tokens only
WHOLE: Final = 3  # of EXTEND: as VERSION, and messages with key, headers, time and origin (ADR 33)
VERSIONS: Final = (VERSION, QUIET, WHOLE)
EXTEND_BYTES: Final = 2
TOKEN_BYTES_MAX: Final = 255
NAME_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 255
TEXT_BYTES_MAX: Final = 255
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024

TOPIC: Final = struct.Struct(">I")
PUBLISH_TAIL: Final = struct.Struct(">II")  # topic, length
MESSAGE_HEAD: Final = struct.Struct(">BII")
KEY_UPDATE_HEAD: Final = struct.Struct(">BIB")
RESULT: Final = struct.Struct(">BBIHB")  # OK and ERROR up to the text
