"""Tells webhooks of a loop: that it waits for a person, that most of a budget is spent, how it ends."""

from typing import Any

from temporalio import workflow

from steersman.contracts.budget import nearly_spent
from steersman.contracts.loop_state import LoopResult
from steersman.contracts.notices import MAX_NOTICE_TEXT, Notice, NoticeLoop, NoticeResult
from steersman.contracts.request import Limits
from workflows import notice_sending
from workflows.agent_loop.activities import loop_key
from workflows.agent_loop.state import LoopContext
from workflows.notice_sending import receivers

WAITS = ("paused", "decision")
"""Kinds of waits that end by a person alone."""


async def run(loop: LoopContext) -> None:
    """Tell what happens, until cancelled."""
    while True:
        await workflow.wait_condition(lambda: bool(_news(loop)) or _kept(loop) != loop.state.carried.notices_told)
        loop.state.update(notices_told=_kept(loop))
        for key, fields in _news(loop):
            loop.state.update(notices_told=(*_kept(loop), key))
            await _tell(loop, fields)


def _news(loop: LoopContext) -> list[tuple[str, dict[str, Any]]]:
    """What was not told yet: under which name it is remembered, and the notice's fields."""
    carried = loop.state.carried
    if not carried.host or not receivers(loop.request.run.notify, carried.notices):
        return []
    own, totals = carried.limits, carried.totals
    limits = Limits(cost_usd=own.cost_usd, tokens=own.tokens, duration_s=own.duration_s)
    # As of the newest checkpoint: by the clock, a replay could come to another answer.
    kept = loop.state.archive.recent
    active_s = kept[-1].totals.active_s if kept else totals.active_s
    spent = nearly_spent(limits, turns=0, cost_usd=totals.cost_usd, usage=totals.usage, active_s=active_s)
    found = [(f"budget {each.of}", {"type": "budget", "budget": each}) for each in spent]
    if wait := _wait(loop):
        found.append((wait, {"type": "waiting"}))
    return [each for each in found if each[0] not in carried.notices_told]


def _wait(loop: LoopContext) -> str | None:
    """The name of the wait for a person, if there is one."""
    hold = loop.state.carried.hold
    return f"wait {hold.kind} {loop.state.carried.iteration}" if hold and hold.kind in WAITS else None


def _kept(loop: LoopContext) -> tuple[str, ...]:
    """What is remembered: of waits, the one that lasts."""
    wait = _wait(loop)
    return tuple(each for each in loop.state.carried.notices_told if each == wait or each.startswith("budget"))


async def tell_end(loop: LoopContext, result: LoopResult) -> None:
    """The loop is over. Returns once the notices have begun."""
    told = NoticeResult(
        status=result.status,
        text=(result.text or "")[:MAX_NOTICE_TEXT],
        error=(result.error or "")[:MAX_NOTICE_TEXT] or None,
        cost_usd=result.cost_usd,
        session_id=result.session_id,
    )
    await _tell(loop, {"type": "end", "result": told})


async def _tell(loop: LoopContext, fields: dict[str, Any]) -> None:
    state, key, kind = loop.state, loop_key(), fields["type"]
    shown = state.snapshot()
    notice = Notice(
        run=key.loop,
        execution=key.execution,
        time=workflow.now(),
        agent=loop.request.run.agent,
        workspace=loop.request.run.workspace.path,
        labels=loop.request.run.labels,
        loop=NoticeLoop(status=shown.status, iteration=shown.iteration, waits_for=shown.waits_for),
        **fields,
    )
    for webhook, kinds in receivers(loop.request.run.notify, state.carried.notices):
        if state.carried.host and kind in kinds:
            state.update(notices_sent=state.carried.notices_sent + 1)
            await notice_sending.start(state.carried.host, notice, webhook, state.carried.notices_sent)
