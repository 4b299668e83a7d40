"""One thing that can be said to a loop: its shape, when it is refused, what it does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from temporalio.exceptions import ApplicationError

from steersman.contracts.errors import REFUSED
from steersman.contracts.loop_messages import CleanupReceipt, LoopReceipt
from steersman.contracts.model import StrictModel

Receipt = LoopReceipt | CleanupReceipt


@dataclass(frozen=True)
class Verb:
    """`act` answers when it is done, or raises `refused` where it turns out that it cannot be done."""

    model: type[StrictModel]
    act: Callable[[Any], Awaitable[Receipt]]
    refuse: Callable[[Any], str | None] = lambda _: None
    """Why it cannot be done now; changes nothing."""


def refused(reason: str) -> ApplicationError:
    """The update's failure."""
    return ApplicationError(reason, type=REFUSED, non_retryable=True)
