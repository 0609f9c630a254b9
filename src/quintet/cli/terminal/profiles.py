"""Keeps profiles: names for brokers, with a URL for each door and its secret in the keyring or in the same file.

The file is `profiles.json` in the user's folder for configuration, written anew as a whole and only for its owner to read; one that
others may read is refused. Secrets stand beside the URLs and never inside, so what is shown of a profile cannot show one.
"""

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import quote, unquote

from quintet.client.core import url as urls
from quintet.model.errors import ConfigError

FILE_BYTES_MAX: Final = 1024 * 1024
NAME_CHARACTERS_MAX: Final = 64
KEYRING_SERVICE: Final = "quintet"
# Command -> the door it speaks, of a profile that has several; others take FlyMQ, or the first there is.
DOORS: Final = {"kv": "felix", "peer": "peerbus", "mcp": "peerbus", "pipeline": "flight", "spark": "flight"}
DOOR_DEFAULT: Final = "flymq"


@dataclass(slots=True)
class Entry:
    """One door of a broker. The URL has no secret; `secret` is None if the keyring has it, and empty if there is none."""

    url: str
    secret: str | None = field(default="", repr=False)


@dataclass(slots=True)
class Profiles:
    """All profiles of a user: name -> door -> entry, and the one in use."""

    entries: dict[str, dict[str, Entry]] = field(default_factory=dict)
    used: str = ""

    def of(self, name: str) -> dict[str, Entry]:
        if name not in self.entries:
            near = get_close_matches(name, self.entries, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`quintet profile list` shows them"
            raise ConfigError(f"there is no profile {name!r}", hint=hint)
        return self.entries[name]

    def url(self, name: str, command: str) -> str:
        """The whole URL, secret included, that a command uses."""
        doors = self.of(name)
        wanted = DOORS.get(command, DOOR_DEFAULT)
        door = wanted if wanted in doors else next(iter(doors))
        entry = doors[door]
        secret = from_keyring(name, door) if entry.secret is None else entry.secret
        return joined(entry.url, secret)


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the user's programs keep their configuration."""
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config"
    return Path(home) / "quintet"


def file() -> Path:
    return folder() / "profiles.json"


def load() -> Profiles:
    """The profiles of this user; none if there is no file. ConfigError if others may read it, or if it is not ours."""
    path = file()
    try:
        with path.open("rb") as source:
            found = os.fstat(source.fileno())
            if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
                mode = stat.S_IMODE(found.st_mode)
                raise ConfigError(
                    f"{path} has secrets and others may read it (mode {mode:04o}, owner {found.st_uid})",
                    hint=f"chmod 600 {path}, and change the passwords in it",
                )
            data = source.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX:,} bytes")
    try:
        tree = json.loads(data)
        entries = {
            str(name): {str(door): Entry(str(each["url"]), each["secret"]) for door, each in doors.items()}
            for name, doors in tree["profiles"].items()
        }
        return Profiles(entries, str(tree["used"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is not a file of profiles", hint="remove it, and add the profiles again") from None


def save(profiles: Profiles) -> None:
    """Write the file anew; a crash leaves the old one or the new one."""
    path = file()
    tree = {
        "used": profiles.used,
        "profiles": {
            name: {door: {"url": each.url, "secret": each.secret} for door, each in doors.items()}
            for name, doors in profiles.entries.items()
        },
    }
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as target:
            json.dump(tree, target, indent=2)
            target.flush()
            os.fsync(target.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def split(url: str) -> tuple[str, str]:
    """(URL without its secret, secret). What stands alone in front of the @ is the secret where a door knows only one."""
    end = urls.parse(url)
    parts = urls.cut(url)
    user = "" if end.secret and end.secret == end.user else end.user
    named = f"{quote(user, safe='')}@" if user else ""
    return f"{parts.scheme}{named}{parts.hosts}{parts.rest}", end.secret


def joined(url: str, secret: str) -> str:
    """The URL with its secret."""
    if not secret:
        return url
    parts = urls.cut(url)
    named = quote(unquote(parts.user.removesuffix("@")), safe="")
    return f"{parts.scheme}{named}:{quote(secret, safe='')}@{parts.hosts}{parts.rest}"


# -- the keyring ------------------------------------------------------------------------------------------------------


def keyring() -> ModuleType | None:
    """The package, if it is installed and finds a keyring on this machine."""
    try:
        import keyring as package
        from keyring.backends.fail import Keyring as Nothing
    except ImportError:
        return None
    return None if isinstance(package.get_keyring(), Nothing) else package


def to_keyring(package: ModuleType, profile: str, door: str, secret: str) -> None:
    try:
        package.set_password(KEYRING_SERVICE, f"{profile}/{door}", secret)
    except package.errors.KeyringError as error:
        raise ConfigError(
            f"the keyring does not take the secret: {error}", hint="--store file keeps it in a file"
        ) from None


def from_keyring(profile: str, door: str) -> str:
    package = keyring()
    found: str | None = None
    if package is not None:
        try:
            found = package.get_password(KEYRING_SERVICE, f"{profile}/{door}")
        except package.errors.KeyringError as error:
            raise ConfigError(f"the keyring does not give the secret of profile {profile!r}: {error}") from None
    if found is None:
        hint = f"`quintet profile add {profile} --url ...` stores it again"
        raise ConfigError(f"the secret of profile {profile!r} is in a keyring that is not there, or lost it", hint=hint)
    return found


def forget(profile: str, door: str) -> None:
    """Remove a secret from the keyring, if it is there."""
    package = keyring()
    if package is not None:
        with suppress(package.errors.KeyringError):  # it is not there, which is what is wanted
            package.delete_password(KEYRING_SERVICE, f"{profile}/{door}")
