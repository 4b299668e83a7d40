"""What people tell a loop for its next iterations: feedback, a revised plan, limits. It changes the loop's memory."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from steersman.contracts import names
from steersman.contracts.agents import CAPABILITIES, UNMETERED
from steersman.contracts.loop import LoopRequest, PlanFile
from steersman.contracts.loop_messages import Feedback, LoopReceipt, RemoveFeedback, Revise, SetLimits
from steersman.contracts.loop_state import FeedbackNote
from workflows.agent_loop import activities as commands
from workflows.agent_loop import plans
from workflows.agent_loop.requests import Desk
from workflows.agent_loop.state import Book
from workflows.agent_loop.verb import Verb, refused

MAX_WAITING = 100
MAX_WAITING_BYTES = 100_000
PATIENCE = timedelta(minutes=1)
"""How long a revised plan may take to be looked at."""


class Telling:
    """`verbs`: by name."""

    def __init__(self, request: LoopRequest, book: Book, desk: Desk) -> None:
        self._request, self._book, self._desk = request, book, desk
        self.verbs = {
            names.FEEDBACK: Verb(Feedback, self._feedback, self._refuse_feedback),
            names.REMOVE_FEEDBACK: Verb(RemoveFeedback, self._remove_feedback, self._refuse_remove_feedback),
            names.REVISE: Verb(Revise, self._revise, self._refuse_revise),
            names.SET_LIMITS: Verb(SetLimits, self._set_limits, self._refuse_set_limits),
        }

    # Feedback.

    def refuse_text(self, text: str) -> str | None:
        """Why there is no room for more feedback."""
        waiting = self._book.memory.feedback
        if len(waiting) >= MAX_WAITING:
            return f"{MAX_WAITING} pieces of feedback wait already"
        if sum(len(each.text.encode()) for each in waiting) + len(text.encode()) > MAX_WAITING_BYTES:
            return "too much feedback waits already: put it in a file and give its path"
        return None

    def note(self, text: str, feedback_id: str | None = None) -> FeedbackNote:
        """Keep it for the next iteration."""
        number = self._book.memory.next_feedback
        while feedback_id is None:
            feedback_id = None if self._known(f"feedback-{number}") else f"feedback-{number}"
            number += 1
        note = FeedbackNote(id=feedback_id, text=text, given_at=workflow.now())
        self._book.set(feedback=(*self._book.memory.feedback, note), next_feedback=number)
        self._book.publish()
        return note

    def _known(self, feedback_id: str) -> FeedbackNote | None:
        memory = self._book.memory
        return next((each for each in (*memory.feedback, *memory.consumed) if each.id == feedback_id), None)

    def _refuse_feedback(self, feedback: Feedback) -> str | None:
        known = feedback.id and self._known(feedback.id)
        return None if known else self.refuse_text(feedback.text)

    async def _feedback(self, feedback: Feedback) -> LoopReceipt:
        if known := feedback.id and self._known(feedback.id):
            return self._book.receipt("it was given before", id=known.id)
        note, hold = self.note(feedback.text, feedback.id), self._book.memory.hold
        if hold and hold.timed:
            self._desk.nudged = True
        return self._book.receipt("for the next iteration", id=note.id)

    def _refuse_remove_feedback(self, said: RemoveFeedback) -> str | None:
        known = self._known(said.id)
        if known is None:
            return f"there is no feedback {said.id}"
        return None if known.iteration is None else f"iteration {known.iteration} was given feedback {said.id} already"

    async def _remove_feedback(self, said: RemoveFeedback) -> LoopReceipt:
        kept = tuple(each for each in self._book.memory.feedback if each.id != said.id)
        self._book.set(feedback=kept)
        self._book.publish()
        return self._book.receipt("it is removed", id=said.id)

    # The plan.

    def _refuse_revise(self, revise: Revise) -> str | None:
        items = self._request.done.items
        if isinstance(revise.plan, str) and items and items.kind == "checkboxes" and items.path is None:
            return "done.items has no path, so the plan must be a file"
        if plans.too_long(self._book.memory, revise):
            return "its versions are too long together: put the plan in a file"
        return None

    async def _revise(self, revise: Revise) -> LoopReceipt:
        if isinstance(revise.plan, PlanFile):
            await self._look_at(revise.plan)
        book = self._book
        book.memory = plans.revised(book.memory, revise, workflow.now())
        book.publish()
        return book.receipt("for the next iteration", plan_version=book.memory.plan)

    async def _look_at(self, plan: PlanFile) -> None:
        """A plan that is not there is refused at once, not found out by the next iteration."""
        book = self._book
        await workflow.wait_condition(lambda: bool(book.memory.host) or book.closed)
        try:
            if not book.closed:
                await commands.admit(book.memory.host, self._request.model_copy(update={"plan": plan}), PATIENCE)
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type:
                reason = ApplicationError(error.cause.message, type=error.cause.type, non_retryable=True)
                raise reason from error
            raise refused(
                f"nobody on {book.memory.host} could look at {plan.path}: {commands.reason_of(error)}"
            ) from error
        if book.closed:
            raise refused("the loop has ended")

    # The limits.

    def _refuse_set_limits(self, said: SetLimits) -> str | None:
        if CAPABILITIES[self._request.run.agent].cost:
            return None
        asked = [name for name in ("cost_usd", "tokens") if getattr(said, name)]
        return f'{asked[0]} is not supported by agent "{self._request.run.agent}": {UNMETERED}' if asked else None

    async def _set_limits(self, said: SetLimits) -> LoopReceipt:
        book = self._book
        zero_is_none = ("no_progress", "failures")
        asked: dict[str, Any] = said.model_dump(exclude_none=True)
        changed = {name: value if value or name in zero_is_none else None for name, value in asked.items()}
        book.set(limits=book.memory.limits.model_copy(update=changed))
        book.publish()
        self._desk.look = True
        return book.receipt("a run at work keeps the limits that it began with")
