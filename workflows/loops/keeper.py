"""A loop's checkpoints: looking at the workspace, keeping what is there, and recording it."""

from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_activities import Survey
from steersman.contracts.loop_state import Checkpoint, CheckpointKind, ItemList
from steersman.contracts.model import TolerantModel
from workflows.loops import commands, plans
from workflows.loops.book import Book
from workflows.loops.outcomes import Ran
from workflows.loops.prompts import current_phase

A = TypeVar("A", bound=TolerantModel)

LAST_LOOK, SECOND_LOOK = timedelta(minutes=1), timedelta(seconds=10)
"""How long a loop that ends waits for its last checkpoint; the second: where it has given up a look at the files."""
MAX_NOTE = 300
MAX_LISTED_BYTES = 60_000


class Keeper:
    """Looks at the workspace and keeps what it saw."""

    def __init__(self, request: LoopRequest, book: Book) -> None:
        self._request, self._book = request, book
        self.mark = ""
        """HEAD, files and items as they were at the last look: equal where nothing changed."""
        self.making: int | None = None
        """The checkpoint that is being made: nothing knows its files yet."""

    async def checkpoint(
        self, kind: CheckpointKind, outcome: Ran | None = None, note: str | None = None, given: tuple[str, ...] = ()
    ) -> Checkpoint:
        """Look, keep, record. Raises ActivityError where the workspace is gone, or nobody answers at the loop's end."""
        memory = self._book.memory
        number = memory.next_checkpoint
        last = LAST_LOOK if self.making is None else SECOND_LOOK
        self._book.set(next_checkpoint=number + 1)
        self.making = number
        message = f"{kind} {memory.iteration}" + (f": {note}" if note else "")
        version, patience = memory.plan_version, last if kind == "end" else None
        found = await commands.survey(memory.host, self._request, version, number, message, patience)
        self._learn(found, version.number)
        made = self._record(number, kind, found, outcome, note or found.error, given)
        self._book.archive.add(made)
        self.making = None
        self._book.publish()
        return made

    async def look(self) -> None:
        """Learn what there is after a return to a checkpoint, without keeping it."""
        memory = self._book.memory
        version = memory.plan_version
        found = await commands.survey(memory.host, self._request, version, None)
        self._learn(found, version.number, returned=True)
        self._book.set(progress_mark=self.mark)

    def _record(
        self, number: int, kind: CheckpointKind, found: Survey, outcome: Ran | None, note: str | None, given: Any
    ) -> Checkpoint:
        memory = self._book.memory
        mine: dict[str, Any] = {}
        if outcome is not None:
            self._book.set(last_kept=number)
            mine = {
                "run": outcome.run,
                "usage": outcome.usage,
                "cost_usd": outcome.cost_usd,
                "took_s": round(outcome.took_s, 3),
                "error": outcome.error,
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
            note=(note or "")[:MAX_NOTE] or None,
            **mine,
        )

    def _learn(self, found: Survey, version: int, *, returned: bool = False) -> None:
        """What the workspace says of plan and items."""
        book = self._book
        self.mark = f"{found.head or ''} {found.files} {found.items.digest if found.items else ''}"
        book.set(items=_short_enough(found.items))
        if book.memory.plan != version:
            return  # it was revised meanwhile: that is another plan's
        book.set(phases=fitting(found.phases))
        book.memory = plans.seen(book.memory, version, found.plan_hash, workflow.now(), returned=returned)

    async def make_room(self) -> None:
        """Forget the oldest checkpoints where there is more than can be taken into a new execution."""
        book = self._book
        while numbers := book.excess():
            workflow.logger.warning("checkpoints %d to %d are forgotten: there are too many", numbers[0], numbers[-1])
            await self.drop(numbers)
            book.archive.delete(numbers)

    async def drop(self, numbers: tuple[int, ...]) -> None:
        """Let go of the files of these, if the host answers."""
        try:
            await commands.drop(self._book.memory.host, self._request, numbers)
        except ActivityError as error:
            workflow.logger.warning("their files stay: %s", commands.reason_of(error))


def _short_enough(items: ItemList | None) -> ItemList | None:
    return items and items.model_copy(update={"items": fitting(items.items)})


def fitting(listed: tuple[A, ...]) -> tuple[A, ...]:
    """As many as are to be carried through continue-as-new."""
    size, kept = 0, []
    for each in listed:
        size += len(each.model_dump_json().encode())
        if size > MAX_LISTED_BYTES:
            break
        kept.append(each)
    return tuple(kept)
