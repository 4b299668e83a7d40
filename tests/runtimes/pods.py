"""Pods for tests of the runtime: in the tests' own cluster, made as a worker makes them.

Their processes are this computer's, in a PID namespace of their own; their files lie in a directory of it. What happens
in a pod must not live here.
"""

import atexit
import functools
import os
import shutil
import sys
import tempfile
import uuid
from pathlib import Path, PurePath

from activities.ports.machine import Machine
from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.kubernetes.manifest import HOME, USER
from activities.runtimes.kubernetes.place import PodPlace
from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.shim_runtime import PlaceOf
from activities.store.ownership import Ownership
from steersman.contracts.kubernetes import AGENT_CONTAINER
from tests.support.kubernetes import NEW, OLD, BackgroundServer, Settings
from tests.support.kubernetes.deletion import DeleteOptions
from tests.support.kubernetes.kinds import JOBS, PODS
from tests.support.processes import inhabitant

RELEASES = {"pod": NEW, "old-pod": OLD}
"""Kinds of places that are pods, and how old the cluster is in which they live."""


@functools.cache
def cluster(kind: str = "pod") -> BackgroundServer:
    """One of this kind, for all tests of this process."""
    directory = Path(tempfile.mkdtemp(prefix="steersman-cluster-"))
    running = BackgroundServer(directory, Settings(release=RELEASES[kind], shared=(sys.prefix,)))
    running.server.kubeconfig(directory / "config")
    atexit.register(_close, running)
    return running


def _close(running: BackgroundServer) -> None:
    running.close()
    shutil.rmtree(running.server.directory, ignore_errors=True)


class RunPod:
    """The pod of one copy of a workspace. `shared`: a directory of this computer that is there, too."""

    def __init__(self, kind: str, shared: Path, state: Path, python: str) -> None:
        self.cluster = cluster(kind)
        self.copy = uuid.uuid4().hex
        self.placement = {"kind": "kubernetes", "image": "local/agent:1", "python": python, "grace_s": 5}
        self._shared = str(shared)
        environ = {"KUBECONFIG": str(self.cluster.server.directory / "config")}
        owner = Ownership("cluster", "default")
        self.pods = KubernetesPods(lambda _: None, environ, state, owner, self.copy)
        self._found = self.pods.of(self.placement, self.copy)

    @property
    def machine(self) -> Machine:
        return self._found.pod

    async def prepare(self, home: Path | None = None) -> None:
        """Have it made. `home`: what is to lie in the home there."""
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
        """The place of a run in it, for a worker that has this access."""
        machine = RemoteMachine("pod", access, str(self._found.directory))
        return lambda run: PodPlace(run, machine, self._found.pod)

    def seen(self, path: PurePath) -> Path:
        """Where a path there is on this computer."""
        return self.home / path.relative_to(HOME)

    def pid(self, number: int) -> int | None:
        """How this computer numbers a process there."""
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
        """Nothing of it is there afterwards."""
        await self.pods.aclose()
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


def give(directory: Path) -> None:
    """Make all in it the agent's."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
