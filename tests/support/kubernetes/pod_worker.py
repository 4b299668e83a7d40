"""One pod on its node: from its scheduling to the end of its last process.

What a status is made of, and how a process is started, must not live here.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubernetes.containers import Container, StartError
from tests.support.kubernetes.events import Events
from tests.support.kubernetes.images import refusals
from tests.support.kubernetes.kinds import PODS
from tests.support.kubernetes.logs import ContainerLog
from tests.support.kubernetes.pod_spec import ConfigError, VolumeError, Volumes, container_spec
from tests.support.kubernetes.pod_status import ContainerState, phase
from tests.support.kubernetes.settings import Settings
from tests.support.kubernetes.store import Object, Store

TRY_AGAIN_S = 0.2


@dataclass(frozen=True)
class Verdict:
    """Why a node has ended a pod: `Evicted`, `DeadlineExceeded`."""

    reason: str
    message: str
    condition: Object | None = None


@dataclass(frozen=True)
class Surroundings:
    """What the pods of a node have in common."""

    store: Store
    events: Events
    settings: Settings
    directory: Path
    publish: Callable[["PodWorker"], None]


class PodWorker:
    """`run` is its life; `stop` ends it earlier."""

    def __init__(self, pod: Object, around: Surroundings) -> None:
        self.pod, self._around = pod, around
        self.uid = str(pod["metadata"]["uid"])
        self.policy = str(pod["spec"]["restartPolicy"])
        self.first = [ContainerState(each) for each in pod["spec"].get("initContainers") or []]
        self.main = [ContainerState(each) for each in pod["spec"]["containers"]]
        if self.first:
            for each in self.main:
                each.wait("PodInitializing")
        self.verdict: Verdict | None = None
        self.ended = False
        self.running: dict[str, Container] = {}
        self.logs: dict[str, list[ContainerLog]] = {}
        self._directory = around.directory / self.uid
        self._volumes = Volumes(pod, self._directory / "volumes", around.directory.parent / "claims", around.store)
        self._stopping = asyncio.Event()
        self._kill_at: float | None = None
        self._killing = asyncio.Event()
        self._starts = 0
        self._killed_for_memory: set[str] = set()

    @property
    def phase(self) -> str:
        """Running while a process does, whatever the node has decided."""
        said = phase(self.policy, self.first, self.main)
        if not self.ended:
            return "Running" if self.verdict and said in {"Succeeded", "Failed"} else said
        if self.verdict:
            return "Failed"
        return said if said in {"Succeeded", "Failed"} else "Failed"

    async def run(self) -> None:
        """Return when every process has ended, and what was to be restarted was."""
        self._around.publish(self)
        helpers = [asyncio.create_task(self._deadline()), asyncio.create_task(self._kill())]
        try:
            await self._pause(self._around.settings.starting_takes.total_seconds())
            while (error := self._around.settings.sandbox_error) and not self._stopping.is_set():
                self._warn("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
                await self._pause(TRY_AGAIN_S)
            await self._until_well(self._volumes.prepare, VolumeError, self._unmounted)
            if await self._initialise():
                await asyncio.gather(*(self._keep(each, self.policy) for each in self.main))
        finally:
            for each in helpers:
                each.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        self.ended = True
        self._around.publish(self)

    def stop(self, grace_s: float, verdict: Verdict | None = None) -> None:
        """SIGTERM for each first process, SIGKILL after the grace, which a further call can only make shorter."""
        kill_at = asyncio.get_running_loop().time() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        self._killing.set()
        if self._stopping.is_set():
            return
        self.verdict = self.verdict or verdict
        self._stopping.set()
        for name, each in self.running.items():
            self._tell("Killing", f"Stopping container {name}")
            each.signal(signal.SIGTERM)

    def kill_for_memory(self, name: str) -> None:
        """As the kernel does it: every process of the container at once."""
        self._killed_for_memory.add(name)
        self.running[name].kill()

    async def _initialise(self) -> bool:
        for each in self.first:
            policy = "Never" if self.policy == "Never" else "OnFailure"
            if not await self._keep(each, policy):
                return False
        for each in self.main:
            each.wait("ContainerCreating" if not self.first else "PodInitializing")
        return not self._stopping.is_set()

    async def _keep(self, state: ContainerState, policy: str) -> bool:
        """Run a container as often as the policy wants; whether it ended well."""
        while not self._stopping.is_set():
            await self._image(state)
            code = await self._run(state)
            if code is None or self._stopping.is_set() or policy == "Never":
                return code == 0
            if code == 0 and policy == "OnFailure":
                return True
            await self._back_off(state)
        return False

    async def _back_off(self, state: ContainerState) -> None:
        if state.restarts:
            pod = self.pod["metadata"]
            name = f"container={state.name} pod={pod['name']}_{pod['namespace']}({self.uid})"
            state.wait("CrashLoopBackOff", f"back-off 10s restarting failed {name}")
            self._around.publish(self)
            self._warn("BackOff", f"Back-off restarting failed container {state.name} in pod {pod['name']}")
            await self._pause(self._around.settings.crash_back_off.total_seconds())
        state.restarts += 1

    async def _image(self, state: ContainerState) -> None:
        """Wait until the image is there."""
        image, settings = state.container["image"], self._around.settings
        while (why := settings.image_errors.get(image)) and not self._stopping.is_set():
            for refusal in refusals(image, why):
                self._wait(state, *refusal)
                await self._pause(settings.image_back_off.total_seconds())

    async def _run(self, state: ContainerState) -> int | None:
        """One start and its end; None if it was not started."""
        container = await self._start(state)
        if container is None:
            return state.code
        self.running[state.name] = container
        state.run()
        self._tell("Started", f"Started container {state.name}")
        self._around.publish(self)
        if self._stopping.is_set():
            container.signal(signal.SIGTERM)
        code = await container.wait()
        del self.running[state.name]
        killed = state.name in self._killed_for_memory
        self._killed_for_memory.discard(state.name)
        state.end(code, "OOMKilled" if killed else "Error" if code else "Completed")
        self._around.publish(self)
        return code

    async def _start(self, state: ContainerState) -> Container | None:
        made: list[Container] = []

        def configure() -> None:
            around = self._around
            spec = container_spec(self.pod, state.container, self._volumes, around.store, around.settings)
            made.append(Container(spec, self._directory / f"container-{self._starts}", ContainerLog()))

        def unconfigured(message: str) -> None:
            self._wait(state, "CreateContainerConfigError", message, "Failed")

        self._starts += 1
        await self._until_well(configure, ConfigError, unconfigured)
        if not made:
            return None
        self.logs.setdefault(state.name, []).append(made[0].log)
        self._tell("Created", f"Created container: {state.name}")
        try:
            await made[0].start()
        except StartError as error:
            made[0].log.end()
            message = f"failed to create containerd task: OCI runtime create failed: {error}: unknown"
            state.end(128, "StartError", message)
            self._warn("Failed", f"Error: {message}")
            self._around.publish(self)
            return None
        return made[0]

    def _unmounted(self, message: str) -> None:
        self._warn("FailedMount", message)

    async def _until_well(
        self, attempt: Callable[[], None], error: type[Exception], complain: Callable[[str], None]
    ) -> None:
        """Try again what the cluster may yet make possible."""
        while not self._stopping.is_set():
            try:
                attempt()
            except error as raised:
                complain(str(raised))
                await self._pause(TRY_AGAIN_S)
            else:
                return

    async def _deadline(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        await asyncio.sleep(seconds)
        grace = self.pod["spec"]["terminationGracePeriodSeconds"]
        self.stop(grace, Verdict("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"))

    async def _kill(self) -> None:
        """Once the grace is over, and whatever is started later."""
        await self._killing.wait()
        while True:
            assert self._kill_at is not None
            self._killing.clear()
            try:
                async with asyncio.timeout_at(self._kill_at):
                    await self._killing.wait()
            except TimeoutError:
                for each in list(self.running.values()):
                    each.kill()
                await asyncio.sleep(0.05)

    async def _pause(self, seconds: float) -> None:
        """Until the pod is stopped, at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _wait(self, state: ContainerState, reason: str, message: str, event: str) -> None:
        state.wait(reason, message)
        self._around.publish(self)
        self._warn(event, f"Error: {message}" if event == "Failed" else message)

    def _tell(self, reason: str, message: str) -> None:
        self._around.events.normal(PODS, self.pod, reason, message, "kubelet")

    def _warn(self, reason: str, message: str) -> None:
        self._around.events.warn(PODS, self.pod, reason, message, "kubelet")
