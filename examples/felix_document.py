"""A Felix client written from the published document alone: QUIC by aioquic, frames of JSON, no Quintet code.

    python examples/felix_document.py STREAM [COUNT [PORT [CERTIFICATE]]]

Subscribes to a stream of tenant and namespace `default`, prints each message, and ends after COUNT of them (1 by default): the
last one it keeps in the cache, and reads it back.
"""

import asyncio
import base64
import json
import struct
import sys
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

MAGIC, VERSION, JSON = 0x464C5831, 1, 0
HEADER = struct.Struct(">IHHI")  # magic, version, flags, length of the payload
WHERE = {"tenant_id": "default", "namespace": "default"}


def send(stream: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    stream.write(HEADER.pack(MAGIC, VERSION, JSON, len(payload)) + payload)


async def receive(stream: asyncio.StreamReader) -> dict[str, Any]:
    """The next frame. An error ends the program."""
    _, _, _, length = HEADER.unpack(await stream.readexactly(HEADER.size))
    message: dict[str, Any] = json.loads(await stream.readexactly(length))
    if message["type"] == "error":
        sys.exit(f"refused: {message['message']}")
    return message


def payloads(message: dict[str, Any]) -> list[bytes]:
    found = [message["payload"]] if message["type"] == "event" else message.get("payloads", [])
    return [base64.b64decode(payload) for payload in found]


async def main(
    name: str, number: str = "1", port: str = "5000", certificate: str = ".quintet/tls/felix-certificate.pem"
) -> None:
    settings = QuicConfiguration(is_client=True, idle_timeout=60.0)
    settings.load_verify_locations(certificate)
    opened: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()  # streams that the server opens

    def incoming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.put_nowait(reader)

    async with connect("127.0.0.1", int(port), configuration=settings, stream_handler=incoming) as peer:
        reader, writer = await peer.create_stream()
        send(writer, {"type": "subscribe", **WHERE, "stream": name})
        await receive(reader)
        events = await opened.get()
        await receive(events)  # its first frame says whose stream it is
        print("subscribed to", f"default/default/{name}", flush=True)
        last, count = b"", int(number)
        while count > 0:
            for last in payloads(await receive(events)):
                print(last.decode(), flush=True)
                count -= 1
        value = base64.b64encode(last).decode()
        send(writer, {"type": "cache_put", "request_id": "1", "key": name, "value": value, "ttl_ms": 60_000})
        await receive(reader)  # ok: it is stored
        send(writer, {"type": "cache_get", "request_id": "2", "key": name})
        found = await receive(reader)
        print("cached:", base64.b64decode(found["value"]).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
