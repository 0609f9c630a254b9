"""Bytes <-> packets of Fast TCP Pub/Sub, one at a time, for both sides. Knows no session state.

What comes by the thousand (publishes, messages) is split and written by the kernel (`fast_split`, `fast_deliver`,
`fast_publish`, `fast_received`); what is here are the single packets.
"""

from quintet.protocols.fast import frames


def _jwt(kind: int, jwt: bytes) -> bytes:
    if len(jwt) > frames.TOKEN_BYTES_MAX:
        raise ValueError(f"a token has at most {frames.TOKEN_BYTES_MAX} bytes on this wire, this one has {len(jwt)}")
    return bytes((kind, len(jwt))) + jwt


def _short(what: str, data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise ValueError(f"a {what} has at most {most} bytes on this wire, this one has {len(data)}")
    return bytes((len(data),)) + data


# -- client to server -------------------------------------------------------------------------------------------------


def create(jwt: bytes, name: bytes, flags: int = 0) -> bytes:
    return _jwt(frames.CREATE, jwt) + _short("topic name", name, frames.NAME_BYTES_MAX) + bytes((flags,))


def subscribe(jwt: bytes, topic: int) -> bytes:
    return _jwt(frames.SUBSCRIBE, jwt) + frames.TOPIC.pack(topic)


def unsubscribe(jwt: bytes, topic: int) -> bytes:
    return _jwt(frames.UNSUBSCRIBE, jwt) + frames.TOPIC.pack(topic)


def publish(jwt: bytes, topic: int, payload: bytes) -> bytes:
    return _jwt(frames.PUBLISH, jwt) + frames.PUBLISH_TAIL.pack(topic, len(payload)) + payload


def records_head(jwt: bytes, topic: int, size: int) -> bytes:
    """What stands before a record set of `size` bytes. It ends with that size."""
    return _jwt(frames.RECORDS, jwt) + frames.PUBLISH_TAIL.pack(topic, size)


def records(jwt: bytes, topic: int, data: bytes) -> bytes:
    return records_head(jwt, topic, len(data)) + data


def rotate_key(jwt: bytes, topic: int, key: bytes) -> bytes:
    return _jwt(frames.ROTATE_KEY, jwt) + frames.TOPIC.pack(topic) + _short("key", key, frames.KEY_BYTES_MAX)


def extend(version: int = frames.VERSION) -> bytes:
    return bytes((frames.EXTEND, version))


# -- server to client -------------------------------------------------------------------------------------------------


def message(topic: int, payload: bytes) -> bytes:
    return message_head(topic, len(payload)) + payload


def message_head(topic: int, size: int) -> bytes:
    """What stands before a payload of `size` bytes, which may be too large to be copied."""
    return frames.MESSAGE_HEAD.pack(frames.MESSAGE, topic, size)


def messages(topic: int, data: bytes) -> bytes:
    return frames.MESSAGE_HEAD.pack(frames.MESSAGES, topic, len(data)) + data


def key_update(topic: int, key: bytes) -> bytes:
    return frames.KEY_UPDATE_HEAD.pack(frames.KEY_UPDATE, topic, len(key)) + key


def ok(request: int, topic: int) -> bytes:
    return frames.RESULT.pack(frames.OK, request, topic, 0, 0)


def error(request: int, topic: int, code: int, text: str) -> bytes:
    """The text is cut where a character ends, so that what arrives is UTF-8."""
    said = text.encode()[: frames.TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return frames.RESULT.pack(frames.ERROR, request, topic, code, len(said)) + said


# -- looking at the head of a packet that is not all there ------------------------------------------------------------


def token_at(view: memoryview, start: int) -> bytes | None:
    """The token of the request that begins at `start`, or None if its bytes are not all there."""
    if len(view) < start + 2 or len(view) < start + 2 + view[start + 1]:
        return None
    return bytes(view[start + 2 : start + 2 + view[start + 1]])
