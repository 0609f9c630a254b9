"""Guessed credentials count against the address on every door, also where each guess has a connection of its own."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import quintet
from quintet.model.errors import QuintetError
from quintet.net.certificates import CERTIFICATE_NAME
from quintet.protocols.doors import DOORS
from tests.abuse.process import Broker

GUESSES: Final = 4  # more than the limit
SECRET: Final = "0123456789abcdef0123456789abcdef"
CONFIG: Final = (
    "".join(f"[listeners.{door.key}]\nenabled = true\nport = 0\n" for door in DOORS)
    + "[listeners.admin]\nenabled = false\n[listeners.flight]\nenabled = false\n"
    + "[limits]\ndisk_free_bytes_min = 0\nauth_failures_per_minute_max = 3\n"
    + '[[users]]\nname = "ann"\npassword = "right-password"\nroles = ["admin"]\n'
    + '[[keys]]\nname = "device"\nkey = "right-password"\nuser = "ann"\n'
    + f'[[tokens.secrets]]\nsecret = "{SECRET}"\n'
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("guessing"), CONFIG) as running:
        yield running


def ca(broker: Broker) -> Path:
    return broker.data / "tls" / CERTIFICATE_NAME


URLS: Final[dict[str, Callable[[Broker, str], str]]] = {
    "blipmq": lambda broker, word: f"blipmq://:{word}@{broker.listeners['blipmq']}",
    "flymq": lambda broker, word: f"flymq://ann:{word}@{broker.listeners['flymq']}",
    "flymq-sdk": lambda broker, word: f"flymq://ann:{word}@{broker.listeners['flymq-sdk']}?dialect=sdk",
    "felix": lambda broker, word: f"felix://:{word}@{broker.listeners['felix']}?ca={ca(broker)}",
}


async def log_in(url: str) -> None:
    async with quintet.connect(url, timeout=30, reconnect=False) as bus:
        await bus.publish("guessed", b"x")


@pytest.mark.parametrize("door", URLS)
def test_a_guess_on_each_connection_shuts_the_address_out(broker: Broker, door: str) -> None:
    for number in range(GUESSES):
        with pytest.raises(QuintetError):
            asyncio.run(log_in(URLS[door](broker, f"guess-{number}")))
    with pytest.raises(QuintetError):
        asyncio.run(log_in(URLS[door](broker, "right-password")))
    assert "right-password" not in broker.said() and "guess-" not in broker.said()


def test_the_right_password_is_taken_where_nobody_guessed(tmp_path: Path) -> None:
    """The control: it is the guesses that shut the address out."""
    with Broker(tmp_path, CONFIG) as running:
        for url in URLS.values():
            asyncio.run(log_in(url(running, "right-password")))


def test_every_door_that_takes_credentials_is_walked() -> None:
    """Fast and peerbus are in their own files: their guesses are judged within the read."""
    assert set(URLS) | {"fast", "peerbus", "peerbus-tcp"} == {door.name for door in DOORS}
