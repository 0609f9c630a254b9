"""Makes the certificate of a door that needs one and has none, and checks a configured one.

The made one is an end-entity certificate and no authority (CA:FALSE): published QUIC clients refuse an authority as the
certificate of a server, and a copy of it lets nobody sign for another name. Clients trust the file itself (`ca=`).
The key never leaves its file, which only the broker's user can read. No socket lives here.
"""

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from quintet.model.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE_NAME = "felix-certificate.pem"
KEY_NAME = "felix-key.pem"
VALID_FOR = timedelta(days=3640)  # some days less than ten years
VALID_BEFORE = timedelta(days=365)  # clocks of clients may be late, and ours may be ahead when it is made
RENEW_WITHIN = timedelta(days=30)  # of its end
COMMON_NAME = "Quintet, made by itself"


def development_certificate(folder: Path, names: Sequence[str]) -> tuple[bytes, bytes, Path]:
    """Certificate and key in PEM, and where the certificate lies, for clients to trust. Made at the first call, made again
    when the names changed, when it is not valid by this clock or about to expire, or when one of the files cannot be used."""
    certificate, key = folder / CERTIFICATE_NAME, folder / KEY_NAME
    try:
        found = certificate.read_bytes(), key.read_bytes()
        if _serves(found[0], names):
            check_pair(*found, str(certificate), str(key))
            return (*found, certificate)
    except (FileNotFoundError, ConfigError):
        pass  # there is none yet, or none that can be used
    made = _make(names)
    # The key first: between the two, the old certificate does not fit the new key, and both are made again.
    _write(key, made[1], 0o600)
    _write(certificate, made[0], 0o644)
    return (*made, certificate)


def read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """A configured certificate chain and its key, checked. ConfigError says what is wrong."""
    texts = []
    for path, what in ((certificate, "certificate"), (key, "key")):
        try:
            texts.append(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"the {what} {path} cannot be read: {error.strerror or error}",
                hint="give PEM files that the broker's user can read",
            ) from error
    check_pair(texts[0], texts[1], str(certificate), str(key))
    return texts[0], texts[1]


def check_pair(certificate: bytes, key: bytes, certificate_name: str, key_name: str) -> None:
    """The two are PEM, and belong together."""
    from cryptography.hazmat.primitives import serialization

    leaf = _leaf(certificate, certificate_name)
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the key {key_name} cannot be used: {error}", hint="give an unencrypted private key in PEM"
        ) from error
    if private.public_key() != leaf.public_key():
        raise ConfigError(
            f"the key {key_name} does not belong to the certificate {certificate_name}",
            hint="give the private key the certificate was made for, and the server's own certificate as the first of its chain",
        )


@lru_cache(maxsize=64)
def expires_at(certificate: bytes) -> float:
    """Unix time at which the first certificate of a chain in PEM expires."""
    return _leaf(certificate, "in use").not_valid_after_utc.timestamp()


def is_authority(certificate: bytes, name: str) -> bool:
    """Whether the first certificate of a chain says that it is an authority: published clients refuse such a server."""
    from cryptography import x509

    try:
        return bool(_leaf(certificate, name).extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def _leaf(certificate: bytes, name: str) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(certificate)[0]
    except ValueError as error:
        raise ConfigError(
            f"the certificate {name} cannot be used: {error}",
            hint="give the certificate chain in PEM, the server's own first",
        ) from error


def _serves(certificate: bytes, names: Sequence[str]) -> bool:
    """Whether a certificate we made still does: the same names, valid by now, and not about to expire."""
    from cryptography import x509

    leaf = _leaf(certificate, CERTIFICATE_NAME)
    try:
        said = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    now = datetime.now(UTC)
    valid = leaf.not_valid_before_utc <= now and leaf.not_valid_after_utc - now > RENEW_WITHIN
    return valid and set(said) == set(_general_names(names))


def _general_names(names: Sequence[str]) -> "list[x509.GeneralName]":
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            try:
                found.append(x509.DNSName(name))
            except ValueError as error:
                raise ConfigError(
                    f"{name!r} cannot be a name in a certificate: {error}",
                    hint="listeners.felix.certificate_names takes DNS names in ASCII and IP addresses",
                ) from error
    return found


def _make(names: Sequence[str]) -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, COMMON_NAME)])
    now = datetime.now(UTC)
    begin = now - VALID_BEFORE
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), text


def _write(path: Path, text: bytes, mode: int) -> None:
    """Whole or not at all, and with its rights from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
