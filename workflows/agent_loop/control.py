"""What people say about a loop's going: pause, resume, skip_wait, exit, rollback, restart.

They put wishes on the desk; the loop itself sees to them.
"""

from temporalio import workflow

from steersman.contracts import names
from steersman.contracts.loop_messages import Exit, LoopReceipt, Pause, Restart, Resume, Rollback, SkipWait
from workflows.agent_loop.feedback import Telling
from workflows.agent_loop.requests import Desk, Order
from workflows.agent_loop.state import Book
from workflows.agent_loop.verb import Verb, refused


class Going:
    """`verbs`: by name."""

    def __init__(self, book: Book, desk: Desk, telling: Telling) -> None:
        self._book, self._desk, self._telling = book, desk, telling
        self.verbs = {
            names.PAUSE: Verb(Pause, self._pause),
            names.RESUME: Verb(Resume, self._resume, self._refuse_resume),
            names.SKIP_WAIT: Verb(SkipWait, self._skip_wait, self._refuse_skip_wait),
            names.EXIT: Verb(Exit, self._exit),
            names.ROLLBACK: Verb(Rollback, self._order, self._refuse_rollback),
            names.RESTART: Verb(Restart, self._order, self._refuse_restart),
        }

    async def _pause(self, pause: Pause) -> LoopReceipt:
        desk, book = self._desk, self._book
        if desk.resume is not None:
            # The later word counts; how it is to go on then is remembered.
            book.resume(desk.resume)
            desk.resume = None
        hold = book.memory.hold
        if hold and hold.kind == "paused" and not desk.orders:
            return book.receipt("it is paused already")
        earlier = desk.pause or Pause()
        now, reason = pause.now or earlier.now, pause.reason or earlier.reason
        desk.pause = Pause(now=now, reason=reason)
        if hold is None and not desk.pausing and not desk.hurries:
            return book.receipt("it pauses when the iteration has ended")
        await workflow.wait_condition(lambda: desk.pause is None or book.closed)
        return book.receipt()

    def _refuse_resume(self, resume: Resume) -> str | None:
        hold = self._book.memory.hold
        if self._desk.pause is None and not self._desk.orders and (hold is None or hold.timed):
            hint = "skip_wait ends its wait" if hold else "it is at work"
            return f"the loop is not paused and waits for no decision: {hint}"
        return self._telling.refuse_text(resume.text) if resume.text else None

    async def _resume(self, resume: Resume) -> LoopReceipt:
        desk, book = self._desk, self._book
        if resume.text:
            self._telling.note(resume.text)
        if desk.pause and not desk.pausing and book.memory.hold is None and not desk.hurries:
            desk.pause = None
            book.resume(resume)
            book.publish()
            return book.receipt("the pause is withdrawn")
        earlier = desk.resume or Resume()
        desk.resume = Resume(mode=resume.mode or earlier.mode, session=resume.session or earlier.session)
        await workflow.wait_condition(lambda: desk.resume is None or book.closed)
        return book.receipt()

    def _refuse_skip_wait(self, said: SkipWait) -> str | None:
        hold = self._book.memory.hold
        return None if hold and hold.timed else "the loop is not waiting for a time"

    async def _skip_wait(self, said: SkipWait) -> LoopReceipt:
        self._desk.nudged = True
        await workflow.wait_condition(lambda: not self._desk.nudged or self._book.closed)
        return self._book.receipt()

    async def _exit(self, said: Exit) -> LoopReceipt:
        self._desk.exit = said.reason or self._desk.exit or ""
        return self._book.receipt("it ends as stopped")

    def _refuse_rollback(self, rollback: Rollback) -> str | None:
        if self._book.archive.get(rollback.checkpoint) is None:
            return f"there is no checkpoint {rollback.checkpoint}"
        return None

    def _refuse_restart(self, restart: Restart) -> str | None:
        archive, iteration = self._book.archive, self._book.memory.iteration
        if restart.number is None:
            missing = archive.baseline() is None
            return "there is no checkpoint from before the first iteration" if missing else None
        if restart.number > iteration:
            return f"iteration {restart.number} has not begun: the loop is at iteration {iteration}"
        if archive.ended(restart.number - 1) is None:
            return f"there is no checkpoint from before iteration {restart.number}"
        return None

    async def _order(self, what: Rollback | Restart) -> LoopReceipt:
        order = Order(what)
        self._desk.orders.append(order)
        await workflow.wait_condition(lambda: order.done or self._book.closed)
        if order.refusal or order.receipt is None:
            raise refused(order.refusal or "the loop ended before it could be done")
        return order.receipt
