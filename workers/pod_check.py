"""What a cluster has for runs: `worker.py check --on`, shown by `steer doctor --runtime kubernetes`.

A pod is made as for a run, looked at, and deleted, whatever happens meanwhile. Where even that fails, the cluster ends
it by itself, and a worker's sweep of this state directory finds it.
"""

import ast
import asyncio
import os
import secrets
import shlex
import signal
import tempfile
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from activities.admission.pod_patterns import lacking
from activities.doctor import Check
from activities.runtimes import exec_connection
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from activities.runtimes.kubernetes.manifest import job_name
from activities.runtimes.kubernetes.pod_record import PodRecord, PodRecords
from activities.runtimes.kubernetes.pods import KubernetesPods, PodMachine
from activities.shim import client as shim
from activities.shim.client.launching import PROGRAM
from activities.store.identity import StoreGone, StoreIdentity
from activities.store.ownership import Ownership
from activities.workspaces.carry import copies
from steersman import timeouts
from steersman.contracts.errors import PlaceError
from steersman.contracts.kubernetes import KubernetesRuntime
from workers import cluster_check as cluster
from workers import machine_findings as findings
from workers.connection import owner_if_reached
from workers.settings import Settings

T = TypeVar("T")

START_S: Final = 120
"""A pod has so long to come to run where the request does not say."""
LOOK_S: Final = 60.0
"""What the looks into a pod that runs may take."""
DEADLINE_S: Final = 900
"""Seconds beyond its start's after which the cluster ends a probe that nobody has deleted."""
_NAME: Final = "steer doctor"
_HINTS: Final = {
    "ErrImagePull": "the image's name, or --pod 'image_pull_secrets=[...]'",
    "ImagePullBackOff": "the image's name, or --pod 'image_pull_secrets=[...]'",
    "InvalidImageName": "the image's name",
    "CreateContainerConfigError": "make the Secret that env_from_secrets names",
    "CrashLoopBackOff": "the image has no Python of that name: --pod python=NAME",
    "StartError": "the image has no Python of that name: --pod python=NAME",
    "FailedCreate": "a quota, a limit, Pod Security or an account: the message names it",
    "Unschedulable": "no node has room or the right labels, or a claim is not there",
    "NotFound": "make the namespace, or name another",
    "Forbidden": cluster.ROLE,
    "Timeout": "is a node ready? More time: --pod start_s=SECONDS",
}
"""By PlaceError's reason."""
_PROGRAM_HINTS: Final = (
    "workspaces cannot be copied there: install git in the image",
    "install it in the image, so that a login shell finds it",
)
_MODULES: Final = """
import importlib, sys
missing = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
print("%d.%d.%d" % sys.version_info[:3], *missing)
"""


class _ProbeApi(KubernetesApi):
    """Has the cluster end what is made through it, if nobody else does."""

    deadline_s = DEADLINE_S

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """See KubernetesApi."""
        if body.get("kind") == "Job":
            body = {**body, "spec": {**body["spec"], "activeDeadlineSeconds": self.deadline_s}}
        return await super().create(path, body)


async def check_pod(runtime: KubernetesRuntime, settings: Settings) -> list[Check]:
    """One cluster, as this process reaches it. Ends at what makes all else impossible.

    SIGINT, SIGTERM and SIGHUP end it with CancelledError, once what it has made is deleted.
    """
    _cancel_at_signals()
    if "start_s" not in runtime.model_fields_set:
        runtime = runtime.model_copy(update={"start_s": START_S})
    checks = [_allowed(runtime, settings)]
    with tempfile.TemporaryDirectory(prefix="steersman-doctor-") as scratch:
        pods = await _pods(settings, Path(scratch), runtime)
        try:
            if await _is_usable(checks, pods, runtime):
                await _probe(checks, pods, runtime, settings)
        finally:
            await pods.aclose()
    return checks


def _cancel_at_signals() -> None:
    loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task

    def cancel() -> None:
        if not told.is_set():
            told.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cancel)


async def _pods(settings: Settings, scratch: Path, runtime: KubernetesRuntime) -> KubernetesPods:
    """Pods that bear the labels of this state directory's, and are written down nowhere in it."""
    store = ""
    with suppress(OSError, StoreGone):
        store = await asyncio.to_thread(StoreIdentity(settings.state).open)
    owner = await owner_if_reached(settings) or Ownership("", "")

    def reach(context: str | None, environ: Mapping[str, str]) -> KubernetesApi:
        api = _ProbeApi(context, environ)
        api.deadline_s = DEADLINE_S + runtime.start_s
        return api

    return KubernetesPods(lambda _: None, settings.policy.environ, scratch, owner, store, reach)


def _allowed(runtime: KubernetesRuntime, settings: Settings) -> Check:
    # No failure: the worker of another terminal may have been started with more.
    policy = settings.policy
    flags = []
    if runtime.kind not in policy.runtimes:
        flags.append("--runtime kubernetes")
    if not any(pattern.fits(runtime) for pattern in policy.allow_kubernetes):
        name = "/".join(filter(None, (runtime.context, runtime.namespace or "*")))
        flags.append(f"--allow-kubernetes {shlex.quote(name)}")
    flags += [f"--allow-pod {shlex.quote(f'{each.field}={each.value}')}" for each in lacking(policy.allow_pod, runtime)]
    if flags:
        text = f"a worker with the settings of this terminal refuses it, one with {' '.join(flags)} does not"
        return Check(check="policy", detail=text)
    return Check(check="policy", detail=f"{runtime.name} and {runtime.image} are allowed to requests here")


