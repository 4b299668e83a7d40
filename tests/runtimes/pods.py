"""Pods for tests of the runtime: in the tests' own cluster, made as a worker makes them, and in a real one.

Their processes are this computer's, in the tests' own cluster in a PID namespace of their own; their files lie in a
directory of it. What happens in a pod must not live here.
"""

import asyncio
import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path, PurePath

import pytest

from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.kubernetes.manifest import HOME, USER
from activities.runtimes.kubernetes.place import PodPlace
from activities.runtimes.kubernetes.pod import CopyPod
from activities.runtimes.kubernetes.pod_record import PodRecord
from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.remote_program import pod_init
from activities.runtimes.shim_runtime import PlaceOf
from activities.store.ownership import Ownership
from steersman.contracts.kubernetes import AGENT_CONTAINER
from steersman.contracts.model import JsonObject
from tests.support.cluster import Cluster
from tests.support.cluster import missing as missing_cluster
from tests.support.kubernetes import NEW, OLD, BackgroundServer, Settings, missing
from tests.support.kubernetes.deletion import DeleteOptions
from tests.support.kubernetes.kinds import JOBS, PODS
from tests.support.kubernetes.worker_role import worker_role
from tests.support.processes import inhabitant

RELEASES = {"pod": NEW, "old-pod": OLD}
"""Kinds of places that are pods in a cluster of the tests' own, and how old that is."""
REAL = "real-pod"
"""The kind of those in the cluster that KUBECONFIG names."""


def run_pod(kind: str, directory: Path, python: str) -> "RunPod":
    """A pod of this kind for a run whose directories are below this one."""
    state = directory / "state"
    if reason := missing() if kind in RELEASES else missing_cluster():
        pytest.skip(reason)
    return OwnPod(kind, directory, state, python) if kind in RELEASES else RealPod(directory, state, python)


@functools.cache
def cluster(kind: str = "pod") -> BackgroundServer:
    """One of this kind, for all tests of this process."""
    directory = Path(tempfile.mkdtemp(prefix="steersman-cluster-"))
    running = BackgroundServer(directory, Settings(release=RELEASES[kind], shared=(sys.prefix,)))
    token = running.server.access.grant("worker", *worker_role("default"))
    running.server.kubeconfig(directory / "config", token)
    atexit.register(_close, running)
    return running


def _close(running: BackgroundServer) -> None:
    running.close()
    shutil.rmtree(running.server.directory, ignore_errors=True)


@functools.cache
def real_cluster() -> tuple[Cluster, str, str]:
    """The one that KUBECONFIG names, and name and uid of a pod there that sees this computer as it is."""
    found = Cluster(f"test-{uuid.uuid4().hex[:8]}")
    atexit.register(found.close)
    found.kubectl("-n", found.namespace, "create", "-f", "-", stdin=json.dumps(_pod_that_sees_all()))
    words = ("wait", "--for=condition=Ready", "--timeout=60s", "pod/agent")
    found.kubectl("-n", found.namespace, *words)
    (pod,) = found.objects("pods")
    return found, pod["metadata"]["name"], pod["metadata"]["uid"]


def _pod_that_sees_all() -> dict[str, object]:
    """Root, with the processes of this computer, its programs, and the directories of tests."""
    places = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/root", "/tmp") if Path(path).exists()]
    if not sys.prefix.startswith(tuple(places)):
        places.append(sys.prefix)
    init = Path(pod_init.__file__).read_text()
    container = {
        "name": AGENT_CONTAINER,
        "image": "docker.io/local/busybox:1",
        "imagePullPolicy": "Never",
        "command": [sys.executable, "-I", "-S", "-c", init, "5", "3600"],
        "env": [{"name": "PATH", "value": os.environ["PATH"]}],
        "volumeMounts": [{"name": f"v{number}", "mountPath": path} for number, path in enumerate(places)],
    }
    volumes = [{"name": f"v{number}", "hostPath": {"path": path}} for number, path in enumerate(places)]
    spec = {"hostPID": True, "terminationGracePeriodSeconds": 5, "containers": [container], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}


