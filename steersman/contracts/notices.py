"""Notices of a run, which webhooks are told: what is told, to whom, and what comes back."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from steersman.contracts.model import JsonObject, StrictModel, TolerantModel
from steersman.contracts.variables import FromEnv, UrlValue

NoticeKind = Literal["approval", "decision", "end", "budget", "waiting"]
NOTICE_KINDS: Final[tuple[NoticeKind, ...]] = ("approval", "decision", "end", "budget", "waiting")
USUAL_KINDS: Final[tuple[NoticeKind, ...]] = ("approval", "end", "budget", "waiting")
WebhookFormat = Literal["json", "slack"]
BUDGET_SHARE: Final = 0.8
"""Of a limit of cost, tokens or turns: when this much of it is spent, it is told."""
MAX_NOTICE_INPUT: Final = 20_000
"""Characters of an approval's input, as JSON, in a notice."""
MAX_NOTICE_TEXT: Final = 10_000


class Webhook(StrictModel):
    """Who is told of a run. The operator says which addresses a request may name (`--allow-webhook`)."""

    url: UrlValue
    """http or https. An address that is a secret itself, as Slack's are, is given as {"from_env": NAME}."""
    on: Annotated[tuple[NoticeKind, ...], Field(min_length=1, max_length=5)] = USUAL_KINDS
    format: WebhookFormat = "json"
    secret: FromEnv | None = None
    """Signs what is sent, as Standard Webhooks has it."""
    decides: bool = False
    """The answer to an approval may decide it: {"decision": "allow" or "deny", "message"?, "remember"?}."""


class NoticeApproval(TolerantModel):
    """What the agent asks."""

    id: str
    tool: str
    input: JsonObject
    deadline: datetime | None = None


class NoticeDecision(TolerantModel):
    """What was decided, or that nobody did in time (`decision` is "deny" then)."""

    id: str
    tool: str
    decision: Literal["allow", "deny"]
    message: str | None = None


class NoticeBudget(TolerantModel):
    """A limit of which most is spent."""

    of: Literal["cost_usd", "tokens", "turns", "duration_s"]
    limit: float
    spent: float


class NoticeResult(TolerantModel):
    """How the run ended. `text` has at most 10,000 characters."""

    status: str
    text: str = ""
    error: str | None = None
    cost_usd: float = 0.0
    turns: int = 0
    session_id: str | None = None


class NoticeLoop(TolerantModel):
    """A loop that waits for a person, or has ended."""

    status: str
    iteration: int
    waits_for: str | None = None


class Notice(TolerantModel):
    """The body of format "json". Of a run, one of `approval`, `decision`, `budget` and `result`: that which `type`
    names (`result` of "end"). Of a loop, which `run` is the id of then, `loop`, and `budget` or `result`.
    """

    type: NoticeKind
    run: str
    execution: str
    time: datetime
    agent: str
    workspace: str
    labels: dict[str, str] = Field(default_factory=dict)
    approval: NoticeApproval | None = None
    decision: NoticeDecision | None = None
    budget: NoticeBudget | None = None
    result: NoticeResult | None = None
    loop: NoticeLoop | None = None


class NoticeInput(TolerantModel):
    """Input of the workflow RunNotice, and of send_notice."""

    host: str
    """Whose worker sends it."""
    notice: Notice
    webhook: Webhook | None = None
    """None: the one that the worker's operator has named for all runs."""
    expires_s: float
    """After this many seconds nobody tries any more."""


class NoticeAnswer(TolerantModel):
    """What came back, once it was taken. `decision`: see Webhook.decides."""

    status: int = 0
    decision: Literal["allow", "deny"] | None = None
    message: str | None = None
    remember: bool = False
