"""The loop's updates and signals, one pair for each name: checked here, carried out in `control` and `feedback`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from steersman.contracts import names
from steersman.contracts.descriptions import OF_LOOP
from steersman.contracts.errors import ErrorType, InvalidRequest
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
from steersman.contracts.messages import parse_message
from steersman.contracts.model import StrictModel
from steersman.contracts.request import not_one
from workflows.agent_loop import checkpoints, control, feedback
from workflows.agent_loop.requests import refused
from workflows.agent_loop.state import LoopContext
from workflows.waiting import all_dispatched

Receipt = LoopReceipt | CleanupReceipt


@dataclass(frozen=True)
class UpdateHandler:
    """What an update, and the signal of the same name, does."""

    model: type[StrictModel]
    run: Callable[[LoopContext, Any], Awaitable[Receipt]]
    """Answers when it is done. Raises ApplicationError "Refused" if it turns out that it cannot be done."""
    refuse: Callable[[LoopContext, Any], str | None] = lambda _loop, _request: None
    """Why it cannot be done now; changes nothing."""


UPDATE_HANDLERS: Mapping[str, UpdateHandler] = {
    names.PAUSE: UpdateHandler(Pause, control.pause),
    names.RESUME: UpdateHandler(Resume, control.resume, control.refuse_resume),
    names.SKIP_WAIT: UpdateHandler(SkipWait, control.skip_wait, control.refuse_skip_wait),
    names.EXIT: UpdateHandler(Exit, control.exit_loop),
    names.ROLLBACK: UpdateHandler(Rollback, control.go_back, control.refuse_rollback),
    names.RESTART: UpdateHandler(Restart, control.go_back, control.refuse_restart),
    names.FEEDBACK: UpdateHandler(Feedback, feedback.give_feedback, feedback.refuse_feedback),
    names.REMOVE_FEEDBACK: UpdateHandler(RemoveFeedback, feedback.remove_feedback, feedback.refuse_remove_feedback),
    names.REVISE: UpdateHandler(Revise, feedback.revise, feedback.refuse_revise),
    names.SET_LIMITS: UpdateHandler(SetLimits, feedback.set_limits, feedback.refuse_set_limits),
    names.CHECKPOINTS: UpdateHandler(Cleanup, checkpoints.clean),
}


class _Dispatch:
    """The order in which updates and signals are carried out, and their checks."""

    loop: LoopContext | None = None
    """None if the loop's input is no valid LoopRequest."""
    signals_first: bool = False
    """Whether signals of a workflow task are carried out before its updates. False for older histories."""
    _undispatched: int = 0
    """Updates and signals of this workflow task that are not carried out yet."""

    async def _after_dispatch(self) -> None:
        """A signal is carried out behind this."""
        if self.signals_first:
            self._undispatched += 1
            await all_dispatched()
            self._undispatched -= 1

    async def _after_signals(self) -> None:
        """An update is carried out behind this, and so behind the signals."""
        await self._after_dispatch()
        await self._after_dispatch()

    def _checked(self, name: str, inputs: tuple[Any, ...], *, refuse: bool = True) -> tuple[LoopContext, StrictModel]:
        """Decode and check a request. Raises ApplicationError of type InvalidRequest or Refused; changes nothing.

        `refuse`: False where requests that came earlier, and are not carried out yet, decide whether it is refused.
        """
        loop, handler = self.loop, UPDATE_HANDLERS[name]
        if loop is None:
            raise refused("the loop's request is wrong: it never began")
        try:
            request = parse_message(handler.model, inputs[0] if inputs else None)
        except InvalidRequest as error:
            raise ApplicationError(error.message, type=ErrorType.INVALID_REQUEST, non_retryable=True) from None
        if refuse and loop.state.closed:
            raise refused(f"the loop has ended: {loop.state.status}")
        if refuse and (reason := handler.refuse(loop, request)):
            raise refused(reason)
        return loop, request


def _update(name: str) -> Any:
    """The update of that name, with its validator."""

    async def update(self: _Dispatch, *inputs: Any) -> Any:
        await self._after_signals()
        # Checked again: the state may have changed since the validator looked.
        loop, request = self._checked(name, inputs)
        return await UPDATE_HANDLERS[name].run(loop, request)

    def check(self: _Dispatch, *inputs: Any) -> None:
        if len(inputs) > 1:  # here alone: what was accepted once stays so
            message = not_one(UPDATE_HANDLERS[name].model.__name__, len(inputs))
            raise ApplicationError(message, type=ErrorType.INVALID_REQUEST, non_retryable=True)
        self._checked(name, inputs, refuse=not self._undispatched)

    handler = workflow.update(name=name, description=OF_LOOP[name])(_named(update, f"{name}_update"))
    handler.validator(_named(check, f"{name}_check"))
    return handler


def _signal(name: str) -> Any:
    """The signal of that name: as the update, without an answer; a request that is refused is dropped."""

    async def signal(self: _Dispatch, *inputs: Any) -> None:
        await self._after_dispatch()
        try:
            loop, request = self._checked(name, inputs)
            await UPDATE_HANDLERS[name].run(loop, request)
        except FailureError as error:
            workflow.logger.warning("%s refused: %s", name, error.message)

    return workflow.signal(name=name, description=OF_LOOP[name])(_named(signal, f"{name}_signal"))


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = name
    function.__qualname__ = f"AgentLoop.{name}"
    return function


class LoopHandlers(_Dispatch):
    """All updates and signals of AgentLoop."""

    pause, pause_signal = _update(names.PAUSE), _signal(names.PAUSE)
    resume, resume_signal = _update(names.RESUME), _signal(names.RESUME)
    feedback, feedback_signal = _update(names.FEEDBACK), _signal(names.FEEDBACK)
    remove_feedback, remove_feedback_signal = _update(names.REMOVE_FEEDBACK), _signal(names.REMOVE_FEEDBACK)
    revise, revise_signal = _update(names.REVISE), _signal(names.REVISE)
    restart, restart_signal = _update(names.RESTART), _signal(names.RESTART)
    skip_wait, skip_wait_signal = _update(names.SKIP_WAIT), _signal(names.SKIP_WAIT)
    set_limits, set_limits_signal = _update(names.SET_LIMITS), _signal(names.SET_LIMITS)
    exit, exit_signal = _update(names.EXIT), _signal(names.EXIT)
    rollback, rollback_signal = _update(names.ROLLBACK), _signal(names.ROLLBACK)
    clean, clean_signal = _update(names.CHECKPOINTS), _signal(names.CHECKPOINTS)
