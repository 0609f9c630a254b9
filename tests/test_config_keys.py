"""Names of configuration keys: one rule for all of them, and old names that are taken for one release with a warning."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner
from pydantic import Field
from pydantic.fields import FieldInfo

from quintet.cli.manage.config import config, example, old_names
from quintet.config import Plugins, Settings, load_with_origins, settings_with
from quintet.config.renaming import OldName
from quintet.model.errors import ConfigError
from quintet.model.sections import Bytes, BytesMax, Count, Renamed, Seconds, Section, Unit, section_of, units_of
from quintet.protocols.fast.door import FAST
from quintet.protocols.flymq.door import FLYMQ

PLUGIN = "examples.line_door:LINE"
BEFORE = Path(__file__).parent / "vectors" / "config" / "old_names.toml"
WITH_PLUGIN = settings_with(Plugins(doors=(PLUGIN,)))
ENDINGS = ("_max", "_min", "_bytes", "_seconds", "_per_second", "_per_minute")
OTHER_UNITS = (
    "s",
    "ms",
    "us",
    "ns",
    "sec",
    "secs",
    "minutes",
    "hours",
    "days",
    "kb",
    "kib",
    "mb",
    "mib",
    "count",
    "size",
    "limit",
)


def fields(section: type[Section], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(key, field) of everything in a section, in the sections below it and in the elements of its lists."""
    for name, field in section.model_fields.items():
        below = section_of(field.annotation)
        if below is None:
            yield path + name, field
        else:
            yield from fields(below, f"{path}{name}.")


def holds_number(annotation: Any) -> bool:
    """Whether a type is a number, or may be one: `int | None`, a list of them."""
    if annotation in (int, float):
        return True
    return any(holds_number(part) for part in getattr(annotation, "__args__", ()))


def fault(key: str, field: FieldInfo) -> str:
    """What is wrong with the name of a key; nothing, if it is as config/fields.py says."""
    name = key.rpartition(".")[2]
    units = units_of(field)
    if (
        name.startswith(("max_", "min_", "is_", "no_", "not_", "enable_", "disable_"))
        or name.rpartition("_")[2] in OTHER_UNITS
    ):
        return f"{key}: no such beginning or unit"
    if not holds_number(field.annotation):
        return f"{key}: the ending is that of a number" if name.endswith(ENDINGS) or units else ""
    if len(units) != 1:
        return f"{key}: a number has one of the types of model/sections.py"
    (unit,) = units
    if unit.whole:
        return "" if name == unit.ending else f"{key}: its type is that of {unit.ending}"
    if not name.endswith(unit.ending) or name == unit.ending.removeprefix("_"):
        return f"{key}: its type wants the ending {unit.ending}"
    if unit.ending == "_max" and name.removesuffix("_max").endswith(
        ("_bytes", "_seconds", "_per_second", "_per_minute")
    ):
        return f"{key}: its type counts things, its name says another unit"
    return ""


def test_every_key_of_every_section_and_door_follows_the_rule() -> None:
    found = dict(fields(WITH_PLUGIN))
    assert "listeners.line.line_bytes_max" in found and "tenants.streams_max" in found and len(found) > 150
    assert [said for key, field in found.items() if (said := fault(key, field))] == []


class _Wrong(Section):
    """The control: no key of it follows the rule but those that begin with `fine`."""

    connections: Count = 1
    max_connections: Count = 1
    frame_bytes: BytesMax = 1
    frame_max: BytesMax = 1
    frame_bytes_max: Count = 1
    segment_max: Bytes = 1
    idle_days: Seconds = 1
    idle_ms: int = 1
    idle: Seconds = 1
    timeout_s: float = 1.0
    plain: int = 1
    maybe: int | None = None
    many: tuple[int, ...] = ()
    sometimes: Annotated[Count, Field(ge=2)] | None = None
    open_max: bool = False
    path_bytes: Path | None = None
    is_open: bool = False
    partitions_of: Annotated[int, Unit("partitions", whole=True)] = 1
    fine: bool = True
    fine_max: Annotated[Count, Field(le=5)] | None = None
    fine_bytes: Annotated[Bytes, Field(ge=1)] = 1
    fine_seconds: Seconds = 1


@pytest.mark.parametrize("name", _Wrong.model_fields)
def test_the_rule_finds_a_key_that_breaks_it(name: str) -> None:
    said = fault(name, _Wrong.model_fields[name])
    assert bool(said) is not name.startswith("fine"), said


def test_an_old_name_leads_to_a_key_that_there_is_and_is_no_key_itself() -> None:
    keys = dict(fields(WITH_PLUGIN))
    names = [*old_names()]
    assert len(names) > 30
    for old, new, _ in names:
        assert new in keys and old not in keys


# -- a file of the release before -------------------------------------------------------------------------------------


