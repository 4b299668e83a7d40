"""What can be said to a loop, one method a verb of the wire. Reading and waiting are in steersman.loops."""

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


class LoopVerbs:
    """Each returns when it is done, with what comes of it in `.note`.

    Raises:
        InvalidRequest: what is no such message; it names the field.
        MessageRefused: the loop says no, and why.
        RunNotRunning, RunNotFound, NoWorker, ServerUnreachable.
    """

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls

    async def pause(self, loop: str, *, now: bool = False, reason: str | None = None) -> LoopReceipt:
        """Pause when the iteration has ended, or end the agent's turn `now` and keep its session."""
        return await self._say(loop, names.PAUSE, Pause, now=now, reason=reason)

    async def resume(
        self,
        loop: str,
        text: str | None = None,
        *,
        mode: LoopMode | None = None,
        session: Literal["fresh"] | None = None,
    ) -> LoopReceipt:
        """Go on after a pause, or take the decision that the loop waits for. `text`: feedback for the agent; `session`
        "fresh": with a new session of it.
        """
        asked = {"session": session} if session else {}  # not said where it is not asked for: see WorkflowCalls.update
        return await self._say(loop, names.RESUME, Resume, text=text, mode=mode, **asked)

    async def feedback(self, loop: str, text: str, *, id: str | None = None) -> LoopReceipt:
        """Tell the next iteration something; `.id` of the receipt takes it back. The same `id` twice is one."""
        return await self._say(loop, names.FEEDBACK, Feedback, text=text, id=id)

    async def remove_feedback(self, loop: str, id: str) -> LoopReceipt:
        """Take feedback back that no iteration was given yet."""
        return await self._say(loop, names.REMOVE_FEEDBACK, RemoveFeedback, id=id)

    async def revise(
        self, loop: str, plan: str | dict[str, Any] | None = None, prompt: str | None = None
    ) -> LoopReceipt:
        """A new version of the plan (text, or {"path": ...}), of the prompt's template, or both."""
        return await self._say(loop, names.REVISE, Revise, plan=plan, prompt=prompt)

    async def restart(self, loop: str, from_iteration: int | None = None, *, files: bool = True) -> LoopReceipt:
        """Start over from the beginning, or from that of one iteration; the files too, or left as they are."""
        start = "plan" if from_iteration is None else "iteration"
        return await self._tell(
            loop, names.RESTART, parse_message(Restart, {"from": start, "number": from_iteration, "files": files})
        )

    async def skip_wait(self, loop: str) -> LoopReceipt:
        """Go on at once instead of waiting between iterations or for a rate limit."""
        return await self._tell(loop, names.SKIP_WAIT, None)

    async def set_limits(self, loop: str, **limits: float | None) -> LoopReceipt:
        """Change limits by the names of LoopLimits; 0 takes one away."""
        return await self._say(loop, names.SET_LIMITS, SetLimits, **limits)

    async def exit(self, loop: str, *, reason: str | None = None) -> LoopReceipt:
        """End the loop as "stopped" and keep everything."""
        return await self._say(loop, names.EXIT, Exit, reason=reason)

    async def rollback(self, loop: str, checkpoint: int) -> LoopReceipt:
        """Take files and state back to a checkpoint, after making a rescue one. The loop is paused then."""
        return await self._say(loop, names.ROLLBACK, Rollback, checkpoint=checkpoint)

    async def _say(self, loop: str, name: str, model: type[StrictModel], **fields: Any) -> LoopReceipt:
        return await self._tell(loop, name, parse_message(model, fields))

    async def _tell(self, loop: str, name: str, said: StrictModel | None) -> LoopReceipt:
        return await self._calls.update(loop, name, said, LoopReceipt)
