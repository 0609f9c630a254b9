"""A picows server on uvloop that only sends back what it gets: what WebSocket frames cost in Python before anything is done
with them. `python bench/picows_echo.py PORT`."""

import sys

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server


class Echo(WSListener):
    """Answers every text with itself."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()
        else:
            transport.send(WSMsgType.TEXT, frame.get_payload_as_bytes())


def _make(_request: WSUpgradeRequest) -> Echo:
    return Echo()


async def main(port: int) -> None:
    server = await ws_create_server(_make, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
