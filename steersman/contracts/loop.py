"""LoopRequest, the input of AgentLoop.

Durations are seconds, money US dollars.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from steersman.contracts.agents import AGENT_VARIABLES, REPORTS, UNMETERED, Capabilities, at_most
from steersman.contracts.model import Seconds, StrictModel, Text, no_nul
from steersman.contracts.request import RunRequest, parse_object
from steersman.contracts.variables import EnvValue

LoopMode = Literal["checkpoint", "batch", "autonomous"]
SessionMode = Literal["continue", "fresh"]
ItemSource = Literal["checkboxes", "beads", "json", "command"]

MAX_PLAN = 64 * 1024
MAX_LIMIT = 2**63 - 1
"""A limit is told again in the loop's state, which clients could not read with a number beyond all of their types."""
NO_PROMPT = "-"
"""The prompt in a run's template, which has none of its own."""
PLACEHOLDERS = ("plan", "iteration", "iterations", "feedback", "verification", "open_items", "phase", "promise")
"""The names that a prompt's template may have in braces, as `{plan}`; anything else in braces is left alone."""


def _inside(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or not path.strip("./"):
        raise ValueError("must be a path inside the workspace, relative to it")
    return path


def _short(text: str) -> str:
    if len(text.encode()) > MAX_PLAN:
        raise ValueError(f"is longer than {MAX_PLAN // 1024} KiB: put it in a file and give its path")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


InsidePath = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(no_nul), AfterValidator(_inside)]
PlanText = Annotated[Text, AfterValidator(_said), AfterValidator(_short)]
Template = Annotated[Text, AfterValidator(_said), AfterValidator(_short)]
Argument = Annotated[str, Field(max_length=100_000), AfterValidator(no_nul)]
LoopId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]
ItemId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]


def _form(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "file" if isinstance(value, Mapping | BaseModel) else "list" if isinstance(value, list | tuple) else None


class PlanFile(StrictModel):
    """A Markdown file in the workspace, or a directory of phases (`01-*.md`, `02-*.md`)."""

    path: InsidePath
    phase: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(no_nul)] | None = None
    """The phase to start at, by its file's name or number; earlier phases count as done."""


Plan = Annotated[
    Annotated[PlanText, Tag("text")] | Annotated[PlanFile, Tag("file")],
    Discriminator(_form, custom_error_type="plan", custom_error_message='must be a text or {"path": PATH}'),
]
Command = Annotated[
    Annotated[Text, AfterValidator(_said), Tag("text")]
    | Annotated[tuple[Argument, ...], Field(min_length=1), Tag("list")],
    Discriminator(_form, custom_error_type="command", custom_error_message="must be a text or a list of texts"),
]
"""A text is run by `sh -c`; a list is the program and its arguments."""


class Items(StrictModel):
    """Where the items are listed: what there is to do, and what of it is done."""

    kind: ItemSource
    path: InsidePath | None = None
    """Of checkboxes: a Markdown file or a directory of phases, by default the plan's path. Of json: the file."""
    ids: tuple[ItemId, ...] = ()
    """Of beads: the issues that are the items."""
    command: Command | None = None
    """Of command: prints the items as JSON, or as Markdown checkboxes."""
    allow_empty: bool = False
    """Whether a list without any item counts as closed."""

    @model_validator(mode="after")
    def _check_kind(self) -> "Items":
        needs = {"beads": ("ids", self.ids), "json": ("path", self.path), "command": ("command", self.command)}
        if self.kind in needs and not needs[self.kind][1]:
            raise ValueError(f'{needs[self.kind][0]} is required for kind "{self.kind}"')
        fits = {"checkboxes": {"path"}, "json": {"path"}, "beads": {"ids"}, "command": {"command"}}[self.kind]
        for name in ("path", "ids", "command"):
            if getattr(self, name) and name not in fits:
                raise ValueError(f'{name} is not for kind "{self.kind}"')
        return self


class Verify(StrictModel):
    """A command that verifies the work: exit code 0 passes. It runs in the workspace, as a run of its own."""

    command: Command
    timeout_s: Seconds = 900
    every_iteration: bool = True
    """False: only once all items are closed, and the promise, if there is one, was given."""

    def argv(self) -> tuple[str, ...]:
        """The program and its arguments; its stderr goes to its stdout."""
        if isinstance(self.command, str):
            return ("sh", "-c", f"exec 2>&1\n{self.command}")
        return ("sh", "-c", 'exec "$@" 2>&1', "sh", *self.command)

    def shown(self) -> str:
        """The command for display."""
        return self.command if isinstance(self.command, str) else " ".join(self.command)


class Done(StrictModel):
    """When the loop is done: all conditions that are given hold after the same iteration."""

    items: Items | None = None
    verify: Verify | None = None
    promise: (
        Annotated[str, Field(min_length=1, max_length=200), AfterValidator(no_nul), AfterValidator(str.strip)] | None
    ) = None
    """The agent's final message must end with exactly this line."""

    @model_validator(mode="after")
    def _check_proof(self) -> "Done":
        if self.items is None and self.verify is None:
            raise ValueError("needs items or verify: an agent's word alone proves nothing")
        if self.promise is not None and (not self.promise or "\n" in self.promise):
            raise ValueError("promise must be one line of text")
        return self


