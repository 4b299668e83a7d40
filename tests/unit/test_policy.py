"""What an operator allows: everything else is refused by name, and no secret is ever repeated."""

import os
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest
from pydantic import ValidationError

from activities.admission.pod_patterns import ClusterPattern, PodPattern, refused
from activities.admission.policy import MAX_SECRET_FILE, Policy
from activities.admission.ssh_patterns import SshPattern
from activities.admission.trust import sentence
from activities.agents.acp.agent import AcpAgent
from activities.agents.catalog import AGENTS as ROWS
from activities.agents.claude.agent import ClaudeAgent
from activities.agents.hermes.agent import HermesAgent
from activities.agents.process.agent import ProcessAgent
from activities.ports.admission import Admission
from activities.ports.agent import Agent
from activities.ports.place import PlaceInfo
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.request import PERMISSION_ORDER, Caps, PermissionMode, RunRequest
from steersman.contracts.runtime import SshRuntime

SECRET = "sk-very-secret"


def request(path: Path, **fields: Any) -> RunRequest:
    asked = {"agent": "claude", "prompt": "p", "workspace": {"path": str(path)}, **fields}
    return RunRequest.model_validate(asked)


def process(path: Path, **fields: Any) -> RunRequest:
    return request(path, agent="process", command=["true"], **fields)


AGENTS: dict[str, Agent] = {
    "claude": ClaudeAgent({"IS_SANDBOX": "1"}),
    "hermes": HermesAgent({}),
    "process": ProcessAgent(),
}


def admit(policy: Policy, asked: RunRequest) -> None:
    policy.admit(asked, AGENTS[asked.agent])


def refusal(policy: Policy, asked: RunRequest) -> str:
    with pytest.raises(InvalidRequest) as refused:
        admit(policy, asked)
    assert SECRET not in refused.value.message
    return refused.value.message


class TestHome:
    def test_it_goes_before_all_that_names_another(self, tmp_path: Path) -> None:
        policy = Policy({"CLAUDE_CONFIG_DIR": "/users", "OTHER": "/others"}, allow_env=frozenset({"CLAUDE_CONFIG_DIR"}))
        asked = request(tmp_path, home="isolated", env={"CLAUDE_CONFIG_DIR": "/elsewhere"})
        admission = policy.admit(asked, AGENTS["claude"], home=PurePath("/run/home"))
        assert (admission.environment["CLAUDE_CONFIG_DIR"], admission.home) == ("/run/home", PurePath("/run/home"))
        assert policy.admit(asked, AGENTS["claude"]).environment["CLAUDE_CONFIG_DIR"] == "/elsewhere"

    def test_an_agent_whose_row_has_none_is_refused(self, tmp_path: Path) -> None:
        asked = request(tmp_path, home="isolated")
        policy = Policy({}, kinds={**ROWS, "claude": replace(ROWS["claude"], home=None)})
        assert 'home: agent "claude" cannot be given one' in refusal(policy, asked)


