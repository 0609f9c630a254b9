"""Reads key sets from files: the public keys that verify tokens of Felix tenants.

The configuration names the files; the broker's rules for what they hold are in quintet.broker.identity.tenant_tokens. A key set
holds no secret, so anybody may read the file; but who may write it decides who gets in, so not everybody may.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from quintet.broker.identity.tenant_tokens import JWKS_BYTES_MAX, TenantKey, read_jwks
from quintet.broker.sections import Tenant
from quintet.model.errors import ConfigError


def read_key_set(path: Path) -> tuple[TenantKey, ...]:
    """The keys in a file; ConfigError with the file and the reason."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(JWKS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if mode & 0o002:
        raise ConfigError(f"{path} can be written by everybody (mode {mode:04o})", hint=f"chmod o-w {path}")
    try:
        return read_jwks(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None


def tenant_keys(everybody: Path | None, tenants: tuple[Tenant, ...]) -> Mapping[str, tuple[TenantKey, ...]]:
    """Keys by tenant, and under "" those for every tenant that has no file of its own."""
    found = {} if everybody is None else {"": read_key_set(everybody)}
    for tenant in tenants:
        if tenant.jwks_file is not None:
            found[tenant.name] = read_key_set(tenant.jwks_file)
    return found
