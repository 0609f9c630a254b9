"""Adapts aioquic's connection for the twin of the QUIC endpoint. All use of aioquic's internals is here.

Pinned by the locks; `tests/net/` runs all of it. No socket and no loop lives here.
"""

from aioquic.quic import events
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.connection import TRANSPORT_CLOSE_FRAME_CAPACITY, QuicConnection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicFrameType, QuicHeader, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


class Engine(QuicConnection):
    """aioquic's connection, with limits that rise only when the reader took something."""

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        seen, stream.receiver.highest_offset = stream.receiver.highest_offset, 0  # hides why aioquic would raise it
        try:
            super()._write_stream_limits(builder=builder, space=space, stream=stream)
        finally:
            stream.receiver.highest_offset = seen

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit = self._local_max_data
        seen, limit.used = limit.used, 0
        try:
            super()._write_connection_limits(builder=builder, space=space)
        finally:
            limit.used = seen

    def limit_streams(self, bidirectional: int, unidirectional: int) -> None:
        """How many the peer may have open; before the handshake."""
        self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent = bidirectional
        self._local_max_streams_uni.value = self._local_max_streams_uni.sent = unidirectional

    def raise_stream_limit(self, stream: int, limit: int) -> None:
        found = self._streams.get(stream)
        if found is not None and limit > found.max_stream_data_local:
            found.max_stream_data_local = limit

    def raise_limit(self, limit: int) -> None:
        self._local_max_data.value = max(limit, self._local_max_data.value)

    def received(self, stream: int) -> int:
        """Bytes of a stream the peer has used up of its limit."""
        found = self._streams.get(stream)
        return found.receiver.highest_offset if found is not None else 0

    def open_stream(self, bidirectional: bool) -> int:
        number = self.get_next_available_stream_id(is_unidirectional=not bidirectional)
        self._get_or_create_stream_for_send(number)
        return number

    def blocked(self, stream: int) -> bool:
        """Whether the peer does not allow this stream yet. aioquic would reset and stop it all the same."""
        found = self._streams.get(stream)
        return found is not None and found.is_blocked

    def room(self, stream: int, most: int) -> int:
        """Bytes aioquic is given of a stream: until it holds the most, and no more than the peer allows it to send."""
        found = self._streams.get(stream)
        if found is None or found.is_blocked:
            return 0
        sender = found.sender
        return min(most - len(sender._buffer), found.max_stream_data_remote - sender._buffer_stop)

    def sent_whole(self, stream: int) -> bool:
        found = self._streams.get(stream)
        return found is None or found.sender.is_finished

    @property
    def is_client(self) -> bool:
        return self._is_client

    @property
    def ending(self) -> events.ConnectionTerminated | None:
        """Why it ends, as soon as that is known; aioquic's own event comes only after the closing period."""
        return self._close_event


def certificates(text: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise ValueError(f"the certificate is not PEM: {error}") from error
    return found


def private_key(text: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the private key is not an unencrypted PEM key: {error}") from error


def refusal(header: QuicHeader, code: int) -> bytes:
    """An Initial packet that closes what was asked for, so that the client need not wait for nothing."""
    assert header.version is not None
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=header.version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=header.source_cid,
        version=header.version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=TRANSPORT_CLOSE_FRAME_CAPACITY)
    frame.push_uint_var(code)
    frame.push_uint_var(QuicFrameType.PADDING)
    frame.push_uint_var(0)
    datagrams, _ = builder.flush()
    return bytes(datagrams[0])
