"""Taking a loop back to one of its checkpoints: rollback and restart. A rescue checkpoint is made first."""

from temporalio.exceptions import ActivityError

from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_messages import LoopReceipt, Restart, Rollback
from steersman.contracts.loop_state import Checkpoint
from workflows.agent_loop import activities as commands
from workflows.agent_loop import plans
from workflows.agent_loop.carried_state import Hold
from workflows.agent_loop.checkpoints import Keeper
from workflows.agent_loop.requests import Order
from workflows.agent_loop.state import Book


class Returning:
    """Carries out what was ordered."""

    def __init__(self, request: LoopRequest, book: Book, keeper: Keeper) -> None:
        self._request, self._book, self._keeper = request, book, keeper

    async def carry_out(self, order: Order) -> None:
        """A rollback or restart; the order then has its receipt, or why it could not be done."""
        try:
            if isinstance(order.what, Rollback):
                await self._roll_back(order, order.what)
            else:
                await self._restart(order, order.what)
        finally:
            order.done = True

    async def _roll_back(self, order: Order, what: Rollback) -> None:
        target = self._book.archive.get(what.checkpoint)
        if target is None:
            order.refusal = f"there is no checkpoint {what.checkpoint}"
            return
        rescue = await self._keeper.checkpoint("rescue", note=f"before going back to checkpoint {target.number}")
        if not await self._files(order, target):
            return
        self._go_back(target, session=target.session_id, unfinished=target.kind == "pause")
        self._book.memory = plans.returned_to(self._book.memory, target.plan_version)
        self._book.hold(Hold(kind="paused", reason=f"taken back to checkpoint {target.number}"))
        await self._keeper.look()
        order.receipt = self._receipt(target, rescue, f"the loop is paused at checkpoint {target.number}", files=True)

    async def _restart(self, order: Order, what: Restart) -> None:
        archive = self._book.archive
        target = archive.baseline() if what.number is None else archive.ended(what.number - 1)
        if target is None:
            order.refusal = "there is no checkpoint to start from"
            return
        where = "the beginning" if what.number is None else f"the beginning of iteration {what.number}"
        rescue = await self._keeper.checkpoint("rescue", note=f"before starting over from {where}")
        if what.files and not await self._files(order, target):
            return
        # From the beginning with the session that was given, if it was only ever forked: what the loop said in one of
        # its own cannot be unsaid.
        given = self._request.run.session if self._request.run.fork_session else None
        self._go_back(target, session=given if what.number is None else target.session_id, unfinished=False)
        self._book.hold(None)
        await self._keeper.look()
        order.receipt = self._receipt(target, rescue, f"starts over from {where}", files=what.files)

    async def _files(self, order: Order, target: Checkpoint) -> bool:
        """Whether they are as they were; else the loop is paused, and the order says why."""
        if target.commit is None:
            return True  # there never were files to take back: the state alone is
        host, own = self._book.memory.host, commands.loop_key().loop
        try:
            problem = (await commands.restore(host, self._request, own, target.number, target.commit)).error
        except ActivityError as error:
            problem = commands.reason_of(error)
        if problem is None:
            return True
        order.refusal = f"the files of checkpoint {target.number} cannot be restored: {problem}"
        self._book.hold(Hold(kind="paused", reason=order.refusal))
        return False

    def _go_back(self, target: Checkpoint, *, session: str | None, unfinished: bool) -> None:
        given = session is not None and session == self._request.run.session
        notice = (
            f"The workspace was taken back to how it was after iteration {target.iteration}: what you remember of it "
            "since then no longer holds."
        )
        self._book.set(
            iteration=target.iteration,
            session_id=session,
            afresh=False,
            lent=given,
            briefed=session is not None and not given,
            forks=given and self._request.run.fork_session,
            unfinished=unfinished,
            heard=unfinished and session is not None,
            unverified=False,
            verification=None,
            missing=0,
            text="",
            promised=False,
            no_progress=0,
            failures=0,
            rate_limits=0,
            since_decision=0,
            last_error=None,
            notice=notice if session and not given else "",
        )

    def _receipt(self, target: Checkpoint, rescue: Checkpoint, note: str, *, files: bool) -> LoopReceipt:
        if files and target.commit is None:
            note += "; no files were kept with that checkpoint: they are as they were"
        return self._book.receipt(note, checkpoint=target.number, rescue=rescue.number)
