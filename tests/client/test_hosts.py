"""Several hosts in a URL: how lists are read, in which order hosts are tried, and what is said when none of them answers."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import quintet
from quintet.bench.targets import target as bench_target
from quintet.bench.wire import BenchError
from quintet.cli.manage.profile import _with_files
from quintet.cli.terminal import profiles
from quintet.client.core.errors import AuthError, BadUrl, ConnectionLost, NotLeader, ProtocolError, Timeout
from quintet.client.core.hosts import REDIRECTS_MAX, Hosts, in_turn
from quintet.client.core.url import HOSTS_MAX, SCHEMES, Endpoint, Host, parse
from quintet.model.errors import QuintetError
from quintet.spark.source.options import target as spark_target
from tests.client.fake import FakeServer, Peer, polite
from tests.client.server import Server
from tests.wire.blipmq import Frame

LISTED = [scheme for scheme in SCHEMES if SCHEMES[scheme].door != "flight"]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on, kept from others by a socket that is bound and does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


# -- reading a list ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", LISTED)
def test_every_scheme_takes_a_list(scheme: str) -> None:
    port = SCHEMES[scheme].port
    endpoint = parse(f"{scheme}://u:k@a:7000,b,[::1]:7002,[fe80::1]?name=n" if "peerbus" in scheme else
                     f"{scheme}://u:k@a:7000,b,[::1]:7002,[fe80::1]")  # fmt: skip
    assert endpoint.hosts == (Host("a", 7000), Host("b", port), Host("::1", 7002), Host("fe80::1", port))
    assert str(endpoint) == f"a:7000,b:{port},[::1]:7002,[fe80::1]:{port}"
    assert endpoint.secret == "k"
    second = endpoint.at(endpoint.hosts[2])
    assert (second.host, second.port, second.hosts) == ("::1", 7002, (Host("::1", 7002),))


def test_a_list_that_repeats_scheme_and_user_is_the_same_list() -> None:
    """As lists of servers of NATS are written."""
    plain = parse("flymqs://u:p@a:1,b:2,[::1]:3?ca=f")
    assert parse("flymqs://u:p@a:1,flymqs://u:p@b:2,flymqs://[::1]:3?ca=f") == plain


def test_the_same_host_twice_counts_once() -> None:
    assert parse("blipmq://a,b,a:5555,b").hosts == (Host("a", 5555), Host("b", 5555))


def test_a_comma_in_a_password_makes_no_list() -> None:
    assert parse("flymq://u:p,w@h").hosts == (Host("h", 9092),)
    assert parse("flymq://u:p,w@h,i").secret == "p,w"
    assert parse("flymq://u:p@x,y@h").secret == "p@x,y"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("blipmq://a,,b", "host 2 in the list of the URL is empty"),
        ("blipmq://a,b,", "host 3 in the list of the URL is empty"),
        ("blipmq://,a", "host 1 in the list of the URL is empty"),
        ("blipmq://a,:7000", "host 2 in the list of the URL is empty"),
        ("blipmq://a:1,b:99999", "'b:99999' in the list of the URL has no port from 0 to 65535"),
        ("blipmq://a:x,b:1", "0 to 65535"),
        ("blipmq://a,b:x", "'b:x' in the list of the URL has no port"),
        ("blipmq://a,::1", "IPv6 stands in brackets: [::1]"),
        ("blipmq://::1,a", "IPv6 stands in brackets: [::1]"),
        ("blipmq://a,[::1", "'[::1' in the list of the URL is not a host"),
        ("blipmq://a,flymq://b", "two schemes, blipmq:// and flymq://"),
        ("flymq://u:p@a:1,v:q@b:2", "users or passwords of their own"),
        ("flymq://u:p@a,flymq://v:q@b", "users or passwords of their own"),
        ("flymqs://a?ca=x,flymqs://b?ca=y", "behind the last host"),
        ("flight://a,b", "flight:// takes one host"),
        ("blipmq://a,b?order=best", "random, given"),
        ("blipmq://" + ",".join(f"h{n}" for n in range(HOSTS_MAX + 1)), f"65 hosts; the limit is {HOSTS_MAX}"),
        ("flymq://u:p,a/w@h,i", "%2F"),
    ],
)
def test_wrong_lists(url: str, says: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse(url)
    assert says in str(caught.value)
    assert "q@" not in str(caught.value)  # no secret


def test_profiles_keep_lists() -> None:
    bare, secret = profiles.split("flymqs://ops:pw@a:1,b,[::1]:3?ca=/f")
    assert (bare, secret) == ("flymqs://ops@a:1,b,[::1]:3?ca=/f", "pw")
    assert profiles.joined(bare, "p@w") == "flymqs://ops:p%40w@a:1,b,[::1]:3?ca=/f"
    assert parse(profiles.joined(bare, "p@w")).hosts == parse(bare).hosts
    assert profiles.joined("felix://a,b", "k") == "felix://:k@a,b"


# -- trying them -------------------------------------------------------------------------------------------------------

A, B, C, D = (Host(name, 1) for name in "abcd")
GIVEN = parse("blipmq://a:1,b:1,c:1?order=given")


class Nodes:
    """What each host answers, and who was asked."""

    def __init__(self, **answers: QuintetError) -> None:
        self.answers = {Host(name, 1): error for name, error in answers.items()}
        self.asked: list[str] = []
        self.shares: list[float] = []

    async def __call__(self, endpoint: Endpoint, seconds: float) -> str:
        self.asked.append(endpoint.host)
        self.shares.append(seconds)
        if (error := self.answers.get(endpoint.hosts[0])) is not None:
            raise error
        return endpoint.host


AWAY = ConnectionLost("nobody listens there", hint="is the broker running?")


async def test_the_next_connection_begins_where_the_last_one_was() -> None:
    hosts, nodes = Hosts(GIVEN), Nodes(a=AWAY)
    assert await in_turn(hosts, GIVEN, 9, nodes) == "b"
    assert await in_turn(hosts, GIVEN, 9, nodes) == "b"
    assert nodes.asked == ["a", "b", "b"]
    hosts.left(B)
    hosts.left(B)  # a second connection of the same bus
    assert hosts.line() == [C, A, B]


async def test_the_time_is_shared_among_the_hosts_that_are_left() -> None:
    nodes = Nodes(a=AWAY, b=AWAY, c=AWAY)
    with pytest.raises(ConnectionLost):
        await in_turn(Hosts(GIVEN), GIVEN, 9, nodes)
    first, second, third = nodes.shares
    assert 2.5 < first <= 3 < second <= 4.5 < third <= 9
    alone = Nodes()
    await in_turn(Hosts(GIVEN.at(A)), GIVEN.at(A), 9, alone)
    assert alone.shares == [9]


async def test_a_list_is_shuffled_unless_its_order_is_given() -> None:
    endpoint = parse("blipmq://" + ",".join(f"h{n}" for n in range(20)))
    assert {tuple(Hosts(endpoint).line()) for _ in range(10)} - {endpoint.hosts}
    assert Hosts(GIVEN).line() == [A, B, C]


async def test_a_wrong_password_is_raised_by_the_first_host() -> None:
    nodes = Nodes(a=AuthError("a: wrong password"))
    with pytest.raises(AuthError, match="wrong password"):
        await in_turn(Hosts(GIVEN), GIVEN, 9, nodes)
    assert nodes.asked == ["a"]


async def test_a_host_of_another_protocol_is_passed_over() -> None:
    wrong = ProtocolError("this is HTTP")
    assert await in_turn(Hosts(GIVEN), GIVEN, 9, Nodes(a=wrong)) == "b"
    with pytest.raises(ProtocolError, match="none of 3 hosts"):  # and stays fatal if all are so
        await in_turn(Hosts(GIVEN), GIVEN, 9, Nodes(a=wrong, b=wrong, c=wrong))


async def test_all_hosts_and_what_each_said_are_in_the_error() -> None:
    nodes = Nodes(a=AWAY, b=Timeout("no answer within 3 s"), c=NotLeader())
    with pytest.raises(ConnectionLost) as caught:
        await in_turn(Hosts(GIVEN), GIVEN, 9, nodes)
    assert str(caught.value) == (
        "none of 3 hosts took the connection: a:1: nobody listens there; b:1: no answer within 3 s; "
        "c:1: not leader: no leader elected (is the broker running?)"
    )


async def test_a_named_leader_is_tried_next_although_it_is_not_listed() -> None:
    hosts, nodes = Hosts(GIVEN), Nodes(a=NotLeader(leader="d:1"))
    assert await in_turn(hosts, GIVEN, 9, nodes) == "d"
    assert nodes.asked == ["a", "d"]
    assert hosts.line() == [D, A, B, C]
    hosts.left(D)
    assert hosts.line() == [A, B, C]


async def test_a_named_leader_that_was_tried_is_not_tried_again() -> None:
    nodes = Nodes(a=AWAY, b=NotLeader(leader="a:1"), c=NotLeader(leader="b:1"))
    with pytest.raises(ConnectionLost):
        await in_turn(Hosts(GIVEN), GIVEN, 9, nodes)
    assert nodes.asked == ["a", "b", "c"]


async def test_nodes_that_name_each_other_without_end_are_left() -> None:
    class Maze(Nodes):
        async def __call__(self, endpoint: Endpoint, seconds: float) -> str:
            self.asked.append(endpoint.host)
            raise NotLeader(leader=f"x{len(self.asked)}:1")

    maze = Maze()
    with pytest.raises(NotLeader):
        await in_turn(Hosts(GIVEN), GIVEN, 9, maze)
    assert len(maze.asked) == 3 + REDIRECTS_MAX


def test_the_leader_is_read_from_the_text() -> None:
    assert NotLeader("not leader: leader_addr=10.0.0.7:9092").leader == "10.0.0.7:9092"
    assert NotLeader("not leader: leader_addr=[::1]:9092; go there").leader == "[::1]:9092"
    assert NotLeader("not leader: no leader elected").leader == ""
    assert NotLeader(leader="h:1").message == "not leader: leader_addr=h:1"


# -- real sockets ------------------------------------------------------------------------------------------------------


async def test_dead_hosts_are_passed_over(server: Server, topic: str) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(closed_port()) for _ in range(2))
        url = f"blipmq://:dev-key@127.0.0.1:{one},127.0.0.1:{two},127.0.0.1:{server.port}?order=given"
        async with quintet.connect(url, timeout=30) as bus, bus.subscribe(topic) as sub:
            await bus.publish(topic, "there")
            assert (await sub.get()).text() == "there"


async def test_a_host_that_swallows_everything_takes_its_share_only(server: Server) -> None:
    async def silent(_peer: Peer, _frame: Frame) -> bool:
        return True

    async with FakeServer(silent) as mute:
        url = f"blipmq://:dev-key@{parse(mute.url)},127.0.0.1:{server.port}?order=given"
        async with quintet.connect(url, timeout=4) as bus:
            await bus.ping(timeout=30)


async def test_no_host_answers(server: Server) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(closed_port()) for _ in range(2))
        for scheme in ("blipmq", "flymq", "fast", "peerbus+tcp", "felix"):
            extra = "&name=x&verify=off" if "peerbus" in scheme else ""
            url = f"{scheme}://:k@127.0.0.1:{one},127.0.0.1:{two}?order=given{extra}"
            with pytest.raises(ConnectionLost, match="none of 2 hosts") as caught:
                async with quintet.connect(url, timeout=30):
                    pass
            assert f"127.0.0.1:{one}: " in str(caught.value)
            assert f"127.0.0.1:{two}: " in str(caught.value)
        with pytest.raises(Timeout, match=f"no connection to 127.0.0.1:{one},127.0.0.1:{two} within"):
            async with quintet.connect(f"blipmq://:k@127.0.0.1:{one},127.0.0.1:{two}?order=given", wait=0.2):
                pass


async def test_a_wrong_key_names_the_host(server: Server) -> None:
    url = f"blipmq://:wrong@127.0.0.1:{server.port},127.0.0.1:1?order=given"
    with pytest.raises(AuthError):
        async with quintet.connect(url):
            pass


async def test_the_fake_is_polite(server: Server) -> None:
    """The control of the share: the same list with a first host that answers stays with it."""
    async with FakeServer(polite) as other:
        url = f"blipmq://:dev-key@{parse(other.url)},127.0.0.1:{server.port}?order=given"
        async with quintet.connect(url) as bus:
            await bus.ping()
            assert len(other.peers) == 1


def test_where_one_host_is_meant_a_list_is_refused() -> None:
    with pytest.raises(BenchError, match="names several hosts; a load goes to one"):
        bench_target("blipmq://:k@a:1,b:2")
    assert spark_target({"url": "flight://u:p,w@a:1"}).password == "p,w"


def test_files_of_a_profile_are_added_to_a_list(tmp_path: Path) -> None:
    made = _with_files("flymqs://ops@a:1,[::1]:2?order=given", {"ca": tmp_path / "ca.pem", "cert": None})
    assert made == f"flymqs://ops@a:1,[::1]:2?order=given&ca={tmp_path}/ca.pem"
    assert len(parse(made).hosts) == 2
