"""What this worker's operator allows to requests. What is not allowed is refused with InvalidRequest, by its field."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from activities.admission import trust
from activities.admission.pod_patterns import ClusterPattern, PodPattern, refused
from activities.admission.ssh_patterns import SshPattern, is_allowed
from activities.admission.variables import BASE_ENV, is_guarded
from activities.admission.webhook_patterns import Target, WrongUrl, checked
from activities.agents.agent_kind import AgentKind
from activities.agents.catalog import AGENTS
from activities.ports.admission import Admission, Program
from activities.ports.agent import Agent
from activities.ports.place import PlaceInfo
from activities.store import disk
from activities.workspaces.carry.session_program import Failed
from activities.workspaces.carry.sessions import session_at
from activities.workspaces.git.allowed_roots import AllowedRoots
from steersman.contracts.agents import CAPABILITIES, VARIABLES_OF_MACHINES
from steersman.contracts.errors import AgentNotInstalled, InvalidRequest, RunError, WorkspaceError
from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.loop import Verify
from steersman.contracts.notices import Webhook
from steersman.contracts.request import (
    PERMISSION_ORDER,
    Caps,
    PermissionMode,
    RunRequest,
)
from steersman.contracts.runtime import RUNTIMES, Runtime
from steersman.contracts.variables import FromEnv, FromFile

MAX_SECRET_FILE = 64 * 1024
PYTHON = re.compile(r"python3?(\.\d{1,2})?")


def _in_no_copy(agent: str, session: str) -> None:
    """As `Policy.held`, of a host without copies."""


@dataclass(frozen=True)
class Policy:
    """Read once from flags and STEERSMAN_* variables: see workers/settings. `trusted` is called for each process."""

    environ: Mapping[str, str] = field(repr=False)
    allow_env: frozenset[str] = frozenset()
    allow_file: tuple[Path, ...] = ()
    allow_rules: frozenset[str] = frozenset()
    allow_commands: frozenset[tuple[str, ...]] = frozenset()
    allow_approvals: bool = False
    workspace_roots: tuple[Path, ...] = (Path("/"),)
    trusted: Callable[[], Sequence[Path]] = tuple
    held: Callable[[str, str], Path | None] = _in_no_copy
    """The workspace of an agent's session that was held in a copy of it; None where no such session is known."""
    git_roots: tuple[Path, ...] = ()
    """Git directories of workspaces may lie here, too."""
    agents: frozenset[str] = frozenset(CAPABILITIES)
    kinds: Mapping[str, AgentKind] = field(default_factory=lambda: AGENTS, repr=False)
    """The rows of all agents that this worker knows, those that requests may not name among them."""
    runtimes: frozenset[str] = frozenset(RUNTIMES)
    allow_ssh: tuple[SshPattern, ...] = ()
    allow_kubernetes: tuple[ClusterPattern, ...] = ()
    allow_pod: tuple[PodPattern, ...] = ()
    allow_webhooks: tuple[Target, ...] = ()
    """Beginnings of the addresses that requests may have told of their runs."""
    max_permission: PermissionMode = "full"
    caps: Caps = field(default_factory=Caps)

    def admit(
        self,
        request: RunRequest,
        agent: Agent,
        copy: PurePath | None = None,
        place: PlaceInfo | None = None,
        *,
        is_first: bool = True,
        home: PurePath | None = None,
    ) -> Admission:
        """What the request gets, if it may run here. Scans the workspace, so it is not for an event loop.

        `copy`: the copy or worktree of the workspace that the agent works in. It is trusted as the workspace is.
        `place`: the machine that it is on; None for this one. `is_first`: no process of the run has worked in it yet.
        `home`: where the agent keeps its own, there; None: as its user has it.

        Raises what `check` does.
        """
        worktree = Path(copy) if copy and request.workspace.worktree is not None else None
        directory, further = self.check(request, agent, worktree)
        untrusted = None
        doubted = self._doubted(agent, (directory, *further))
        works_in = Path(copy or directory)
        above = self._above(agent, works_in) if doubted is None and place is None else ()
        if doubted or above:
            # What is elsewhere cannot be scanned: before the first process it is what the workspace is.
            scanned = Path(copy) if copy and place is None else directory
            roots = (scanned, *self.workspace_roots) if copy else self.workspace_roots
            untrusted = trust.untrusted(scanned, agent.files, AllowedRoots.of(roots, self.git_roots))
            if doubted != directory:
                to_trust = doubted or Path(os.path.commonpath([works_in, *above]))
                untrusted = replace(untrusted, above=above, to_trust=to_trust)
            if place and not is_first:
                untrusted = replace(untrusted, leads_out=True, git_runs_programs=True)
        environment = self.environment(request, place)
        if home is not None and (variables := self.kinds[agent.name].home) is not None:
            environment |= variables(home)
        return Admission(
            environment, copy or directory, further, untrusted, restricted=self.lends, place=place, home=home
        )

    def check(self, request: RunRequest, agent: Agent, worktree: Path | None = None) -> tuple[Path, tuple[Path, ...]]:
        """The workspace and the other directories, resolved, if the request may run here. `worktree`: where it works.

        Raises InvalidRequest naming what is wrong or not allowed, WorkspaceError for an unusable directory,
        AgentNotInstalled.
        """
        if request.agent not in self.agents:
            raise InvalidRequest(f'agent: "{request.agent}" is not allowed on this worker (see --agent)')
        kind = self.kinds[request.agent]
        kind.check(request)
        self.check_runtime(request.runtime)
        directory = self.workspace(request.workspace.path)
        programs = agent.programs(request)
        if kind.at_most.permissions:
            self._check_mode(request.permissions.mode)
        elif self.lends and not programs:
            raise InvalidRequest(
                f'agent: "{request.agent}" asks for no approvals, and "full" is more than this worker allows '
                "(see --max-permission)"
            )
        for program in programs:
            self._check_program(program)
        for rule in request.permissions.allow:
            self._check_rule(rule)
        further = tuple(self._resolve(each, "options.add_dirs") for each in agent.directories(request))
        if further and request.runtime.kind != "local":
            raise InvalidRequest("options.add_dirs: these directories are not on the machine that runtime names")
        for name, value in request.env.items():
            self._check_env(request.agent, name, value)
        self._check_notify(request)
        agent.check(request)  # last: it says what is on this host
        works_in = worktree or directory
        if self.lends and request.session is not None and not self._has_held(agent, request.session, works_in):
            raise InvalidRequest(f"session: no conversation {request.session} was held in this workspace")
        named = next((each.field for each in programs if each.of_workspace), None)
        if named and (doubted := self._doubted(agent, (directory, *further))):
            raise InvalidRequest(f"{named}: {doubted} is not trusted (see steer trust, --trust)")
        return directory, further

    def capped(self, request: RunRequest) -> RunRequest:
        """The request within the operator's caps, that of cost where any of its agents reports cost: see `part`."""
        agents = (request.agent, *(each.agent for each in request.fallback))
        can = self.kinds[request.agent].at_most
        cost = any(self.kinds[agent].at_most.cost for agent in agents if agent in self.kinds)
        return self.caps.held(request, can.model_copy(update={"cost": cost}))

    def part(self, request: RunRequest, number: int) -> RunRequest:
        """A request that the operator's caps were put on, as one of its agents has it: a limit of cost that one which
        reports none has is a cap's, as such a request is refused.
        """
        part = request.of_part(number)
        if part.agent not in self.kinds or self.kinds[part.agent].at_most.cost:
            return part
        return part.model_copy(update={"limits": part.limits.model_copy(update={"cost_usd": None})})

    def check_all(
        self,
        request: RunRequest,
        agents: Mapping[str, Agent],
        worktree: Path | None = None,
        *,
        is_capped: bool = False,
    ) -> tuple[Path, tuple[Path, ...]]:
        """As `check`, of each agent that may do the run; one that is not installed is no reason where another follows.

        `is_capped`: the operator's caps were put on the request. Raises what `check` does.
        """
        checked: tuple[Path, tuple[Path, ...]] | None = None
        refusal: AgentNotInstalled | None = None
        for number in range(len(request.fallback) + 1):
            part = self.part(request, number) if is_capped else request.of_part(number)
            try:
                found = self.check(part, agents[part.agent], worktree)
            except AgentNotInstalled as error:
                if not request.fallback or "not_installed" not in request.fallback_on:
                    raise
                refusal = refusal or error
            except RunError as error:
                if not number:
                    raise
                raise type(error)(f"fallback.{number - 1}: {error.message}", **error.facts) from error
            else:
                checked = checked or found
        if checked is None:
            assert refusal is not None
            raise refusal
        return checked

    def _has_held(self, agent: Agent, session: str, directory: Path) -> bool:
        if agent.keeps(session, directory):
            return True
        # Held in a copy, and here still: one that is not here the agent might find in another directory.
        home = agent.sessions.home(self.environ) if agent.sessions else None
        files = agent.sessions.files(session, directory) if agent.sessions else None
        if home is None or files is None or self.held(agent.name, session) != directory:
            return False
        try:
            return session_at(home, files).exists()
        except (Failed, OSError):
            return False

    def check_runtime(self, runtime: Runtime) -> Path | None:
        """The private key with which the machine is reached, None: as the ssh config says, if requests may have their
        agents there. Raises InvalidRequest.
        """
        if runtime.kind not in self.runtimes:
            raise InvalidRequest(f'runtime.kind: "{runtime.kind}" is not allowed on this worker (see --runtime)')
        if runtime.kind == "local":
            return None
        if self.lends and not PYTHON.fullmatch(runtime.python):
            raise InvalidRequest(
                f'runtime.python: {runtime.python} is a program of whoever asks, and "full" is more than this worker '
                "allows (see --max-permission); python3 is not"
            )
        if runtime.kind == "kubernetes":
            self._check_pod(runtime)
            return None
        if not is_allowed(self.allow_ssh, runtime):
            raise InvalidRequest(f"runtime.address: {runtime.name} is not allowed on this worker (see --allow-ssh)")
        if runtime.identity_file is None:
            return None
        return self._allowed_file("runtime.identity_file", runtime.identity_file)

    def _check_pod(self, runtime: KubernetesRuntime) -> None:
        if not any(pattern.fits(runtime) for pattern in self.allow_kubernetes):
            raise InvalidRequest(
                f"runtime.namespace: {runtime.name} is not allowed on this worker (see --allow-kubernetes)"
            )
        if found := refused(self.allow_pod, runtime):
            raise InvalidRequest(f"runtime.{found[0]}: {found[1]} is not allowed on this worker (see --allow-pod)")

    def _doubted(self, agent: Agent, directories: Sequence[Path]) -> Path | None:
        """The first of the directories that nobody trusts."""
        trusted = self.trusted()
        doubted = (each for each in directories if not (trust.is_within(each, trusted) or agent.trusts(each)))
        return next(doubted, None)

    def _above(self, agent: Agent, directory: Path) -> tuple[Path, ...]:
        """What the agent would load, and nobody trusts, of directories that it does not work in. What lies in the home
        of the worker's user is that user's own.
        """
        home = os.path.realpath(self.environ.get("HOME", "/"))
        return trust.programs_above(
            directory, agent.files, lambda each: str(each) == home or self._doubted(agent, (each,)) is None
        )

    def admit_program(self, request: RunRequest, program: Program) -> dict[str, str]:
        """The complete environment of a program that a loop runs beside its agent. `request`: the same asked of agent
        "process". Raises InvalidRequest, WorkspaceError.
        """
        if request.agent not in self.agents:
            raise InvalidRequest(f'agent: "{request.agent}" is not allowed on this worker (see --agent)')
        self.workspace(request.workspace.path)
        self._check_program(program)
        for name, value in request.env.items():
            self._check_env(request.agent, name, value)
        return self.environment(request)

    @property
    def lends(self) -> bool:
        """Requests get rules, programs and variables only where the operator named them."""
        return self.max_permission != "full"

    def environment(self, request: RunRequest, place: PlaceInfo | None = None) -> dict[str, str]:
        """The agent's complete environment: that of the machine on which it works, with the agent's own variables of
        this worker. Raises InvalidRequest where a value is not to be had.
        """
        kind = self.kinds[request.agent]
        own = kind.own_variables
        environ = place.environ if place else self.environ
        env = {name: value for name, value in environ.items() if name in BASE_ENV | own or name.startswith("LC_")}
        if place:
            lent = own - VARIABLES_OF_MACHINES - kind.variables_of_machine
            env |= {name: value for name, value in self.environ.items() if name in lent}
        for name, value in request.env.items():
            env[name] = self._value(name, value)
        return env

    def _value(self, name: str, value: "str | FromEnv | FromFile") -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, FromEnv):
            if value.from_env not in self.environ:
                raise InvalidRequest(f"env.{name}: the worker's environment has no {value.from_env}")
            return self.environ[value.from_env]
        try:
            data = _read_regular(self._allowed_file(f"env.{name}.from_file", value.from_file))
        except OSError as error:
            raise InvalidRequest(f"env.{name}: {value.from_file} cannot be read: {error.strerror}") from error
        if len(data) > MAX_SECRET_FILE or b"\0" in data:
            raise InvalidRequest(f"env.{name}: {value.from_file} is larger than 64 KiB or holds a NUL byte")
        return data.decode("utf-8", "surrogateescape").rstrip("\r\n")

    def _check_env(self, agent: str, name: str, value: "str | FromEnv | FromFile") -> None:
        own = self.kinds[agent].own_variables | self.allow_env
        if isinstance(value, FromEnv):
            if value.from_env not in own:
                raise InvalidRequest(
                    f"env.{name}.from_env: {value.from_env} is not allowed on this worker (see --allow-env)"
                )
        elif isinstance(value, FromFile):
            self._allowed_file(f"env.{name}.from_file", value.from_file)
        itself = isinstance(value, FromEnv) and value.from_env == name
        if (self.lends or self._is_guarded(name)) and name not in self.allow_env and not itself:
            raise InvalidRequest(f"env.{name}: may not be set by a request on this worker (see --allow-env)")
        if self.lends and isinstance(value, FromEnv) and not itself:
            raise InvalidRequest(f"env.{name}.from_env: on this worker a variable keeps its name, {value.from_env}")

    def _check_notify(self, request: RunRequest) -> None:
        for number, webhook in enumerate(request.notify):
            self.webhook_target(webhook, f"notify.{number}")
            self.webhook_secret(webhook, f"notify.{number}")

    def webhook_target(self, webhook: Webhook, field_name: str) -> Target:
        """Where the request's webhook is, if it may be told there. Raises InvalidRequest, which names no secret."""
        literal = isinstance(webhook.url, str)
        url = webhook.url if isinstance(webhook.url, str) else self._lent(webhook.url, f"{field_name}.url")
        try:
            target = checked(url, self.allow_webhooks)
        except WrongUrl as error:
            raise InvalidRequest(f"{field_name}.url: {error}") from error
        if target is None:
            what = url[:200] if literal else "what it names"
            raise InvalidRequest(f"{field_name}.url: {what} is not allowed on this worker (see --allow-webhook)")
        return target

    def webhook_secret(self, webhook: Webhook, field_name: str) -> str | None:
        """What signs what the request's webhook is told. Raises InvalidRequest."""
        return self._lent(webhook.secret, f"{field_name}.secret") if webhook.secret else None

    def _lent(self, value: FromEnv, field_name: str) -> str:
        if value.from_env not in self.allow_env:
            raise InvalidRequest(
                f"{field_name}.from_env: {value.from_env} is not allowed on this worker (see --allow-env)"
            )
        if not self.environ.get(value.from_env):
            raise InvalidRequest(f"{field_name}: the worker's environment has no {value.from_env}")
        return self.environ[value.from_env]

    def _is_guarded(self, name: str) -> bool:
        return is_guarded(name) or any(kind.guards(name.upper()) for kind in self.kinds.values())

    def _allowed_file(self, field_name: str, path: str) -> Path:
        if not _leads_into(path, [Path(os.path.realpath(each)) for each in self.allow_file]):
            raise InvalidRequest(f"{field_name}: {path} is not allowed on this worker (see --allow-file)")
        return Path(os.path.realpath(path))

    def _check_mode(self, mode: PermissionMode) -> None:
        if PERMISSION_ORDER.index(mode) > PERMISSION_ORDER.index(self.max_permission):
            raise InvalidRequest(
                f'permissions.mode: "{mode}" is more than this worker allows, "{self.max_permission}" '
                "(see --max-permission)"
            )
        # Whoever may start a run may also answer what it asks.
        if mode == "ask" and self.lends and self.max_permission != "ask" and not self.allow_approvals:
            raise InvalidRequest(
                'permissions.mode: "ask" is not lent on this worker: an approval may allow everything '
                "(see --allow-approvals)"
            )

    def _check_program(self, program: Program) -> None:
        # A program that the request itself names asks nobody: that is every permission.
        if not self.lends or (program.words and program.words in self.allow_commands):
            return
        what = f"`{shlex.join(program.words)[:200]}`" if program.words else "it"
        raise InvalidRequest(
            f'{program.field}: {what} would run without asking anybody, and "full" is more than this worker allows '
            "(see --allow-command, --max-permission)"
        )

    def _check_rule(self, rule: str) -> None:
        if self.lends and rule not in self.allow_rules and rule.partition("(")[0] not in self.allow_rules:
            raise InvalidRequest(
                f'permissions.allow: "{rule[:200]}" is not lent on this worker, which allows '
                f'"{self.max_permission}" (see --allow-rule)'
            )

    def workspace(self, path: str) -> Path:
        """The directory that is meant, if requests may work there. Raises InvalidRequest, WorkspaceError."""
        real = self._resolve(path, "workspace.path")
        if not os.access(real, os.R_OK | os.X_OK):
            raise WorkspaceError(f"workspace.path: {path} is not readable by the worker's user")
        return real

    def within(self, path: str, field_name: str) -> Path:
        """The path with all links followed, whether or not it is there. Raises InvalidRequest, the same for all that is
        outside: an answer that differed would tell what is there.
        """
        roots = [Path(os.path.realpath(root)) for root in self.workspace_roots]
        if not _leads_into(path, roots):
            raise InvalidRequest(f"{field_name}: {path} is outside this worker's --workspace-root")
        return Path(os.path.realpath(path))

    def _resolve(self, path: str, field_name: str) -> Path:
        real = self.within(path, field_name)
        try:
            real = real.resolve(strict=True)
        except FileNotFoundError:
            raise InvalidRequest(f"{field_name}: {path} does not exist on this host") from None
        except (OSError, RuntimeError) as error:
            raise WorkspaceError(f"{field_name}: {path}: {error}") from error
        if not real.is_dir():
            raise InvalidRequest(f"{field_name}: {path} is not a directory")
        return real


def lent_commands(texts: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """The command lines that an operator lends, in each form in which a request may spell them.

    Raises ValueError for a text with an open quote.
    """
    found: set[tuple[str, ...]] = set()
    for text in texts:
        words = tuple(shlex.split(text))
        found |= {words, ("sh", "-c", text), Verify(command=text).argv(), Verify(command=words).argv()}
    return frozenset(found)


def _leads_into(path: str, roots: Sequence[Path]) -> bool:
    """Whether a path leads into one of these, all links followed.

    No `..` of it may lead through another directory: where the path came out would tell what is there.
    """
    way = Path(path)
    for end, part in enumerate(way.parts):
        passed = Path(os.path.realpath(Path(*way.parts[:end])))
        if part == ".." and not any(passed.is_relative_to(root) or root.is_relative_to(passed) for root in roots):
            return False
    real = Path(os.path.realpath(way))
    return any(real.is_relative_to(root) for root in roots)


def _read_regular(path: Path) -> bytes:
    """The file's beginning."""
    with os.fdopen(disk.open_regular(path), "rb") as file:
        return file.read(MAX_SECRET_FILE + 1)
