"""All that can be said to a loop: judged, then done. What each means is in `going` and `telling`."""

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from steersman.contracts import names
from steersman.contracts.loop import LoopRequest
from steersman.contracts.loop_messages import Cleanup, CleanupReceipt
from steersman.contracts.messages import parse_message
from steersman.contracts.model import StrictModel
from workflows.loops import commands
from workflows.loops.book import Book
from workflows.loops.desk import Desk
from workflows.loops.going import Going
from workflows.loops.telling import Telling
from workflows.loops.verb import Receipt, Verb, refused


class Verbs:
    """By name."""

    def __init__(self, request: LoopRequest, book: Book, desk: Desk) -> None:
        self._request, self._book = request, book
        telling = Telling(request, book, desk)
        self._verbs: Mapping[str, Verb] = {
            **Going(book, desk, telling).verbs,
            **telling.verbs,
            names.CHECKPOINTS: Verb(Cleanup, self._clean),
        }

    def read(self, name: str, data: Any, *, judge: bool = True) -> StrictModel:
        """What was said. Raises InvalidRequest that names the field, or ApplicationError "Refused"; changes nothing."""
        verb = self._verbs[name]
        said = parse_message(verb.model, data)
        if not judge:
            return said
        if self._book.closed:
            raise refused(f"the loop has ended: it is {self._book.status}")
        if reason := verb.refuse(said):
            raise refused(reason)
        return said

    async def do(self, name: str, said: StrictModel) -> Receipt:
        """Do it. Raises ApplicationError "Refused" where it turns out that it cannot be done."""
        return await self._verbs[name].act(said)

    async def _clean(self, cleanup: Cleanup) -> CleanupReceipt:
        book = self._book
        numbers = book.archive.chosen(cleanup, workflow.now())
        if numbers:
            try:
                await commands.drop(book.memory.host, self._request, numbers)
            except ActivityError as error:
                raise refused(f"the checkpoints could not be deleted: {commands.reason_of(error)}") from error
            book.archive.delete(numbers)
            book.publish()
        return CleanupReceipt(deleted=numbers, kept=len(book.archive))
