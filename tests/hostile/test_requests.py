"""What a request asks for beyond what its operator gives: refused by name, whatever way it takes."""

from pathlib import Path
from typing import Any

import pytest

from activities.admission.policy import Policy, lent_commands
from activities.agents.claude.agent import ClaudeAgent
from activities.agents.process.agent import ProcessAgent
from activities.ports.admission import Admission
from activities.ports.agent import Agent
from activities.ports.runtime import Launch
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import Caps, PermissionMode, RunRequest, parse_request
from tests.unit.test_policy import SECRET

BELOW_FULL: tuple[PermissionMode, ...] = ("read_only", "ask", "accept_edits")
ENVIRON = {
    "ANTHROPIC_API_KEY": SECRET,
    "TICKETS": SECRET,
    "PATH": "/bin:/usr/bin",
    "HOME": "/nonexistent",
    "IS_SANDBOX": "1",
}

NAMES = """
GIT_COMMON_DIR GIT_TRACE GIT_DIR GIT_WORK_TREE GIT_CONFIG_COUNT GIT_PROXY_COMMAND GIT_TEMPLATE_DIR SHELLOPTS
BASHOPTS PS4 BASH_ENV BASH_FUNC_ls PROMPT_COMMAND IFS CDPATH ENV ZDOTDIR FPATH LD_PRELOAD LD_AUDIT GCONV_PATH
LOCPATH HOSTALIASES RES_OPTIONS MALLOC_TRACE PYTHONPATH PYTHONSTARTUP PYTHONBREAKPOINT PERL5LIB PERL5OPT RUBYOPT
RUBYLIB GEM_PATH NODE_OPTIONS NODE_PATH NPM_CONFIG_SCRIPT_SHELL npm_config_registry YARN_RC_FILENAME
JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS MAVEN_OPTS GRADLE_OPTS CARGO_HOME RUSTC_WRAPPER GOFLAGS GOPROXY
CGO_CFLAGS CC CXX CMAKE_GENERATOR MAKEFLAGS MAKEFILES DOTNET_STARTUP_HOOKS PIP_INDEX_URL UV_INDEX_URL PHPRC LUA_INIT
LESSOPEN PAGER MANPAGER EDITOR VISUAL BROWSER SSH_ASKPASS SSH_AUTH_SOCK GNUPGHOME AWS_ENDPOINT_URL AWS_CONFIG_FILE
GOOGLE_CLOUD_PROJECT KUBECONFIG DOCKER_HOST CURL_HOME WGETRC OPENSSL_CONF SSL_CERT_FILE REQUESTS_CA_BUNDLE
HTTPS_PROXY all_proxy OTEL_EXPORTER_OTLP_ENDPOINT CLAUDE_CONFIG_DIR CLAUDECODE ANTHROPIC_BASE_URL MCP_TIMEOUT
RIPGREP_CONFIG_PATH TMPDIR PWD TERMINFO XDG_CONFIG_HOME TEMPORAL_ADDRESS STEERSMAN_MARK
"""
"""Each decides where keys go, what is loaded, or which program runs."""


def agents(*lent: str) -> dict[str, Agent]:
    return {"claude": ClaudeAgent(ENVIRON, lent=frozenset(lent)), "process": ProcessAgent()}


def asked(path: Path, mode: PermissionMode = "read_only", **fields: Any) -> RunRequest:
    permissions = {"mode": mode, **fields.pop("permissions", {})}
    return parse_request(
        {"agent": "claude", "prompt": "p", "workspace": {"path": str(path)}, "permissions": permissions, **fields}
    )


def process(path: Path, *command: str, **fields: Any) -> RunRequest:
    return parse_request({"agent": "process", "workspace": {"path": str(path)}, "command": list(command), **fields})


def admit(policy: Policy, request: RunRequest, *lent: str) -> Admission:
    return policy.admit(request, agents(*lent)[request.agent])


def refused(policy: Policy, request: RunRequest, *lent: str) -> str:
    with pytest.raises(InvalidRequest) as refusal:
        admit(policy, request, *lent)
    assert SECRET not in refusal.value.message
    return refusal.value.message


def launched(request: RunRequest, path: Path) -> Launch:
    agent = agents()["claude"]
    return agent.launch(RunKey(run="r", execution="e"), request, Admission({}, path), path, None)


