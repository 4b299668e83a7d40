"""Temporal for tests: one dev server for all of them, a namespace of its own for whoever wants one, or a server.

Fixtures and helpers for the server alone; workers and agents must not live here.
"""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError

from steersman._client.search_attributes import AGENT_NAME, indexed_types
from steersman.cli.devserver import server_command, settings_options
from steersman.converter import DATA_CONVERTER

SHORT_HISTORIES = ("limit.historyCount.suggestContinueAsNew=60",)
"""A server setting with which a loop goes on in a new execution every few iterations."""

MANY_NAMESPACES = (
    # Each namespace keeps pollers otherwise, for schedules and batches: 200 cost half a core.
    "worker.perNamespaceWorkerCount=0",
    # Each queue of each worker has thousands of series otherwise, which the server goes through every second.
    "metrics.breakdownByTaskQueue=false",
    "metrics.breakdownByPartition=false",
    "metrics.breakdownByBuildID=false",
    # Each queue has three more partitions otherwise, which ask the first for its settings and hand their polls to it.
    "matching.numTaskqueueReadPartitions=1",
)
"""Settings of a server that sees hundreds of namespaces and workers come and go."""

FEW_POLLS: dict[str, Any] = {"max_concurrent_workflow_task_polls": 2, "max_concurrent_activity_task_polls": 1}
"""For a worker of one test's few tasks: each poll costs a call, and one more to end it."""

UP_S = 30.0
SHARED = "temporal_address"
"""What pytest-xdist hands to its workers under this name."""

T = TypeVar("T")


def binary(name: str) -> str:
    """The path of `temporal` or `temporal-test-server`: beside this Python, or on PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found, f"{name} is neither beside {sys.executable} nor on PATH; `make setup` installs it"
    return found


def free_port() -> int:
    """A port of loopback that nobody listens on, and that nobody gets who lets the system choose one.

    A connection of it is left in TIME-WAIT: for a minute only who names the port can bind it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        probe.listen(1)
        address = probe.getsockname()
        with socket.create_connection(address):
            accepted, _ = probe.accept()
            accepted.close()  # whoever closes first keeps the port
        return int(address[1])


class DevServer:
    """One dev server. `stop` or `kill`, then `start` again, goes on with the same database at the same address."""

    def __init__(self, directory: Path, settings: tuple[str, ...] = (), *, is_kept: bool = True) -> None:
        """`settings`: dynamic configuration of the server beyond that of `steer dev`, NAME=VALUE each.

        `is_kept`: whether it has a database on a file, with which it can be started again. One without takes a tenth
        less processor time.
        """
        self.port = free_port()
        self.log = directory / "server.log"
        self._is_kept = is_kept
        self.database = directory / "temporal.db"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def default(self) -> "Namespace":
        """The namespace that it begins with."""
        return Namespace(self.address, "default")

    def start(self) -> "DevServer":
        """Start, and return once the frontend accepts connections."""
        command = server_command(binary("temporal"), self.port, self.database if self._is_kept else None)
        command += ["--log-level", "error", *settings_options(self._settings)]
        # Its threads look for work on every core otherwise: a run costs the server a seventh more processor time.
        # Of hundreds of namespaces it keeps a gigabyte, and looks through it for garbage: a twelfth of a suite's time.
        env = {**os.environ, "GOMAXPROCS": "1", "GOGC": "400", "GOMEMLIMIT": "4GiB"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        deadline = time.monotonic() + UP_S
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, "the dev server did not come up"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End it in order."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(subprocess.Popen.kill)

    def close(self) -> None:
        """As `kill`, for contextlib.closing."""
        self.kill()

    def freeze(self) -> None:
        """SIGSTOP."""
        if self._process:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self._process:
            self._process.send_signal(signal.SIGCONT)

    def back_up(self, to: Path) -> None:
        """Copy the database, while the server is stopped."""
        to.mkdir()
        for each in self._files(self.database.parent):
            shutil.copy2(each, to)

    def lose(self) -> None:
        """Delete the database, while the server is stopped."""
        for each in self._files(self.database.parent):
            each.unlink()

    def restore(self, backup: Path) -> None:
        """Put a copy in the place of the database, while the server is stopped."""
        self.lose()
        for each in self._files(backup):
            shutil.copy2(each, self.database.parent)

    def _files(self, directory: Path) -> list[Path]:
        return list(directory.glob(f"{self.database.name}*"))

    def _end(self, how: Callable[["subprocess.Popen[bytes]"], None]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        how(process)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False


@dataclass(frozen=True)
class Namespace:
    """Where runs of a test are: workflows, task queues and lists of other namespaces are not seen from here."""

    address: str
    name: str

    @property
    def port(self) -> int:
        """Of the server, on loopback."""
        return int(self.address.rpartition(":")[2])

    @property
    def env(self) -> dict[str, str]:
        """What makes the Temporal CLI, `steer` and a worker find it."""
        return {"TEMPORAL_ADDRESS": self.address, "TEMPORAL_NAMESPACE": self.name}

    async def connect(self, runtime: Runtime | None = None) -> Client:
        """A client as Steersman's own are."""
        return await connect(self.address, self.name, runtime)


async def new_namespace(address: str) -> Namespace:
    """A namespace of this server that nobody has, with Steersman's search attributes."""
    made = Namespace(address, f"test-{secrets.token_hex(6)}")
    default = await connect(address)
    retention = Duration(seconds=86400)
    await default.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=made.name, workflow_execution_retention_period=retention)
    )
    client = await made.connect()
    await _until_known(
        lambda: client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=made.name, search_attributes=indexed_types())
        )
    )
    # Until the server has heard of them, a start that has some is refused.
    pairs = TypedSearchAttributes([SearchAttributePair(AGENT_NAME, "probe")])
    probe = await _until_known(
        lambda: client.start_workflow("Probe", id="probe", task_queue="nobody", search_attributes=pairs)
    )
    await probe.terminate()
    return made


async def _until_known(ask: Callable[[], Awaitable[T]]) -> T:
    deadline = time.monotonic() + UP_S
    while True:
        try:
            return await ask()
        except RPCError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


async def connect(address: str, namespace: str = "default", runtime: Runtime | None = None) -> Client:
    """A client as Steersman's own are; waits until the server's namespace answers."""
    runtime = runtime or _runtime()
    deadline = time.monotonic() + UP_S
    while True:
        try:
            client = await Client.connect(address, namespace=namespace, data_converter=DATA_CONVERTER, runtime=runtime)
            await client.count_workflows()
        except (RuntimeError, RPCError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return client


_runtimes: list[Runtime] = []


def _runtime() -> Runtime:
    # One for all tests: each runtime has threads of its own. Push cancellation needs one that heartbeats its workers.
    if not _runtimes:
        _runtimes.append(Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=timedelta(seconds=10)))
    return _runtimes[0]


@pytest.fixture(scope="session")
def dev_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the one dev server, which the processes of one run of the tests share."""
    shared: str | None = getattr(request.config, "workerinput", {}).get(SHARED)
    if shared:
        yield shared
        return
    server = DevServer(tmp_path_factory.mktemp("temporal"), MANY_NAMESPACES, is_kept=False)
    try:
        yield server.start().address
    finally:
        server.close()


@pytest.fixture(scope="session")
def namespace(dev_server: str) -> Namespace:
    """A namespace for the tests of this process that leave nothing open."""
    return asyncio.run(new_namespace(dev_server))


@pytest.fixture
async def temporal(namespace: Namespace) -> Client:
    """A client of that namespace."""
    return await namespace.connect()
