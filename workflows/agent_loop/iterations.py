"""The path of a loop: iterations and their proof. Judgements are in `judging`, what lies between is in `holding`."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, WorkflowAlreadyStartedError

from steersman.contracts.errors import ErrorType, RunError
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_state import StopReason
from workflows.agent_loop import activities as commands
from workflows.agent_loop import decisions as judging
from workflows.agent_loop import limits, outcomes
from workflows.agent_loop import progress as counting
from workflows.agent_loop.carried_state import Hold
from workflows.agent_loop.checkpoints import Keeper
from workflows.agent_loop.child_runs import Runner
from workflows.agent_loop.ending import Ending
from workflows.agent_loop.outcomes import Ran
from workflows.agent_loop.prompts import prompt
from workflows.agent_loop.requests import Desk
from workflows.agent_loop.returning import Returning
from workflows.agent_loop.setup import open_loop
from workflows.agent_loop.state import Book
from workflows.agent_loop.waits import Holding, outgrown


class Journey:
    """Leads one loop."""

    def __init__(self, request: LoopRequest, book: Book, desk: Desk) -> None:
        self._request, self._book, self._desk = request, book, desk
        self._keeper = Keeper(request, book)
        self._runner = Runner(book, desk)
        self._holding = Holding(book, desk, self._keeper, Returning(request, book, self._keeper))
        self._given: tuple[str, ...] = ()
        """Ids of the feedback in the prompt of the run at work."""
        self._said = ""
        """That prompt."""
        self._unkept: Ran | None = None
        """What the last run came to, until it is in a checkpoint."""

    async def lead(self) -> Ending | None:
        """Until the loop ends; None: it is to go on in a new execution."""
        book = self._book
        try:
            if not book.memory.host:
                await open_loop(self._request, book, self._keeper)
            while True:
                if ending := await self._holding.attend():
                    return ending
                if outgrown(self._desk):
                    await self._keeper.make_room()
                    return None
                if not book.memory.unverified and (ending := self._limit()):
                    return ending
                if ending := await self._iterate():
                    return ending
        except (FailureError, RunError) as error:
            return Ending.of_error(error)

    async def cut_off(self, reason: str) -> None:
        """The loop was cancelled: end the run at work, and keep what there is."""
        outcome = await self._runner.cut_off(reason)
        if outcome is not None:
            self._count(outcome)
        if not self._book.memory.next_checkpoint:
            return  # it has not begun
        unmade = self._keeper.making
        try:
            await self._keeper.checkpoint("end", self._unkept, given=self._given)
        except ActivityError as error:
            workflow.logger.warning("no last checkpoint: %s", error.cause)
            return
        if unmade is not None:
            # Its files may have been kept in the moment in which it was given up: no list would name them.
            await self._keeper.drop((unmade,))

    def _limit(self) -> Ending | None:
        return Ending.of_limit(self._book.memory, self._book.active_s())

    async def _iterate(self) -> Ending | None:
        book, desk = self._book, self._desk
        outcome = Ran("finished")
        if not book.memory.unverified:
            outcome = await self._work()
        if desk.orders:
            return None  # it goes back: nothing that was done counts
        if outcome.how != "finished":
            return self._cut_short(outcome)
        if judging.wants_verification(self._request, book.memory) and not await self._verified():
            return None
        book.set(unverified=False)
        return self._judged()

    def _cut_short(self, outcome: Ran) -> Ending | None:
        book = self._book
        if outcome.how == "rate_limited" and self._request.rate_limit == "stop":
            return Ending("stopped", StopReason.RATE_LIMIT, outcome.error or "")
        if outcome.how == "failed" and (ending := self._limit()):
            return ending
        book.hold(judging.hold_after(self._request, book.memory, outcome, workflow.now()))
        return None

    def _judged(self) -> Ending | None:
        book, verify = self._book, self._request.done.verify
        memory, limit = book.memory, self._limit()
        if judging.is_done(self._request, memory) and (limit or not judging.is_told_more(memory)):
            return Ending("completed", StopReason.DONE)
        if verify and memory.missing >= judging.MAX_MISSING:
            message = f"done.verify: there is no such command: {verify.shown()[:500]}"
            return Ending("failed", StopReason.VERIFICATION_MISSING, message, ErrorType.LOOP_FAILED)
        if limit:
            return limit
        book.hold(judging.hold_after(self._request, memory, Ran("finished"), workflow.now()))
        return None

    # The agent's part.

    async def _work(self) -> Ran:
        """A run of the agent, and the checkpoint after it."""
        book = self._book
        book.memory = counting.begun(counting.afresh(book.memory) if book.memory.afresh else book.memory)
        before = book.memory
        run = self._prepared()
        book.memory = counting.told(before)
        run_id = f"{commands.loop_key().loop}-{before.runs}"
        outcome = await self._runner.iterate(run_id, run, f"iteration {before.iteration}")
        if outcome.how == "failed" or (outcome.how != "finished" and not outcome.reached_agent):
            book.memory = counting.untold(book.memory, before)
        self._count(outcome)
        await self._keeper.checkpoint(outcome.checkpoint_kind, outcome, given=self._given)
        self._given, self._unkept = (), None
        book.memory = counting.progressed(book.memory, self._keeper.mark, outcome)
        return outcome

    def _prepared(self) -> Any:
        request, memory = self._request, self._book.memory
        resumes = counting.resumes(request, memory)
        self._said = prompt(request, memory, resumes=resumes)
        self._given = tuple(each.id for each in memory.feedback)
        left = limits.left(request, memory, self._book.active_s())
        return commands.iteration_run(request, memory, self._said, left, resumes=resumes)

    def _count(self, outcome: Ran) -> None:
        self._unkept = outcome
        self._book.memory = counting.ended(self._request, self._book.memory, outcome, self._said)

    # Its proof.

    async def _verified(self) -> bool:
        """Whether the verification came to an end, whatever it says; else it is run again later."""
        book, memory, verify = self._book, self._book.memory, self._request.done.verify
        assert verify is not None
        if self._desk.hurries:
            return False
        run_id = f"{commands.loop_key().loop}-{memory.runs}-verify"
        closed = await self._runner.verify(run_id, commands.verification_run(self._request, memory))
        if outcomes.stopped(closed):
            if not self._desk.hurries:
                book.hold(Hold(kind="paused", reason=_unverified(memory.iteration, run_id, closed)))
            return False
        found = outcomes.verified(verify, closed, memory.iteration, run_id, workflow.now())
        book.set(verification=found, missing=book.memory.missing + 1 if found.status == "missing" else 0)
        book.archive.amend(book.memory.last_kept, verification=found.status)
        book.publish()
        return True


def _unverified(iteration: int, run: str, closed: outcomes.Closed) -> str:
    why = f": {outcomes.taken(run)}" if isinstance(closed, WorkflowAlreadyStartedError) else " was stopped"
    return f"the verification of iteration {iteration}{why}"