class TestRules:
    @pytest.mark.parametrize("mode", BELOW_FULL)
    @pytest.mark.parametrize(
        "rule", ["Bash", "Bash(make *)", "Write", "Edit(//etc/**)", "Read", "mcp__a__b", "WebFetch"]
    )
    def test_below_full_each_is_the_operators_to_lend(self, tmp_path: Path, mode: PermissionMode, rule: str) -> None:
        request = asked(tmp_path, mode, permissions={"allow": [rule]})
        assert f'permissions.allow: "{rule}"' in refused(Policy(ENVIRON, max_permission=mode), request)
        admit(Policy(ENVIRON, max_permission=mode, allow_rules=frozenset({rule})), request)
        admit(Policy(ENVIRON), request)

    def test_a_tool_that_is_lent_lends_its_rules_and_a_rule_only_itself(self, tmp_path: Path) -> None:
        request = asked(tmp_path, permissions={"allow": ["Bash(rm -rf /)"]})
        admit(Policy(ENVIRON, max_permission="ask", allow_rules=frozenset({"Bash"})), request)
        for lent in ("Bash(make *)", "Bash(rm *)", "Ba", "BashOutput"):
            refused(Policy(ENVIRON, max_permission="ask", allow_rules=frozenset({lent})), request)

    @pytest.mark.parametrize(
        "rule",
        [
            "Foo(",
            "Foo(()",
            "Foo)",
            "Foo(a)b",
            "Foo(a),Bash",
            "Bash,Write",
            "Bash Write",
            "Foo(a (b), c)",
            "Foo(a (b) c)",
            "(Bash)",
            "Bash(a)\n",
            "Bash(a\nb)",
            "--dangerously-skip-permissions",
            "-p",
            " Bash",
            "Bash(a))",
        ],
    )
    @pytest.mark.parametrize("kind", ["allow", "deny"])
    def test_one_that_could_swallow_or_add_others_is_no_rule(self, tmp_path: Path, kind: str, rule: str) -> None:
        with pytest.raises(InvalidRequest, match=f"permissions.{kind}"):
            asked(tmp_path, permissions={kind: [rule]})

    @pytest.mark.parametrize(
        "rule", ["Bash(npm run *)", "Bash(echo (x))", "mcp__s__*", "WebFetch(domain:a.b)", "Read(~/x)"]
    )
    def test_an_honest_one_is_taken(self, tmp_path: Path, rule: str) -> None:
        assert asked(tmp_path, permissions={"allow": [rule], "deny": [rule]}).permissions.allow == (rule,)

    def test_ours_come_first_and_each_is_an_argument_of_its_own(self, tmp_path: Path) -> None:
        argv = launched(asked(tmp_path, permissions={"deny": ["Bash(a (b))", "Task"]}), tmp_path).argv
        denied = [word.partition("=")[2] for word in argv if word.startswith("--disallowedTools")]
        assert denied[:2] == ["AskUserQuestion", "EnterPlanMode"]
        assert denied[-2:] == ["Bash(a (b))", "Task"]


class TestPrograms:
    @pytest.mark.parametrize(
        "server",
        [
            {"command": "sh", "args": ["-c", "id"]},
            {"type": "stdio", "command": "sh"},
            {"type": "http", "url": "https://a.example", "headersHelper": "sh -c id"},
            {"url": "https://a.example", "headers": {}, "oauth": {}},
            {"type": "http", "url": "https://a.example", "command": "sh"},
            {"type": "sdk", "name": "x"},
            {"type": "ws", "url": "wss://a.example"},
            {"url": "file:///etc/passwd"},
            {"url": ["https://a.example"]},
            {"type": "http", "url": "https://a.example", "headers": "x"},
            {},
        ],
    )
    @pytest.mark.parametrize("mode", BELOW_FULL)
    def test_an_mcp_server_that_is_more_than_an_address(
        self, tmp_path: Path, mode: PermissionMode, server: dict[str, Any]
    ) -> None:
        request = asked(tmp_path, mode, options={"mcp_servers": {"evil": server}})
        assert "options.mcp_servers.evil" in refused(Policy(ENVIRON, max_permission=mode), request)

    @pytest.mark.parametrize("server", [{"url": "https://a.example"}, {"type": "sse", "url": "http://a.example/x"}])
    def test_an_address_is_no_program(self, tmp_path: Path, server: dict[str, Any]) -> None:
        request = asked(tmp_path, options={"mcp_servers": {"far": {**server, "headers": {"X": "y"}}}})
        admit(Policy(ENVIRON, max_permission="read_only"), request)

    @pytest.mark.parametrize("sources", [["project"], ["local"], ["user", "project"]])
    def test_settings_of_the_workspace_are_programs(self, tmp_path: Path, sources: list[str]) -> None:
        request = asked(tmp_path, "accept_edits", options={"setting_sources": sources})
        trusting = Policy(ENVIRON, max_permission="accept_edits", trusted=lambda: (tmp_path,))
        assert "options.setting_sources" in refused(trusting, request)
        assert "is not trusted" in refused(Policy(ENVIRON), request)
        admit(Policy(ENVIRON, trusted=lambda: (tmp_path,)), request)

    @pytest.mark.parametrize(
        "command",
        [
            ["sort", "-u"],
            ["sh", "-c", "sort -u"],
            ["sh", "-c", "exec 2>&1\nsort -u"],
            ["sh", "-c", 'exec "$@" 2>&1', "sh", "sort", "-u"],
        ],
    )
    def test_a_command_that_is_lent_runs_as_it_is_and_no_other(self, tmp_path: Path, command: list[str]) -> None:
        policy = Policy(ENVIRON, max_permission="ask", allow_commands=lent_commands(["sort -u"]))
        admit(policy, process(tmp_path, *command))
        for other in ([*command, "x"], command[:-1], ["sh", "-c", "sort -u; id"]):
            assert "without asking anybody" in refused(policy, process(tmp_path, *other))

    def test_an_mcp_server_with_a_lent_command_may_set_no_variables(self, tmp_path: Path) -> None:
        policy = Policy(ENVIRON, max_permission="ask", allow_commands=lent_commands(["tickets serve"]))
        server = {"command": "tickets", "args": ["serve"]}
        admit(policy, asked(tmp_path, "ask", options={"mcp_servers": {"t": server}}))
        preloaded = {**server, "env": {"LD_PRELOAD": "/tmp/x.so"}}
        refused(policy, asked(tmp_path, "ask", options={"mcp_servers": {"t": preloaded}}))


