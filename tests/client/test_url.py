"""URLs: which door they name, and what is said about wrong ones."""

from urllib.parse import quote

import pytest

import quintet
from quintet.client.core.errors import BadUrl
from quintet.client.core.url import SCHEMES, parse
from quintet.protocols.doors import DOORS, FLIGHT


def test_all_parts() -> None:
    endpoint = parse("blipmqs://:a%20key%2F@broker.example:7000?ca=ca.pem")
    assert (endpoint.door, endpoint.host, endpoint.port) == ("blipmq", "broker.example", 7000)
    assert (endpoint.secret, endpoint.tls, endpoint.ca) == ("a key/", True, "ca.pem")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_default_port(scheme: str) -> None:
    endpoint = parse(f"{scheme}://:k@[::1]")
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("::1", SCHEMES[scheme].port, SCHEMES[scheme].tls)


def test_default_ports_are_those_of_the_doors() -> None:
    """The client loads no options of a broker, so it has a table of its own."""
    ours = {(scheme.door, scheme.port) for scheme in SCHEMES.values() if scheme.door != FLIGHT}
    assert ours <= {(door.protocol, door.port) for door in DOORS}


def test_the_key_may_stand_alone() -> None:
    assert parse("blip://key@host").secret == "key"


def test_the_secret_is_never_shown() -> None:
    endpoint = parse("blipmq://:very-secret@host")
    assert "very-secret" not in repr(endpoint) + str(endpoint)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("blipmg://h", "did you mean blipmq://"),
        ("amqp://h", "known schemes: blipmq://, blip://, blipmqs://, blips://"),
        ("localhost:5555", "known schemes"),
        ("", "known schemes"),
        ("flymq://", "the flymq:// URL names no host"),
        ("blipmq://h:99999", "0 to 65535"),
        ("blipmq://h:x", "0 to 65535"),
        ("blipmq://h?cb=1", "known options: ca"),
        ("blipmq://h?ca=f", "blipmqs://"),
        ("blipmq://h/topic", "path"),
    ],
)
def test_wrong_urls(url: str, says: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(url)
    assert says in f"{caught.value} {caught.value.hint}"
    assert isinstance(caught.value, ValueError)


def test_flymq() -> None:
    endpoint = parse("flymqs://al%40ice:p%3Aw@host?dialect=sdk&compression=lz4&ca=c.pem&cert=me.pem&key=me.key")
    assert (endpoint.door, endpoint.port, endpoint.user, endpoint.secret) == ("flymq", 9092, "al@ice", "p:w")
    assert (endpoint.dialect, endpoint.compression) == ("sdk", "lz4")
    assert (endpoint.ca, endpoint.cert, endpoint.key) == ("c.pem", "me.pem", "me.key")
    assert parse("flymq://alice@host").secret == ""
    assert parse("fly://host").dialect == "document"


def test_felix() -> None:
    endpoint = parse("felix://:a.b.c@host?ca=c.pem&tenant=t&namespace=n&compression=zstd")
    assert (endpoint.door, endpoint.port, endpoint.tls, endpoint.secret) == ("felix", 5000, True, "a.b.c")
    assert (endpoint.ca, endpoint.tenant, endpoint.namespace, endpoint.compression) == ("c.pem", "t", "n", "zstd")
    assert parse("felix://key@host").secret == "key"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("flymq://u:p@h?dialect=klingon", "document, sdk"),
        ("flymq://u:p@h?compression=rar", "zstd"),
        ("flymq://u:p@h?cert=x", "flymqs://"),
        ("flymqs://u:p@h?key=x", "private key"),
        ("blipmq://:k@h?dialect=sdk", "known options: ca"),
        ("felix://:k@h?compression=lz4", "none, zstd"),
        ("felix://:k@h?insecure=1", "known options: ca, cert, key, compression, tenant, namespace"),
        ("fast://:k@h?tenant=t", "known options: ca, cert, key"),
    ],
)
def test_wrong_options(url: str, what: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(url)
    assert what in caught.value.hint


def test_the_door_of_spark_is_none_for_messages() -> None:
    endpoint = parse("flights://ann:secret@host?ca=file")
    assert (endpoint.door, endpoint.port, endpoint.tls, endpoint.user, endpoint.secret) == (
        "flight", 8815, True, "ann", "secret",
    )  # fmt: skip
    with pytest.raises(BadUrl, match="flight:// is the door of Spark"):
        quintet.connect("flight://ann:secret@host")


@pytest.mark.parametrize(
    "scheme", ["nats", "amqp", "amqps", "kafka", "mqtt", "mqtts", "redis", "https", "wss", "pulsar"]
)
def test_another_brokers_scheme_is_not_taken_for_a_slip(scheme: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(f"{scheme}://h")
    assert "did you mean" not in caught.value.hint


@pytest.mark.parametrize(
    ("slip", "meant"), [("flymp", "flymq"), ("felx", "felix"), ("peerbu", "peerbus"), ("fst", "fast")]
)
def test_a_slip_is_put_right(slip: str, meant: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(f"{slip}://h")
    assert f"did you mean {meant}://?" in caught.value.hint


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        ("pa/ss", "/ as %2F"),
        ("pa?ss", "? as %3F"),
        ("pa#ss", "# as %23"),
        ("[x", "[ as %5B"),
        ("a/b#c", "/ as %2F and # as %23"),
    ],
)
def test_a_reserved_character_in_a_password_is_explained(secret: str, says: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(f"flymq://admin:{secret}@127.0.0.1:9092?dialect=sdk")
    assert says in str(caught.value)
    assert secret not in str(caught.value)
    assert parse(f"flymq://admin:{quote(secret, safe='')}@127.0.0.1").secret == secret


def test_an_at_sign_in_a_file_name_is_no_password() -> None:
    assert parse("flymqs://u:p@h?ca=me@home.pem").ca == "me@home.pem"
    with pytest.raises(BadUrl, match="#"):
        parse("flymq://u:p@h#there")
