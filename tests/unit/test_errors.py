"""Error types that no run closes with are on the wire too: operators see them in Temporal, and SDKs tell by them.

And the client's exceptions as they reach another process.
"""

import copy
import pickle

import pytest

from steersman.contracts.errors import REFUSED, ActivityErrorType, AgentCrashed, ErrorType, InvalidRequest
from steersman.contracts.run import StopReport
from steersman.errors import (
    HostUnreachable,
    MessageRefused,
    NamespaceNotFound,
    NoWorker,
    RunInterrupted,
    ServerRefused,
    ServerUnreachable,
    ThreadBusy,
)


def test_their_strings_are_fixed() -> None:
    assert REFUSED == "Refused"
    assert {str(each) for each in ActivityErrorType} == {
        "AgentUnknown",
        "Detached",
        "Exhausted",
        "Fenced",
        "GitFailed",
        "IncompatibleShim",
        "StateGone",
        "StateUnknown",
        "StateUnwritable",
        "StoreGone",
        "Unreachable",
        "UnreadableResult",
        "WorkspaceGated",
    }


def test_none_of_them_is_taken_for_how_a_run_closed() -> None:
    assert not {str(each) for each in ErrorType} & {REFUSED, *ActivityErrorType}


@pytest.mark.parametrize(
    "error",
    [
        AgentCrashed("it fell", exit_code=3),
        InvalidRequest("prompt: is empty"),
        RunInterrupted("run r", "enough", StopReport(outcome="stopped", phase="running")),
        ThreadBusy("r", "e"),
        MessageRefused("no"),
        ServerUnreachable("nobody", "a:1"),
        NamespaceNotFound("no such", "a:1"),
        NoWorker("nobody polls", "q"),
        HostUnreachable("nobody answers", "h"),
        ServerRefused("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_of_an_error_says_the_same(error: Exception) -> None:
    """A pool of processes hands errors over as copies, and breaks over one that cannot be made again."""
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert (str(twin), vars(twin)) == (str(error), vars(error))
