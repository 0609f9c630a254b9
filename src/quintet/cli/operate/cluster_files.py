"""Makes what nodes of a cell trust each other by: an authority, and for each node a certificate, its key and a configuration.

    DIR/ca.pem  DIR/ca-key.pem            the authority; its key stays here, and is needed to add or renew a node
    DIR/NAME/ca.pem  node.pem  node-key.pem  quintet.toml      what goes to the machine of one node

A certificate names its node by the URI `quintet:node:NAME` (net/cluster/trust.py reads it there). Nothing here talks to a node.
"""

import ipaddress
import json
import os
import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quintet.model.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

URI: Final = "quintet:node:"
CA, CA_KEY, CERTIFICATE, KEY, SETTINGS = "ca.pem", "ca-key.pem", "node.pem", "node-key.pem", "quintet.toml"
CA_DAYS: Final = 3650
FIRST: Final = ("node", "advertised_host", "servers", "topic", "cells")  # rows of [cell], before any others
BEFORE: Final = timedelta(days=1)  # clocks of nodes may be late
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
HOST: Final = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


class NodePlace(NamedTuple):
    """A node as it is named on the command line: NAME=HOST."""

    name: str
    host: str


class KnownNode(NamedTuple):
    """A node whose files are in the folder already."""

    cell: dict[str, Any]  # its [cell]
    listen: str


class Authority(NamedTuple):
    certificate: "x509.Certificate"
    key: "EllipticCurvePrivateKey"


def parse_node(text: str) -> NodePlace:
    name, _, host = text.partition("=")
    if not NAME.fullmatch(name) or name in (".", "..") or not HOST.fullmatch(host):
        raise ConfigError(
            f"--node {text!r} is no node: write NAME=HOST",
            hint="a name has up to 64 letters, digits, _ . and -; a host is a name or an IP address that the other nodes reach",
        )
    return NodePlace(name, host)


def authority(folder: Path) -> tuple[Authority, bool]:
    """The one in a folder, or a new one, and whether it is new."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    certificate, key = folder / CA, folder / CA_KEY
    if not certificate.exists() and not key.exists():
        made = _new_authority()
        _write(key, _pem(made.key), 0o600)
        _write(certificate, made.certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        return made, True
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the authority {certificate} with key {key} cannot be used: {error}") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != found.public_key():
        raise ConfigError(
            f"{key} is not the key of {certificate}", hint="use the folder that `quintet cluster init` made"
        )
    return Authority(found, private), False


def issue(signer: Authority, node: NodePlace, days: int) -> tuple[bytes, bytes]:
    """Certificate and key of a node, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(URI + node.name), _host_name(node.host)]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(f"Quintet node {node.name}", signer.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
    )
    certificate = builder.sign(signer.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def write_node(folder: Path, place: str, settings: dict[str, Any], pair: tuple[bytes, bytes]) -> str:
    """Write the files of one node; returns its configuration. place: where the node will have them. A configuration that is there is
    left as it is: somebody may have added to it."""
    _write(folder / KEY, pair[1], 0o600)
    _write(folder / CERTIFICATE, pair[0], 0o644)
    _write(folder / CA, (folder.parent / CA).read_bytes(), 0o644)
    if (folder / SETTINGS).exists():
        return (folder / SETTINGS).read_text()
    text = settings_text(place, settings)
    _write(folder / SETTINGS, text.encode(), 0o644)
    return text


def settings_text(place: str, settings: dict[str, Any]) -> str:
    """The configuration of one node: the same on all but for node, advertised_host and listen. All but listen and peers is of [cell]."""
    cell = {name: value for name, value in settings.items() if name not in ("listen", "peers") and value is not None}
    rows = ['engine = "kafka"', "", "[cell]"]
    rows += [f"{name} = {json.dumps(cell[name])}" for name in (*FIRST, *sorted(cell.keys() - {*FIRST})) if name in cell]
    rows += ["", "[cluster]", f"listen = {json.dumps(settings['listen'])}", f"peers = {json.dumps(settings['peers'])}"]
    files = {"tls_cert": CERTIFICATE, "tls_key": KEY, "tls_ca": CA}
    rows += [f"{name} = {json.dumps(f'{place}/{file}')}" for name, file in files.items()]
    return "\n".join(rows) + "\n"


def known_nodes(folder: Path) -> dict[str, KnownNode]:
    """The nodes that were made in this folder before, by name."""
    found: dict[str, KnownNode] = {}
    for path in sorted(folder.glob(f"*/{SETTINGS}")):
        try:
            tables = tomllib.loads(path.read_text())
            found[path.parent.name] = KnownNode(dict(tables["cell"]), str(tables["cluster"]["listen"]))
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, OSError) as error:
            raise ConfigError(f"{path} cannot be read: {error!r}", hint="mend or remove it") from error
    return found


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _new_authority() -> Authority:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Quintet cluster authority")])
    builder = (
        _builder("Quintet cluster authority", subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def _builder(
    common_name: str, issuer: "x509.Name", key: "EllipticCurvePrivateKey", days: int
) -> "x509.CertificateBuilder":
    from cryptography import x509

    begin = datetime.now(UTC) - BEFORE
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + BEFORE + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and with its rights from the first moment."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
