"""`quintet token` for Felix: makes a key pair and tokens of a tenant, and shows what such a token allows.

A tenant's tokens are signed with a private key that no broker has; the broker gets the public half as a JSON Web Key Set
(tokens.jwks_file, or jwks_file of a [[tenants]] table). What is minted was verified by the broker's own rules
(quintet.broker.identity.tenant_tokens). Private keys are written for their owner only, and never over another file.
"""

import hashlib
import json
import os
import stat
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from quintet.cli.terminal.common import json_option, now_ms, say, when
from quintet.cli.terminal.output import echo
from quintet.model.errors import AuthError, ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from quintet.broker.identity.tokens import Inspected

KEY_NAME: Final = "key.pem"
JWKS_NAME: Final = "jwks.json"
PEM_BYTES_MAX: Final = 16 * 1024


def is_tenant_token(found: "Inspected") -> bool:
    """Whether a token is one of Felix: it names a tenant, or is signed as only Felix's are; and has no key of a queue."""
    return "queue_key" not in found.claims and ("tid" in found.claims or found.header.get("alg") == "EdDSA")


# -- keys -------------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the two files; made if absent.")
@click.option("--kid", default="", help="Name of the key in tokens and key set [its RFC 7638 thumbprint].")
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    help="Key set whose keys stay valid: they are copied into the new one. Use it to rotate keys.",
)
@json_option
def keygen(out: Path, kid: str, beside: Path | None, as_json: bool) -> None:
    """Generate a pair of Ed25519 keys for the tokens of a Felix tenant: key.pem signs, jwks.json is for the broker.

    \b
    quintet token keygen --out keys/t1
    quintet token keygen --out keys/t1-2027 --kid 2027 --beside keys/t1/jwks.json
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from quintet.broker.identity.tenant_tokens import read_jwks
    from quintet.config.jwks import read_key_set

    key = Ed25519PrivateKey.generate()
    kept = () if beside is None else read_key_set(beside)
    rows = [_jwk(_public(key), kid or thumbprint(key)), *(_jwk(each.public, each.kid) for each in kept)]
    jwks = json.dumps({"keys": rows}, indent=2).encode() + b"\n"
    read_jwks(jwks)
    files = out / KEY_NAME, out / JWKS_NAME
    _write(files, (key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), jwks), (0o600, 0o644))
    facts = {"key_file": str(files[0]), "jwks_file": str(files[1]), "kid": rows[0]["kid"], "keys": len(rows)}
    say(as_json, facts, f"{files[0]}: sign with it, and keep it secret\n{files[1]}: for jwks_file of the broker")


def thumbprint(key: "Ed25519PrivateKey") -> str:
    """The name a key has by itself: RFC 7638 over the members that RFC 8037 lists."""
    row = _jwk(_public(key), "")
    text = json.dumps({name: row[name] for name in ("crv", "kty", "x")}, separators=(",", ":"))
    return _base64(hashlib.sha256(text.encode()).digest())


def _public(key: "Ed25519PrivateKey") -> bytes:
    return key.public_key().public_bytes_raw()


def _jwk(public: bytes, kid: str) -> dict[str, str]:
    row = {"kty": "OKP", "crv": "Ed25519", "x": _base64(public), "use": "sig", "alg": "EdDSA"}
    return row | ({"kid": kid} if kid else {})


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _write(files: tuple[Path, ...], contents: tuple[bytes, ...], modes: tuple[int, ...]) -> None:
    """All of them new, or none."""
    made: list[Path] = []
    try:
        files[0].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content, mode in zip(files, contents, modes, strict=True):
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as handle:
                made.append(file)
                handle.write(content)
    except OSError as error:
        for file in made:
            file.unlink()
        raise ConfigError(
            f"cannot write {error.filename or files[0]}: {error.strerror}",
            hint="choose a folder without key.pem and jwks.json; nothing is overwritten",
        ) from None


def read_private_key(path: Path) -> "Ed25519PrivateKey":
    """The key in a PEM file for its owner only; ConfigError with the file and the reason."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(PEM_BYTES_MAX)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if mode & 0o077:
        raise ConfigError(f"{path} can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError):  # TypeError: it wants a passphrase
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"{path} is not an Ed25519 private key in PEM without a passphrase", hint="quintet token keygen"
        )
    return key


# -- mint -------------------------------------------------------------------------------------------------------------