class TestEnvironment:
    def test_the_worker_keeps_its_own_variables(self, tmp_path: Path) -> None:
        policy = Policy(
            {"PATH": "/bin", "HOME": "/h", "LC_X": "c", "DATABASE_URL": SECRET, "ANTHROPIC_API_KEY": SECRET}
        )
        assert policy.environment(process(tmp_path)) == {"PATH": "/bin", "HOME": "/h", "LC_X": "c"}
        assert policy.environment(request(tmp_path))["ANTHROPIC_API_KEY"] == SECRET

    def test_an_own_variable_of_the_agent_may_be_named(self, tmp_path: Path) -> None:
        policy = Policy({"ANTHROPIC_API_KEY": SECRET})
        asked = request(tmp_path, env={"MY_COPY": {"from_env": "ANTHROPIC_API_KEY"}})
        admit(policy, asked)
        assert policy.environment(asked)["MY_COPY"] == SECRET

    def test_another_agents_variable_may_not(self, tmp_path: Path) -> None:
        asked = process(tmp_path, env={"X": {"from_env": "ANTHROPIC_API_KEY"}})
        assert "env.X.from_env: ANTHROPIC_API_KEY" in refusal(Policy({"ANTHROPIC_API_KEY": SECRET}), asked)

    def test_what_the_operator_did_not_name_is_refused(self, tmp_path: Path) -> None:
        policy = Policy({"AWS_SECRET": SECRET})
        asked = process(tmp_path, env={"X": {"from_env": "AWS_SECRET"}})
        assert "env.X.from_env: AWS_SECRET is not allowed" in refusal(policy, asked)
        allowing = Policy({"AWS_SECRET": SECRET}, allow_env=frozenset({"AWS_SECRET"}))
        admit(allowing, asked)
        assert allowing.environment(asked)["X"] == SECRET

    def test_a_variable_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        policy = Policy({}, allow_env=frozenset({"NOT_THERE"}))
        assert "NOT_THERE" in refusal(policy, process(tmp_path, env={"X": {"from_env": "NOT_THERE"}}))

    @pytest.mark.parametrize(
        "name",
        [
            "ANTHROPIC_BASE_URL",
            "CLAUDE_CONFIG_DIR",
            "CLAUDE_CODE_EXECUTABLE",
            "STEERSMAN_MARK",
            "TEMPORAL_ADDRESS",
            "LD_PRELOAD",
            "ld_library_path",
            "DYLD_INSERT_LIBRARIES",
            "NODE_OPTIONS",
            "BUN_INSPECT",
            "SSL_CERT_FILE",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "BASH_ENV",
            "ENV",
            "PATH",
            "HTTPS_PROXY",
            "https_proxy",
            "IS_SANDBOX",
            "HOME",
            "XDG_CONFIG_HOME",
            "SHELL",
        ],
    )
    def test_what_could_redirect_the_operators_key_or_program(self, tmp_path: Path, name: str) -> None:
        for asked in (request(tmp_path, env={name: "/elsewhere"}), process(tmp_path, env={name: "/elsewhere"})):
            assert f"env.{name}: may not be set" in refusal(Policy({}), asked)
        admit(Policy({}, allow_env=frozenset({name})), process(tmp_path, env={name: "/elsewhere"}))

    def test_a_guarded_name_may_not_be_filled_from_another_variable(self, tmp_path: Path) -> None:
        policy = Policy({"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_MODEL": "m"})
        asked = request(tmp_path, env={"ANTHROPIC_BASE_URL": {"from_env": "ANTHROPIC_MODEL"}})
        assert "env.ANTHROPIC_BASE_URL" in refusal(policy, asked)

    @pytest.mark.parametrize("name", ["MY_VAR", "ENVIRONMENT", "DEBUG", "_X"])
    def test_an_ordinary_literal(self, tmp_path: Path, name: str) -> None:
        asked = process(tmp_path, env={name: "x"})
        admit(Policy({}), asked)
        assert Policy({}).environment(asked)[name] == "x"


