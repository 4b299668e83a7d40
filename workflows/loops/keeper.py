"""A loop's checkpoints: made after each iteration, gone back to by rollback and restart, taken over by a fork."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from steersman.contracts.errors import InvalidRequest
from steersman.contracts.loop import LoopRequest, PlanFile
from steersman.contracts.loop_activities import ForkPoint, Survey
from steersman.contracts.loop_messages import LoopReceipt, Restart, Rollback
from steersman.contracts.loop_state import Checkpoint, CheckpointKind, PlanVersion
from workflows.loops import commands
from workflows.loops.book import Book
from workflows.loops.desk import Order
from workflows.loops.judging import Ran
from workflows.loops.memory import Hold, plan_hash
from workflows.loops.prompts import current_phase

LAST_LOOK = timedelta(minutes=1)
"""How long a loop that ends waits for a host that does not answer."""


class Keeper:
    """Looks at the workspace and keeps what it saw."""

    def __init__(self, request: LoopRequest, book: Book) -> None:
        self._request, self._book = request, book
        self.mark = ""
        """HEAD, files and items as they were at the last look: equal where nothing changed."""

    async def checkpoint(
        self, kind: CheckpointKind, outcome: Ran | None = None, note: str | None = None, given: tuple[str, ...] = ()
    ) -> Checkpoint:
        """Look, keep, record."""
        memory = self._book.memory
        number = memory.next_checkpoint
        self._book.set(next_checkpoint=number + 1)
        patience = LAST_LOOK if kind == "end" else None
        message = f"{kind} {memory.iteration}" + (f": {note}" if note else "")
        found = await commands.survey(memory.host, self._request, memory, number, message, patience)
        self.learn(found)
        made = self._record(number, kind, found, outcome, note or found.error, given)
        self._book.archive.add(made)
        self._book.publish()
        return made

    def _record(
        self, number: int, kind: CheckpointKind, found: Survey, outcome: Ran | None, note: str | None, given: Any
    ) -> Checkpoint:
        memory = self._book.memory
        mine: dict[str, Any] = {}
        if outcome is not None:
            mine = {
                "run": self._book.run,
                "usage": outcome.usage,
                "cost_usd": outcome.cost_usd,
                "took_s": round(outcome.took_s, 3),
                "error": (outcome.error or "")[:500] or None,
            }
        return Checkpoint(
            number=number,
            kind=kind,
            time=workflow.now(),
            iteration=memory.iteration,
            session_id=memory.session_id,
            plan_version=memory.plan,
            plan_hash=memory.plan_version.hash,
            phase=current_phase(memory),
            commit=found.commit,
            head=found.head,
            files=found.files,
            items=found.items.count if found.items else None,
            totals=memory.totals.model_copy(update={"active_s": round(self._book.active_s(), 3)}),
            feedback=given,
            note=(note or "")[:500] or None,
            **mine,
        )

    def learn(self, found: Survey) -> None:
        """What the workspace says of plan and items."""
        memory = self._book.memory
        self.mark = f"{found.head or ''} {found.files} {found.items.digest if found.items else ''}"
        self._book.set(phases=found.phases, items=found.items)
        version = memory.plan_version
        if not version.path or not found.plan_hash or version.hash == found.plan_hash:
            return
        if not version.hash:
            filled = version.model_copy(update={"hash": found.plan_hash})
            self._book.set(plans=tuple(filled if each is version else each for each in memory.plans))
            return
        same = [each for each in memory.plans if each.path == version.path and each.hash == found.plan_hash]
        if same:
            self._book.set(plan=same[-1].number)
            return
        # Somebody changed the file: the agent or a person. What was is in the checkpoints' files.
        number = len(memory.plans) + 1
        edited = version.model_copy(update={"number": number, "hash": found.plan_hash, "since": workflow.now()})
        self._book.set(plans=(*memory.plans, edited), plan=number)

    async def look(self) -> None:
        """Learn what there is now, without keeping it."""
        memory = self._book.memory
        found = await commands.survey(memory.host, self._request, memory, None)
        self.learn(found)
        self._book.set(progress_mark=self.mark)

    # Going back.

    async def carry_out(self, order: Order) -> None:
        """A rollback or restart; the order then has its receipt, or why it could not be done."""
        what = order.what
        try:
            if isinstance(what, Rollback):
                await self._roll_back(order, what)
            else:
                await self._restart(order, what)
        finally:
            order.done = True

    async def _roll_back(self, order: Order, what: Rollback) -> None:
        target = self._book.archive.get(what.checkpoint)
        if target is None:
            order.refusal = f"there is no checkpoint {what.checkpoint}"
            return
        rescue = await self.checkpoint("rescue", note=f"before going back to checkpoint {target.number}")
        stay = f"taken back to checkpoint {target.number}"
        if not await self._files(order, target, rescue, stay):
            return
        memory = self._book.memory
        self._go_back(target, session=target.session_id, unfinished=target.kind == "pause")
        if any(each.number == target.plan_version and each.text for each in memory.plans):
            self._book.set(plan=target.plan_version)
        self._book.hold(Hold(kind="paused", reason=stay))
        await self.look()
        order.receipt = self._receipt(target, rescue, f"the loop is paused at checkpoint {target.number}")

    async def _restart(self, order: Order, what: Restart) -> None:
        archive = self._book.archive
        target = archive.baseline() if what.number is None else archive.ended(what.number - 1)
        if target is None:
            order.refusal = "there is no checkpoint to start from"
            return
        where = "the beginning" if what.number is None else f"the beginning of iteration {what.number}"
        rescue = await self.checkpoint("rescue", note=f"before starting over from {where}")
        if what.files and not await self._files(order, target, rescue, f"could not start over from {where}"):
            return
        session = None if what.number is None else target.session_id
        self._go_back(target, session=session, unfinished=False)
        self._book.hold(None)
        await self.look()
        order.receipt = self._receipt(target, rescue, f"starts over from {where}")

    async def _files(self, order: Order, target: Checkpoint, rescue: Checkpoint, stay: str) -> bool:
        if target.commit is None:
            return True  # there never were files to take back: the state alone is
        restored = await commands.restore(
            self._book.memory.host, self._request, commands.loop_key().loop, target.number
        )
        if restored.error:
            order.refusal = f"the files of checkpoint {target.number} cannot be restored: {restored.error}"
            self._book.hold(Hold(kind="paused", reason=order.refusal))
        return restored.error is None

    def _go_back(self, target: Checkpoint, *, session: str | None, unfinished: bool) -> None:
        notice = (
            f"The workspace was taken back to how it was after iteration {target.iteration}: what you remember of it "
            "since then no longer holds."
        )
        self._book.set(
            iteration=target.iteration,
            session_id=session,
            unfinished=unfinished,
            heard=unfinished and session is not None,
            unverified=False,
            verification=None,
            missing=0,
            promised=False,
            no_progress=0,
            failures=0,
            rate_limits=0,
            since_decision=0,
            last_error=None,
            notice=notice if session else "",
        )

    def _receipt(self, target: Checkpoint, rescue: Checkpoint, note: str) -> LoopReceipt:
        if target.commit is None:
            note += "; the workspace is in no git repository, so its files are as they were"
        return LoopReceipt(
            status=self._book.status,
            iteration=self._book.memory.iteration,
            note=note,
            checkpoint=target.number,
            rescue=rescue.number,
        )

    # Forking.

    async def take_over(self, point: ForkPoint) -> None:
        """Begin as the other loop was. Raises InvalidRequest where its files cannot be had."""
        assert self._request.from_checkpoint is not None
        source, workspace = self._request.from_checkpoint, self._request.run.workspace.path
        if point.open and point.workspace == workspace:
            raise InvalidRequest(
                f"from_checkpoint: loop {source.loop} is still at work in {workspace}: "
                "end it, or give another workspace"
            )
        checkpoint, host = point.checkpoint, self._book.memory.host
        await self.checkpoint("rescue", note=f"before taking over checkpoint {source.number} of {source.loop}")
        if checkpoint.commit is not None:
            try:
                restored = await commands.restore(host, self._request, source.loop, source.number)
            except ActivityError as error:
                raise InvalidRequest(f"from_checkpoint: {error.cause}") from error
            if restored.error:
                raise InvalidRequest(f"from_checkpoint: {restored.error}")
        self._book.set(
            iteration=checkpoint.iteration,
            session_id=checkpoint.session_id,
            forks=checkpoint.session_id is not None,
            unfinished=checkpoint.kind == "pause",
            heard=checkpoint.kind == "pause" and checkpoint.session_id is not None,
            totals=checkpoint.totals,
        )
        self._book.resume_clock(checkpoint.totals.active_s)


def first_version(request: LoopRequest) -> PlanVersion:
    """The plan as it was asked for."""
    plan = request.plan
    if isinstance(plan, PlanFile):
        where: dict[str, Any] = {"path": plan.path, "phase": plan.phase, "hash": ""}
    else:
        where = {"text": plan, "hash": plan_hash(plan)}
    return PlanVersion(number=1, since=workflow.now(), prompt=request.prompt, **where)