def loaded(
    file: Path | None = None, environ: dict[str, str] | None = None, flags: dict[str, Any] | None = None
) -> tuple[Settings, list[OldName]]:
    said: list[OldName] = []
    return Settings.load(file, environ or {}, flags or {}, said.append), said


def test_a_file_of_the_release_before_means_what_it_meant() -> None:
    """It has every old name, and for each number another value than the default."""
    settings, said = loaded(BEFORE)
    assert sorted(name.old.replace("[0]", "") for name in said) == sorted(old for old, _, _ in old_names())
    assert {name.origin for name in said} == {str(BEFORE)}
    delivery, fast = settings.delivery, settings.listeners.of(FAST)
    assert (delivery.retry_backoff_seconds, delivery.push_timeout_seconds) == (0.502, 30.002)
    assert (delivery.group_timeout_seconds, delivery.attempts_max) == (10.002, 7)
    assert delivery.subscription_idle_seconds == settings.peers.name_idle_seconds == 32 * 86_400
    assert (settings.drain_timeout_seconds, settings.limits.disk_free_bytes_min) == (12.5, 3 << 20)
    assert (fast.payload_bytes_max, fast.subject_messages_per_second_max) == (16_777_218, 2)
    default = dict(values(Settings.load(None, {}, {})))
    given = {
        ".".join(map(str, path)) for path in load_with_origins(BEFORE, {}, {}, lambda _: None)[1]
    }  # newer keys are not
    same = [key for key, value in values(settings) if value == default.get(key) and isinstance(value, int | float)]
    same = [key for key in same if key in given]
    assert len(given) > 60
    assert [key for key in same if not isinstance(default[key], bool) and not key.endswith(".port")] == []