class TestFiles:
    @pytest.fixture
    def secret(self, tmp_path: Path) -> Path:
        path = tmp_path / "allowed" / "token"
        path.parent.mkdir()
        path.write_text(SECRET + "\r\n\n")
        return path

    def asked(self, path: Path) -> RunRequest:
        return process(Path("/"), env={"TOKEN": {"from_file": str(path)}})

    def test_contents_without_the_last_newlines(self, secret: Path) -> None:
        policy = Policy({}, allow_file=(secret,))
        admit(policy, self.asked(secret))
        assert policy.environment(self.asked(secret))["TOKEN"] == SECRET

    def test_a_directory_allows_what_is_in_it(self, secret: Path) -> None:
        admit(Policy({}, allow_file=(secret.parent,)), self.asked(secret))

    def test_nothing_is_allowed_by_default(self, secret: Path) -> None:
        assert "env.TOKEN.from_file" in refusal(Policy({}), self.asked(secret))

    @pytest.mark.parametrize("way", ["../outside", "link", "allowed-not/token"])
    def test_ways_out_of_what_is_allowed(self, secret: Path, way: str) -> None:
        root = secret.parent.parent
        (root / "outside").write_text(SECRET)
        (root / "allowed-not").mkdir()
        (root / "allowed-not" / "token").write_text(SECRET)
        (secret.parent / "link").symlink_to(root / "outside")
        path = root / way if way.startswith("allowed-not") else secret.parent / way
        assert "env.TOKEN.from_file" in refusal(Policy({}, allow_file=(secret.parent,)), self.asked(path))

    def test_an_allowed_symlink_allows_its_target(self, secret: Path) -> None:
        link = secret.parent.parent / "link"
        link.symlink_to(secret)
        admit(Policy({}, allow_file=(link,)), self.asked(link))

    @pytest.mark.parametrize("content", [b"x" * (MAX_SECRET_FILE + 1), b"a\0b"], ids=["too large", "NUL"])
    def test_what_no_variable_can_hold(self, secret: Path, content: bytes) -> None:
        secret.write_bytes(content)
        assert "larger than 64 KiB or holds a NUL" in refusal(Policy({}, allow_file=(secret,)), self.asked(secret))

    def test_the_largest_that_is_taken(self, secret: Path) -> None:
        secret.write_bytes(b"x" * MAX_SECRET_FILE)
        admit(Policy({}, allow_file=(secret,)), self.asked(secret))

    def test_what_cannot_be_read(self, secret: Path) -> None:
        policy = Policy({}, allow_file=(secret.parent,))
        assert "cannot be read" in refusal(policy, self.asked(secret.parent / "none"))
        assert "cannot be read" in refusal(policy, self.asked(secret.parent))

    @pytest.mark.timeout(10)
    def test_a_pipe_nobody_writes_to_does_not_hang_the_worker(self, secret: Path) -> None:
        pipe = secret.parent / "pipe"
        os.mkfifo(pipe)
        assert "env.TOKEN" in refusal(Policy({}, allow_file=(secret.parent,)), self.asked(pipe))