class TestVariables:
    @pytest.mark.parametrize("mode", BELOW_FULL)
    @pytest.mark.parametrize("name", ["GIT_COMMON_DIR", "PS4", "MY_VAR", "X"])
    def test_below_full_only_under_names_that_are_lent(self, tmp_path: Path, mode: PermissionMode, name: str) -> None:
        request = asked(tmp_path, mode, env={name: "x"})
        assert f"env.{name}" in refused(Policy(ENVIRON, max_permission=mode), request)
        admit(Policy(ENVIRON, max_permission=mode, allow_env=frozenset({name})), request)

    def test_below_full_the_key_keeps_its_name(self, tmp_path: Path) -> None:
        copied = asked(tmp_path, env={"GH_TOKEN": {"from_env": "ANTHROPIC_API_KEY"}})
        assert "env.GH_TOKEN" in refused(Policy(ENVIRON, max_permission="ask"), copied)
        own = asked(tmp_path, env={"ANTHROPIC_API_KEY": {"from_env": "ANTHROPIC_API_KEY"}})
        admit(Policy(ENVIRON, max_permission="ask"), own)

    @pytest.mark.parametrize(
        "name",
        NAMES.split(),
    )
    def test_with_full_what_decides_where_keys_go_or_what_runs_is_refused(self, tmp_path: Path, name: str) -> None:
        assert f"env.{name}" in refused(Policy(ENVIRON), asked(tmp_path, env={name: "/tmp/x"}))

    @pytest.mark.parametrize("where", ["headers", "env"])
    def test_an_mcp_server_never_gets_the_agents_key(self, tmp_path: Path, where: str) -> None:
        server = {"command": "x"} if where == "env" else {"type": "http", "url": "https://evil.example"}
        for variable in ("ANTHROPIC_API_KEY", "PATH", "HOME"):
            servers = {"evil": {**server, where: {"X": {"from_env": variable}}}}
            request = asked(tmp_path, options={"mcp_servers": servers})
            assert "lends to MCP servers" in refused(Policy(ENVIRON), request, "TICKETS")
        lent = {"t": {**server, where: {"X": {"from_env": "TICKETS"}}}}
        admit(Policy(ENVIRON), asked(tmp_path, options={"mcp_servers": lent}), "TICKETS")


class TestCaps:
    def test_what_an_operator_caps_no_request_exceeds(self, tmp_path: Path) -> None:
        caps = Caps(cost_usd=5, duration_s=60, lease_s=100, stop_s=2)
        greedy = asked(
            tmp_path,
            limits={"cost_usd": 1e6, "duration_s": 1e6},
            lease_s=3e8,
            stop={"terminate_after_s": 3600, "kill_after_s": 3600},
        )
        held = caps.held(greedy)
        assert (held.limits.cost_usd, held.limits.duration_s, held.lease_s) == (5, 60, 100)
        assert (held.stop.terminate_after_s, held.stop.kill_after_s) == (2, 2)
        silent = caps.held(asked(tmp_path))
        assert (silent.limits.cost_usd, silent.limits.duration_s, silent.lease_s) == (5, 60, 100)

    def test_less_stays_less_and_nothing_changes_without_a_cap(self, tmp_path: Path) -> None:
        modest = asked(tmp_path, limits={"cost_usd": 1, "duration_s": 2}, lease_s=10)
        assert Caps(cost_usd=5, duration_s=60, lease_s=100, stop_s=2).held(modest) == modest
        assert Caps().held(modest) is modest
        assert Caps(cost_usd=5).held(process(tmp_path, "true")).limits.cost_usd is None
