"""The life of a worker process: from the connection to the last task, until a signal ends it."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.worker import Worker

from activities.runtimes.kubernetes.pods import KubernetesPods
from activities.runtimes.ssh_machines import SshMachines
from activities.shim import client as shim
from activities.store.hold_files import HoldFiles
from activities.store.identity import StoreGone, StoreIdentity
from activities.takeover.lost_tasks import LostTasks
from activities.takeover.machine_number import identity_of, machine_number
from activities.takeover.registry import Registry
from activities.takeover.run_slots import RunSlots
from activities.takeover.takeover import Takeover
from steersman.codec import name_of
from steersman.contracts import names
from workers import logs
from workers.connection import add_search_attributes, connect, owner_of
from workers.descriptors import raise_limit
from workers.housekeeping import load_agents, schedule_sweeps, sweep_now, watch_store
from workers.server_identity import until_replaced
from workers.settings import Settings
from workers.succession import Succession
from workers.wiring import Activities, Parts, activities_of, workers_of


async def serve(settings: Settings) -> int:
    """The exit code: 0 after a signal, 1 where the worker could not work."""
    identity = StoreIdentity(settings.state)
    try:
        identity.open()
    except (OSError, StoreGone) as error:
        text = f"{settings.state}: {error}; make it writable, or name another"
        logs.write("state_unusable", text, level=logging.ERROR)
        return 1
    descriptors = raise_limit(settings.max_runs)
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    client, polls = await connect(settings, await _identity(settings.state, name, identity.first))
    if not await add_search_attributes(client):
        return 1
    async with contextlib.AsyncExitStack() as stack:
        owner = await owner_of(client)
        queue = names.worker_queue(settings.host, name)
        registry = await asyncio.to_thread(Registry.open, settings.state, owner, client.identity, queue)
        stack.callback(registry.close)
        forks = await stack.enter_async_context(shim.ForkServer(descriptors=descriptors))
        policy, admitted = settings.policy, settings.state / "machines"
        machines = SshMachines(policy.check_runtime, policy.environ, settings.ssh_config, admitted)
        stack.push_async_callback(machines.aclose)
        pods = KubernetesPods(policy.check_runtime, policy.environ, settings.state, owner, identity.first)
        stack.push_async_callback(pods.aclose)
        succession = Succession(client, settings.host)
        slots = RunSlots(settings.max_runs)
        parts = Parts(client, polls, owner, identity, registry, forks, machines, pods, succession, slots)
        failures = await _poll(settings, parts)
    if failures:
        logs.write("worker_failed", "; ".join(failures), level=logging.ERROR)
        return 1
    logs.write("worker_stopped", "done")
    return 0


async def _identity(state: Path, name: str, store: str) -> str:
    try:
        return identity_of(name, store, await machine_number(state), socket.gethostname())
    except OSError:  # a full disk is no reason not to work
        return f"{name}@{socket.gethostname()}"


async def _poll(settings: Settings, parts: Parts) -> list[str]:
    """Take work until a signal, or the end of a task that must not end; returns why each such task ended."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    activities = activities_of(settings, parts)
    _log_agents(settings, activities)
    if await parts.succession.successor():
        return [await _give_way(parts.succession, activities)]
    workers = workers_of(settings, parts, activities)
    holds = HoldFiles(settings.state)
    taking_over = Takeover(parts.client, parts.registry, partial(holds.waiting, parts.owner), parts.slots)
    takeover = asyncio.create_task(taking_over.run())
    of_runs = names.runs_queue(settings.host)
    polling = [
        asyncio.create_task(_after(taking_over.looked, worker) if worker.task_queue == of_runs else worker.run())
        for worker in workers
    ]
    succeeded = asyncio.create_task(parts.succession.watch())
    replaced = asyncio.create_task(until_replaced(parts.client))
    over = [asyncio.create_task(stop.wait()), *polling, takeover, succeeded, replaced]
    beside: list[asyncio.Task[None]] = []
    failures: list[str] = []
    try:
        if await _all_poll(workers, over):
            beside = [
                asyncio.create_task(schedule_sweeps(parts.client, settings.host)),
                asyncio.create_task(sweep_now(activities.host)),
                asyncio.create_task(activities.host.stop_retries.run()),
                asyncio.create_task(watch_store(parts.identity)),
                asyncio.create_task(LostTasks(parts.client, parts.registry).run()),
                asyncio.create_task(load_agents(activities.agents)),
            ]
            _log_ready(settings, parts, workers)
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if takeover.done():
            failures.append(f"looking after the other workers has ended: {takeover.exception()}")
        elif replaced.done():
            failures.append(await _leave_server(replaced, activities))
            parts.registry.leave()
        elif not any(task.done() for task in polling):
            parts.registry.leave()
            logs.write("worker_stopping", "agents work on; the next worker goes on with them")
        succession_over = succeeded.done()
        for task in (over[0], takeover, succeeded, replaced, *beside):
            task.cancel()
        failures += await _shut_down(workers, polling)
        if succession_over and (error := succeeded.exception()):
            failures.append(f"looking for newer workers has ended: {error}")
        elif succession_over:
            failures.append(await _give_way(parts.succession, activities))
    return failures


