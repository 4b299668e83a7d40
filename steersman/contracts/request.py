"""RunRequest, the input of AgentRun, and an operator's caps on it.

Durations are seconds, money US dollars.
"""

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    FailFast,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from steersman.contracts.agents import (
    AGENT_VARIABLES,
    BOUND_BY_RATE_LIMIT,
    CAPABILITIES,
    NO_IMAGES,
    ONLY_FULL,
    UNMETERED,
    Capabilities,
    at_most,
)
from steersman.contracts.attachments import Attachments, images, worded
from steersman.contracts.errors import InvalidRequest, sentence
from steersman.contracts.kubernetes import MAX_LEASE_S
from steersman.contracts.model import AbsolutePath, JsonObject, Seconds, StrictModel, Text, TolerantModel, no_nul
from steersman.contracts.notices import Webhook
from steersman.contracts.nulls import without_nulls
from steersman.contracts.runtime import LocalRuntime, Runtime
from steersman.contracts.variables import ENV_NAME, EnvValue
from steersman.contracts.workspace_holder import OnOverlap

Q = TypeVar("Q", bound=StrictModel)

AgentName = Literal["claude", "codex", "gemini", "opencode", "hermes", "acp", "process"]
"""The agents that come along."""
AGENT_NAME = r"^[a-z][a-z0-9_-]{0,62}$"
"""The name of any agent, also of one that only workers know."""
PermissionMode = Literal["read_only", "ask", "accept_edits", "full"]

PERMISSION_ORDER: tuple[PermissionMode, ...] = ("read_only", "ask", "accept_edits", "full")
"""From the least to the most that an agent may do without approval."""

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_NO_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\\ud800-\udfff]|\.\.|@\{")
_RULE = re.compile(r"[A-Za-z_][A-Za-z0-9_*.:-]*(\([^\x00-\x1f\x7f]*\))?")


COMMANDED: tuple[AgentName, ...] = ("acp", "process")
"""Agents whose program the request names."""
_COMMANDED = " and ".join(f'"{agent}"' for agent in COMMANDED)

MAX_REQUEST = 1_000_000
"""Bytes of a request as JSON. Temporal accepts payloads of 2 MB, and some have the request and a result."""

MAX_FALLBACK = 5
"""A request has at most this many agents beside its first."""
MAX_LABELS = 32_000
"""Bytes of labels as JSON: every list and every state of a run has them."""


def _included(path: str) -> str:
    """The path without what says nothing. Raises ValueError."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or not parts:
        raise ValueError("must be a path inside the workspace, relative to it")
    if any(part.rstrip(" .").lower() in (".git", "git~1") for part in parts):
        raise ValueError("must not lead into a repository's .git")
    return "/".join(parts)


IncludedPath = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(no_nul), AfterValidator(_included)]


def _branch(name: str) -> str:
    """A branch's name, by git's own rules (git check-ref-format)."""
    parts = name.split("/")
    wrong = (
        _NO_REF.search(name)
        or name.startswith("-")
        or name.endswith(".")
        or name in ("@", "HEAD")
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    )
    if wrong:
        raise ValueError("is no name of a branch")
    return name


Branch = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_branch)]


class Workspace(StrictModel):
    """Where the agent works: a directory that exists on a worker's host.

    `host`: which one leads the run (see `steer doctor`); by default whichever takes it.
    `on_overlap`: what becomes of the run where another one has the directory, one inside it or one around it.
    """

    path: AbsolutePath
    host: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    on_overlap: OnOverlap = "reject"
    isolation: Literal["none", "copy"] = "none"
    """copy: the agent works in a copy of its own, and what it changed there is merged into the workspace at the end."""
    on_gate: Literal["reject", "wait"] = "reject"
    """What becomes of the run where another one's changes could not be merged into the workspace."""
    include: Annotated[tuple[IncludedPath, ...], Field(max_length=100)] = ()
    """Ignored files and directories, relative to `path`, that a copy has and brings back as it does untracked ones."""
    reuse: bool = True
    """The runs of a loop, verifications among them, work in one copy after another: what is ignored there stays. False:
    each has one of its own. Of no meaning to a run that is not a loop's.
    """
    worktree: Branch | None = None
    """The agent works in a git worktree of the workspace's repository that has this branch checked out. Both are made
    where they are not there, and stay.
    """


def _rule(text: str) -> str:
    """A tool's name, or a name with one specifier in brackets, which cannot run into the next rule."""
    if not _RULE.fullmatch(text):
        raise ValueError("must be a tool or a rule like Bash(make *), without a line end")
    depth, closed = 0, False
    for character in text:
        if closed:
            raise ValueError("must end with the bracket that closes its first one")
        depth += (character == "(") - (character == ")")
        closed = character == ")" and depth == 0
    if depth:
        raise ValueError("has an open bracket")
    if any(separator in rest for rest in text.split(")")[1:] for separator in ", "):
        raise ValueError("must not hold a comma or a space behind an inner bracket: Claude Code would cut it there")
    return text


Rule = Annotated[Text, Field(min_length=1, max_length=1000), AfterValidator(_rule)]


ModelName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(no_nul)]
Command = Annotated[tuple[Text, ...], Field(min_length=1)]


