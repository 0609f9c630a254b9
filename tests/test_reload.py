"""SIGHUP: every option of the tree is either taken, or named as waiting for a restart; none is passed over in silence."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest

from quintet import server
from quintet.broker.sections import Tenant
from quintet.config import Key, Role, Settings, TopicOverride, User
from quintet.config.reloading import Reloads, changes
from quintet.config.trust import PeerKey, Peers, TokenSecret
from quintet.protocols.felix.door import FELIX
from quintet.protocols.options import Section

RELOADS = Reloads()
SECRET = "a secret that is long enough for every rule"


def leaves(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, annotation) of every option."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field.annotation


OPTIONS = dict(leaves(Settings))


def other(annotation: Any, value: Any, folder: Path) -> Any:
    """Another value of an option. Whether it is a sensible one does not matter here."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return other(next(arg for arg in args if arg is not type(None)), value, folder)
    if origin is Literal:
        return next(choice for choice in args if choice != value)
    if origin is tuple:
        return (
            (*value, EXAMPLES[args[0]](folder)) if args[0] in EXAMPLES else ("HS384",) if args[0] is not str else ("x",)
        )
    if annotation is Path:
        return folder / "jwks.json"
    if annotation is bool:
        return not value
    return value + 1 if annotation in (int, float) else f"{value or ''}x"


EXAMPLES: dict[Any, Any] = {
    Key: lambda _: Key(name="n", key="k"),
    User: lambda _: User(name="n", password=SECRET),
    Role: lambda _: Role(name="n"),
    Tenant: lambda _: Tenant(name="n"),
    TokenSecret: lambda _: TokenSecret(secret=SECRET),
    PeerKey: lambda folder: PeerKey(name="n", kid="k", key_file=folder / "secret"),
    TopicOverride: lambda _: TopicOverride(pattern="x"),
}


def changed(settings: Settings, path: str, folder: Path) -> Settings:
    """The same tree with another value at one place, as reading the files would make it."""
    names = path.split(".")
    if names[0] == "peers" and names[1].startswith("hmac_secret"):
        given: Any = folder / "secret" if names[1].endswith("file") else SECRET
        return settings.model_copy(update={"peers": Peers(**{names[1]: given})})
    sections: list[Section] = [settings]
    for name in names[:-1]:
        sections.append(getattr(sections[-1], name))
    value: Any = other(OPTIONS[path], getattr(sections[-1], names[-1]), folder)
    for section, name in zip(reversed(sections), reversed(names), strict=True):
        value = section.model_copy(update={name: value})
    return value  # type: ignore[no-any-return]


def applied(settings: Settings) -> tuple[object, ...]:
    """All that `Server._reload` hands to the running parts, and what is read from the settings while it runs."""
    felix = settings.listeners.of(FELIX)
    return (
        server._credentials(settings),
        server._tokens(settings),
        server._tenant_tokens(settings),
        settings.peers,
        server._tenants(settings),
        settings.quotas,
        server.users_of(settings),
        settings.drain_timeout_seconds,
        (felix.tls_cert, felix.tls_key, felix.tls_client_ca, felix.certificate_names),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


@pytest.mark.parametrize("path", OPTIONS)
def test_an_option_is_taken_or_waits_for_a_restart(path: str, folder: Path) -> None:
    """Taken: the running parts get another value. Waits: they do not, it is named, and what goes on has the old value."""
    old = Settings()
    new = changed(old, path, folder)
    assert new != old
    taken, waits = RELOADS.split(old, new)
    (named,) = [*taken, *waits]
    assert path.startswith(named)
    goes_on = RELOADS.merged(old, new)
    if path in RELOADS.certificates:
        assert waits == [path] and goes_on == old
    elif taken:
        assert applied(goes_on) == applied(new) and goes_on == new
        assert applied(new) != applied(old), "it is said to be taken, and nothing uses it"
    else:
        assert goes_on == old
        assert applied(new) == applied(old), "it is used, and said to wait"


@pytest.mark.parametrize("path", RELOADS.certificates)
def test_another_certificate_is_taken_and_none_at_all_waits(path: str) -> None:
    one, two = Path("one.pem"), Path("two.pem")
    assert RELOADS.is_taken(path, one, two)
    assert not RELOADS.is_taken(path, one, None) and not RELOADS.is_taken(path, None, one)


def test_what_a_file_holds_is_a_change_although_its_path_is_the_same(folder: Path) -> None:
    def read() -> Settings:
        return Settings(peers=Peers(hmac_secret_file=folder / "secret"))

    old = read()
    assert RELOADS.split(old, read()) == ([], [])
    (folder / "secret").write_text(SECRET + ", another one")
    assert [path for path, _, _ in changes(old, read())] == ["peers"]
    assert RELOADS.merged(old, read()).peers.secret == read().peers.secret != old.peers.secret
