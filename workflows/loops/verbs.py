"""What each thing said to a loop means: refused with a reason, or taken. The loop itself sees to wishes on its desk."""

from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.loop import LoopRequest, PlanFile
from steersman.contracts.loop_messages import (
    Cleanup,
    CleanupReceipt,
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
    SkipWait,
)
from steersman.contracts.loop_state import CLOSED, FeedbackNote
from steersman.contracts.model import Question
from workflows.loops import commands
from workflows.loops.book import Book
from workflows.loops.desk import Desk, Order
from workflows.loops.memory import plan_hash

MAX_WAITING = 100
MAX_PLAN_TEXT = 512 * 1024
"""All versions of plan and prompt together: they are carried through continue-as-new."""

MODELS: dict[str, type[Question]] = {
    names.PAUSE: Pause,
    names.RESUME: Resume,
    names.FEEDBACK: Feedback,
    names.REMOVE_FEEDBACK: RemoveFeedback,
    names.REVISE: Revise,
    names.RESTART: Restart,
    names.SKIP_WAIT: SkipWait,
    names.SET_LIMITS: SetLimits,
    names.EXIT: Exit,
    names.ROLLBACK: Rollback,
    names.CHECKPOINTS: Cleanup,
}


class Verbs:
    """By name: `refusal` judges, `do` acts and answers."""

    def __init__(self, request: LoopRequest, book: Book, desk: Desk) -> None:
        self._request, self._book, self._desk = request, book, desk

    def refusal(self, name: str, said: Question) -> str | None:
        """Why this cannot be done now; changes nothing."""
        if self._book.status in CLOSED:
            return f"the loop has ended: it is {self._book.status}"
        judge: Callable[[Any], str | None] | None = getattr(self, f"_refuse_{name}", None)
        return judge(said) if judge else None

    async def do(self, name: str, said: Question) -> LoopReceipt | CleanupReceipt:
        """Do it. Raises ApplicationError "Refused" where it turns out that it cannot be done."""
        # A signal may have changed things since the validator looked.
        if reason := self.refusal(name, said):
            raise refused(reason)
        act: Callable[[Any], Awaitable[LoopReceipt | CleanupReceipt]] = getattr(self, f"_{name}")
        return await act(said)

    def _receipt(self, note: str, **more: Any) -> LoopReceipt:
        memory = self._book.memory
        return LoopReceipt(
            status=self._book.status,
            iteration=memory.iteration,
            note=note,
            wakes_at=memory.hold.until if memory.hold else None,
            **more,
        )

    # Pausing and going on.

    async def _pause(self, pause: Pause) -> LoopReceipt:
        hold = self._book.memory.hold
        if hold and hold.kind == "paused":
            return self._receipt("it is paused already")
        now = pause.now or bool(self._desk.pause and self._desk.pause.now)
        self._desk.pause = pause.model_copy(update={"now": now})
        self._desk.resume = None
        if not now and hold is None:
            return self._receipt("it pauses when the iteration has ended")
        await workflow.wait_condition(lambda: self._desk.pause is None or self._ended)
        return self._receipt("")

    def _refuse_resume(self, resume: Resume) -> str | None:
        hold = self._book.memory.hold
        if self._desk.pause is None and (hold is None or hold.timed):
            hint = "skip_wait ends its wait" if hold else "it is at work"
            return f"the loop is not paused and waits for no decision: {hint}"
        return None

    async def _resume(self, resume: Resume) -> LoopReceipt:
        if resume.text:
            self._note(resume.text, None)
        if self._desk.pause and not self._desk.pause.now and self._book.memory.hold is None:
            self._desk.pause = None
            self._book.set(mode=resume.mode or self._book.memory.mode)
            self._book.publish()
            return self._receipt("the pause is withdrawn")
        self._desk.resume = resume
        await workflow.wait_condition(lambda: self._desk.resume is None or self._ended)
        return self._receipt("")

    def _refuse_skip_wait(self, said: SkipWait) -> str | None:
        hold = self._book.memory.hold
        return None if hold and hold.timed else "the loop is not waiting for a time"

    async def _skip_wait(self, said: SkipWait) -> LoopReceipt:
        self._desk.nudged = True
        await workflow.wait_condition(lambda: not self._desk.nudged or self._ended)
        return self._receipt("")

    async def _exit(self, said: Exit) -> LoopReceipt:
        self._desk.exit = said.reason or ""
        return self._receipt("it ends as stopped")

    # What the next iteration is told.

    def _refuse_feedback(self, feedback: Feedback) -> str | None:
        if len(self._book.memory.feedback) >= MAX_WAITING:
            return f"{MAX_WAITING} pieces of feedback wait already"
        return None

    async def _feedback(self, feedback: Feedback) -> LoopReceipt:
        known = feedback.id and self._known(feedback.id)
        note = known or self._note(feedback.text, feedback.id)
        hold = self._book.memory.hold
        if hold and hold.timed and not known:
            self._desk.nudged = True
        return self._receipt("it was given before" if known else "for the next iteration", id=note.id)

    def _refuse_remove_feedback(self, said: RemoveFeedback) -> str | None:
        known = self._known(said.id)
        if known is None:
            return f"there is no feedback {said.id}"
        return None if known.iteration is None else f"iteration {known.iteration} was given feedback {said.id} already"

    async def _remove_feedback(self, said: RemoveFeedback) -> LoopReceipt:
        kept = tuple(each for each in self._book.memory.feedback if each.id != said.id)
        self._book.set(feedback=kept)
        self._book.publish()
        return self._receipt("it is removed", id=said.id)

    def _known(self, feedback_id: str) -> FeedbackNote | None:
        memory = self._book.memory
        return next((each for each in (*memory.feedback, *memory.consumed) if each.id == feedback_id), None)

    def _note(self, text: str, feedback_id: str | None) -> FeedbackNote:
        number = self._book.memory.next_feedback
        while feedback_id is None:
            feedback_id = None if self._known(f"feedback-{number}") else f"feedback-{number}"
            number += 1
        note = FeedbackNote(id=feedback_id, text=text, given_at=workflow.now())
        self._book.set(feedback=(*self._book.memory.feedback, note), next_feedback=number)
        self._book.publish()
        return note

    # Changing the plan and the limits.

    def _refuse_revise(self, revise: Revise) -> str | None:
        items = self._request.done.items
        if isinstance(revise.plan, str) and items and items.kind == "checkboxes" and items.path is None:
            return "done.items has no path, so the plan must be a file"
        kept = sum(len((each.text or "") + (each.prompt or "")) for each in self._book.memory.plans)
        if kept + len(revise.plan if isinstance(revise.plan, str) else "") + len(revise.prompt or "") > MAX_PLAN_TEXT:
            return "its versions are too long together: put the plan in a file"
        return None

    async def _revise(self, revise: Revise) -> LoopReceipt:
        memory, plan = self._book.memory, revise.plan
        changes: dict[str, Any] = {"number": len(memory.plans) + 1, "since": workflow.now()}
        if isinstance(plan, str):
            changes |= {"hash": plan_hash(plan), "text": plan, "path": None, "phase": None}
        elif isinstance(plan, PlanFile):
            changes |= {"hash": "", "text": None, "path": plan.path, "phase": plan.phase}
        if revise.prompt is not None:
            changes["prompt"] = revise.prompt
        version = memory.plan_version.model_copy(update=changes)
        notice = memory.notice
        if isinstance(plan, str):
            notice = f"The plan was revised. It is now:\n\n{plan}"
        elif plan is not None:
            notice = f"The plan was revised: read `{plan.path}` again."
        self._book.set(plans=(*memory.plans, version), plan=version.number, notice=notice)
        self._book.publish()
        return self._receipt("for the next iteration", plan_version=version.number)

    async def _set_limits(self, said: SetLimits) -> LoopReceipt:
        zero_is_none = ("no_progress", "failures")
        said_so = said.model_dump(exclude_none=True)
        changed = {name: value if value or name in zero_is_none else None for name, value in said_so.items()}
        self._book.set(limits=self._book.memory.limits.model_copy(update=changed))
        self._book.publish()
        return self._receipt("a run at work keeps the limits that it began with")

    # Going back.

    def _refuse_rollback(self, rollback: Rollback) -> str | None:
        if self._book.archive.get(rollback.checkpoint) is None:
            return f"there is no checkpoint {rollback.checkpoint}"
        return None

    async def _rollback(self, rollback: Rollback) -> LoopReceipt:
        return await self._order(rollback)

    def _refuse_restart(self, restart: Restart) -> str | None:
        if restart.number is None:
            missing = self._book.archive.baseline() is None
            return "the checkpoint from before the first iteration is deleted" if missing else None
        if restart.number > self._book.memory.iteration:
            return f"iteration {restart.number} has not begun: the loop is at iteration {self._book.memory.iteration}"
        if self._book.archive.ended(restart.number - 1) is None:
            return f"there is no checkpoint from before iteration {restart.number}"
        return None

    async def _restart(self, restart: Restart) -> LoopReceipt:
        return await self._order(restart)

    async def _order(self, what: Rollback | Restart) -> LoopReceipt:
        order = Order(what)
        self._desk.orders.append(order)
        await workflow.wait_condition(lambda: order.done or self._ended)
        if order.refusal or order.receipt is None:
            raise refused(order.refusal or "the loop ended before it could be done")
        return order.receipt

    async def _checkpoints(self, cleanup: Cleanup) -> CleanupReceipt:
        numbers = self._book.archive.chosen(cleanup, workflow.now().timestamp())
        if numbers:
            await commands.drop(self._book.memory.host, self._request, numbers)
            self._book.archive.delete(numbers)
            self._book.publish()
        return CleanupReceipt(deleted=numbers, kept=len(self._book.archive))

    @property
    def _ended(self) -> bool:
        return self._book.status in CLOSED


def refused(reason: str) -> ApplicationError:
    """The update's failure."""
    return ApplicationError(reason, type="Refused", non_retryable=True)