class Permissions(StrictModel):
    """What the agent may do unapproved. `allow` and `deny`: tools or the agent's own rules, e.g. `Bash(git *)`."""

    mode: PermissionMode = "accept_edits"
    allow: Annotated[tuple[Rule, ...], Field(max_length=1000), FailFast()] = ()
    deny: Annotated[tuple[Rule, ...], Field(max_length=1000), FailFast()] = ()


class Limits(StrictModel):
    """Limits over all attempts of a run; they are enforced during a turn, too."""

    turns: Annotated[int, Field(ge=1)] | None = None
    cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Input, output, cache reads and cache writes together."""
    duration_s: Seconds | None = None
    idle_s: Seconds | None = None
    """The agent puts out nothing for this long during its turn."""
    rate_limit_s: Seconds | None = None
    """The agent's process may wait this long for a provider's rate limit; null: as long as the agent does by itself."""
    approval_s: Seconds | None = 3600
    """An approval that nobody decides is denied after this; null: it waits for ever."""


class RequestedStopTimes(StrictModel):
    """When a stop sends SIGTERM and SIGKILL, in seconds after it was requested; null: the agent's own times."""

    terminate_after_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = None
    kill_after_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = None


HomeKind = Literal["user", "isolated"]
"""Where an agent keeps settings, logins and sessions: as its user has them, or in a directory of the run's own."""

FallbackCause = Literal["authentication", "rate_limit", "not_installed", "overloaded"]
"""Why an agent cannot go on where another one may."""
FALLBACK_CAUSES: tuple[FallbackCause, ...] = ("authentication", "rate_limit", "not_installed", "overloaded")


class Fallback(StrictModel):
    """An agent that goes on with a run where the one before it cannot."""

    agent: Annotated[str, Field(pattern=AGENT_NAME)]
    model: ModelName | None = None
    options: JsonObject = Field(default_factory=dict)
    command: Command | None = None


