"""Finds files that systemd, Kubernetes or a container gives to the broker: $CREDENTIALS_DIRECTORY/NAME in the configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from quintet.model.errors import ConfigError

VARIABLE: Final = "CREDENTIALS_DIRECTORY"
PREFIX: Final = f"${VARIABLE}/"


def with_credentials(value: Any, environ: Mapping[str, str]) -> Any:
    """A value of the configuration, or a tree of them, with the folder of credentials in place of its variable."""
    if isinstance(value, dict):
        return {name: with_credentials(each, environ) for name, each in value.items()}
    if isinstance(value, list):
        return [with_credentials(each, environ) for each in value]
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return value
    folder = environ.get(VARIABLE)
    if not folder:
        hint = "systemd sets it for a unit with LoadCredential=; elsewhere export it as the folder that has the files"
        raise ConfigError(f"{value}: the variable {VARIABLE} is not set", hint=hint)
    return str(Path(folder) / value.removeprefix(PREFIX))


def is_credential(path: Path, environ: Mapping[str, str]) -> bool:
    """Whether a file lies in the folder of credentials."""
    folder = environ.get(VARIABLE)
    return bool(folder) and Path(str(folder)) in path.parents