async def _is_usable(checks: list[Check], pods: KubernetesPods, runtime: KubernetesRuntime) -> bool:
    """Whether it is of any use to make a pod."""
    api = pods.api(runtime.context)
    try:
        checks.append(await cluster.reached(api))
        namespace = runtime.namespace or api.namespace
        checks += (rights := await cluster.access(api, namespace))
        checks.append(await cluster.quota(api, namespace, runtime))
    except ApiRefused as error:
        hint = "the credentials of the worker's context: does kubectl reach it as the worker's user?"
        checks.append(Check(check="cluster", ok=False, detail=f"{api.name}: {error}", hint=hint))
        return False
    except shim.MachineUnusable as error:
        checks.append(Check(check="cluster", ok=False, detail=str(error), hint="see docs/kubernetes.md"))
        return False
    except shim.MachineUnreachable as error:
        hint = "is it up, and does kubectl reach it as the worker's user?"
        checks.append(Check(check="cluster", ok=False, detail=str(error), hint=hint))
        return False
    return all(each.ok for each in rights)


async def _probe(checks: list[Check], pods: KubernetesPods, runtime: KubernetesRuntime, settings: Settings) -> None:
    copy = secrets.token_hex(16)
    found = pods.of(runtime.model_dump(mode="json"), copy)
    # By that a sweep knows that it has to look in this namespace, and that nobody wants what it finds.
    swept = PodRecords(settings.state)
    with suppress(OSError):
        facts = {"runtime": runtime.model_dump(mode="json"), "run": _NAME, "removed": True}
        await swept.change(copy, lambda _: PodRecord.model_validate(facts))
    try:
        async with timeouts.timeout(runtime.start_s + LOOK_S):
            await _look(checks, found, settings)
    except PlaceError as error:
        reason = str(error.facts.get("reason"))
        hint = _HINTS.get(reason, "see Errors in docs/kubernetes.md")
        checks.append(Check(check="pod", ok=False, detail=error.message, hint=hint))
    except shim.MachineGone as error:
        hint = "a worker's sweep may have come upon it: try again"
        checks.append(Check(check="pod", ok=False, detail=str(error), hint=hint))
    except (shim.ShimError, TimeoutError, OSError) as error:
        text = str(error) or f"it has not been looked at within {runtime.start_s + LOOK_S:.0f} s"
        checks.append(Check(check="pod", ok=False, detail=text, hint="see docs/kubernetes.md"))
    finally:
        checks.append(await _whatever_happens(_removed(found, runtime, copy, swept)))


async def _look(checks: list[Check], found: PodMachine, settings: Settings) -> None:
    pod, machine, begun = found.pod, found.machine, time.monotonic()
    await found.prepare(_NAME)
    started = time.monotonic() - begun
    await pod.enter(_NAME)  # it ends as one that was used: by SIGTERM
    trip_ms = await findings.round_trip_ms(pod)
    what = f"runs, and takes programs, after {started:.1f} s; a program there begins and ends within {trip_ms:.0f} ms"
    checks.append(Check(check="pod", detail=what))
    checks.append(await _python(found))
    answer = await machine.access.ask("info", '["git", "claude"]')
    checks.append(findings.clock(await machine.clock_ms()))
    checks.append(findings.disk(found.directory, answer.get("free")))
    info = await machine.info(["git", *findings.AGENTS])
    checks += await findings.programs(pod, info.programs, settings.policy.agents, _PROGRAM_HINTS)
    checks.append(await findings.shim_runs(machine, found.directory, info.environ.get("PATH", os.defpath)))


async def _python(found: PodMachine) -> Check:
    told = await findings.said(found.pod, found.pod.python, "-I", "-S", "-c", _MODULES, *modules())
    version, *missing = told.split() or ["?"]
    if missing:
        hint = "install all of Python's standard library in the image, or name another: --pod python=PATH"
        return Check(check="python there", ok=False, detail=f"{version} lacks {', '.join(missing)}", hint=hint)
    return Check(check="python there", detail=f"{version}, with all of the standard library that is needed")


def modules() -> list[str]:
    """What our programs that run in pods import of the standard library."""
    found = set()
    servers = Path(exec_connection.__file__).parent / "remote_program"
    for path in (*Path(PROGRAM).glob("*.py"), *servers.glob("*.py"), copies.PROGRAM):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module)
    return sorted(found)


async def _removed(found: PodMachine, runtime: KubernetesRuntime, copy: str, swept: PodRecords) -> Check:
    begun = time.monotonic()
    try:
        is_gone, why = await found.pod.remove(), "it is not gone yet"
    except (shim.MachineUnreachable, OSError) as error:
        is_gone, why = False, str(error)
    took = time.monotonic() - begun
    if not is_gone:
        where = f"-n {runtime.namespace} " if runtime.namespace else ""
        hint = f"a worker's next sweep tries again; or: kubectl {where}delete job {job_name(copy)}"
        return Check(check="pod removed", ok=False, detail=f"not after {took:.1f} s: {why}", hint=hint)
    with suppress(OSError):
        await swept.forget(copy)
    return Check(check="pod removed", detail=f"Job and pod were gone after {took:.1f} s")


async def _whatever_happens(work: Coroutine[Any, Any, T]) -> T:
    """Its result, also where this task is cancelled meanwhile, or was."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()