def mint_for_tenant(
    subject: str,
    tenant: str,
    permissions: list[str],
    parties: tuple[str | None, str | None],
    key_file: Path | None,
    secret: bytes | None,
    kid: str,
    expires_ms: int,
    as_json: bool,
) -> None:
    """Sign a token, see that a broker takes it, and print it. `parties` are issuer and audience: None stands for those a
    broker wants by default, "" for none."""
    from quintet.broker.identity import tenant_tokens as rules

    if not expires_ms:
        raise click.UsageError("Tokens of Felix must expire: --expires cannot be 0.")
    now, (issuer, audience) = now_ms(), _parties(*parties)
    expires_s = -(-(now + expires_ms) // 1000)
    claims: dict[str, object] = {name: value for name, value in (("iss", issuer), ("aud", audience)) if value}
    claims |= {"sub": subject, "tid": tenant, "perms": permissions, "iat": now // 1000, "exp": expires_s}
    keys: dict[str, tuple[rules.TenantKey, ...]] = {}
    sign: Callable[[bytes], bytes]
    if key_file is not None:
        key, secret = read_private_key(key_file), None
        algorithm, sign, kid = rules.EDDSA, key.sign, kid or thumbprint(key)
        keys[""] = (rules.TenantKey(_public(key), kid),)
    elif secret is not None:
        algorithm, sign = rules.HS256, rules.secret_signer(secret)
    else:
        raise click.UsageError("There is no key to sign with: give --key-file, --secret-file, --secret or --dev.")
    made = rules.mint_tenant(claims, algorithm, sign, kid)
    secrets = () if secret is None else (secret,)
    options = rules.TenantTokenOptions(secrets, issuer=issuer, audience=audience, keys=keys)
    rules.TenantTokens(options).verify(made, now * 1000)
    if as_json:
        echo(json.dumps({"token": made.decode(), "bytes": len(made), "claims": claims}))
        return
    echo(made.decode())
    for permission, why in _useless(permissions, tenant):
        echo(f"{permission} gives nothing: {why}", err=True)
    echo(f"{len(made)} bytes, {algorithm}, expires {when(expires_s * 1000)[:19]}", err=True)


def _parties(issuer: str | None, audience: str | None) -> tuple[str, str]:
    from quintet.broker.identity.tenant_tokens import AUDIENCE_DEFAULT, ISSUER_DEFAULT

    return ISSUER_DEFAULT if issuer is None else issuer, AUDIENCE_DEFAULT if audience is None else audience


def _useless(permissions: list[str], tenant: str) -> list[tuple[str, str]]:
    from quintet.broker.identity.tenant_tokens import explain_permission

    rows = [(permission, explain_permission(permission, tenant)[2]) for permission in permissions]
    return [(permission, why) for permission, why in rows if why]


# -- inspect ----------------------------------------------------------------------------------------------------------


def judge(
    token: bytes,
    found: "Inspected",
    secret: bytes | None,
    jwks_file: Path | None,
    issuer: str | None,
    audience: str | None,
) -> tuple[str, str]:
    """What is known about the signature, and why a broker would refuse the token ("" if it would not)."""
    from quintet.broker.identity import tenant_tokens as rules
    from quintet.config.jwks import read_key_set

    issuer, audience = _parties(issuer, audience)
    secrets = () if secret is None else (secret,)
    keys = {} if jwks_file is None else {"": read_key_set(jwks_file)}
    options = rules.TenantTokenOptions(secrets, issuer=issuer, audience=audience, keys=keys)
    signature = "not checked"
    try:
        if len(token) > rules.TOKEN_BYTES_MAX:
            rules.refuse("size")
        rules.check_tenant_header(found.header)
        if secret is not None or jwks_file is not None:
            rules.TenantTokens(options).opened(token)
            signature = "right"
        rules.check_tenant_claims(found.claims, options, now_ms() * 1000)
    except AuthError as error:
        why = error.message.removeprefix("token refused: ")
        return ("wrong" if why in (rules.RULES["signature"], rules.RULES["signature size"]) else signature), why
    return signature, ""


def allowed_rows(found: "Inspected") -> list[tuple[str, str, str]]:
    """(action, resources, what comes of it) for each permission of a token, whatever else is wrong with it."""
    from quintet.broker.identity.tenant_tokens import explain_permission

    permissions, tenant = found.claims.get("perms"), found.claims.get("tid")
    if not isinstance(permissions, list) or not isinstance(tenant, str):
        return []
    rows = [explain_permission(each, tenant) for each in permissions if isinstance(each, str)]
    return [(action, pattern, f"nothing: {why}" if why else "allowed") for action, pattern, why in rows]


def tenant_token_bytes_max() -> int:
    from quintet.broker.identity.tenant_tokens import TOKEN_BYTES_MAX

    return TOKEN_BYTES_MAX
