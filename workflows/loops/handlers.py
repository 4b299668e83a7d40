"""The loop's updates and signals, one pair a name. What they mean is in `verbs`."""

from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from steersman.contracts.errors import ErrorType, InvalidRequest
from steersman.contracts.model import StrictModel
from workflows.loops.verb import refused
from workflows.loops.verbs import Verbs
from workflows.waiting import all_heard


class Told:
    """A workflow that people can say things to."""

    verbs: Verbs | None = None
    """None where the loop's request is wrong."""
    signals_first: bool = False
    """What people say in one workflow task is done in this order: signals, then updates. False for older histories."""
    _unheard: int = 0
    """How much has been said in this workflow task that is still to be done."""

    async def signalled(self) -> None:
        """What a signal does begins behind this."""
        if self.signals_first:
            self._unheard += 1
            await all_heard()
            self._unheard -= 1

    async def updated(self) -> None:
        """What an update does begins behind this, and so behind the signals."""
        await self.signalled()
        await self.signalled()

    def read(self, name: str, inputs: tuple[Any, ...], *, judge: bool = True) -> tuple[Verbs, StrictModel]:
        """Decode and judge. Raises ApplicationError of type InvalidRequest or Refused.

        `judge`: False where what was said before, and is still to be done, decides about it.
        """
        if self.verbs is None:
            raise refused("the loop's request is wrong: it never began")
        try:
            return self.verbs, self.verbs.read(name, inputs[0] if inputs else None, judge=judge)
        except InvalidRequest as error:
            raise ApplicationError(error.message, type=ErrorType.INVALID_REQUEST, non_retryable=True) from error


def update_of(name: str) -> Any:
    """The update of that name, with its validator."""

    async def update(self: Told, *inputs: Any) -> Any:
        await self.updated()
        # Judged again: things may have changed since the validator looked.
        verbs, said = self.read(name, inputs)
        return await verbs.do(name, said)

    handler = workflow.update(name=name)(_named(update, f"{name}_update"))

    def check(self: Told, *inputs: Any) -> None:
        self.read(name, inputs, judge=not self._unheard)

    handler.validator(_named(check, f"{name}_check"))
    return handler


def signal_of(name: str) -> Any:
    """The signal of that name: as the update, without an answer; what an update would refuse is dropped."""

    async def signal(self: Told, *inputs: Any) -> None:
        await self.signalled()
        try:
            verbs, said = self.read(name, inputs)
            await verbs.do(name, said)
        except FailureError as error:
            workflow.logger.warning("%s refused: %s", name, error.message)

    return workflow.signal(name=name)(_named(signal, f"{name}_signal"))


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = name
    function.__qualname__ = f"AgentLoop.{name}"
    return function
