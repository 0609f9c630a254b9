"""Makes TLS between nodes mutual, and reads the name of a node from its certificate.

A certificate makes a node if the cluster's authority signed it and it has the URI `quintet:node:NAME`; host names in it count for
nothing here, so a node may move to another address. Files are read anew for each connection: a renewed certificate needs no restart.
Without files, which the configuration allows on loopback only, nobody proves anything.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quintet.model.errors import ConfigError
from quintet.net.certificates import expires_at
from quintet.net.cluster.wire import PeerRefused

URI: Final = "quintet:node:"
_HINT: Final = "`quintet cluster init` makes certificates of one authority for all nodes"


@dataclass(frozen=True, slots=True)
class Trust:
    """Certificate, key and authority; None: plain connections."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def accept(self, plain: socket.socket) -> tuple[socket.socket, str]:
        """The encrypted connection of somebody who connected, and the node that its certificate names. PeerRefused, ConfigError, OSError."""
        return self._wrapped(plain, server_side=True)

    def dial(self, plain: socket.socket) -> tuple[socket.socket, str]:
        return self._wrapped(plain, server_side=False)

    def check(self, node: str) -> None:
        """Raises ConfigError if the files cannot be used, or are of another node."""
        if self.certificate is None:
            return
        self.context(server_side=True)
        names = _names_in(self.certificate)
        if node not in names:
            raise ConfigError(
                f"{self.certificate} is a certificate of {', '.join(names) or 'no node'}; this node is {node} (cell.node)",
                hint=f"it needs the URI {URI}{node}; {_HINT}",
            )

    def expires(self) -> float:
        """Unix time at which this node's certificate expires; 0: it has none, or it cannot be read."""
        try:
            return expires_at(self.certificate.read_bytes()) if self.certificate is not None else 0.0
        except (OSError, ConfigError):
            return 0.0

    def _wrapped(self, plain: socket.socket, *, server_side: bool) -> tuple[socket.socket, str]:
        if self.certificate is None:
            return plain, ""
        try:
            wrapped = self.context(server_side).wrap_socket(plain, server_side=server_side)
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("the other side closed the connection in the TLS handshake") from error
        except ssl.SSLError as error:
            raise PeerRefused(handshake_sentence(error), reason="certificate", hint=_HINT) from error
        except TimeoutError as error:
            raise TimeoutError("no TLS handshake in time") from error
        try:
            return wrapped, node_of(wrapped.getpeercert() or {})
        except PeerRefused:
            wrapped.close()
            raise

    def context(self, server_side: bool) -> ssl.SSLContext:
        """With certificates only. ConfigError if they cannot be used."""
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the node's name is checked, wherever it listens
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate {self.certificate} with key {self.key} and authority {self.authority} cannot be used: {error}",
                hint="give PEM files that the broker's user can read; " + _HINT,
            ) from error
        return context


def node_of(certificate: "ssl._PeerCertRetDictType") -> str:
    """The one node that a certificate names. PeerRefused: it does not name one."""
    names = _uris(certificate)
    if len(names) != 1:
        raise PeerRefused(
            f"the certificate names {len(names)} nodes (URI {URI}NAME); it must name one",
            reason="certificate",
            hint=_HINT,
        )
    return names[0]


def handshake_sentence(error: ssl.SSLError) -> str:
    """What went wrong in a handshake, in words."""
    reason = error.reason or str(error)
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this cluster: {error.verify_message}"
    if "ALERT" in reason:
        return f"the other node does not take this node's certificate ({reason.lower().replace('_', ' ')})"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "it does not speak TLS"
    return f"TLS failed ({reason.lower().replace('_', ' ')})"


def _uris(certificate: "ssl._PeerCertRetDictType") -> list[str]:
    found = certificate.get("subjectAltName", ())
    assert isinstance(found, tuple)
    return [str(value).removeprefix(URI) for kind, value in found if kind == "URI" and str(value).startswith(URI)]


def _names_in(certificate: Path) -> list[str]:
    from cryptography import x509

    leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    try:
        said = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    uris = said.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(URI) for uri in uris if uri.startswith(URI)]
