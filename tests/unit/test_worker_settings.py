"""What a worker's flags and variables may say, and what is said of a wrong one."""

from pathlib import Path

import pytest

from activities.agents.entry_points import installed_catalog
from workers.arguments import argument_parser
from workers.settings import BadSettings, Settings, check_profile, settings_of


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
        (("--agent", "clod"), "--agent: clod is none of acp, claude, "),
        (("--workspace-root", "/", "--workspace-root", "/no/such"), "^--workspace-root: /no/such is no directory$"),
        (("--workspace-root", __file__), f"--workspace-root: {__file__} is no directory"),
        (("--state-dir", "/tmp/of\nmine"), "--state-dir: the path has a line break in it"),
        (("--host", "a b/c"), "--host: 'a b/c' is no name: letters, digits, dots, hyphens and underscores"),
    ],
)
def test_a_wrong_value_is_named(flags: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        settings(*flags)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("STEERSMAN_MAX_PERMISSION", "all", "--max-permission: all is none of read_only, ask, accept_edits, full"),
        ("STEERSMAN_RUNTIMES", "local,moon", "--runtime: moon is none of kubernetes, local, ssh"),
        ("STEERSMAN_HOST", "a\nb", r"--host: 'a\\nb' is no name"),
        ("STEERSMAN_WORKSPACE_ROOT", "/:/no/such", "--workspace-root: /no/such is no directory"),
        ("STEERSMAN_MAX_RUNS", "-5", "--max-runs: -5 is less than 1"),
    ],
)
def test_a_variables_wrong_value_is_named(variable: str, value: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        settings(env={variable: value})


def test_state_may_be_kept_for_ever() -> None:
    assert settings("--keep-days", "inf").keep_days == float("inf")


@pytest.mark.parametrize("name", ["machine.example.com", "Jane-s_MacBook.local", "steersman-worker-0", "10.0.0.1"])
def test_hosts_are_called_as_machines_are(name: str) -> None:
    assert settings("--host", name).host == name


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("inf", "argument --max-lease-s: must be finite: without this flag there is no limit"),
        ("-1", "argument --max-lease-s: must be more than 0"),
        ("soon", "argument --max-lease-s: 'soon' is no number"),
    ],
)
def test_a_cap_is_a_number(capsys: pytest.CaptureFixture[str], value: str, says: str) -> None:
    with pytest.raises(SystemExit) as ended:
        settings("--max-lease-s", value)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    check_profile(None)
    with pytest.raises(BadSettings, match=r"--profile: cannot load the connection's profile: .*nosuch"):
        check_profile("nosuch")