class LoopLimits(StrictModel):
    """Limits over all iterations, continue-as-new and forks. Cost, tokens and durations end an iteration, too."""

    iterations: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 100
    cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    tokens: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Input, output, cache reads and cache writes together."""
    duration_s: Seconds | None = None
    """Time in which the loop is paused or waits for a decision does not count."""
    iteration_duration_s: Seconds | None = None
    idle_s: Seconds | None = None
    no_progress: Annotated[int, Field(ge=0, le=MAX_LIMIT)] = 3
    """Iterations in a row that leave HEAD, files and items unchanged; 0: no such limit."""
    failures: Annotated[int, Field(ge=0, le=MAX_LIMIT)] = 3
    """Iterations in a row that fail; 0: no such limit."""


class FromCheckpoint(StrictModel):
    """Begin with another loop's checkpoint: its files, session (forked), items and totals."""

    loop: LoopId
    number: Annotated[int, Field(ge=0)]


def _template(value: Any) -> Any:
    """The run with a placeholder for its prompt, which is made anew for each iteration. Refuses one that is given."""
    if not isinstance(value, Mapping):
        return value
    if value.get("prompt") not in (None, "", NO_PROMPT):
        raise ValueError("prompt must not be given here: it is the loop's prompt and plan")
    return {**value, "prompt": NO_PROMPT}


class LoopRequest(StrictModel):
    """Iterations of one agent on one plan. JSON on the wire; unknown fields are refused."""

    run: Annotated[RunRequest, BeforeValidator(_template)]
    """The template of each iteration's run; without a prompt."""
    plan: Plan
    prompt: Template | None = None
    """The template of each iteration's prompt, see PLACEHOLDERS; by default Steersman's own."""
    done: Done
    session: SessionMode | None = None
    """By default "continue" where the agent can resume sessions, else "fresh"."""
    mode: LoopMode = "autonomous"
    batch_size: Annotated[int, Field(ge=1, le=10_000)] = 5
    limits: LoopLimits = LoopLimits()
    pause_between_s: Annotated[float, Field(ge=0, le=366 * 86400, allow_inf_nan=False)] = 10
    rate_limit: Literal["wait", "stop"] = "wait"
    from_checkpoint: FromCheckpoint | None = None

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: RunRequest) -> RunRequest:
        if run.limits.duration_s is not None or run.limits.idle_s is not None:
            raise ValueError("limits: give duration_s and idle_s as the loop's iteration_duration_s and idle_s")
        if run.workspace.on_overlap == "steer":
            raise ValueError(
                'workspace.on_overlap: "steer" is not for a loop, which has no prompt that another could take'
            )
        if run.workspace.worktree is not None:
            raise ValueError("workspace.worktree: a loop works in its workspace itself: name a worktree's directory")
        return run

    @model_validator(mode="after")
    def _check_loop(self) -> "LoopRequest":
        if wrong := self.unsupported(at_most(self.run.agent)):
            raise ValueError(wrong)
        items = self.done.items
        if items and items.kind == "checkboxes" and items.path is None and isinstance(self.plan, str):
            raise ValueError("done.items.path is required: the plan is a text, not a file")
        if self.session == "continue" and self.run.home == "isolated":
            raise ValueError('session: each run\'s isolated home goes with it, its session too: there is only "fresh"')
        if self.run.session is not None and self.from_checkpoint is not None:
            raise ValueError("run.session: the session comes from the checkpoint")
        return self

    def unsupported(self, can: Capabilities) -> str | None:
        """What the loop asks for that an agent of these capabilities lacks, in a sentence; None for nothing."""
        agent = f'agent "{self.run.agent}"'
        if self.session == "continue" and not can.resume:
            return f'session: {agent} cannot go on with a session; use "fresh"'
        wrong = unmetered(self.limits, self.run.agent, can)
        return wrong and f"limits.{wrong}"

    def continues(self, can: Capabilities | None = None) -> bool:
        """Whether an iteration resumes the session of the one before it.

        `can`: the agent's capabilities, where they are known from elsewhere than the table at hand.
        """
        return (self.session or ("continue" if (can or at_most(self.run.agent)).resume else "fresh")) == "continue"

    def checkboxes(self) -> str | None:
        """The path of the checkboxes, relative to the workspace; None where the items are no checkboxes."""
        items = self.done.items
        if items is None or items.kind != "checkboxes":
            return None
        if items.path is not None:
            return items.path
        return self.plan.path if isinstance(self.plan, PlanFile) else None


def unmetered(limits: StrictModel, agent: str, can: Capabilities) -> str | None:
    """Which of these limits, of a loop or of an update, the agent cannot be held to, as it does not report what it
    uses; None for none.
    """
    for name in ("cost_usd", "tokens"):
        if getattr(limits, name) and not getattr(can, REPORTS[name]):
            return f'{name} is not supported by agent "{agent}": {UNMETERED}'
    return None


def program_env(run: RunRequest, agents_own: Collection[str] = ()) -> dict[str, EnvValue]:
    """The template's environment for the programs of a loop: without its agents' own variables, such as their keys.

    `agents_own`: those of agents that only workers know.
    """
    agents = (run.agent, *(each.agent for each in run.fallback))
    own = {*agents_own, *(name for agent in agents for name in AGENT_VARIABLES.get(agent, ()))}
    return {name: value for name, value in run.env.items() if name not in own}


def parse_loop_request(data: object) -> LoopRequest:
    """The request in a decoded JSON value. Raises InvalidRequest that names each wrong field."""
    return parse_object(LoopRequest, data)


def loop_request_json(request: LoopRequest) -> dict[str, Any]:
    """The request as a client sends it, as JSON: without the placeholder for the run's prompt."""
    data = request.model_dump(mode="json", exclude_defaults=True)
    data["run"].pop("prompt", None)
    return data
