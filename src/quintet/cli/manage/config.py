"""`quintet config`: writes an example file, checks a configuration, and shows and explains its options.

Everything here is drawn from the one tree in quintet/config; docs/CONFIGURATION.md is `quintet config reference`. The tree is
loaded by what uses it: pydantic, of which it is made, comes with the server, and --help does not need it.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintet.cli.terminal.output import echo
from quintet.model.errors import ConfigError

if TYPE_CHECKING:
    from quintet.config import Plugins
    from quintet.config.renaming import OldName

FILE = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="QUINTET_CONFIG",
    help="TOML file with the configuration (or QUINTET_CONFIG).",
)


def example(plugins: "Plugins | None" = None) -> str:
    """A whole file: every key with its default, commented out. Doors of plugins are named: without them their tables are unknown."""
    from quintet.config import Plugins, settings_with
    from quintet.config.options import tables, toml

    plugins = plugins or Plugins()
    named = {"plugins.doors": toml(plugins.doors)} if plugins.doors else {}
    lines = ["# Quintet configuration. Every key is here with its default; remove the # to change one."]
    for table in tables(settings_with(plugins)):
        lines.append("")
        if table.path:
            lines.append(f"# {table.help}")
            name = ".".join(table.path)
            lines.append(f"# [[{name}]]" if table.listed else f"[{name}]")
        for option in table.options:
            lines.append(f"# {option.help}")
            value = '""' if option.default is None or option.required else toml(option.default)
            given = named.get(option.key)
            lines.append(f"{option.path[-1]} = {given}" if given else f"# {option.path[-1]} = {value}")
    return "\n".join(lines) + "\n"


GUIDE = """\
## A broker for others

`--dev` is for loopback. A broker that other machines reach needs a certificate, and users in place of the fixed ones:

```toml
[listeners.flymq]
host = "0.0.0.0"                              # plaintext there is refused, unless insecure = true
tls_cert = "/etc/quintet/cert.pem"
tls_key = "/etc/quintet/key.pem"

[listeners.blipmq]                            # open by default, on loopback, for [[keys]]
enabled = false

[[users]]
name = "ops"
password_file = "/etc/quintet/ops.password"   # one line; chmod 600, or the start is refused
roles = ["admin"]

[[users]]
name = "shop"
password_file = "/etc/quintet/shop.password"
roles = ["orders-writer"]

[[roles]]                                     # or use producer: it writes every topic
name = "orders-writer"
write = ["orders*"]
```

```console
$ quintet config validate --config quintet.toml
$ quintet serve --config quintet.toml
$ quintet pub --url 'flymqs://shop:PASSWORD@HOST:9092?ca=cert.pem' orders hello
```

A client trusts the system's authorities, or the file in `ca`. Users of the file are as the file says after every start and
SIGHUP, whatever was changed on the wire (a disabled one stays disabled); users made with `quintet user create` are kept in
the log and stay. `quintet acl set` narrows topics down further.

## Credentials

A value that begins with `$CREDENTIALS_DIRECTORY/` is a file in the folder that this variable names. systemd sets it for a unit with
`LoadCredential=`; in a container it is where secrets are mounted:

```toml
[[users]]
name = "ops"
password_file = "$CREDENTIALS_DIRECTORY/quintet_ops"   # /etc/quintet/credentials/ops, by deploy/quintet.service
```

The group may read such a file, others may not. `deploy/` has a unit for systemd, a Containerfile, a compose file and a Helm chart that
work this way ([deploy/README.md](../deploy/README.md)). systemd reads credentials at the start: SIGHUP sees no new ones."""


NAMES = """\
## Names of keys

A key is what it is about, then its unit, then `_max` or `_min` if it is a bound: `topics_max`, `frame_bytes_max`,
`subject_messages_per_second_max`, `password_bytes_min`. A size that bounds nothing ends in `_bytes`, a time in `_seconds`; a switch has no
ending. There is no other unit.

These names of the release before are taken in this release only. Each of them gives a warning with its file or variable: `quintet config
validate` prints it, the broker logs it (`option_renamed`) at its start and at SIGHUP. Both names in one file, or in the environment,
stop the start.

| old | new |
|---|---|"""


def old_names() -> Iterator[tuple[str, str, str]]:
    """(old key, new key, what becomes of the unit), in the order of the tree."""
    from quintet.config import Settings, section_at
    from quintet.config.options import tables

    for table in tables():
        section = section_at(table.path, Settings)
        assert section is not None, "tables come from sections"
        for old, renamed in section.old_names().items():
            unit = f", divided by {renamed.per}" if renamed.per > 1 else ""
            unit = f", times {renamed.times}" if renamed.times > 1 else unit
            yield ".".join((*table.path, old)), ".".join((*table.path, renamed.to)), unit


def _reload() -> str:
    from quintet.config.reloading import Reloads

    reloads = Reloads()
    sections = [name for name in reloads.taken if f"{name}.*" not in reloads.taken and "." not in name]
    doors = sorted({path.split(".")[1] for path in reloads.certificates})
    felix = [path for path in reloads.taken if path.startswith("listeners.")]
    return f"""\
