"""The updates of a loop as methods. Starting, following and waiting for the end are in steersman.loops."""

from typing import Any, Literal

from steersman._client.loop_calls import LoopCalls
from steersman.contracts import names
from steersman.contracts.loop import LoopMode
from steersman.contracts.loop_messages import (
    Exit,
    Feedback,
    LoopReceipt,
    Pause,
    RemoveFeedback,
    Restart,
    Resume,
    Revise,
    Rollback,
    SetLimits,
)
from steersman.contracts.messages import parse_message
from steersman.contracts.model import StrictModel


class LoopUpdates:
    """Each method returns once the loop has done it, with the consequence as a sentence in `.note` of the receipt.

    `exit` returns at once, `pause` too while the loop is at work and the pause is not to be `now`.

    Raises:
        InvalidRequest: the arguments do not fit the message; names the field.
        MessageRefused: the loop cannot do it now; `.reason`.
        RunNotRunning: the loop has closed.
        HostUnreachable: the loop waits for a worker of its host: it may have taken the request, and carries it out once
            one is there; `revise` it gives up after a minute.
        NoWorker: so of any worker.
        RunNotFound, ServerUnreachable.
    """

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls

    async def pause(self, loop: str, *, now: bool = False, reason: str | None = None) -> LoopReceipt:
        """Pause after the iteration. `now`: end the agent's turn at once and keep its session."""
        return await self._send(loop, names.PAUSE, Pause, now=now, reason=reason)

    async def resume(
        self,
        loop: str,
        text: str | None = None,
        *,
        mode: LoopMode | None = None,
        session: Literal["fresh"] | None = None,
    ) -> LoopReceipt:
        """Continue after a pause, or take the decision that the loop waits for.

        Args:
            loop: the loop's id.
            text: feedback for the next iteration, at most 20,000 characters.
            mode: the loop's mode from now on.
            session: "fresh" begins a new session of the agent.
        """
        given = {"session": session} if session else {}  # left out unless given: see WorkflowCalls.update
        return await self._send(loop, names.RESUME, Resume, text=text, mode=mode, **given)

    async def feedback(self, loop: str, text: str, *, id: str | None = None) -> LoopReceipt:
        """Give the next iteration feedback, at most 20,000 characters. `.id` of the receipt is for `remove_feedback`.

        The same `id` twice is one piece of feedback.
        """
        return await self._send(loop, names.FEEDBACK, Feedback, text=text, id=id)

    async def remove_feedback(self, loop: str, id: str) -> LoopReceipt:
        """Withdraw feedback that no iteration has been given."""
        return await self._send(loop, names.REMOVE_FEEDBACK, RemoveFeedback, id=id)

    async def revise(
        self, loop: str, plan: str | dict[str, Any] | None = None, prompt: str | None = None
    ) -> LoopReceipt:
        """Set a new version of the plan (a text, or {"path": ...}), of the prompt's template, or both."""
        return await self._send(loop, names.REVISE, Revise, plan=plan, prompt=prompt)

    async def restart(self, loop: str, from_iteration: int | None = None, *, files: bool = True) -> LoopReceipt:
        """Start over from the beginning of the loop, or of one iteration. `files`: restore the workspace too."""
        start = "plan" if from_iteration is None else "iteration"
        message = parse_message(Restart, {"from": start, "number": from_iteration, "files": files})
        return await self._calls.update(loop, names.RESTART, message, LoopReceipt)

    async def skip_wait(self, loop: str) -> LoopReceipt:
        """End the wait between iterations, or for a rate limit, now."""
        return await self._calls.update(loop, names.SKIP_WAIT, None, LoopReceipt)

    async def set_limits(self, loop: str, **limits: float | None) -> LoopReceipt:
        """Change limits, by the field names of LoopLimits; 0 removes one."""
        return await self._send(loop, names.SET_LIMITS, SetLimits, **limits)

    async def exit(self, loop: str, *, reason: str | None = None) -> LoopReceipt:
        """End the loop with status "exited"; files, checkpoints and the session stay."""
        return await self._send(loop, names.EXIT, Exit, reason=reason)

    async def rollback(self, loop: str, checkpoint: int) -> LoopReceipt:
        """Restore files and state of a checkpoint, after a rescue checkpoint was made. The loop is paused then."""
        return await self._send(loop, names.ROLLBACK, Rollback, checkpoint=checkpoint)

    async def _send(self, loop: str, name: str, model: type[StrictModel], **fields: Any) -> LoopReceipt:
        return await self._calls.update(loop, name, parse_message(model, fields), LoopReceipt)