async def _after(wait: Callable[[], Awaitable[None]], worker: Worker) -> None:
    await wait()
    await worker.run()


async def _give_way(succession: Succession, activities: Activities) -> str:
    """A newer worker of this host is at work on another machine: nothing may work on here. Why this one ends."""
    await activities.host.kill_agents_here()
    return f"{await succession.why()}; what is here is old, and is left alone"


async def _leave_server(replaced: "asyncio.Task[None]", activities: Activities) -> str:
    """Another server answers, to which the runs here are unknown: no later worker sees to them. Why this one ends."""
    if error := replaced.exception():
        return f"looking for another server has ended: {error}"
    await sweep_now(activities.host)
    why = "another Temporal server answers here, and it knows none of the runs of this one"
    return f"{why}: their agents are stopped, and what begins from now on is for a new worker"


def _log_agents(settings: Settings, activities: Activities) -> None:
    """What other packages have added: a person who reads the log knows whose code this worker runs."""
    packages = settings.catalog.packages
    for name in (agent.name for agent in activities.agents if agent.name in packages):
        logs.write("agent_added", f"agent {name} of {packages[name]}", agent=name, package=packages[name])
    for problem in activities.problems:
        logs.write("agent_unusable", f"{problem.check} {problem.detail}; {problem.hint}", level=logging.ERROR)


def _log_ready(settings: Settings, parts: Parts, workers: Sequence[Worker]) -> None:
    queues = [worker.task_queue for worker in workers]
    about = {"namespace": parts.client.namespace, "codec": name_of(settings.codec), "store": parts.identity.first}
    logs.write("worker_ready", "polling", logging.INFO, host=settings.host, queues=queues, **about)


async def _all_poll(workers: Sequence[Worker], over: Sequence["asyncio.Task[Any]"]) -> bool:
    """Wait until all workers have begun to poll; False where a task of `over` ended first.

    A worker begins once the server has answered for its namespace, which may take long. Until then `is_running` says
    the same as after its end: that it has ended is told by its task alone.
    """
    while not all(worker.is_running for worker in workers):
        done, _ = await asyncio.wait(over, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return False
    return True


async def _shut_down(workers: Sequence[Worker], polling: Sequence["asyncio.Task[None]"]) -> list[str]:
    """End all workers; returns why each ended that had ended by itself."""
    failures = []
    for worker, task in zip(workers, polling, strict=True):
        if task.done():
            failures.append(f"polling of {worker.task_queue} has ended: {task.exception()}")
        elif not worker.is_running:
            task.cancel()  # it still waits for the server's first answer
    await asyncio.gather(*(worker.shutdown() for worker in workers if worker.is_running))
    await asyncio.gather(*polling, return_exceptions=True)
    return failures
