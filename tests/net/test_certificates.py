"""The certificate a door makes itself, and what is said of files that cannot be used."""

import ipaddress
import os
import stat
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from quintet.model.errors import ConfigError
from quintet.net import certificates
from quintet.net.certificates import CERTIFICATE_NAME, KEY_NAME, development_certificate, is_authority, read_pair

NAMES = ("localhost", "127.0.0.1", "::1", "broker.example")


def leaf_of(text: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text)


def test_it_is_an_end_entity_for_the_names(tmp_path: Path) -> None:
    text, key, path = development_certificate(tmp_path / "tls", NAMES)
    leaf = leaf_of(text)
    assert leaf.version == x509.Version.v3
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    assert isinstance(leaf.signature_hash_algorithm, hashes.SHA256)
    said = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert said.get_values_for_type(x509.DNSName) == ["localhost", "broker.example"]
    assert said.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and not constraints.value.ca
    assert list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    assert timedelta(days=3600) < leaf.not_valid_after_utc - datetime.now(UTC) < timedelta(days=3652)
    assert leaf.not_valid_before_utc < datetime.now(UTC)
    leaf.verify_directly_issued_by(leaf)
    assert not is_authority(text, "x")
    assert path == tmp_path / "tls" / CERTIFICATE_NAME and path.read_bytes() == text
    assert serialization.load_pem_private_key(key, None).public_key() == leaf.public_key()


def test_nobody_else_reads_the_key(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        development_certificate(tmp_path, NAMES)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / CERTIFICATE_NAME).stat().st_mode) == 0o644
    assert sorted(os.listdir(tmp_path)) == [CERTIFICATE_NAME, KEY_NAME], "no scratch file is left"


def test_it_is_kept_while_it_serves(tmp_path: Path) -> None:
    first = development_certificate(tmp_path, NAMES)
    assert development_certificate(tmp_path, tuple(reversed(NAMES))) == first, "the order of the names is no change"
    serials = {leaf_of(development_certificate(tmp_path, (name,))[0]).serial_number for name in NAMES}
    assert len(serials | {leaf_of(first[0]).serial_number}) == len(NAMES) + 1, "other names, another certificate"


@pytest.mark.parametrize("damage", ["no key", "other key", "no certificate", "not PEM", "empty"])
def test_damaged_files_are_made_again(tmp_path: Path, damage: str) -> None:
    first = development_certificate(tmp_path, NAMES)
    if damage == "no key":
        (tmp_path / KEY_NAME).unlink()
    elif damage == "other key":
        (tmp_path / KEY_NAME).write_bytes(development_certificate(tmp_path / "other", NAMES)[1])
    elif damage == "no certificate":
        (tmp_path / CERTIFICATE_NAME).unlink()
    else:
        (tmp_path / CERTIFICATE_NAME).write_bytes(b"" if damage == "empty" else b"nothing")
    again = development_certificate(tmp_path, NAMES)
    assert again[0] != first[0]
    assert development_certificate(tmp_path, NAMES) == again


def test_it_is_made_again_before_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "VALID_FOR", timedelta(days=31))
    first = development_certificate(tmp_path, NAMES)
    assert development_certificate(tmp_path, NAMES) == first
    monkeypatch.setattr(certificates, "RENEW_WITHIN", timedelta(days=31))
    assert development_certificate(tmp_path, NAMES) != first


def test_one_made_while_the_clock_was_ahead_is_valid_or_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ahead, kept in ((timedelta(days=40), True), (timedelta(days=400), False)):

        class Clock(datetime):
            """Ahead, as when the machine started."""

            @classmethod
            def now(cls, tz: tzinfo | None = None) -> "Clock":
                return super().now(tz) + ahead  # noqa: B023 - used within the turn

        with monkeypatch.context() as patched:
            patched.setattr(certificates, "datetime", Clock)
            made = development_certificate(tmp_path / str(ahead.days), NAMES)
        found = development_certificate(tmp_path / str(ahead.days), NAMES)
        assert (found == made) is kept
        leaf = leaf_of(found[0])
        assert leaf.not_valid_before_utc <= datetime.now(UTC) < leaf.not_valid_after_utc


def test_a_name_no_certificate_can_carry(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a name") as caught:
        development_certificate(tmp_path, ("bröker",))
    assert "certificate_names" in caught.value.hint
    assert os.listdir(tmp_path) == []


def test_files_of_the_operator(tmp_path: Path) -> None:
    text, key, path = development_certificate(tmp_path, NAMES)
    assert read_pair(path, tmp_path / KEY_NAME) == (text, key)
    other = tmp_path / "other.pem"
    for content, said in (
        (development_certificate(tmp_path / "other", NAMES)[1], "does not belong to the certificate"),
        (b"nothing", "cannot be used"),
        (text, "cannot be used"),
        (_encrypted(), "cannot be used"),
    ):
        other.write_bytes(content)
        with pytest.raises(ConfigError, match=said) as caught:
            read_pair(path, other)
        assert str(other) in str(caught.value) and caught.value.hint
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_pair(tmp_path / "nowhere.pem", other)
    other.write_bytes(key)
    with pytest.raises(ConfigError, match=r"the certificate .* cannot be used"):
        read_pair(other, tmp_path / KEY_NAME)


def _encrypted() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )


def test_an_authority_is_told_apart(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    plain = builder.sign(key, hashes.SHA256())
    authority = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
    assert is_authority(authority.public_bytes(serialization.Encoding.PEM), "x")
    assert not is_authority(plain.public_bytes(serialization.Encoding.PEM), "x")
