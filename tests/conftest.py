"""One Temporal server for all tests, also where several processes share them, and the end of a test process.

It ends with its own exit code: Temporal's native threads can crash an interpreter that shuts down.
"""

import atexit
import gc
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import execnet
import pytest

from tests.support import memory, reaper
from tests.support.temporal import MANY_NAMESPACES, SHARED, DevServer, dev_server, namespace, temporal

__all__ = ["dev_server", "namespace", "temporal"]

_code: list[int] = []
_address = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Where pytest-xdist hands the tests to several processes, this one has their server and their directory."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of a shell's background job, for all that it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)  # who makes files in a test says who may read them
    if not config.option.basetemp and not hasattr(config, "workerinput"):
        memory.use()
        # Not pytest's own, where each session removes those of earlier ones and fails at what it cannot remove.
        base = tempfile.mkdtemp(prefix="steersman-tmp-")
        config.option.basetemp = str(Path(base) / "pytest")
        config.add_cleanup(lambda: _remove(base))
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        directory = tempfile.TemporaryDirectory(prefix="steersman-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(directory.cleanup)
        server = DevServer(Path(directory.name), MANY_NAMESPACES, is_kept=False).start()
        config.add_cleanup(server.close)
        config.stash[_address] = server.address


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[execnet.XSpec]) -> None:
    """Each of its processes inherits its own tests' orphans: those of others look like what a killed shim has left."""
    python = shlex.join(reaper.command([sys.executable]))
    specs[:] = [execnet.XSpec(f"{spec}//id={spec.id}//python={python}") for spec in specs]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process that pytest-xdist starts."""
    node.workerinput[SHARED] = node.config.stash[_address]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what lasts for minutes: others run beside it, where all at the end would wait for it."""
    items.sort(key=lambda item: "tests/chaos/test_chaos.py" not in item.nodeid)


def pytest_collection_finish() -> None:
    """A look for garbage goes through half a million objects of the tests otherwise: for 2 s on a busy machine.
    In a workflow's thread, that is taken for a deadlock.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure's report parses source. Before CPython 3.12 that is a SystemError, and the end of the session, where a
    look for garbage meanwhile writes a traceback, which parses its lines, too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With what a test can be made again that goes by chance, also of one that has passed."""
    every = (each for reports in terminalreporter.stats.values() for each in reports)
    for test in (each for each in every if getattr(each, "when", "") == "call"):
        for name, value in test.user_properties:
            if name.startswith("STEERSMAN_"):  # other plugins put things there, too
                terminalreporter.write_line(f"{name}={value} {test.nodeid}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int | pytest.ExitCode) -> None:
    _code.append(int(exitstatus))


def _remove(directory: str) -> None:
    """What passed needs no looking at. Python's own `rmtree` cannot go as deep as some of these trees."""
    if _code and not _code[-1]:
        subprocess.run(["rm", "-rf", directory], stderr=subprocess.DEVNULL, check=False)
    elif (kept := memory.give_back(Path(directory))) != Path(directory):
        sys.stderr.write(f"{directory} is kept as {kept}\n")


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    raised = hasattr(sys, "last_value")  # something went wrong after the session had finished
    if _code:
        os._exit(_code[-1] or int(raised))


atexit.register(_leave)
