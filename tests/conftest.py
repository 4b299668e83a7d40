"""Ends the test process with its own exit code: Temporal's native threads can crash an interpreter that shuts down."""

import atexit
import os
import sys

import pytest

_code: list[int] = []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int | pytest.ExitCode) -> None:
    _code.append(int(exitstatus))


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    raised = hasattr(sys, "last_value")  # something went wrong after the session had finished
    if _code:
        os._exit(_code[-1] or int(raised))


atexit.register(_leave)
