"""What goes wrong between a client and the API server, as tests have it.

What goes wrong in the cluster must not live here.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.kubernetes.requests import Recorded
from tests.support.kubernetes.statuses import ApiError

Matches = Callable[[Recorded], bool]

FOR_EVER = 1 << 30


class HungUpError(Exception):
    """The connection of a request is to be cut instead of an answer."""


@dataclass
class Fault:
    """`left` more requests that match are met by it. `error`: how they are answered; none: the connection is cut."""

    matches: Matches
    left: int
    error: ApiError | None = None
    delay_s: float = 0.0
    answers: bool = False
    """After the delay the request is served."""


@dataclass
class ExecCut:
    """The next exec connection is cut after so many bytes to the client, or from it."""

    sent: int = FOR_EVER
    received: int = FOR_EVER


def of(*, verb: str = "", resource: str = "", path: str = "") -> Matches:
    """Requests by their verb, their resource (`pods/exec`), or a part of their path."""

    def matches(request: Recorded) -> bool:
        return verb in {"", request.verb} and resource in {"", request.resource} and (not path or path in request.path)

    return matches


def any_request(_: Recorded) -> bool:
    return True


class Faults:
    """Those that are waiting for a request, the oldest first."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self.exec_cuts: list[ExecCut] = []
        self.dropped_statuses = 0
        """So many of the next exec connections are cut when their Status is due."""

    def answer(
        self, code: int, times: int = 1, matches: Matches = any_request, *, retry_after_s: int | None = None
    ) -> None:
        """Answer the next requests with 429, 500, 503, 504 or 410."""
        headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else {}
        reason, message = {
            410: ("Expired", "The resourceVersion for the provided watch is too old."),
            429: ("TooManyRequests", "Too many requests, please try again later."),
            500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
            503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
        }[code]
        details = {"retryAfterSeconds": retry_after_s} if retry_after_s is not None else None
        self._waiting.append(Fault(matches, times, ApiError(code, reason, message, details=details, headers=headers)))

    def delay(self, seconds: float, times: int = FOR_EVER, matches: Matches = any_request) -> None:
        """Serve the next requests late."""
        self._waiting.append(Fault(matches, times, delay_s=seconds, answers=True))

    def swallow(self, times: int = 1, matches: Matches = any_request) -> None:
        """Never answer the next requests, whose connections stay open."""
        self._waiting.append(Fault(matches, times, delay_s=float(FOR_EVER)))

    def hang_up(self, times: int = 1, matches: Matches = any_request) -> None:
        """Cut the connections of the next requests, which are not looked at."""
        self._waiting.append(Fault(matches, times))

    def clear(self) -> None:
        """Let everything be well."""
        self._waiting.clear()
        self.exec_cuts.clear()
        self.dropped_statuses = 0

    async def meet(self, request: Recorded) -> None:
        """What becomes of a request before it is served. Raises ApiError and HungUpError."""
        fault = next((each for each in self._waiting if each.left > 0 and each.matches(request)), None)
        if fault is None:
            return
        fault.left -= 1
        if fault.left <= 0:
            self._waiting.remove(fault)
        await asyncio.sleep(fault.delay_s)
        if fault.error:
            raise fault.error
        if not fault.answers:
            raise HungUpError

    def next_exec_cut(self) -> ExecCut:
        return self.exec_cuts.pop(0) if self.exec_cuts else ExecCut()

    def drops_status(self) -> bool:
        """Whether a Status that is due now is lost."""
        if self.dropped_statuses <= 0:
            return False
        self.dropped_statuses -= 1
        return True


def unreachable_node(node: str) -> ApiError:
    """What an API server says of a node that does not answer it."""
    message = f"error dialing backend: dial tcp {node}:10250: connect: no route to host"
    return ApiError(500, "", message)