def values(section: Section, path: str = "") -> Iterator[tuple[str, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from values(value, f"{path}{name}.")
        else:
            yield path + name, value


def test_a_warning_names_the_place_the_old_and_the_new_key(tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text("[listeners.flymq]\nmax_connections = 7\n[delivery]\nretry_backoff_ms = 250\n")
    _, (first, second) = loaded(file)
    last = "the old name is taken in this release only"
    assert str(first) == f"{file}: listeners.flymq.max_connections is now listeners.flymq.connections_max; {last}"
    assert str(second) == (
        f"{file}: delivery.retry_backoff_ms is now delivery.retry_backoff_seconds and has another unit (0.25); {last}"
    )


def test_a_variable_by_its_old_name_is_taken() -> None:
    environ = {
        "QUINTET_DELIVERY__PUSH_TIMEOUT_MS": "1500",
        "QUINTET_PEERS__NAME_IDLE_DAYS": "2.0",
        "QUINTET_LISTENERS__FLYMQ": '{"max_connections": 8}',
        "QUINTET_TENANTS": '[{"name": "t", "max_streams": 4}]',
    }
    settings, said = loaded(None, environ)
    assert (settings.delivery.push_timeout_seconds, settings.peers.name_idle_seconds) == (1.5, 2 * 86_400)
    assert (settings.listeners.of(FLYMQ).connections_max, settings.tenants[0].streams_max) == (8, 4)
    assert [(name.origin, name.new) for name in said] == [
        ("environment variable QUINTET_DELIVERY__PUSH_TIMEOUT_MS", "delivery.push_timeout_seconds"),
        ("environment variable QUINTET_LISTENERS__FLYMQ", "listeners.flymq.connections_max"),
        ("environment variable QUINTET_PEERS__NAME_IDLE_DAYS", "peers.name_idle_seconds"),
        ("environment variable QUINTET_TENANTS", "tenants[0].streams_max"),
    ]


def test_a_flag_by_its_old_name_is_taken() -> None:
    settings, (said,) = loaded(None, {}, {"topics.max_topics": 9})
    assert (settings.topics.topics_max, said.origin, said.new) == (9, "flag --max-topics", "topics.topics_max")


def test_a_door_of_a_plugin_has_the_old_names_of_what_it_is_made_of() -> None:
    settings, (said,) = loaded(None, {"QUINTET_LISTENERS__LINE__MAX_CONNECTIONS": "3"}, {"plugins.doors": [PLUGIN]})
    assert settings.model_dump()["listeners"]["line"]["connections_max"] == 3
    assert said.new == "listeners.line.connections_max"


@pytest.mark.parametrize(
    ("old", "new"), [("max_connections = 1", "connections_max = 2"), ("connections_max = 2", "max_connections = 1")]
)
def test_both_names_in_one_file_are_an_error(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(f"[listeners.fast]\n{old}\n{new}\n")
    with pytest.raises(ConfigError) as caught:
        loaded(file)
    same = "listeners.fast.max_connections and listeners.fast.connections_max are the same option"
    assert caught.value.message == f"{file}: {same}"
    assert caught.value.hint == "give it once, by its new name"


def test_both_names_in_the_environment_are_an_error() -> None:
    environ = {"QUINTET_TOPICS__MAX_TOPICS": "1", "QUINTET_TOPICS__TOPICS_MAX": "1"}
    with pytest.raises(
        ConfigError, match=r"variable QUINTET_TOPICS__MAX_TOPICS and environment variable QUINTET_TOPICS__TOPICS_MAX"
    ):
        loaded(None, environ)
    with pytest.raises(ConfigError, match=r"topics\.max_topics and topics\.topics_max are the same option"):
        loaded(None, {}, {"topics.max_topics": 1, "topics.topics_max": 1})


@pytest.mark.parametrize(("in_file", "in_environment"), [("max_topics", "TOPICS_MAX"), ("topics_max", "MAX_TOPICS")])
def test_the_environment_goes_over_the_file_by_either_name(tmp_path: Path, in_file: str, in_environment: str) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(f"[topics]\n{in_file} = 5\n")
    variable = f"QUINTET_TOPICS__{in_environment}"
    settings, origins = load_with_origins(file, {variable: "6"}, {}, lambda _name: None)
    assert settings.topics.topics_max == 6
    assert origins["topics", "topics_max"] == f"environment variable {variable}"


@pytest.mark.parametrize("value", ["'soon'", "[]", "-1", "0", "'nan'", "inf", "true", "'0.0'"])
def test_a_bad_value_is_told_with_the_name_it_was_given_by(tmp_path: Path, value: str) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(f"[delivery]\ngroup_timeout_ms = {value}\n")
    with pytest.raises(ConfigError) as caught:
        loaded(file)
    assert str(caught.value).startswith(f"{file}: delivery.group_timeout_seconds: ")
    assert "(given as delivery.group_timeout_ms)" in str(caught.value)


def test_what_is_no_table_is_told_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text("delivery = 5\ntenants = [3]\n")
    with pytest.raises(ConfigError, match=r"tenants\[0\]|delivery"):
        loaded(file)


def test_a_program_that_says_nothing_of_old_names_is_warned() -> None:
    with pytest.warns(FutureWarning, match=r"drain_timeout_s is now drain_timeout_seconds"):
        Settings.load(None, {}, {"drain_timeout_s": 5})


def test_a_section_has_the_old_names_of_its_bases() -> None:
    class Base(Section):
        renamed = (Renamed("a", "a_max"),)

    class Below(Base):
        renamed = (Renamed("b", "b_max"),)

    assert {old: renamed.to for old, renamed in Below.old_names().items()} == {"a": "a_max", "b": "b_max"}


# -- commands ---------------------------------------------------------------------------------------------------------


def test_config_validate_shows_the_warning() -> None:
    done = CliRunner().invoke(config, ["validate", "--config", str(BEFORE)])
    assert (done.exit_code, done.stdout) == (0, f"{BEFORE}: valid\n")
    assert f"warning: {BEFORE}: topics.max_topics is now topics.topics_max" in done.stderr
    assert len(done.stderr.splitlines()) == len([*old_names()])
    shown = CliRunner().invoke(config, ["show", "--config", str(BEFORE), "--json"])
    assert json.loads(shown.stdout)["topics"]["topics_max"] == 10_002
    assert "topics.topics_max" in shown.stderr


def test_config_explain_knows_old_names() -> None:
    said = CliRunner().invoke(config, ["explain", "delivery.push_timeout_ms"]).stdout
    assert said.startswith("delivery.push_timeout_ms is an old name of delivery.push_timeout_seconds, ")
    assert "\ndelivery.push_timeout_seconds  (number; default 30.0)\n" in said


@pytest.mark.parametrize("way", ["file", "environment"])
def test_config_explain_and_init_show_the_doors_of_plugins(way: str, tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(f'[plugins]\ndoors = ["{PLUGIN}"]\n')
    given = ["--config", str(file)] if way == "file" else []
    environ = {} if way == "file" else {"QUINTET_PLUGINS__DOORS": f'["{PLUGIN}"]'}
    said = CliRunner().invoke(config, ["explain", *given, "listeners.line.line_bytes_max"], env=environ)
    assert "QUINTET_LISTENERS__LINE__LINE_BYTES_MAX" in said.stdout
    assert CliRunner().invoke(config, ["explain", "listeners.line"]).exception is not None, (
        "the control: no plugin, no door"
    )
    written = CliRunner().invoke(config, ["init", *given], env=environ).stdout
    assert written == example(Plugins(doors=(PLUGIN,))) and "\n[listeners.line]\n" in written
    file.write_text(written)
    plain = Settings.load(None, {}, {"plugins.doors": [PLUGIN]})
    assert Settings.load(file, {}, {}).model_dump() == plain.model_dump(), "what it writes can be read, with the door"


def test_a_plugin_that_cannot_be_loaded_is_told_by_explain(tmp_path: Path) -> None:
    done = CliRunner().invoke(config, ["explain", "topics"], env={"QUINTET_PLUGINS__DOORS": '["nowhere:LINE"]'})
    assert isinstance(done.exception, ConfigError) and "cannot be loaded" in str(done.exception)
