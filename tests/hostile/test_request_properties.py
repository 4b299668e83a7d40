"""Requests of any kind against a policy below `full`: whatever is admitted got nothing that was not lent."""

import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from activities.admission.policy import Policy, lent_commands
from activities.agents.claude.agent import ClaudeAgent
from activities.ports.admission import Admission
from activities.ports.agent import Agent
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import RunError
from steersman.contracts.request import PERMISSION_ORDER, RunRequest, parse_request

pytestmark = pytest.mark.property

KEY = "sk-canary-of-the-operator"
ENVIRON = {"ANTHROPIC_API_KEY": KEY, "LENT": "lent", "PATH": "/bin:/usr/bin", "HOME": "/nonexistent", "IS_SANDBOX": "1"}
RULES = frozenset({"Bash(make *)", "WebFetch"})
FLAGS = {
    *("--output-format", "--verbose", "--input-format", "--include-partial-messages", "--replay-user-messages"),
    *(
        "--permission-prompt-tool",
        "--permission-mode",
        "--restricted",
        "--tools",
        "--allowedTools",
        "--disallowedTools",
        "--disable-slash-commands",
    ),
    *("--model", "--session-id", "--resume", "--fork-session", "--add-dir", "--append-system-prompt-file"),
    *("--json-schema", "--fallback-model", "--setting-sources", "--settings", "--mcp-config"),
}

words = st.one_of(
    st.sampled_from(["Bash", "Bash(make *)", "Bash(make all)", "WebFetch(domain:a.b)", "Write", "Bash(", "a,b", "--x"]),
    st.text(max_size=20),
)
names = st.one_of(
    st.sampled_from(["LENT", "MY_VAR", "PATH", "LD_PRELOAD", "GIT_DIR", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True),
)
values = st.one_of(st.text(max_size=10), st.fixed_dictionaries({"from_env": names}), st.integers())
servers = st.dictionaries(
    st.sampled_from(["type", "url", "headers", "command", "args", "env", "headersHelper", "oauth"]),
    st.one_of(
        st.sampled_from(["http", "sse", "stdio", "https://a.example", "sh", "lent-server", ""]),
        st.lists(st.text(max_size=5), max_size=3),
        st.dictionaries(names, values, max_size=2),
    ),
    max_size=4,
)
options = st.fixed_dictionaries(
    {},
    optional={
        "mcp_servers": st.dictionaries(st.sampled_from(["a", "b", "-x", "a b"]), servers, max_size=2),
        "add_dirs": st.lists(st.sampled_from(["/", "/etc", "ROOT/inner", "ROOT/out", "relative"]), max_size=2),
        "setting_sources": st.lists(st.sampled_from(["user", "project", "local", "managed"]), max_size=2),
        "fallback_model": words,
        "settings": words,
    },
)
requests = st.fixed_dictionaries(
    {
        "agent": st.just("claude"),
        "prompt": st.text(min_size=1, max_size=20),
        "workspace": st.fixed_dictionaries(
            {"path": st.sampled_from(["ROOT", "ROOT/inner", "ROOT/out", "ROOT/../ROOT", "/etc", "ROOT/inner/../.."])}
        ),
        "permissions": st.fixed_dictionaries(
            {"mode": st.sampled_from([*PERMISSION_ORDER, "bypassPermissions"])},
            optional={"allow": st.lists(words, max_size=3), "deny": st.lists(words, max_size=3)},
        ),
    },
    optional={
        "env": st.dictionaries(names, values, max_size=3),
        "options": options,
        "model": words,
        "system_prompt": st.text(max_size=20),
        "session": words,
        "command": st.lists(words, max_size=2),
    },
)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name).resolve() / "root"
        (top / "inner").mkdir(parents=True)
        (top / "out").symlink_to("/etc")
        yield top


def placed(value: Any, root: Path) -> Any:
    if isinstance(value, str):
        return value.replace("ROOT", str(root)) if value.startswith(("ROOT", "/")) else value
    if isinstance(value, dict):
        return {key: placed(each, root) for key, each in value.items()}
    return [placed(each, root) for each in value] if isinstance(value, list) else value


def lends_only(request: RunRequest, policy: Policy) -> None:
    for rule in request.permissions.allow:
        assert rule in RULES or rule.startswith("WebFetch(")
    for name, value in request.env.items():
        itself = not isinstance(value, str) and getattr(value, "from_env", None) == name == "ANTHROPIC_API_KEY"
        assert name == "LENT" or itself
    for server in request.options.get("mcp_servers", {}).values():  # type: ignore[union-attr]
        assert isinstance(server, dict)
        lent = server.get("command") == "lent-server" and not server.keys() & {"env", "url", "headersHelper", "oauth"}
        assert lent or server.keys() <= {"type", "url", "headers"}
    assert not {"project", "local"} & set(request.options.get("setting_sources") or ())  # type: ignore[arg-type]
    assert PERMISSION_ORDER.index(request.permissions.mode) <= PERMISSION_ORDER.index(policy.max_permission)


def judge(data: Any, policy: Policy, agent: Agent) -> tuple[RunRequest, Admission] | str:
    """What was admitted, or why not."""
    try:
        request = parse_request(data)
        return request, policy.admit(request, agent)
    except RunError as refusal:
        return refusal.message


@pytest.mark.exhaustive
@given(data=requests, most=st.sampled_from(PERMISSION_ORDER[:-1]))
def test_what_is_admitted_was_lent(data: dict[str, Any], most: Any, root: Path) -> None:
    policy = Policy(
        ENVIRON,
        allow_env=frozenset({"LENT"}),
        allow_rules=RULES,
        allow_commands=lent_commands(["lent-server"]),
        workspace_roots=(root,),
        max_permission=most,
    )
    agent: Agent = ClaudeAgent(ENVIRON, lent=policy.allow_env)
    judged = judge(placed(data, root), policy, agent)
    event("refused" if isinstance(judged, str) else "admitted")
    if isinstance(judged, str):
        assert KEY not in judged
        return
    request, admission = judged
    lends_only(request, policy)
    assert admission.directory.is_relative_to(root)
    assert admission.untrusted is not None
    launch = agent.launch(RunKey(run="r", execution="e"), request, admission, PurePath("/files"), None)
    assert all(KEY not in word for word in launch.argv)
    flags = [word.partition("=")[0] for word in launch.argv[1:] if word.startswith("-")]
    assert set(flags) <= FLAGS
    assert (
        "--setting-sources=user" in launch.argv
        or request.permissions.mode == "read_only"
        or (request.options.get("setting_sources") is not None)
    )
    assert all(KEY.encode() not in data for data in launch.files.values())
    assert all(any(f"=/files/{name}" in word for word in launch.argv) for name in launch.files)
    assert [text.count("\n") for _, text in launch.first_input] == [1]
