"""Says how keys of the configuration are named, and has what fields need beside their types: patterns, secrets in files.

The rule. A key is what it is about, then its unit, then `_max` or `_min` if it is a bound:

    frame_bytes_max    subject_messages_per_second_max    retention_seconds    segment_bytes    connections_max

    a bound on a number of things   `_max`             topics_max: one more is refused, or waits
    the least number of things      `_min`             replicas_min: with one less it is refused
    a bound on things in a time     `_per_second_max`  (or `_per_minute_max`)
    a size                          `_bytes`           of a file, or of what is kept until the oldest goes
    a bound on a size               `_bytes_max`       what is larger is refused, or waits; `_bytes_min` if what is smaller is
    a time                          `_seconds`         with a fraction where it may be short; no other unit of time
    a share                         `_ratio`           0 to 1
    a number that bounds nothing    its plain name     `port`, `partitions`, `cells`; there are no others
    a switch                        what is so if it is true, without an ending: `enabled`, `insecure`, `require_exp`

Nothing else holds a number. The types of model/sections.py carry these endings, so the type of a field and its name say the same;
tests/test_config_keys.py looks at every field of every section and door. A key that is renamed stays for one release in the
`renamed` of its section; config/renaming.py takes it, and says so.
"""

import os
import stat
from pathlib import Path

from quintet.config.credentials import is_credential


def matches(pattern: str, name: str) -> bool:
    """Whether a topic name falls under a pattern: equal, or a prefix if the pattern ends in *."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def read_secret(path: Path) -> str:
    """The one line in a key file. ValueError if others may read it, or if there is nothing in it. Its group may read a credential:
    systemd gives the service access by an access list, and Kubernetes by a group, and both show in the mode as that."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (0o037 if is_credential(path, os.environ) else 0o077):
                raise ValueError(f"{path} can be read by others (mode {mode:04o}); chmod 600 {path}")
            secret = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not secret:
        raise ValueError(f"{path} is empty; it must hold the key")
    return secret
