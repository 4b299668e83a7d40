"""The cluster in which rows about pods are measured: the one that KUBECONFIG names, else the tests' own.

What is measured there must not live here.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.agents.claude.agent import ClaudeAgent
from activities.runtimes.kubernetes.api import KubernetesApi
from bench.agents import Bench
from tests.scripted_model import ScriptedModel
from tests.support.cluster import BRIDGE, IMAGE, Cluster
from tests.support.kubernetes import background_server, missing

GRACE_S = 10


@dataclass(frozen=True)
class Pods:
    """`name`: of the cluster, in rows. `model`: one that pods reach."""

    name: str
    config: Path
    api: KubernetesApi
    namespace: str
    image: str
    model: ScriptedModel
    claim: str | None
    """Where images have no Claude Code: of a home that has it."""

    def runtime(self, **fields: Any) -> dict[str, Any]:
        """The field of a RunRequest."""
        own = {"kind": "kubernetes", "namespace": self.namespace, "image": self.image, "grace_s": GRACE_S}
        return {"runtime": {**own, **fields}}

    def with_claude(self) -> dict[str, Any]:
        """The same, where Claude Code is."""
        return self.runtime(**({"workspace_volume": self.claim} if self.claim else {}))

    async def there(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Jobs and pods: of the namespace, in which nobody else is."""
        jobs, pods = await asyncio.gather(
            self.api.get(f"/apis/batch/v1/namespaces/{self.namespace}/jobs"),
            self.api.get(f"/api/v1/namespaces/{self.namespace}/pods"),
        )
        return jobs["items"], pods["items"]


@contextlib.asynccontextmanager
async def pods(bench: Bench, *, own: bool = False) -> AsyncIterator[Pods]:
    """With the one worker of the stack at it. `own`: the tests' cluster, whatever else is at hand."""
    config = os.environ.get("KUBECONFIG")
    async with contextlib.AsyncExitStack() as stack:
        if config and not own:
            found = await _real(stack, Path(config))
        else:
            found = await _own(stack, bench)
        bench.stack.agent_env({"KUBECONFIG": str(found.config)})
        allowed = ["--allow-kubernetes", found.namespace]
        allowed += [word for field in ("image", "claim", "pool") for word in ("--allow-pod", f"{field}=*")]
        await bench.stack.workers[-1].kill()
        worker = await bench.stack.start_worker(*bench.worker, *allowed)
        try:
            yield found
        finally:
            await worker.kill()  # before its cluster


async def _real(stack: contextlib.AsyncExitStack, config: Path) -> Pods:
    cluster = await asyncio.to_thread(Cluster, f"bench-{secrets.token_hex(4)}")
    stack.callback(cluster.close)
    model = await stack.enter_async_context(ScriptedModel(address=BRIDGE))
    api = await _api(stack, config)
    return Pods("a real cluster", config, api, cluster.namespace, IMAGE, model, None)


async def _own(stack: contextlib.AsyncExitStack, bench: Bench) -> Pods:
    if why := missing():
        raise RuntimeError(why)
    directory = bench.stack.home / "cluster"
    directory.mkdir()
    running = await asyncio.to_thread(lambda: stack.enter_context(background_server(directory)))
    config = running.server.kubeconfig(bench.stack.home / "kubeconfig")
    api = await _api(stack, config)
    claim = {"metadata": {"name": "home"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    made = await api.create("/api/v1/namespaces/default/persistentvolumeclaims", claim)
    await asyncio.to_thread(_furnish, directory / "claims" / made["metadata"]["uid"])
    return Pods("tests' API server", config, api, "default", "local/agent:1", bench.model, "home")


async def _api(stack: contextlib.AsyncExitStack, config: Path) -> KubernetesApi:
    api = KubernetesApi(None, {"KUBECONFIG": str(config)})
    stack.push_async_callback(api.aclose)
    await api.connect()
    return api


def _furnish(home: Path) -> None:
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local").chmod(0o777)  # the pod's user keeps its own beside it
    (home / ".profile").write_text('PATH="$HOME/.local/bin:$PATH"\n')
    program = ClaudeAgent({}).program()
    try:
        (home / ".local" / "bin" / "claude").hardlink_to(program)
    except OSError:
        shutil.copy(program, home / ".local" / "bin" / "claude")