class RunPod(ABC):
    """A pod for one run. `state`: the state directory of the worker that uses it."""

    home: Path
    """The home there, as this computer sees it."""

    def __init__(self, environ: Mapping[str, str], placement: Mapping[str, str], state: Path) -> None:
        self.copy = uuid.uuid4().hex
        self.placement: JsonObject = {"kind": "kubernetes", "grace_s": 5, **placement}
        self.pods = KubernetesPods(lambda _: None, environ, state, Ownership("cluster", "default"), self.copy)
        self._found = self.pods.of(self.placement, self.copy)

    @property
    def pod(self) -> CopyPod:
        return self._found.pod

    @abstractmethod
    async def prepare(self, home: Path | None = None) -> None:
        """Have it made. `home`: what is to lie in the home there."""

    @abstractmethod
    def place_of(self, access: ExecAccess) -> PlaceOf:
        """The place of a run in it, for a worker that has this access."""

    @abstractmethod
    def seen(self, path: PurePath) -> Path:
        """Where a path there is on this computer."""

    @abstractmethod
    def pid(self, number: int) -> int | None:
        """How this computer numbers a process there."""

    async def aclose(self) -> None:
        """Nothing of it is there afterwards."""
        await self.pods.aclose()


class OwnPod(RunPod):
    """The pod of one copy of a workspace, in a cluster of this kind. `shared`: a directory of this computer that is
    there, too.
    """

    def __init__(self, kind: str, shared: Path, state: Path, python: str) -> None:
        self.cluster = cluster(kind)
        self._shared = str(shared)
        environ = {"KUBECONFIG": str(self.cluster.server.directory / "config")}
        super().__init__(environ, {"image": "local/agent:1", "python": python}, state)

    async def prepare(self, home: Path | None = None) -> None:
        settings = self.cluster.server.settings
        settings.shared = (*settings.shared, self._shared)
        Path(self._shared).chmod(0o755)  # the agent's user is not the one who runs tests
        await self._found.prepare("run")
        record = self.pods.records.read(self.copy)
        assert record
        assert record.pod_uid
        self._uid = record.pod_uid
        self.home = self.cluster.server.directory / "pods" / record.pod_uid / "volumes" / "home"
        if home:
            shutil.copytree(home, self.home, dirs_exist_ok=True)
            give(self.home)

    def place_of(self, access: ExecAccess) -> PlaceOf:
        machine = RemoteMachine("pod", access, str(self._found.directory))
        return lambda run: PodPlace(run, machine, self._found.pod)

    def seen(self, path: PurePath) -> Path:
        return self.home / path.relative_to(HOME)

    def pid(self, number: int) -> int | None:
        return inhabitant(self.init, number)

    @property
    def init(self) -> int:
        """Process 1 of its container, as this computer numbers it."""

        def found() -> int:
            pod = self.cluster.server.store.by_uid(PODS, self._uid)
            assert pod
            return self.cluster.server.nodes.worker(pod).running[AGENT_CONTAINER].pid

        return self.cluster.call(found)

    async def aclose(self) -> None:
        await super().aclose()
        server = self.cluster.server

        def delete() -> None:
            for kind in (JOBS, PODS):
                for each in server.store.list(kind):
                    metadata = each["metadata"]
                    if metadata.get("labels", {}).get("steersman.dev/copy") == self.copy:
                        options = DeleteOptions(policy="Background", grace=0)
                        server.deletion.delete(kind, metadata["namespace"], metadata["name"], options)

        self.cluster.call(delete)
        server.settings.shared = tuple(each for each in server.settings.shared if each != self._shared)


class RealPod(RunPod):
    """A home of its own in the pod of a real cluster; paths and processes are this computer's."""

    def __init__(self, directory: Path, state: Path, python: str) -> None:
        self.cluster, self._name, self._uid = real_cluster()
        self.home = directory / "home"
        program = directory / "python"
        program.write_text(f'#!/bin/sh\nHOME={self.home} exec {python} "$@"\n')
        program.chmod(0o700)
        placement = {"image": "unused", "namespace": self.cluster.namespace, "python": str(program)}
        super().__init__({"KUBECONFIG": str(self.cluster.kubeconfig)}, placement, state)

    async def prepare(self, home: Path | None = None) -> None:
        record = PodRecord(runtime=self.placement, run="run", pod=self._name, pod_uid=self._uid)
        await self.pods.records.change(self.copy, lambda _: record)
        await self._found.prepare("run")

    def place_of(self, access: ExecAccess) -> PlaceOf:
        machine = RemoteMachine("pod", access, str(self.home / ".local" / "state" / "steersman"))
        return lambda run: PodPlace(run, machine, self._found.pod)

    def seen(self, path: PurePath) -> Path:
        return Path(path)

    def pid(self, number: int) -> int | None:
        return number

    async def aclose(self) -> None:
        await super().aclose()
        await asyncio.sleep(0.1)  # TLS says goodbye


def give(directory: Path) -> None:
    """Make all in it the agent's."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