## SIGHUP

The file and the files it names are read again: all or nothing, and whatever is wrong with them, the old policy stays. Taken at
once are `{"`, `".join([*sections, "[tokens]", "[peers]"])}`, `{"`, `".join(felix)}`, and another
certificate (`tls_cert`, `tls_key`) of {", ".join(doors)} for connections to come.
Everything else waits for a restart, a certificate that is added or taken away too: the log line `reloaded` names what was
`taken`, and `restart_needed` names, at every reload until then, which `options` wait."""


def reference() -> str:
    """docs/CONFIGURATION.md."""
    from quintet.config.options import tables, toml

    lines = [
        "# Configuration",
        "",
        "Made from `src/quintet/config/` by `make docs`; a test keeps it so. A TOML file is overridden by environment",
        "variables, and both by flags. A variable's name is `QUINTET_` and the key in capitals with `__` for each dot:",
        "`QUINTET_LISTENERS__BLIPMQ__PORT=0`. Lists are given there as JSON. Sizes may be written as `'16 MiB'`. Paths are",
        "relative to the folder the broker is started in. An unknown key or a bad value stops the start with exit code 2.",
        "`quintet config init` writes a file to begin with, `quintet config explain KEY` explains one key.",
        "",
        *GUIDE.splitlines(),
        "",
        *_reload().splitlines(),
        "",
        *NAMES.splitlines(),
        *(f"| `{old}` | `{new}`{unit} |" for old, new, unit in old_names()),
    ]
    for table in tables():
        name = ".".join(table.path)
        title = f"`[[{name}]]` (any number of them)" if table.listed else f"`[{name}]`"
        lines += ["", f"## {title if name else 'Top level'}", "", table.help, ""]
        if not table.options:
            lines.pop()
            continue
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for option in table.options:
            default = (
                "required" if option.required else "none" if option.default is None else f"`{toml(option.default)}`"
            )
            lines.append(f"| `{option.path[-1]}` | {option.kind} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


@click.group()
def config() -> None:
    """Write, check and explain the configuration.

    \b
    quintet config init > quintet.toml
    quintet config validate --config quintet.toml
    quintet config show --config quintet.toml --origin
    quintet config explain listeners.blipmq.port
    """


@config.command()
@FILE
def init(config_file: Path | None) -> None:
    """Print a file with every key and its default, those of the doors in `plugins.doors` included."""
    from quintet.config import plugins_of

    echo(example(plugins_of(config_file, os.environ)), nl=False)


@config.command("reference")
def reference_page() -> None:
    """Print the reference, as in docs/CONFIGURATION.md."""
    echo(reference(), nl=False)


def _warn(name: "OldName") -> None:
    echo(f"warning: {name}", err=True)


@config.command()
@FILE
def validate(config_file: Path | None) -> None:
    """Check the file and the environment; exit code 2 says they are not valid. Old names of keys are named on stderr."""
    from quintet.config import Settings

    Settings.load(config_file, os.environ, {}, _warn)
    echo(f"{config_file or 'defaults and environment'}: valid")


@config.command()
@FILE
@click.option("--dev", is_flag=True, help="With the development preset.")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(config_file: Path | None, dev: bool, origin: bool, as_json: bool) -> None:
    """Print the configuration that the broker would use. API keys are shown as their SHA-256 only."""
    from quintet.config import load_with_origins
    from quintet.config.options import flat, origin_of, toml

    settings, origins = load_with_origins(config_file, os.environ, {"dev": dev or None}, _warn)
    tree = settings.model_dump(mode="json", exclude_none=True)
    if as_json:
        echo(json.dumps(tree))
        return
    for path, value in flat(tree):
        source = origin_of(path, origins)
        echo(f"{'.'.join(path)} = {toml(value)}" + (f"  # {source}" if origin else ""))


@config.command()
@FILE
@click.argument("key")
def explain(config_file: Path | None, key: str) -> None:
    """Explain KEY: meaning, default and environment variable. The name of a table lists its keys; doors that `plugins.doors` of the
    file or the environment names have tables, too."""
    from quintet.config import nearest_key, plugins_of, settings_with
    from quintet.config.options import tables, toml
    from quintet.config.renaming import new_name

    tree = settings_with(plugins_of(config_file, os.environ))
    every = [option for table in tables(tree) for option in table.options]
    renamed = new_name(key, tree)
    if renamed != key:
        echo(f"{key} is an old name of {renamed}, taken in this release only")
        key = renamed
    found = [option for option in every if option.key == key or option.key.startswith(f"{key}.")]
    if not found:
        near = nearest_key(key, [option.key for option in every])
        raise ConfigError(f"{key}: unknown key{near}", hint="" if near else "`quintet config init` shows all of them")
    for option in found:
        default = (
            "required" if option.required else "default " + ("none" if option.default is None else toml(option.default))
        )
        echo(f"{option.key}  ({option.kind}; {default})")
        echo(f"    {option.help}")
        table = ".".join(option.path[:-1])
        echo(f"    in a table [[{table}]] of the file" if option.listed else f"    {option.variable}")
