"""Between two iterations of a loop: seeing to what people asked, and waiting as long as there is a reason to."""

from datetime import timedelta

from temporalio import workflow

from steersman.contracts.loop_messages import Pause
from steersman.contracts.loop_state import StopReason
from workflows.agent_loop.carried_state import Hold
from workflows.agent_loop.checkpoints import MAX_NOTE, Keeper
from workflows.agent_loop.ending import Ending
from workflows.agent_loop.requests import Desk
from workflows.agent_loop.returning import Returning
from workflows.agent_loop.state import Book
from workflows.waiting import SIGNALS_FIRST, within

MAX_EVENTS = 2000
"""A closed loop is replayed for each question: no longer than a second."""
UNSAID = "a person paused it"


class Holding:
    """Attends to a loop that is not at work."""

    def __init__(self, book: Book, desk: Desk, keeper: Keeper, returning: Returning) -> None:
        self._book, self._desk = book, desk
        self._keeper, self._returning = keeper, returning

    async def attend(self) -> Ending | None:
        """How the loop ends; None: the next iteration may begin, or the loop is outgrown."""
        desk, book = self._desk, self._book
        while True:
            hold = book.memory.hold
            if desk.exit is not None:
                if desk.exit:
                    book.archive.amend(book.memory.next_checkpoint - 1, note=f"exit: {desk.exit}"[:MAX_NOTE])
                return Ending("stopped", StopReason.EXIT, said=desk.exit)
            if desk.orders:
                await self._returning.carry_out(desk.orders[0])
                del desk.orders[0]
            elif desk.pause:
                await self._pause()
            elif desk.resume:
                book.resume(desk.resume)
                book.set(since_decision=0)
                book.hold(None)
                desk.resume = None
            elif hold is None:
                desk.nudged = desk.look = False
                return None
            elif outgrown(desk):
                return None
            elif await self._wait(hold) and (ending := Ending.of_limit(book.memory, book.active_s())):
                return ending

    async def _pause(self) -> None:
        book, desk = self._book, self._desk
        hold = book.memory.hold
        wish = desk.pause or Pause()
        desk.pausing = True
        if hold is None or hold.kind != "paused":
            await self._keeper.checkpoint("pause", note=wish.reason or UNSAID)
        wish = desk.pause or wish
        book.hold(Hold(kind="paused", reason=wish.reason or UNSAID))
        desk.pause, desk.pausing = None, False

    async def _wait(self, hold: Hold) -> bool:
        """Until the time has come or a person wakes the loop; whether time has passed that counts."""
        book, desk = self._book, self._desk
        if hold.until is None:
            await workflow.wait_condition(lambda: not desk.quiet or outgrown(desk))
            desk.nudged = desk.look = False
            return False
        patience = until = hold.until - workflow.now()
        if book.memory.limits.duration_s is not None:
            patience = min(patience, timedelta(seconds=book.memory.limits.duration_s - book.active_s()))
        woken = await within(patience, lambda: not desk.quiet)
        # Not by the clock, which may stand still for a workflow that was asked something just then.
        fired = patience == until and not woken
        if desk.nudged or (fired if workflow.patched(SIGNALS_FIRST) else workflow.now() >= hold.until):
            book.hold(None)
        desk.nudged = desk.look = False
        return True


def outgrown(desk: Desk) -> bool:
    """Whether the loop is to go on in a new execution: this one's history is long, and nobody waits for anything."""
    info = workflow.info()
    grown = info.is_continue_as_new_suggested() or info.get_current_history_length() > MAX_EVENTS
    return grown and desk.quiet
