"""A machine whose runs are in pods of a cluster of the tests' own, in whose images Claude Code is."""

import asyncio
import os
import secrets
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from activities.agents.claude.agent import ClaudeAgent
from steersman.client import Steersman
from steersman.contracts.events import AgentEvent
from steersman.contracts.kubernetes import AGENT_CONTAINER
from tests.acceptance.site import Site, following, in_order
from tests.scripted_model import ScriptedModel, hold, say, tool
from tests.support.kubernetes import BackgroundServer, Settings
from tests.support.kubernetes.deletion import DeleteOptions
from tests.support.kubernetes.kinds import JOBS, PODS
from tests.support.kubernetes.worker_role import worker_role
from tests.support.processes import until
from tests.support.workers import WorkerProcess

NAMESPACE = "default"
SLOW_S = 60
"""Pods take their time where their node shares its machine."""


def settings() -> Settings:
    return Settings(programs={"claude": ClaudeAgent({}).program()})


class OwnCluster:
    """Its workers may do what `deploy/kubernetes/` allows, and nothing else."""

    def __init__(self, site: Site, cluster: BackgroundServer) -> None:
        self.site, self.cluster, self.server = site, cluster, cluster.server
        self.flags = ("--allow-kubernetes", NAMESPACE, "--allow-pod", "image=*")
        token = cluster.server.access.grant("worker", *worker_role(NAMESPACE))
        self.config = cluster.server.kubeconfig(site.root / "config", token)

    async def worker(self) -> WorkerProcess:
        """One more that is at work."""
        worker = self.site.worker(*self.flags, KUBECONFIG=str(self.config))
        await worker.ready()
        return worker

    def runtime(self, **fields: Any) -> dict[str, Any]:
        return {"kind": "kubernetes", "namespace": NAMESPACE, "image": "local/agent:1", "grace_s": 5, **fields}

    def process(self, *argv: str, runtime: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        return self.site.process(*argv, runtime=self.runtime(**runtime or {}), **fields)

    def claude(self, *arguments: Any, runtime: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        full = {"permissions": {"mode": "full"}, **fields}
        return self.site.claude(*arguments, runtime=self.runtime(**runtime or {}), **full)

    @property
    def pod(self) -> str:
        """The name of the only one."""
        (pod,) = self.cluster.call(lambda: self.server.store.list(PODS))
        return str(pod["metadata"]["name"])

    @property
    def home(self) -> Path:
        """Its home, as this machine has it."""
        (found,) = self.server.directory.glob("pods/*/volumes/home")
        return found

    def has_written(self, text: str) -> bool:
        """Whether Claude's session there has it as what a tool has said: Claude writes that a little later."""
        lines = (line for path in self.home.rglob("*.jsonl") for line in path.read_text().splitlines())
        return any("tool_result" in line and text in line for line in lines)

    def delete(self) -> None:
        """Somebody deletes it, with its grace."""
        pod = self.pod
        self.cluster.call(lambda: self.server.deletion.delete(PODS, NAMESPACE, pod, DeleteOptions()))

    def lose(self) -> None:
        """It is gone from one moment to the next."""
        pod = self.pod

        def gone() -> None:
            init = self.server.nodes.container(NAMESPACE, pod, AGENT_CONTAINER).pid
            self.server.deletion.delete(PODS, NAMESPACE, pod, DeleteOptions(grace=0))
            os.kill(init, signal.SIGKILL)

        self.cluster.call(gone)

    def kill_for_memory(self) -> None:
        """Its container has used more memory than it may."""
        pod = self.pod
        self.cluster.call(lambda: self.server.nodes.kill_for_memory(NAMESPACE, pod, AGENT_CONTAINER))

    def cut(self) -> None:
        """Every connection to a pod is lost."""
        self.cluster.call(self.server.sessions.cut)

    @property
    def left(self) -> list[str]:
        """What is there of Jobs and pods, and of backups."""
        names = [each["metadata"]["name"] for kind in (JOBS, PODS) for each in self.cluster.call(self._listing(kind))]
        return [*map(str, names), *map(str, self.site.state.glob("runs/*/*/backup*"))]

    def _listing(self, kind: Any) -> Any:
        return lambda: self.server.store.list(kind)


async def goes_on_after(
    trouble: Callable[[], Awaitable[None]],
    pods: OwnCluster,
    steersman: Steersman,
    model: ScriptedModel,
    repository: Path,
    **fields: Any,
) -> list[AgentEvent]:
    """Claude has changed a file and is asked on, when its pod meets with this: it goes on with the file and with what
    was said, in one more process, and nothing is left of it. The run's events.
    """
    steps = (tool("Bash", command="echo a first step | tee step"), hold("thinking"), say("finished"))
    script = model.script(f"goes-on-{secrets.token_hex(4)}", *steps)
    run = await steersman.start(pods.claude(script, "build it", workspace=repository, **fields))
    async with following(steersman, run) as attached:
        await script.wait_held()
        await attached.until(lambda e: e.type == "message" and e.text == "thinking", SLOW_S)
        await until(lambda: pods.has_written("a first step"))
        await trouble()
        result = await asyncio.wait_for(steersman.result(run), 120)
        events = await attached.end()
    assert (result.status, result.text, result.attempts) == ("succeeded", "finished", 2)
    assert script.requests[-1].saw("a first step")
    assert (repository / "step").read_text() == "a first step\n"
    assert in_order(events)
    assert pods.left == []
    return events
