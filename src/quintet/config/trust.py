"""Defines the sections about trust: keys of tokens, rights of peers, proofs of the audit."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from quintet.broker.sections import PeerSection
from quintet.config.fields import read_secret
from quintet.model import envelope
from quintet.model.sections import Seconds, Section

SECRET_BYTES_MIN: Final = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518, section 3.2: as long as the hash


class TokenSecret(Section):
    """One master secret, given as text or as a file. It is not shown again."""

    secret: str | None = Field(default=None, description="The secret itself. Prefer secret_file.", repr=False)
    secret_file: Path | None = Field(
        default=None, description="File with the secret (one line), readable by its owner only; read again on SIGHUP."
    )
    _value: bytes = PrivateAttr(default=b"")

    @model_validator(mode="after")
    def _hide_the_secret(self) -> Self:
        if (self.secret is None) == (self.secret_file is None):
            raise ValueError("give exactly one of secret and secret_file")
        self._value = (self.secret or (read_secret(self.secret_file) if self.secret_file else "")).encode()
        # The model is frozen for its readers; this is still its construction.
        self.__dict__["secret"] = None
        return self

    @property
    def value(self) -> bytes:
        return self._value


class Tokens(Section):
    """JSON web tokens, as the doors Fast and Felix take them. Without a secret or a key every token is refused."""

    secrets: tuple[TokenSecret, ...] = Field(
        default=(), description="Master secrets; a token signed with any of them is good, so one can replace another."
    )
    algorithms: tuple[Literal["HS256", "HS384", "HS512"], ...] = Field(
        default=("HS256",), description="Algorithms accepted, whatever a token says of itself.", min_length=1
    )
    leeway_seconds: Annotated[Seconds, Field(le=3600)] = Field(
        default=60, description="How far clocks may be apart when exp and nbf are judged, in seconds."
    )
    jwks_file: Path | None = Field(
        default=None,
        description="JSON Web Key Set with Ed25519 keys for the tokens of every Felix tenant that has no jwks_file of its "
        "own; read again on SIGHUP.",
    )
    issuer: str = Field(default="", description="What `iss` must be; empty: it is not looked at.")
    audience: str = Field(default="", description="What `aud` must name; empty: it is not looked at.")
    require_exp: bool = Field(default=False, description="Whether a token without `exp` is refused.")

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        least = max(SECRET_BYTES_MIN[name] for name in self.algorithms)
        for number, secret in enumerate(self.secrets):
            if len(secret.value) < least:
                raise ValueError(
                    f"secrets[{number}] has {len(secret.value)} bytes; {', '.join(self.algorithms)} needs at least {least}"
                )
        return self


class PeerKey(Section):
    """The key one peer signs with, so that no other peer can sign as it. Two with different ids overlap in a rotation."""

    name: str = Field(description="The peer.", min_length=1, max_length=200)
    kid: str = Field(description="Id of the key, written before the signature.", pattern=r"^[A-Za-z0-9_.-]{1,32}$")
    key_file: Path = Field(
        description="File with the key (one line), readable by its owner only; read again on SIGHUP."
    )
    _value: bytes = PrivateAttr(default=b"")

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        self._value = read_secret(self.key_file).encode()
        if len(self._value) < envelope.SECRET_BYTES_MIN:
            raise ValueError(f"the key has {len(self._value)} bytes, it needs {envelope.SECRET_BYTES_MIN}")
        return self

    @property
    def value(self) -> bytes:
        return self._value


class Peers(PeerSection):
    """What peers of the peerbus door may do, whichever listener they come by."""

    hmac_secret: str | None = Field(
        default=None, description="The secret all peers share. Prefer hmac_secret_file.", repr=False
    )
    hmac_secret_file: Path | None = Field(
        default=None, description="File with the secret all peers share (one line), readable by its owner only."
    )
    peer_keys: tuple[PeerKey, ...] = Field(
        default=(), description="Keys of single peers; a peer that has any must sign with one of them."
    )

    @model_validator(mode="after")
    def _hide_the_secret(self) -> Self:
        if self.hmac_secret is not None and self.hmac_secret_file is not None:
            raise ValueError("give hmac_secret or hmac_secret_file, not both")
        self._secret = (
            self.hmac_secret or (read_secret(self.hmac_secret_file) if self.hmac_secret_file else "")
        ).encode()
        if self._secret and len(self._secret) < envelope.SECRET_BYTES_MIN:
            raise ValueError(f"the HMAC secret has {len(self._secret)} bytes, it needs {envelope.SECRET_BYTES_MIN}")
        if self.verify and not (self._secret or self.peer_keys):
            raise ValueError("verify needs hmac_secret_file or peer_keys")
        self._keys = {
            name: {key.kid: key.value for key in self.peer_keys if key.name == name}
            for name in (key.name for key in self.peer_keys)
        }
        # The model is frozen for its readers; this is still its construction.
        self.__dict__["hmac_secret"] = None
        return self
