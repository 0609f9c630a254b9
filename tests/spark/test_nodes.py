"""Which node of a cell Spark reads from, and where it goes when that one fails. Roles are played; tests/spark/test_followers.py has real nodes."""

import logging

import pytest

from quintet.spark.source import nodes as chosen
from quintet.spark.source import options as opt
from quintet.spark.source.nodes import Nodes
from quintet.spark.source.options import Host, OptionError, Target, read_options, target, write_options

CELL = Target("a", 1, others=(("b", 1), ("c", 1)))
TOPIC = {"subscribe": "orders"}


class Cell:
    """`roles` says what each node is; None: it is away."""

    def __init__(self, wanted: str, **roles: str | None) -> None:
        self.roles = roles
        self.time = 1_000.0
        self.nodes = Nodes(CELL, wanted, lambda: self.time, 0)

    def choose(self) -> str:
        found = self.nodes.choose(self._role_of)
        return "" if found is None else found[0]

    def _role_of(self, host: Host) -> str | None:
        return self.roles[host[0]]


def test_a_follower_is_preferred_and_the_leader_is_the_last_resort(caplog: pytest.LogCaptureFixture) -> None:
    cell = Cell("follower", a="leader", b="follower", c="follower")
    with caplog.at_level(logging.WARNING):
        assert cell.choose() == "b"
        cell.nodes.fail(cell.nodes.current)
        assert cell.choose() == "c"
        cell.roles |= {"b": None, "c": None}
        cell.nodes.fail(cell.nodes.current)
        assert not caplog.messages
        assert cell.choose() == cell.choose() == "a"
    assert caplog.messages == ["quintet: no follower of a:1,b:1,c:1 can be read from; reading from the leader, a:1"]
    due = [cell.nodes.is_due]
    cell.time += chosen.ASK_AGAIN_SECONDS + 1
    assert [*due, cell.nodes.is_due] == [False, True], "a follower may be back"
    cell.roles["c"] = "follower"
    assert cell.choose() == "c"


def test_the_leader_is_found_wherever_it_is() -> None:
    cell = Cell("leader", a="follower", b=None, c="leader")
    assert cell.choose() == "c"
    cell.roles |= {"a": "leader", "c": "follower"}
    cell.nodes.fail(cell.nodes.current)
    assert cell.choose() == "a"
    cell.roles["a"] = "follower"
    assert cell.choose() == "", "nobody leads: it is asked again later"


def test_a_node_that_failed_is_passed_over_for_a_while() -> None:
    cell = Cell("any", a="follower", b="leader", c="follower")
    assert cell.choose() == "a"
    cell.nodes.fail(cell.nodes.current)
    assert cell.choose() == "b"
    cell.time += chosen.PASS_OVER_SECONDS + 1
    assert cell.choose() == "a"
    for host in CELL.hosts:
        cell.nodes.fail(host)
    assert cell.choose() != "", "better one that failed than none"


def test_several_hosts_are_a_cell_and_reads_go_to_followers() -> None:
    read = read_options({"url": "flight://ann:p%40ss@a,b:99,[::1]:7/", "maxAgeSeconds": "2.5"} | TOPIC).target
    assert read.hosts == (("a", opt.PORT), ("b", 99), ("::1", 7))
    assert (read.user, read.password, read.read_from, read.max_age_seconds) == ("ann", "p@ss", "follower", 2.5)
    assert str(read) == f"a:{opt.PORT},b:99,::1:7"
    assert read_options({"url": "flight://a,b", "readFrom": "any"} | TOPIC).target.read_from == "any"
    assert write_options({"url": "flight://a,b", "topic": "t"}).target.read_from == "leader"
    assert target({"url": "flight://a"}).read_from == "", "one host is asked whatever it is"
    assert read_options({"url": "flight://a", "readFrom": "leader"} | TOPIC).target.read_from == "leader"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"url": "flight://a,"}, "url"),
        ({"url": "flight://a,b:x"}, "url"),
        ({"url": "flight://a,b", "readFrom": "nearest"}, "readFrom"),
        ({"url": "flight://a,b", "maxAgeSeconds": "0"}, "maxAgeSeconds"),
        ({"url": "flight://a,b", "maxAgeSeconds": "-1"}, "maxAgeSeconds"),
        ({"url": "flight://a,b", "maxAgeSeconds": "nan"}, "maxAgeSeconds"),
    ],
)
def test_wrong_options_of_a_cell_are_named(options: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(options | TOPIC)
    assert caught.value.option == option