class RunRequest(StrictModel):
    """One run of one agent. JSON on the wire; unknown fields are refused."""

    agent: Annotated[str, Field(pattern=AGENT_NAME)]
    """One that comes along (`AgentName`), or one that a package has added to the worker that takes the run."""
    prompt: Text = ""
    attachments: Attachments = ()
    """Files that go with the prompt."""
    workspace: Workspace
    runtime: Runtime = LocalRuntime()
    model: ModelName | None = None
    session: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")] | None = None
    fork_session: bool = False
    system_prompt: Text | None = None
    """Added to the agent's own instructions."""
    permissions: Permissions = Permissions()
    output_schema: JsonObject | None = None
    env: dict[str, EnvValue] = Field(default_factory=dict)
    limits: Limits = Limits()
    stop: RequestedStopTimes = RequestedStopTimes()
    lease_s: Annotated[Seconds, Field(ge=10)] = 900
    labels: dict[str, str] = Field(default_factory=dict)
    options: JsonObject = Field(default_factory=dict)
    command: Command | None = None
    home: Annotated[HomeKind, Field(exclude_if=lambda given: given == "user")] = "user"
    """"isolated": the agent begins with no settings, logins and sessions; what it makes of them goes with the run."""
    fallback: Annotated[tuple[Fallback, ...], Field(max_length=MAX_FALLBACK, exclude_if=lambda given: not given)] = ()
    """Who goes on, one after another, where the agent cannot."""
    fallback_on: Annotated[tuple[FallbackCause, ...], Field(exclude_if=lambda given: given == FALLBACK_CAUSES)] = (
        FALLBACK_CAUSES
    )
    notify: Annotated[tuple[Webhook, ...], Field(max_length=4, exclude_if=lambda given: not given)] = ()
    """Who is told of what happens."""
    """None of these is written where it says nothing: workers of an earlier build, which know no such field, refuse
    it.
    """

    @model_validator(mode="before")
    @classmethod
    def _complete_runtime(cls, given: Any) -> Any:
        """A runtime without a kind is local. `runtime.host` is what `workspace.host` was called: clients may still send
        it.
        """
        runtime = given.get("runtime") if isinstance(given, dict) else None
        if not isinstance(runtime, dict):
            return given
        runtime, workspace, host = {"kind": "local", **runtime}, given.get("workspace"), runtime.get("host")
        if "host" not in runtime:
            return {**given, "runtime": runtime}
        del runtime["host"]
        if isinstance(workspace, Workspace):
            workspace = workspace.model_dump()
        if host is None or not isinstance(workspace, dict):
            return {**given, "runtime": runtime}
        if workspace.get("host") not in (None, host):
            raise ValueError("runtime.host and workspace.host name two hosts; runtime.host is the old name")
        return {**given, "runtime": runtime, "workspace": {**workspace, "host": host}}

    @field_validator("env")
    @classmethod
    def _check_env(cls, env: dict[str, EnvValue]) -> dict[str, EnvValue]:
        for name, value in env.items():
            if not ENV_NAME.match(name):
                raise ValueError(f"{name[:80]!r} is not the name of an environment variable")
            if isinstance(value, str) and SECRET_NAME.search(name):
                raise ValueError(f'{name} looks like a secret: give it as {{"from_env": ...}} or {{"from_file": ...}}')
        return env

    @model_validator(mode="after")
    def _check_agent(self) -> "RunRequest":
        if self.agent in COMMANDED:
            if not self.command or not self.command[0]:
                raise ValueError(f'command is required for agent "{self.agent}"')
        elif self.command is not None:
            raise ValueError(f'command is only for agents {_COMMANDED}, not for "{self.agent}"')
        if self.agent != "process" and not self.prompt.strip():
            raise ValueError("prompt must not be empty")
        if wrong := self.unsupported(at_most(self.agent)):
            raise ValueError(wrong)
        if self.workspace.on_overlap == "steer" and not self.prompt.strip():
            raise ValueError('prompt is required for workspace.on_overlap "steer": it is what the other run is told')
        if self.fork_session and self.session is None:
            raise ValueError("fork_session needs session")
        if self.home == "isolated" and self.agent in COMMANDED:
            raise ValueError(f'home: nobody knows where the command of agent "{self.agent}" keeps its state')
        if self.home == "isolated" and self.session is not None:
            raise ValueError("session: there is none in an isolated home")
        return self

    def _only_permissions(self) -> Permissions:
        """What an agent that asks nobody can be given. Raises ValueError."""
        if self.agent not in ONLY_FULL:
            return Permissions()
        if self.permissions.mode != "full":
            raise ValueError(
                f'permissions.mode: agent "{self.agent}" asks nobody before it acts: it runs in mode "full" alone'
            )
        return Permissions(mode="full")

    @model_validator(mode="after")
    def _check_copy(self) -> "RunRequest":
        if self.workspace.worktree is not None and self.is_carried:
            raise ValueError('workspace.worktree: a run works in a worktree, or in a copy (isolation "copy", runtime)')
        if self.runtime.kind == "kubernetes" and self.lease_s > MAX_LEASE_S:
            raise ValueError(f"lease_s: at most {MAX_LEASE_S} in a pod, as one on a lost node is replaced after that")
        if self.workspace.include and not self.is_carried:
            raise ValueError(
                'workspace.include needs isolation "copy" or another machine: else the agent has every file'
            )
        return self

    @model_validator(mode="after")
    def _check_fallback(self) -> "RunRequest":
        """What is asked of the run is asked of each agent that may do it."""
        for number, each in enumerate(self.fallback):
            if "process" in (self.agent, each.agent):
                raise ValueError(f'fallback.{number}: agent "process" is told nothing of what was done before it')
            try:
                RunRequest.model_validate(self.of_part(number + 1).model_dump())
            except ValidationError as error:
                raise ValueError(sentence(error, f"fallback.{number}")) from None
        return self

    def of_part(self, number: int) -> "RunRequest":
        """The request as one of its agents has it: 0 is the first, n the one that `fallback[n - 1]` names. Only the
        first one goes on with a session, and none gets variables that are another's own. Which are those of the first
        one is not known of every agent: one of which none are has all.
        """
        agents = [self.agent, *(each.agent for each in self.fallback)]
        known = [AGENT_VARIABLES.get(agent, frozenset[str]()) for agent in agents]
        others = frozenset[str]() if number == 0 and not known[0] else frozenset[str]().union(*known) - known[number]
        env = {name: value for name, value in self.env.items() if name not in others}
        if number == 0:
            return self if env == self.env else self.model_copy(update={"env": env})
        each = self.fallback[number - 1]
        own: dict[str, Any] = {"agent": each.agent, "model": each.model, "options": each.options}
        own["command"] = each.command
        if each.agent not in BOUND_BY_RATE_LIMIT:
            own["limits"] = self.limits.model_copy(update={"rate_limit_s": None})
        return self.model_copy(update={**own, "env": env, "session": None, "fork_session": False, "fallback": ()})

    @property
    def is_carried(self) -> bool:
        """The agent works in a copy of the workspace, on this machine or on another one."""
        return self.workspace.isolation == "copy" or self.runtime.kind != "local"

    @property
    def is_of_workers_alone(self) -> bool:
        """Its agent is none that comes along: only a worker can say whether there is one, and what it can."""
        return self.agent not in CAPABILITIES

    def unsupported(self, can: Capabilities) -> str | None:
        """What the request asks for that an agent of these capabilities lacks, in a sentence; None for nothing."""
        unsupported = {
            "session": not can.resume and self.session is not None,
            "fork_session": not can.fork and self.fork_session,
            "output_schema": not can.structured_output and self.output_schema is not None,
            "permissions": not can.permissions and self.permissions != self._only_permissions(),
            "limits.turns": not can.turns and self.limits.turns is not None,
            "limits.cost_usd": not can.cost and self.limits.cost_usd is not None,
            "limits.tokens": not can.tokens and self.limits.tokens is not None,
            "limits.rate_limit_s": not can.tokens and self.limits.rate_limit_s is not None,
            "model": self.agent == "process" and self.model is not None,
            "system_prompt": self.agent == "process" and self.system_prompt is not None,
            "attachments": not can.images and bool(images(self.attachments)),
        }
        field = next((field for field, wrong in unsupported.items() if wrong), None)
        if field is None:
            return None
        why = f": {UNMETERED}" if field.startswith("limits.") else f": {NO_IMAGES}" if field == "attachments" else ""
        return f'{field} is not supported by agent "{self.agent}"{why}'

    def as_told(self) -> "RunRequest":
        """The request as its agent has it: attached texts are part of the prompt, and only images are beside it."""
        if not self.attachments:
            return self
        told = {"prompt": worded(self.prompt, self.attachments), "attachments": images(self.attachments)}
        return self.model_copy(update=told)

    def outline(self) -> "RunRequest":
        """The request without its long fields, for activities that stop and close the run: their inputs have other long
        fields, and a payload is bounded.
        """
        of_agent: dict[str, Any] = {} if self.agent == "process" else {"prompt": "-"}
        if self.command:
            of_agent["command"] = (self.command[0][:200],)
        if self.fallback:
            of_agent["fallback"] = tuple(
                each.model_copy(
                    update={
                        "options": _switches(each.options),
                        "command": (each.command[0][:200],) if each.command else None,
                    }
                )
                for each in self.fallback
            )
        emptied: dict[str, Any] = {
            "attachments": (),
            "system_prompt": None,
            "output_schema": None,
            "env": {},
            "labels": {},
        }
        emptied["options"] = _switches(self.options)
        if self.workspace.on_overlap == "steer":  # which goes with a prompt, and has been decided by then
            emptied["workspace"] = self.workspace.model_copy(update={"on_overlap": "reject"})
        return self.model_copy(update={"prompt": "", **emptied, **of_agent})


