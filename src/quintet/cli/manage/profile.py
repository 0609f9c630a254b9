"""`quintet profile`: names brokers, so that a URL and a password are typed once.

A secret is read from the terminal, from stdin or from a file, goes to the keyring or to a file of its owner, and is never printed.
"""

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode

import click
from click.shell_completion import CompletionItem

from quintet.cli.terminal import common, profiles
from quintet.cli.terminal.common import json_option, say, say_json, say_table
from quintet.cli.terminal.output import echo
from quintet.cli.terminal.profiles import Entry, Profiles
from quintet.client.core import url as urls
from quintet.client.core.errors import BadUrl
from quintet.model.errors import ConfigError

NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{profiles.NAME_CHARACTERS_MAX - 1}}}")
TLS_FILES: Final = ("ca", "cert", "key")


def complete_profile(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return common.completions(profiles.load().entries, incomplete)
    except ConfigError:
        return []


name_argument: Final = click.argument("name", shell_complete=complete_profile)
_file = click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True)


@click.group()
def profile() -> None:
    """Name brokers, so that a URL and a password are typed once.

    \b
    quintet profile add prod --url flymqs://ops@broker.example:9092 --ca ca.pem
    quintet --profile prod topic list
    QUINTET_PROFILE=prod quintet topic list
    quintet profile use prod                    from now on, without --profile

    What counts: --url, then --profile, QUINTET_URL, QUINTET_PROFILE, and last the profile in use.
    """


@profile.command()
@name_argument
@click.option("--url", required=True, help="URL of the broker, without its password: this command asks for it.")
@click.option("--ca", type=_file, help="Certificate of the authority to trust.")
@click.option("--cert", type=_file, help="Certificate that shows who you are.")
@click.option("--key", type=_file, help="Private key of --cert.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="File whose first line is the password, key or token; - is stdin.",
)
@click.option("--no-password", is_flag=True, help="There is none: the certificate says who you are.")
@click.option(
    "--store",
    type=click.Choice(["auto", "keyring", "file"]),
    default="auto",
    show_default=True,
    help="Where the password is kept: the keyring of this machine, or a file that only you may read.",
)
@json_option
def add(
    name: str,
    url: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    password_file: Path | None,
    no_password: bool,
    store: str,
    as_json: bool,
) -> None:
    """Add a profile, or another door to it. The password is asked for, or read from stdin or a file.

    \b
    quintet profile add prod --url flymqs://ops@broker.example:9092 --ca ca.pem
    quintet profile add prod --url felix://broker.example:5000 --ca ca.pem           a second door, for `quintet kv`
    pass show broker | quintet profile add prod --url flymqs://ops@broker.example:9092
    """
    if not NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} is not a name for a profile: letters, digits, '.', '_' and '-', at most {profiles.NAME_CHARACTERS_MAX}"
        )
    try:
        bare, secret = profiles.split(_with_files(url, {"ca": ca, "cert": cert, "key": key}))
    except BadUrl as error:
        raise common.wrong_usage(error) from error
    door = urls.parse(bare).door
    if secret:
        echo("the password was in the URL: other users and the shell's history may have seen it", err=True)
    elif not no_password:
        secret = common.read_password(password_file, f"Password, key or token for {bare}", confirm=False)
    found = profiles.load()
    package = None if store == "file" or not secret else profiles.keyring()
    if store == "keyring" and package is None and secret:
        raise ConfigError("no keyring answers", hint="pip install 'quintet[keyring]', or --store file")
    if package is not None:
        profiles.to_keyring(package, name, door, secret)
    found.entries.setdefault(name, {})[door] = Entry(bare, None if package is not None else secret)
    profiles.save(found)
    kept = _kept(found.entries[name][door])
    say(as_json, {"profile": name, "door": door, "url": bare, "password": kept}, f"{name}: {bare} (password: {kept})")


def _with_files(url: str, files: dict[str, Path | None]) -> str:
    """The URL with these options; paths in it are made absolute, since the profile is used from every folder."""
    bare, found, query = url.partition("?")
    query, hashed, fragment = query.partition("#")
    options = dict(parse_qsl(query, keep_blank_values=True))
    options |= {option: str(Path(options[option]).resolve()) for option in TLS_FILES if option in options}
    options |= {option: str(path) for option, path in files.items() if path is not None}
    return f"{bare}{'?' if options else found}{urlencode(options, safe='/')}{hashed}{fragment}"


def _kept(entry: Entry) -> str:
    return "in the keyring" if entry.secret is None else "in the file" if entry.secret else "none"


@profile.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List the profiles.

    \b
    quintet profile list
    """
    found = profiles.load()
    rows = [(name, name == found.used, ", ".join(doors)) for name, doors in found.entries.items()]
    if as_json:
        say_json([{"profile": name, "used": used, "doors": doors.split(", ")} for name, used, doors in rows])
        return
    say_table(("profile", "in use", "doors"), rows, "no profiles; `quintet profile add NAME --url URL` makes one")


@profile.command()
@name_argument
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the URLs of a profile, and where its passwords are kept; never the passwords.

    \b
    quintet profile show prod
    """
    doors = profiles.load().of(name)
    rows = [(door, each.url, _kept(each)) for door, each in doors.items()]
    if as_json:
        say_json([{"door": door, "url": url, "password": kept} for door, url, kept in rows])
        return
    say_table(("door", "url", "password"), rows, "")


@profile.command()
@name_argument
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a profile with its passwords.

    \b
    quintet profile remove prod
    """
    found = profiles.load()
    for door, entry in found.of(name).items():
        if entry.secret is None:
            profiles.forget(name, door)
    del found.entries[name]
    found.used = "" if found.used == name else found.used
    profiles.save(found)
    say(as_json, {"profile": name, "removed": True}, f"{name}: removed")


@profile.command()
@click.argument("name", required=False, shell_complete=complete_profile)
@click.option("--none", "nothing", is_flag=True, help="Use no profile from now on.")
@json_option
def use(name: str | None, nothing: bool, as_json: bool) -> None:
    """Choose the profile for commands that name none.

    \b
    quintet profile use prod
    quintet profile use --none
    """
    if (name is None) != nothing:
        raise click.UsageError("Give the name of a profile, or --none.")
    found: Profiles = profiles.load()
    if name is not None:
        found.of(name)
    found.used = name or ""
    profiles.save(found)
    say(as_json, {"used": name}, f"{name}: in use from now on" if name else "no profile is in use")
