"""Tells webhooks of a run: what the agent asks, what is decided, how it ends, when most of a budget is spent.

Each notice is a workflow of its own, RunNotice, which outlives the run. An answer may decide an approval.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

from steersman.contracts.activities import OutgoingDecision
from steersman.contracts.budget import nearly_spent
from steersman.contracts.messages import Decision
from steersman.contracts.model import JsonObject
from steersman.contracts.notices import (
    BUDGET_SHARE,
    MAX_NOTICE_INPUT,
    MAX_NOTICE_TEXT,
    Notice,
    NoticeApproval,
    NoticeDecision,
    NoticeKind,
    NoticeResult,
    Webhook,
)
from steersman.contracts.request import RunRequest
from steersman.contracts.run import Approval, RunResult
from workflows import notice_sending
from workflows.agent_run.activities import run_key
from workflows.agent_run.delivery import MessageDelivery
from workflows.agent_run.visibility import RunVisibility
from workflows.notice_sending import EXPIRES, Receivers, Sending, receivers
from workflows.waiting import MIN_TIMER, all_dispatched

MAX_NOTICES = 200
"""Of one run, beside that of its end: each is a workflow, and each takes of the run's history."""
IN_LOOPS: tuple[NoticeKind, ...] = ("approval", "decision")
"""What a loop's run tells: budgets and ends are the loop's to tell."""
LEFT_OUT: JsonObject = {"…": "too much to be sent: it is in the run's events"}


News = tuple[str, dict[str, Any], Approval | None]
"""Under which name it is remembered, the notice's fields, and the approval that waits."""


class Notices:
    """What was told so far, and what is to be told. Does nothing where nobody is to be told anything."""

    def __init__(self, visibility: RunVisibility, delivery: MessageDelivery) -> None:
        self._visibility, self._delivery = visibility, delivery
        self._request: RunRequest | None = None
        self._to: Receivers = ()
        self._told: set[str] = set()
        self._number = 0
        self._answers: set[asyncio.Task[None]] = set()
        self._left_s: float | None = None
        """Of limits.duration_s, once the agent may begin."""
        self._active_s = 0.0
        """What is known to be spent of that."""

    def on_claimed(self, request: RunRequest, of_operator: tuple[NoticeKind, ...]) -> None:
        """Who is to be told is known: whom the request names, and whom the host's operator does."""
        self._request = request
        told = receivers(request.notify, of_operator)
        if workflow.info().parent is not None:
            told = tuple((webhook, tuple(each for each in kinds if each in IN_LOOPS)) for webhook, kinds in told)
        self._to = tuple(each for each in told if each[1])

    def on_begun(self, left_s: float | None) -> None:
        """The agent may begin, and take so long."""
        self._left_s = left_s

    async def run(self) -> None:
        """Tell what happens, until cancelled."""
        await workflow.wait_condition(lambda: bool(self._to))
        clock = asyncio.create_task(self._watch_duration())
        try:
            await self._tell_news()
        finally:
            clock.cancel()

    async def _watch_duration(self) -> None:
        await workflow.wait_condition(lambda: self._left_s is not None)
        limit_s = self._request.limits.duration_s if self._request else None
        if limit_s is None or self._left_s is None or not self._wants("budget"):
            return
        until = timedelta(seconds=self._left_s - (1 - BUDGET_SHARE) * limit_s)
        await workflow.sleep(max(until, MIN_TIMER), summary="tell that most of limits.duration_s is spent")
        self._active_s = BUDGET_SHARE * limit_s

    async def _tell_news(self) -> None:
        while self._number < MAX_NOTICES:
            await workflow.wait_condition(lambda: next(self._news(), None) is not None)
            for key, fields, approval in list(self._news()):
                self._told.add(key)
                await self._tell(fields, approval)

    def _news(self) -> Iterator[News]:
        """What was not told yet."""
        if self._wants("approval"):
            for each in self._delivery.approvals.open:
                if (key := f"approval {each.id}") not in self._told:
                    yield key, {"type": "approval", "approval": _asked(each)}, each
        if self._wants("decision"):
            for made in self._delivery.approvals.decided:
                if (key := f"decision {made.decision.id}") not in self._told:
                    yield key, {"type": "decision", "decision": _decided(made)}, None
        if self._wants("budget") and self._request:
            state = self._visibility.state
            limits = self._request.limits
            cost, usage, turns = state.cost_usd, state.usage, state.turns
            for budget in nearly_spent(limits, turns=turns, cost_usd=cost, usage=usage, active_s=self._active_s):
                if (key := f"budget {budget.of}") not in self._told:
                    yield key, {"type": "budget", "budget": budget}, None

    def _wants(self, kind: NoticeKind) -> bool:
        return any(kind in kinds for _, kinds in self._to)

    async def tell_end(self, result: RunResult) -> None:
        """The run is over. Returns once the notices have begun."""
        told = result.model_dump(include=set(NoticeResult.model_fields))
        for name in ("text", "error"):
            told[name] = told[name] and told[name][:MAX_NOTICE_TEXT]
        end = NoticeResult.model_validate(told)
        await self._tell({"type": "end", "result": end}, None)

    async def _tell(self, fields: dict[str, Any], approval: Approval | None) -> None:
        kind: NoticeKind = fields["type"]
        for webhook, kinds in self._to:
            if kind in kinds:
                self._number += 1
                await self._start(webhook, fields, approval)

    async def _start(self, webhook: Webhook | None, fields: dict[str, Any], approval: Approval | None) -> None:
        state, key = self._visibility.state, run_key()
        notice = Notice(
            run=key.run,
            execution=key.execution,
            time=workflow.now(),
            agent=state.agent or "",
            workspace=state.workspace or "",
            labels=state.labels,
            **fields,
        )
        left = approval.deadline - workflow.now() if approval and approval.deadline else EXPIRES
        sending = await notice_sending.start(state.host or "", notice, webhook, self._number, left)
        if sending and approval and webhook and webhook.decides:
            answer = asyncio.create_task(self._take_answer(approval.id, sending))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    async def _take_answer(self, approval: str, sending: Sending) -> None:
        try:
            answer = await sending
        except FailureError as error:
            workflow.logger.warning("nobody has taken a notice: %s", error.cause)
            return
        if answer.decision is None:
            return
        await all_dispatched()
        decision = Decision(id=approval, decision=answer.decision, message=answer.message, remember=answer.remember)
        if refusal := self._delivery.approvals.refusal(decision):
            workflow.logger.info("a webhook's answer came too late: %s", refusal)
            return
        self._delivery.decide(decision)


def _decided(made: OutgoingDecision) -> NoticeDecision:
    decision = made.decision
    return NoticeDecision(id=decision.id, tool=made.tool, decision=decision.decision, message=decision.message)


def _asked(approval: Approval) -> NoticeApproval:
    short = len(json.dumps(approval.input)) <= MAX_NOTICE_INPUT
    return NoticeApproval(
        id=approval.id,
        tool=approval.tool,
        input=approval.input if short else LEFT_OUT,
        deadline=approval.deadline,
    )