def _switches(options: JsonObject) -> JsonObject:
    """Of an agent's options those that are on or off: how it is stopped may go by them."""
    return {name: value for name, value in options.items() if isinstance(value, bool)}


class Caps(TolerantModel):
    """An operator's upper bounds for every run, whatever its request says; null: no bound.

    `stop_s`: the longest time from a stop's request to SIGKILL.
    """

    cost_usd: float | None = None
    duration_s: float | None = None
    lease_s: float | None = None
    stop_s: float | None = None

    def held(self, request: RunRequest, can: Capabilities | None = None) -> RunRequest:
        """The request within these caps; the same object where nothing has changed.

        `can`: the agent's capabilities, where they are known from elsewhere than the table at hand.
        """
        can = can or at_most(request.agent)
        limits, stop = request.limits, request.stop
        changed = {
            "limits": limits.model_copy(
                update={
                    # An agent that reports no cost can have no cost limit: only the duration bounds it.
                    "cost_usd": _least(limits.cost_usd, self.cost_usd if can.cost else None),
                    "duration_s": _least(limits.duration_s, self.duration_s),
                }
            ),
            "stop": stop.model_copy(
                update={
                    "terminate_after_s": _capped(stop.terminate_after_s, self.stop_s),
                    "kill_after_s": _capped(stop.kill_after_s, self.stop_s),
                }
            ),
            "lease_s": _least(request.lease_s, self.lease_s),
        }
        fields = {name: value for name, value in changed.items() if value != getattr(request, name)}
        return request.model_copy(update=fields) if fields else request


