"""What a worker's flags and variables may say, and what is said of a wrong one."""

import pytest

from activities.agents.entry_points import installed_catalog
from workers.arguments import argument_parser
from workers.settings import BadSettings, Settings, settings_of


def settings(*flags: str, env: dict[str, str] | None = None) -> Settings:
    arguments = argument_parser(env or {}).parse_args(list(flags))
    return settings_of(arguments, env or {}, None, installed_catalog())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--max-runs", "0"), "--max-runs: 0 is less than 1"),
        (("--keep-days", "-1"), "--keep-days: -1 is no number of days"),
        # All state would be older than that.
        (("--keep-days", "nan"), "--keep-days: nan is no number of days"),
        (("--agent", "clod"), "wrong value: clod"),
    ],
)
def test_a_wrong_value_is_named(flags: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        settings(*flags)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("STEERSMAN_MAX_PERMISSION", "all", "--max-permission: all is none of read_only, ask, accept_edits, full"),
        ("STEERSMAN_RUNTIMES", "local,moon", "wrong value: moon"),
        ("STEERSMAN_MAX_RUNS", "-5", "--max-runs: -5 is less than 1"),
    ],
)
def test_a_variables_wrong_value_is_named(variable: str, value: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        settings(env={variable: value})


def test_state_may_be_kept_for_ever() -> None:
    assert settings("--keep-days", "inf").keep_days == float("inf")
