"""What went wrong, as errors of JSON-RPC: each says what the command line would say, and names its type."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from acp.exceptions import RequestError

from steersman.contracts.errors import InvalidRequest
from steersman.contracts.events import FailedEvent
from steersman.errors import RunNotFound, SteersmanError

INVALID_PARAMS: Final = -32602
NOT_FOUND: Final = -32002
INTERNAL: Final = -32603


@contextmanager
def as_request_errors() -> Iterator[None]:
    """Raise Steersman's errors as RequestError."""
    try:
        yield
    except (InvalidRequest, SteersmanError) as error:
        code = {InvalidRequest: INVALID_PARAMS, RunNotFound: NOT_FOUND}.get(type(error), INTERNAL)
        raise RequestError(code, str(error), {"type": type(error).__name__}) from error


def failure(event: FailedEvent) -> RequestError:
    """The error of a prompt whose run failed."""
    return RequestError(INTERNAL, event.message, {"type": event.error.value, "code": event.code})