def _least(asked: float | None, cap: float | None) -> float | None:
    return min((each for each in (asked, cap) if each is not None), default=None)


def _capped(asked: float | None, cap: float | None) -> float | None:
    """The lesser of the two; null, the agent's own time, stays: it is short."""
    return asked if asked is None else _least(asked, cap)


def oversized(data: object, what: str) -> str | None:
    """Why a decoded request is too large for workflow payloads, in a sentence; None if it is not."""
    if (size := json_size(data)) > MAX_REQUEST:
        return f"{what}: has {size:,} bytes, and may have {MAX_REQUEST:,}: put long texts into files and name those"
    run = data.get("run", data) if isinstance(data, dict) else {}
    if (size := json_size(run.get("labels"))) > MAX_LABELS:
        return f"{what}: labels: have {size:,} bytes, and may have {MAX_LABELS:,}"
    return None


def json_size(data: object) -> int:
    """Bytes of the value as JSON, as a payload has it."""
    return len(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))


def parse_request(data: object) -> RunRequest:
    """The request in a decoded JSON value. Raises InvalidRequest that names each wrong field."""
    return parse_object(RunRequest, data)


def parse_object(model: type[Q], data: object) -> Q:
    """A workflow's input in a decoded JSON value. Raises InvalidRequest that names the model and each wrong field."""
    name = model.__name__
    if not isinstance(data, dict):
        raise InvalidRequest(f"{name}: the input must be one JSON object, not {kind_of(data)}")
    try:
        # Through JSON, so that a Python client's tuples and a JSON client's arrays are judged alike.
        return model.model_validate_json(json.dumps(without_nulls((model,), data)))
    except ValidationError as error:
        raise InvalidRequest(sentence(error, name)) from None  # which has the values
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: the input is no JSON: {error}") from error


def not_one(what: str, count: int) -> str:
    """What is said of so many inputs of a workflow or an update, of which there has to be one."""
    return f"{what}: the input must be one JSON object, not {count} values"


def kind_of(data: object) -> str:
    """The type of a decoded JSON value, in words: "a list"."""
    names = {
        type(None): "nothing",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(data), type(data).__name__)
