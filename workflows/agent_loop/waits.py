"""Between two iterations: carry out what clients have asked, and wait as long as there is a reason to."""

from datetime import timedelta

from temporalio import workflow

from steersman.contracts.loop_messages import Pause
from steersman.contracts.loop_state import StopReason
from workflows.agent_loop import checkpoints
from workflows.agent_loop.carried_state import WaitReason
from workflows.agent_loop.decisions import Ending
from workflows.agent_loop.requests import PendingRequests
from workflows.agent_loop.state import LoopContext
from workflows.display import summary
from workflows.waiting import SIGNALS_FIRST, within

MAX_EVENTS = 2000
"""Events of history after which a loop continues as new: a query replays a closed loop, for no longer than a second."""
NO_REASON = "a person paused it"
LOOKS_ON_RESUME = "looks-on-resume"
"""The patch of loops whose next prompt says what is left as it is when a person lets them go on."""


async def until_next_iteration(loop: LoopContext) -> Ending | None:
    """Return how the loop ends; None if the next iteration may begin, or the loop must continue as new."""
    state, pending = loop.state, loop.pending
    while True:
        hold = state.carried.hold
        if pending.exit is not None:
            return _exit(loop, pending.exit)
        if pending.returns:
            await checkpoints.go_back(loop, pending.returns[0])
            del pending.returns[0]
        elif pending.pause:
            await _pause(loop)
        elif pending.resume:
            state.apply_resume(pending.resume)
            state.update(since_decision=0)
            state.wait_for(None)
            pending.resume = None
            if workflow.patched(LOOKS_ON_RESUME):
                await _look_again(loop)
        elif hold is None:
            pending.wake_requested = pending.limits_changed = False
            return None
        elif must_continue_as_new(pending):
            return None
        elif await _wait(loop, hold) and (ending := Ending.of_limit(state.carried, state.active_s())):
            return ending


async def _look_again(loop: LoopContext) -> None:
    """While the loop was held a person may have done what was left, or have written another plan."""
    state, before = loop.state, loop.state.carried.plan
    await checkpoints.survey_again(loop)
    state.update(revised=state.carried.revised or state.carried.plan != before)
    state.publish()


def must_continue_as_new(pending: PendingRequests) -> bool:
    """Whether this execution's history is long, and no client waits for anything."""
    info = workflow.info()
    long = info.is_continue_as_new_suggested() or info.get_current_history_length() > MAX_EVENTS
    return long and pending.idle


def _exit(loop: LoopContext, reason: str) -> Ending:
    if reason:
        checkpoints.add_note(loop, f"exit: {reason}")
    return Ending("exited", StopReason.EXIT, given_reason=reason)


async def _pause(loop: LoopContext) -> None:
    state, pending = loop.state, loop.pending
    hold = state.carried.hold
    request = pending.pause or Pause()
    pending.pause_in_progress = True
    if hold is None or hold.kind != "paused":
        await checkpoints.make(loop, "pause", note=request.reason or NO_REASON)
    request = pending.pause or request  # a second request may have come meanwhile, with a reason
    state.wait_for(WaitReason(kind="paused", reason=request.reason or NO_REASON))
    pending.pause, pending.pause_in_progress = None, False


async def _wait(loop: LoopContext, hold: WaitReason) -> bool:
    """Wait until the time has come or a request arrives; return whether the time of the wait counts as active."""
    state, pending = loop.state, loop.pending
    if hold.until is None:
        await workflow.wait_condition(lambda: not pending.idle or must_continue_as_new(pending))
        pending.wake_requested = pending.limits_changed = False
        return False
    timeout = remaining = hold.until - workflow.now()
    if state.carried.limits.duration_s is not None:
        timeout = min(timeout, timedelta(seconds=state.carried.limits.duration_s - state.active_s()))
    woken = await within(timeout, lambda: not pending.idle, summary(hold.reason or "begin the next iteration"))
    # Not by the clock: it may stand still for a workflow that was queried just then.
    fired = timeout == remaining and not woken
    if pending.wake_requested or (fired if workflow.patched(SIGNALS_FIRST) else workflow.now() >= hold.until):
        state.wait_for(None)
    pending.wake_requested = pending.limits_changed = False
    return True
