"""What a worker does beside polling: sweeps of its host, and an eye on the state directory."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)
from temporalio.service import RPCError

from activities.host_activities import HostActivities
from activities.ports.agent import Agent
from activities.store.identity import StoreGone, StoreIdentity
from steersman.contracts import names
from workers import logs

SWEEP_EVERY = timedelta(minutes=10)
WATCH_S = 1.0
"""The state directory's identity is checked this often, in seconds."""


async def schedule_sweeps(client: Client, host: str) -> None:
    """Make the schedule that sweeps this host, unless there is one."""
    sweep = ScheduleActionStartWorkflow(
        names.SWEEP_WORKFLOW, host, id=f"steersman-sweep-{host}", task_queue=names.TASK_QUEUE
    )
    schedule = Schedule(
        action=sweep,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=SWEEP_EVERY)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(minutes=1)),
    )
    pause = 1.0
    while True:
        try:
            await client.create_schedule(f"steersman-sweep-{host}", schedule)
        except ScheduleAlreadyRunningError:
            return
        except RPCError as error:  # the server may be away just now
            logs.write("schedule_failed", f"{error.message}; it is tried again", level=logging.WARNING)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 60.0)
        else:
            return


async def sweep_now(activities: HostActivities) -> None:
    """Sweep the host once, when the worker starts."""
    try:
        swept = await activities.sweep()
    except Exception as error:  # noqa: BLE001 - nobody waits for this task: what it says is lost otherwise
        logs.write("sweep_failed", f"{type(error).__name__}: {error}", level=logging.ERROR)
        return
    if swept.stopped or swept.pruned:
        logs.write("swept", "stopped agents of closed runs, pruned old state", **swept.model_dump())


async def load_agents(agents: Sequence[Agent]) -> None:
    """Import what leading their runs takes, so that the first one does not wait for it."""
    for agent in agents:
        try:
            await asyncio.to_thread(agent.load)
        except Exception as error:  # noqa: BLE001 - it may be another package's: the others are loaded
            text = f"agent {agent.name} could not be loaded: {type(error).__name__}: {error}"
            logs.write("agent_not_loaded", text, level=logging.ERROR, agent=agent.name)


async def watch_store(identity: StoreIdentity) -> None:
    """Log when the state directory goes, is replaced or comes back: until then this worker leads nothing of it."""
    here = identity.first
    while True:
        await asyncio.sleep(WATCH_S)
        why = ""
        try:
            now = await asyncio.to_thread(identity.check)
        except StoreGone as error:
            now, why = "", str(error)
        except OSError:
            continue  # no descriptors are left: nobody can tell
        if now == here:
            continue
        here = now
        if now == identity.first:
            logs.write("state_back", f"{identity.state} is store {now} again")
        else:
            replaced = f"{identity.state} is store {now} now; runs that began in {identity.first} are not led in it"
            logs.write("state_gone", why or replaced, level=logging.ERROR, store=identity.first, now=now)
