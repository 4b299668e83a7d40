"""Messages to a loop and their receipts: inputs and results of its updates and queries.

Durations are seconds, money US dollars.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from steersman.contracts.loop import MAX_LIMIT, LoopMode, Plan, Template
from steersman.contracts.loop_state import Checkpoint, LoopStatus
from steersman.contracts.loop_status import current_status
from steersman.contracts.messages import MessageId
from steersman.contracts.model import StrictModel, TolerantModel, no_nul

MAX_PAGE = 500

FeedbackText = Annotated[str, Field(min_length=1, max_length=20_000), AfterValidator(no_nul)]
OptionalSeconds = Annotated[float, Field(ge=0, le=10 * 366 * 86400, allow_inf_nan=False)]
Reason = Annotated[str, Field(max_length=1000), AfterValidator(no_nul)]


class Pause(StrictModel):
    """Input of `pause`. `now`: end the agent's turn at once; else the iteration ends first."""

    now: bool = False
    reason: Reason | None = None


class Resume(StrictModel):
    """Input of `resume`: continue after a pause, or take the decision that the loop waits for."""

    mode: LoopMode | None = None
    text: FeedbackText | None = None
    """Feedback for the next iteration."""
    session: Literal["fresh"] | None = None
    """Begin a new session of the agent; by default as the loop's request says."""


class Feedback(StrictModel):
    """Input of `feedback`, for the next iteration that begins. Two with the same id are one."""

    text: FeedbackText
    id: MessageId | None = None


class RemoveFeedback(StrictModel):
    """Input of `remove_feedback`."""

    id: Annotated[str, Field(min_length=1, max_length=100)]


class Revise(StrictModel):
    """Input of `revise`: a new version of the plan, of the prompt's template, or both."""

    plan: Plan | None = None
    prompt: Template | None = None

    @model_validator(mode="after")
    def _check_said(self) -> "Revise":
        if self.plan is None and self.prompt is None:
            raise ValueError("needs plan or prompt")
        return self


class Restart(StrictModel):
    """Input of `restart`: start over from the beginning of the loop, or of one iteration."""

    start: Annotated[Literal["plan", "iteration"], Field(alias="from")] = "plan"
    number: Annotated[int, Field(ge=1)] | None = None
    files: bool = True
    """Whether the workspace's files are restored, too."""

    @model_validator(mode="after")
    def _check_number(self) -> "Restart":
        if (self.start == "iteration") != (self.number is not None):
            raise ValueError('number is required with from "iteration", and only there')
        return self


class SkipWait(StrictModel):
    """Input of `skip_wait`: no fields."""


class SetLimits(StrictModel):
    """Input of `set_limits`: limits that are given are changed; 0 removes one, `iterations` excepted."""

    iterations: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    tokens: Annotated[int, Field(ge=0, le=MAX_LIMIT)] | None = None
    duration_s: OptionalSeconds | None = None
    iteration_duration_s: OptionalSeconds | None = None
    idle_s: OptionalSeconds | None = None
    no_progress: Annotated[int, Field(ge=0, le=MAX_LIMIT)] | None = None
    failures: Annotated[int, Field(ge=0, le=MAX_LIMIT)] | None = None


class Exit(StrictModel):
    """Input of `exit`: end the loop with status "exited"; files, checkpoints and the session stay."""

    reason: Reason | None = None


class Rollback(StrictModel):
    """Input of `rollback`. The loop is paused afterwards."""

    checkpoint: Annotated[int, Field(ge=0)]


class Cleanup(StrictModel):
    """Input of the update `checkpoints`: which to delete, with their git refs. Exactly one field is given."""

    numbers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    older_than_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    oldest: Annotated[int, Field(ge=1)] | None = None
    """This many, the oldest first."""
    all: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> "Cleanup":
        said = [bool(self.numbers), self.older_than_s is not None, self.oldest is not None, self.all]
        if sum(said) != 1:
            raise ValueError("needs exactly one of numbers, older_than_s, oldest, all")
        return self


class CheckpointQuery(StrictModel):
    """Input of the query `checkpoints`; may be left out for the first page."""

    after: int = -1
    """Checkpoints with a greater number are returned."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class CheckpointPage(TolerantModel):
    """Result of the query `checkpoints`, oldest first."""

    checkpoints: tuple[Checkpoint, ...] = ()
    more: bool = False


class LoopReceipt(TolerantModel):
    """Result of every update that changes what the loop does, sent when that is done; of `pause` and `exit` at once."""

    status: Annotated[LoopStatus, BeforeValidator(current_status)]
    iteration: int
    note: str = ""
    """The consequence, in a sentence."""
    id: str | None = None
    """The id of feedback."""
    plan_version: int | None = None
    checkpoint: int | None = None
    rescue: int | None = None
    """The checkpoint made before a rollback or restart."""
    wakes_at: datetime | None = None


class CleanupReceipt(TolerantModel):
    """Result of the update `checkpoints`."""

    deleted: tuple[int, ...] = ()
    kept: int = 0
