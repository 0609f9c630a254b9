"""Options, offsets and limits: everything that is decided without a broker and without Spark."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.client.core.errors import ConnectionLost
from quintet.spark.lake import scan
from quintet.spark.lake.errors import LakeError
from quintet.spark.source import options as opt
from quintet.spark.source.offsets import Marks, dump, load, share
from quintet.spark.source.options import OptionError, Target, read_options, write_options

URL = "flight://ann:hush@broker:99"


def read(**options: str) -> opt.ReadOptions:
    return read_options({"url": URL, "subscribe": "orders"} | options)


# -- what is understood -----------------------------------------------------------------------------------------------


def test_everything_has_a_default_but_url_and_topic() -> None:
    found = read_options({"url": "flight://127.0.0.1", "subscribe": "b, a"})
    assert found.target == Target("127.0.0.1", opt.PORT, retry_seconds=opt.RETRY_SECONDS)
    assert found.topics == ("a", "b")
    assert (found.starting, found.ending, found.starting_us, found.ending_us) == (None, "latest", None, None)
    assert (found.rows_per_trigger, found.tasks_min, found.fail_on_data_loss) == (0, 0, True)
    assert (found.group_prefix, found.columns, found.typed, found.access) == ("spark-quintet", (), False, "auto")


def test_every_option_of_a_reader() -> None:
    found = read_options(
        {
            "url": "flights://u:p@h:1?ca=a&cert=b&key=c",
            "user": "ann",
            "password": "hush",
            "token": "t",
            "retryseconds": "1.5",
            "subscribepattern": "or.*",
            "startingoffsets": '{"orders":{"0":12,"1":-2}}',
            "endingoffsets": "LATEST",
            "maxoffsetspertrigger": "7",
            "minpartitions": "3",
            "failondataloss": "False",
            "groupidprefix": "g",
            "columns": "offset, id",
            "schema": "registry",
            "subject": "s",
            "typedprefix": "d_",
            "ondecodeerror": "DeadLetter",
            "valueprefix": "confluent",
            "schemaids": '{"23":2,"17":1}',
            "access": "files",
            "pushfilters": "true",
            "checkpointlocation": "somewhere",
            "path": "p",
        }
    )
    assert found.target == Target("h", 1, True, "ann", "hush", "t", "a", "b", "c", 1.5)
    assert (found.topics, found.pattern) == ((), "or.*")
    assert (found.starting, found.ending) == ({"orders": {0: 12, 1: -2}}, "latest")
    assert (found.rows_per_trigger, found.tasks_min, found.fail_on_data_loss) == (7, 3, False)
    assert (found.group_prefix, found.columns, found.typed) == ("g", ("offset", "id"), True)
    assert (found.subject, found.typed_prefix, found.access, found.push_filters) == ("s", "d_", "files", True)
    assert (found.on_decode_error, found.value_prefix) == ("deadletter", "confluent")
    assert found.schema_ids == ((17, 1), (23, 2))


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("0", 0),
        ("1769860800000", 1769860800000000),
        ("2026-01-31T12:00:00Z", 1769860800000000),
        ("2026-01-31T13:00:00.000001+01:00", 1769860800000001),
        ("2026-01-31 12:00", 1769860800000000),
    ],
)
def test_times_are_milliseconds_or_iso_8601(text: str, us: int) -> None:
    found = read(startingTimestamp=text, endingTimestamp=text)
    assert (found.starting_us, found.ending_us) == (us, us)


def test_every_option_of_a_writer() -> None:
    found = write_options({"url": URL, "topic": "t", "failOnDataLoss": "false", "txnAppId": "a", "txnVersion": "4"})
    assert found == opt.WriteOptions(Target("broker", 99, False, "ann", "hush"), "t", False, "a", 4)
    assert write_options({"url": URL}).topic == ""


# -- what is refused, and how -----------------------------------------------------------------------------------------


def wrong() -> Iterator[tuple[dict[str, str], str, str]]:
    """Options on top of good ones, the option that is complained about, and a word of the sentence."""
    yield {"url": ""}, "url", "missing"
    yield {"url": "flymq://h"}, "url", "names no Flight door"
    yield {"url": "flight://h:x"}, "url", "port"
    yield {"url": "flight://h/path"}, "url", "path"
    yield {"url": "flight://h?ca=x"}, "url", "needs TLS"
    yield {"url": "flights://h?cert=x"}, "url", "need each other"
    yield {"url": "flights://h?wrong=x"}, "url", "not known"
    yield {"subscribePattern": "x"}, "subscribePattern", "one of the two"
    yield {"topic": "x"}, "topic", "one of the two"
    yield {"subscribe": "a,,b"}, "subscribe", "empty"
    yield {"subscribe": "a,a"}, "subscribe", "twice"
    yield {"startingOffsets": "first"}, "startingOffsets", "neither a word"
    yield {"startingOffsets": "[]"}, "startingOffsets", "not an object"
    yield {"startingOffsets": '{"orders":4}'}, "startingOffsets", "no object of partitions"
    yield {"startingOffsets": '{"orders":{"x":4}}'}, "startingOffsets", "not a partition"
    yield {"endingOffsets": '{"orders":{"0":-3}}'}, "endingOffsets", "not an offset"
    yield {"endingOffsets": '{"orders":{"0":true}}'}, "endingOffsets", "not an offset"
    yield {"startingTimestamp": "yesterday"}, "startingTimestamp", "not a time"
    yield {"startingTimestamp": "-5"}, "startingTimestamp", "not a time"
    yield {"endingTimestamp": "1", "endingOffsets": "latest"}, "endingTimestamp", "one of the two"
    yield {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "out of range"
    yield {"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger", "out of range"
    yield {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger", "whole number"
    yield {"minPartitions": "-3"}, "minPartitions", "out of range"
    yield {"minPartitions": "1000000"}, "minPartitions", "out of range"
    yield {"retrySeconds": "-1"}, "retrySeconds", "seconds"
    yield {"failOnDataLoss": "maybe"}, "failOnDataLoss", "not one of"
    yield {"access": "magic"}, "access", "not one of auto, files, flight"
    yield {"pushFilters": "perhaps"}, "pushFilters", "not one of"
    yield {"schema": "json"}, "schema", "not one of raw, registry"
    yield {"columns": "offset,colour"}, "columns", "'colour' is not a column"
    yield {"subject": "s"}, "subject", "schema=registry"
    yield {"typedPrefix": "s"}, "typedPrefix", "schema=registry"
    for name, value in (("onDecodeError", "fail"), ("valuePrefix", "none"), ("schemaIds", '{"1":1}')):
        yield {name: value}, name, "schema=registry"
    yield {"schema": "registry", "onDecodeError": "drop"}, "onDecodeError", "not one of null, fail, deadletter"
    yield {"schema": "registry", "valuePrefix": "maybe"}, "valuePrefix", "not one of auto, confluent, none"
    for ids in ("17", "{}", '{"x":1}', '{"1":"v1"}', '{"1":0}', '{"1":true}', '{"4294967296":1}', "{"):
        yield {"schema": "registry", "schemaIds": ids}, "schemaIds", 'such as {"17":1,"23":2}'
    yield {"schema": "registry", "schemaIds": '{"1":1}', "valuePrefix": "none"}, "schemaIds", "valuePrefix is none"
    yield {"maxoffsetpertrigger": "1"}, "maxoffsetpertrigger", "did you mean maxOffsetsPerTrigger?"
    yield {"zzz": "1"}, "zzz", "known are url"
    yield {"kafka.bootstrap.servers": "h"}, "kafka.bootstrap.servers", "write url"
    yield {"kafka.security.protocol": "h"}, "kafka.security.protocol", "write url"
    yield {"startingOffsetsByTimestamp": "{}"}, "startingOffsetsByTimestamp", "write startingTimestamp"
    yield {"assign": "{}"}, "assign", "write subscribe"


@pytest.mark.parametrize(("options", "name", "word"), list(wrong()), ids=lambda value: str(value)[:40])
def test_a_complaint_is_one_sentence_that_names_the_option(options: dict[str, str], name: str, word: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({"url": URL, "subscribe": "orders", "password": "s3cr3t", "token": "t0k3n"} | options)
    said = str(caught.value)
    assert said.startswith(f"option {name}: ")
    assert word in said
    assert "\n" not in said
    assert not any(secret in said for secret in ("hush", "s3cr3t", "t0k3n"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == said


def test_a_reader_needs_topics() -> None:
    with pytest.raises(OptionError, match="option subscribe: it is missing"):
        read_options({"url": URL})
    with pytest.raises(OptionError, match="option subscribePattern: it is empty"):
        read_options({"url": URL, "subscribePattern": ""})


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="option endingOffsets: a streaming query has no end"):
        opt.refuse_in_stream(read(endingOffsets="latest"))
    opt.refuse_in_stream(read())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"txnAppId": "a"}, "option txnAppId: it needs txnVersion"),
        ({"topic": ""}, "option topic: it is empty"),
        ({"txnAppId": " ", "txnVersion": "1"}, "option txnAppId: it is empty"),
        ({"subscribe": "t"}, "option subscribe: it is not known here"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion: -1 is out of range"),
    ],
)
def test_a_writer_refuses_what_it_does_not_have(options: dict[str, str], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        write_options({"url": URL} | options)


def test_a_password_is_taken_to_the_letter() -> None:
    found = write_options({"url": f" {URL} ", "password": " x ", "topic": " t "})
    assert (found.target.password, found.topic) == (" x ", "t")


def test_secrets_are_in_no_repr() -> None:
    found = read(password="s3cr3t", token="t0k3n")
    assert "s3cr3t" not in repr(found)
    assert "t0k3n" not in repr(found)
    assert "hush" not in repr(read())
    assert pickle.loads(pickle.dumps(found)) == found


def test_in_a_worker_the_stack_trace_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    @opt.errors_without_trace
    def fails() -> None:
        raise ConnectionLost("gone")

    @opt.errors_without_trace_each
    def yields() -> Iterator[int]:
        yield 1
        raise OptionError("url", "bad")

    with pytest.raises(ConnectionLost):
        fails()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    rows = yields()
    assert next(rows) == 1
    with pytest.raises(OptionError):
        next(rows)
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


# -- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_are_written_in_one_way() -> None:
    offsets = {"b": Marks(3, (0,)), "a": Marks(17, (5, 9))}
    assert str(dump(offsets)) == "{'a': {'id': 17, '0': 5, '1': 9}, 'b': {'id': 3, '0': 0}}"
    assert load(dump(offsets)) == offsets
    assert load({}) == {}


@pytest.mark.parametrize("strange", [{"a": 5}, {"a": {"0": 5}}, {"a": {"id": 1, "1": 5}}, {"a": {"id": 1, "0": "x"}}])
def test_offsets_of_another_source_are_refused(strange: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="option checkpointLocation"):
        load(strange)


@given(
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), st.integers(0, 10**9)), st.integers(1, 10**9)
)
def test_a_limit_is_kept_used_up_and_starves_nobody(backlog: dict[tuple[str, int], int], limit: int) -> None:
    taken = share(limit, backlog)
    assert taken.keys() == backlog.keys()
    assert all(0 <= taken[key] <= rows for key, rows in backlog.items())
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    waiting = [key for key, rows in backlog.items() if rows]
    if limit >= len(waiting):
        assert all(taken[key] for key in waiting)


def test_a_limit_is_shared_in_proportion() -> None:
    assert share(100, {("a", 0): 900, ("a", 1): 100, ("a", 2): 0}) == {("a", 0): 90, ("a", 1): 10, ("a", 2): 0}


def test_more_partitions_than_the_limit_take_turns() -> None:
    backlog = {("busy", 0): 1000, ("busy", 1): 1000, ("quiet", 0): 1, ("quiet", 1): 2, ("quiet", 2): 0}
    seen, turn = set(), 7
    for _ in range(2):
        taken = share(2, backlog, turn)
        seen |= {key for key, rows in taken.items() if rows}
        turn += sum(taken.values())
    assert seen == {key for key, rows in backlog.items() if rows}, "the quiet ones are not left for last"


def test_a_lake_read_that_fails_half_way_shows_its_sentence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(_: object) -> object:
        raise LakeError("the store is away")

    monkeypatch.setattr(scan, "opened", opened)
    monkeypatch.setenv(opt.WORKER_MARKS[0], "1")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(LakeError, match="the store is away"):
        list(scan.Reader(pa.schema([]), []).read(scan.Files([Path("x")])))
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