class TestWorkspace:
    def test_roots(self, tmp_path: Path) -> None:
        inside, outside = tmp_path / "root" / "a", tmp_path / "root-not"
        inside.mkdir(parents=True)
        outside.mkdir()
        policy = Policy({}, workspace_roots=(tmp_path / "root",))
        admit(policy, process(inside))
        admit(policy, process(tmp_path / "root"))
        assert "workspace.path" in refusal(policy, process(outside))
        assert "workspace.path" in refusal(policy, process(inside / ".." / ".." / "root-not"))

    def test_a_symlink_out_of_the_root(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.mkdir()
        (root / "out").symlink_to(tmp_path)
        policy = Policy({}, workspace_roots=(root,))
        assert "--workspace-root" in refusal(policy, process(root / "out"))
        with pytest.raises(InvalidRequest, match=r"options\.add_dirs"):
            admit(policy, request(root, options={"add_dirs": [str(root / "out")]}))

    def test_missing_and_no_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "does not exist" in refusal(Policy({}), process(tmp_path / "none"))
        assert "not a directory" in refusal(Policy({}), process(tmp_path / "file"))
        with pytest.raises((InvalidRequest, WorkspaceError), match=r"workspace\.path"):
            admit(Policy({}), process(tmp_path / "file" / "below"))

    def test_a_loop_of_symlinks(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        with pytest.raises((InvalidRequest, WorkspaceError), match=r"workspace\.path"):
            admit(Policy({}), process(tmp_path / "a"))


@pytest.mark.parametrize("most", PERMISSION_ORDER)
@pytest.mark.parametrize("mode", PERMISSION_ORDER)
def test_the_highest_permission(tmp_path: Path, mode: PermissionMode, most: PermissionMode) -> None:
    policy = Policy({}, max_permission=most)
    asked = request(tmp_path, permissions={"mode": mode})
    if mode == "ask" and most == "accept_edits":
        assert "--allow-approvals" in refusal(policy, asked)
    elif PERMISSION_ORDER.index(mode) <= PERMISSION_ORDER.index(most):
        admit(policy, asked)
    else:
        assert f'permissions.mode: "{mode}"' in refusal(policy, asked)


@pytest.mark.parametrize("most", PERMISSION_ORDER[:-1])
def test_an_arbitrary_command_has_every_permission(tmp_path: Path, most: PermissionMode) -> None:
    assert "command: `true` would run without asking anybody" in refusal(
        Policy({}, max_permission=most), process(tmp_path)
    )


@pytest.mark.parametrize("most", PERMISSION_ORDER[:-1])
def test_an_agent_that_asks_nobody_has_every_permission(tmp_path: Path, most: PermissionMode) -> None:
    asked = request(tmp_path, agent="hermes", permissions={"mode": "full"})
    assert 'agent: "hermes" asks for no approvals' in refusal(Policy({}, max_permission=most), asked)


def test_an_operators_cap_of_cost_refuses_no_further_agent(tmp_path: Path) -> None:
    policy = Policy({}, caps=Caps(cost_usd=5))
    acp = {"agent": "acp", "command": ["true"]}
    asked = policy.caps.held(request(tmp_path, agent="claude", prompt="p", fallback=[acp]))
    assert asked.limits.cost_usd == 5
    agents = {"claude": AGENTS["claude"], "acp": AcpAgent()}
    assert policy.check_all(asked, agents, is_capped=True)[0] == tmp_path
    with pytest.raises(InvalidRequest, match=r"fallback\.0: .*limits\.cost_usd"):
        policy.check_all(asked, agents)


def test_an_agent_that_is_not_allowed_here(tmp_path: Path) -> None:
    policy = Policy({}, agents=frozenset({"claude"}))
    admit(policy, request(tmp_path))
    assert 'agent: "process" is not allowed' in refusal(policy, process(tmp_path))


def test_a_runtime_that_is_not_allowed_here(tmp_path: Path) -> None:
    admit(Policy({}, runtimes=frozenset({"local"})), request(tmp_path))
    said = refusal(Policy({}, runtimes=frozenset()), request(tmp_path))
    assert said == 'runtime.kind: "local" is not allowed on this worker (see --runtime)'


def test_a_policy_does_not_show_the_workers_environment() -> None:
    assert SECRET not in repr(Policy({"KEY": SECRET}))


class TestOtherMachines:
    """runtime ssh: an operator's patterns, and what a machine gets of this one."""

    THERE = PlaceInfo(
        "place",
        {"PATH": "/there", "HOME": "/home/there", "ANTHROPIC_MODEL": "theirs", "IS_SANDBOX": "1", "OTHER": "x"},
        {"claude": "/there/claude"},
    )

    @pytest.mark.parametrize(
        ("pattern", "named", "allowed"),
        [
            ("build", {"address": "build"}, True),
            ("build", {"address": "BUILD"}, False),
            ("build", {"address": "build2"}, False),
            ("build*", {"address": "build2"}, True),
            ("build*", {"address": "build2", "user": "root"}, False),
            ("build*", {"address": "build2", "port": 2222}, False),
            ("*@build", {"address": "build", "user": "me@corp"}, True),
            ("*@build:*", {"address": "build"}, True),
            ("me@build", {"address": "build"}, False),
            ("me@build:22*", {"address": "build", "user": "me", "port": 2222}, False),
            ("me@build:*", {"address": "build", "user": "me", "port": 2222}, True),
            ("me@build:2222", {"address": "build", "user": "me", "port": 2222}, True),
            ("me@build:2222", {"address": "build", "user": "me", "port": 22}, False),
            ("[::1]:22", {"address": "::1", "port": 22}, True),
            ("b.ild", {"address": "build"}, False),
        ],
    )
    def test_patterns(self, pattern: str, named: dict[str, Any], allowed: bool) -> None:  # noqa: FBT001
        try:
            fits = SshPattern.of(pattern).fits(SshRuntime(kind="ssh", **named))
        except ValueError:
            fits = False
        assert fits == allowed

    @pytest.mark.parametrize("pattern", ["", "@build", "a@b@c", "build:", "build:x", "[::1"])
    def test_what_is_no_pattern(self, pattern: str) -> None:
        with pytest.raises(ValueError, match="is not"):
            SshPattern.of(pattern)

    def test_nothing_is_allowed_by_default(self, tmp_path: Path) -> None:
        asked = process(tmp_path, runtime={"kind": "ssh", "address": "build"})
        assert refusal(Policy({}), asked).startswith("runtime.address: build is not allowed")
        assert refusal(Policy({}, runtimes=frozenset({"local"})), asked).startswith('runtime.kind: "ssh" is not')

    @pytest.mark.parametrize("directory", ["/a/../b", "/..", "/a/..", "a/b"])
    def test_a_directory_is_named_directly(self, directory: str) -> None:
        with pytest.raises(ValidationError, match="directory"):
            SshRuntime(kind="ssh", address="build", directory=directory)
        assert SshRuntime(kind="ssh", address="build", directory="/a..b/...").directory == "/a..b/..."

    def test_a_key_has_to_be_lent(self, tmp_path: Path) -> None:
        (key := tmp_path / "key").write_text("k")
        runtime = SshRuntime(kind="ssh", address="build", identity_file=str(key))
        patterns = (SshPattern.of("*"),)
        with pytest.raises(InvalidRequest, match=r"runtime\.identity_file: .* is not allowed"):
            Policy({}, allow_ssh=patterns).check_runtime(runtime)
        assert Policy({}, allow_ssh=patterns, allow_file=(tmp_path,)).check_runtime(runtime) == key

    @pytest.mark.parametrize(
        "runtime",
        [SshRuntime(kind="ssh", address="build"), KubernetesRuntime(kind="kubernetes", namespace="n", image="i")],
        ids=["ssh", "kubernetes"],
    )
    def test_below_full_its_python_is_no_program_of_whoever_asks(self, runtime: SshRuntime | KubernetesRuntime) -> None:
        """Of a copy, say, that an earlier run has left there."""
        lent: dict[str, Any] = {
            "allow_ssh": (SshPattern.of("*"),),
            "allow_kubernetes": (ClusterPattern.of("*/*"),),
            "allow_pod": (PodPattern.of("image=*"),),
        }
        for name in ("python", "python3", "python3.12"):
            Policy({}, max_permission="accept_edits", **lent).check_runtime(runtime.model_copy(update={"python": name}))
        for name in ("/copies/evil", "evil", "./python3", "~/python3", "python3.12.1/evil", "python3-evil"):
            asked = runtime.model_copy(update={"python": name})
            Policy({}, **lent).check_runtime(asked)
            with pytest.raises(InvalidRequest, match=r"^runtime\.python: "):
                Policy({}, max_permission="accept_edits", **lent).check_runtime(asked)

    @pytest.mark.parametrize(
        ("pattern", "fitting", "others"),
        [
            (
                "agent:*",
                ["agent:1", "agent:1@sha256:ab"],
                ["agent:5000/x/y:1", "agent:5000/x", "agents:1", "agent"],
            ),
            ("r.example/agent:*", ["r.example/agent:1"], ["r.example/agent:1/x", "r.example/other:1"]),
            ("r.example:5000/*", ["r.example:5000/a/b:1"], ["r.example:5001/a:1", "r.example/a:1"]),
            ("r.example/a@sha256:*", ["r.example/a@sha256:ab"], ["r.example/a:1", "r.example/a:1@sha256:ab"]),
            ("*", ["agent:5000/x:1", "agent"], []),
        ],
    )
    def test_an_images_tag_is_no_port(self, pattern: str, fitting: list[str], others: list[str]) -> None:
        for image in (*fitting, *others):
            runtime = KubernetesRuntime(kind="kubernetes", image=image)
            assert (refused([PodPattern("image", pattern)], runtime) is None) == (image in fitting), image

    def test_its_environment_is_its_own_but_for_the_agents_variables(self, tmp_path: Path) -> None:
        here = {"PATH": "/here", "ANTHROPIC_API_KEY": SECRET, "CLAUDE_CONFIG_DIR": "/here/c", "TZ": "here"}
        policy = Policy(here, allow_ssh=(SshPattern.of("*"),))
        asked = request(tmp_path, runtime={"kind": "ssh", "address": "build"}, env={"MINE": "m"})
        assert policy.environment(asked, self.THERE) == {
            "PATH": "/there",
            "HOME": "/home/there",
            "ANTHROPIC_MODEL": "theirs",
            "ANTHROPIC_API_KEY": SECRET,
            "IS_SANDBOX": "1",
            "MINE": "m",
        }

    def test_directories_of_this_machine_are_refused(self, tmp_path: Path) -> None:
        policy = Policy({}, allow_ssh=(SshPattern.of("*"),))
        fields = {"runtime": {"kind": "ssh", "address": "build"}, "options": {"add_dirs": [str(tmp_path)]}}
        assert "options.add_dirs" in refusal(policy, request(tmp_path, **fields))

    def test_a_copy_there_that_an_agent_has_worked_in_is_trusted_in_nothing(self, tmp_path: Path) -> None:
        policy = Policy({}, allow_ssh=(SshPattern.of("*"),))
        asked = request(tmp_path, runtime={"kind": "ssh", "address": "build"})
        copy = PurePath("/there/copy")
        first = policy.admit(asked, AGENTS["claude"], copy, self.THERE)
        second = policy.admit(asked, AGENTS["claude"], copy, self.THERE, is_first=False)
        assert first.untrusted
        assert second.untrusted
        assert (first.directory, first.untrusted.leads_out, second.untrusted.leads_out) == (copy, False, True)


class TestAbove:
    """What lies above a trusted workspace, and would be loaded with it."""

    AGENT = AGENTS["claude"]

    def admitted(self, path: Path, *trusted: Path, home: Path | None = None, **fields: Any) -> Admission:
        policy = Policy({"HOME": str(home or "/nonexistent")}, trusted=lambda: trusted)
        return policy.admit(request(path, **fields), self.AGENT)

    def test_nobody_trusts_it(self, tmp_path: Path) -> None:
        workspace = tmp_path / "shared" / "workspace"
        workspace.mkdir(parents=True)
        assert self.admitted(workspace, workspace).untrusted is None
        (tmp_path / ".mcp.json").touch()
        (tmp_path / "shared" / ".claude" / "skills").mkdir(parents=True)
        found = self.admitted(workspace, workspace).untrusted
        assert found
        told = sentence(str(workspace), found)
        assert told
        assert f"{tmp_path}/shared/.claude/skills, {tmp_path}/.mcp.json not loaded" in told
        assert told.endswith(f"steer trust {tmp_path}")
        assert self.admitted(workspace, workspace, tmp_path).untrusted is None

    def test_of_directories_above_a_repository_it_is_less(self, tmp_path: Path) -> None:
        workspace = tmp_path / "workspace"
        (workspace / ".git").mkdir(parents=True)
        (tmp_path / ".claude" / "skills").mkdir(parents=True)
        assert self.admitted(workspace, workspace).untrusted is None
        (tmp_path / ".mcp.json").touch()
        assert self.admitted(workspace, workspace).untrusted

    def test_a_further_directory_is_the_one_to_trust(self, tmp_path: Path) -> None:
        workspace, further = tmp_path / "workspace", tmp_path / "further"
        for each in (workspace, further):
            each.mkdir()
        (workspace / ".mcp.json").touch()
        options = {"add_dirs": [str(further)]}
        found = self.admitted(workspace, workspace, options=options).untrusted
        assert found
        told = sentence(str(workspace), found)
        assert told
        assert told.endswith(f".mcp.json not loaded. To trust it: steer trust {further}")
        assert self.admitted(workspace, workspace, further, options=options).untrusted is None

    def test_the_home_of_the_workers_user_is_its_own(self, tmp_path: Path) -> None:
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        (tmp_path / ".mcp.json").touch()
        assert self.admitted(workspace, workspace, home=tmp_path).untrusted is None

    def test_a_request_that_names_settings_of_the_workspace_gets_those_of_the_user(self, tmp_path: Path) -> None:
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        (tmp_path / ".mcp.json").touch()
        asked = request(workspace, options={"setting_sources": ["user", "project"]})
        admission = Policy({}, trusted=lambda: (workspace,)).admit(asked, self.AGENT)
        launch = self.AGENT.launch(RunKey(run="r", execution="e"), asked, admission, PurePath("/f"), None)
        assert "--setting-sources=user" in launch.argv
