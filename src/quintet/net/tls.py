"""Makes the TLS context of a door from files, and reloads it in place when they change.

A bad new certificate never replaces a good one: it is loaded into a scratch context first.
"""

import ssl
from pathlib import Path

from quintet.model.errors import ConfigError


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer, no renegotiation, ECDHE with AEAD ciphers only. With `client_ca`: mutual."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    load_into(context, certificate, key)
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the client authorities {client_ca} cannot be used: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_into(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load certificate and key into a live context: new connections use them, open ones are untouched."""
    scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        scratch.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {certificate} with key {key} cannot be used: {error}",
            hint="give a PEM certificate chain and its unencrypted PEM key, readable by the broker",
        ) from error
    context.load_cert_chain(certificate, key)
