"""Checks of the Temporal server for `steer doctor`, and the one setting that `steer dev` makes on its own server."""

import asyncio
import time
from contextlib import suppress
from datetime import datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from steersman._client.backoff import Backoff
from steersman._client.host_calls import call_host
from steersman._client.host_workers import is_served
from steersman._client.loop_calls import LoopCalls
from steersman._client.search_attributes import indexed_types
from steersman._client.visibility import list_loops
from steersman.codec import VARIABLE, name_of
from steersman.connection import connect
from steersman.contracts import names
from steersman.contracts.activities import AgentChecks, CheckAgents, EventPage, ReadEvents, RunKey
from steersman.contracts.loop_state import CLOSED
from steersman.contracts.model import TolerantModel
from steersman.errors import BadCodec, ServerRefused, SteersmanError, Unreachable, UnreadablePayload, translate
from steersman.hosts import host_name, state_directory
from steersman.pollers import last_polls

CHECK_S = 60.0
"""A worker may take this many seconds to ask all its agents' programs for their versions."""
NEW_WORKER_S = 3.0
"""For this many seconds the server is asked again whether it knows of a worker."""
WORKFLOWS, ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
LOOKED_AT, SHOWN_LOOPS = 50, 5
"""So many open loops are asked for their hosts; of those that wait for a worker so many are named."""


class Check(TolerantModel):
    """One check and its result."""

    check: str
    """Its name, e.g. "push cancel"."""
    ok: bool
    detail: str
    """What was found."""
    hint: str | None = None
    """What to do about it."""


async def check_server(profile: str | None, address: str | None, namespace: str | None) -> list[Check]:
    """Check server, push cancel, search attributes, workers and codec; where there is no server, the server alone."""
    try:
        client = await connect(profile, address, namespace)
    except BadCodec as error:
        return [Check(check="codec", ok=False, detail=str(error), hint=f"see {VARIABLE} in docs/operations.md")]
    except SteersmanError as error:
        hint = "start a local server with `steer dev`, or give --address or --profile"
        return [Check(check="server", ok=False, detail=str(error), hint=hint)]
    server = client.service_client.config.target_host
    checks = []
    for look in (_push_cancel, _search_attributes, _workers, _loops, _codec):
        try:
            checks.append(await look(client))
        except RPCError as error:
            hint = "make the namespace, or give --namespace; see what the profile's key permits"
            checks.append(Check(check="server", ok=False, detail=str(translate(error, address=server)), hint=hint))
            if error.status == RPCStatusCode.NOT_FOUND:
                return checks
    # One that does not take the codec's question takes no other.
    agents = await _agents_of_worker(client) if checks[-1].ok else []
    return [Check(check="server", ok=True, detail=f"{server}, namespace {client.namespace}"), *checks, *agents]


async def keep_closed_runs(client: Client, retention: timedelta) -> None:
    """Set how long the namespace keeps closed workflows. Raises ServerUnreachable, ServerRefused."""
    config = NamespaceConfig()
    config.workflow_execution_retention_ttl.FromTimedelta(retention)
    try:
        await client.workflow_service.update_namespace(
            UpdateNamespaceRequest(namespace=client.namespace, config=config)
        )
    except RPCError as error:
        raise translate(error, address=client.service_client.config.target_host) from error


async def has_worker(client: Client, host: str) -> bool:
    """Whether a worker of `host` polls for runs. Raises ServerUnreachable, ServerRefused."""
    try:
        return bool(await last_polls(client, names.runs_queue(host), ACTIVITIES))
    except RPCError as error:
        raise translate(error, address=client.service_client.config.target_host) from error


async def _push_cancel(client: Client) -> Check:
    answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    ok = answer.namespace_info.capabilities.worker_commands
    return Check(
        check="push cancel",
        ok=ok,
        detail="the server pushes cancels to workers" if ok else "cancels reach workers by their task queue only",
        hint=None
        if ok
        else "set frontend.WorkerCommandsEnabled and system.enableCancelActivityWorkerCommand in its dynamic config; "
        "stopping works without, some ms later",
    )


async def _search_attributes(client: Client) -> Check:
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = [each for each, kind in indexed_types().items() if answer.custom_attributes.get(each) != kind]
    commands = [
        f"temporal operator search-attribute create --namespace {client.namespace} "
        f"--name {each} --type {names.SEARCH_ATTRIBUTES[each]}"
        for each in missing
    ]
    return Check(
        check="search attributes",
        ok=not missing,
        detail=f"missing: {', '.join(missing)}" if missing else ", ".join(names.SEARCH_ATTRIBUTES),
        hint="; ".join(commands) or None,
    )


async def _workers(client: Client) -> Check:
    workers = sorted(await _polls_of_new(client, names.TASK_QUEUE, WORKFLOWS))
    return Check(
        check="worker",
        ok=bool(workers),
        detail=", ".join(workers) if workers else f"nobody polls task queue {names.TASK_QUEUE!r}",
        hint=None if workers else "start one with `steer worker`",
    )


async def _polls_of_new(client: Client, queue: str, kind: TaskQueueType.ValueType) -> dict[str, datetime]:
    """See last_polls. A busy server takes a moment to know of a worker that has just begun."""
    backoff, begun = Backoff(), time.monotonic()
    while not (polls := await last_polls(client, queue, kind)):
        if time.monotonic() - begun > NEW_WORKER_S:
            break
        await backoff.pause()
    return polls


async def _loops(client: Client) -> Check:
    """Whether the hosts of the open loops, of the newest LOOKED_AT, have workers."""
    if not await last_polls(client, names.TASK_QUEUE, WORKFLOWS):
        return Check(check="loops", ok=True, detail="not looked at: no worker could tell their hosts")
    found = await list_loops(client, 'ExecutionStatus="Running"', LOOKED_AT)
    hosts = await asyncio.gather(*(_host_of(client, each.id) for each in found))
    gone = [host for host in sorted(set(filter(None, hosts))) if not await is_served(client, host)]
    waiting = [each.id for each, host in zip(found, hosts, strict=True) if host in gone]
    shown = ", ".join(waiting[:SHOWN_LOOPS]) + (" ..." if len(waiting) > SHOWN_LOOPS else "")
    if not gone:
        return Check(check="loops", ok=True, detail=f"open: {len(found)}")
    return Check(
        check="loops",
        ok=False,
        detail=f"no worker of host {', '.join(gone)} answers; loops that wait for one: {shown}",
        hint="start a worker there; where the host is gone for good, end them with `steer loop stop`",
    )


async def _host_of(client: Client, loop: str) -> str | None:
    """The host of an open loop; None where it has none yet, has closed, or cannot be asked."""
    with suppress(SteersmanError):
        state = await LoopCalls(client).state(loop)
        return None if state.status in CLOSED else state.host
    return None


UNDECODED = "Failed decoding arguments"
"""What the SDK of a worker says of an activity's input that it cannot decode."""


async def _codec(client: Client) -> Check:
    """Whether client and worker have the same codec: a worker of this host is asked for the events of no run."""
    mine = f"this client: {name_of(client.data_converter.payload_codec) or 'none'}"
    host = host_name(state_directory())
    any_polls = await last_polls(client, names.TASK_QUEUE, WORKFLOWS)
    if not any_polls or not await _polls_of_new(client, names.runs_queue(host), ACTIVITIES):
        return Check(check="codec", ok=True, detail=f"{mine}; no worker of this machine to compare it with")
    nothing = ReadEvents(key=RunKey(run="doctor", execution="doctor"), after=0, wait_s=0)
    try:
        await call_host(client, host, names.READ_EVENTS, nothing, EventPage, takes_s=5)
    except (ServerRefused, UnreadablePayload) as error:
        hint = f"start this program and all workers with the same {VARIABLE} and keys"
        why = "" if UNDECODED in str(error) else f": {error}"
        return Check(check="codec", ok=False, detail=f"{mine}; the worker has another, or other keys{why}", hint=hint)
    except Unreachable as error:
        return Check(check="codec", ok=False, detail=str(error), hint="see whether the worker is at work")
    return Check(check="codec", ok=True, detail=f"{mine}; the worker of this machine has the same")


async def _agents_of_worker(client: Client) -> list[Check]:
    """The programs and keys of its agents, as a worker of this machine sees them; nothing where none is at work, or it
    is of a version that cannot tell.
    """
    host = host_name(state_directory())
    try:
        if not await has_worker(client, host):
            return []
        found = await call_host(client, host, names.CHECK_AGENTS, CheckAgents(), AgentChecks, takes_s=CHECK_S)
    except Unreachable as error:
        hint = "what is said of agents below is of this terminal; see whether the worker is at work"
        return [Check(check="agents", ok=False, detail=str(error), hint=hint)]
    except SteersmanError:  # what is wrong the other checks say
        return []
    checks = [
        Check(check=each.check, ok=each.ok, detail=f"{each.detail} (of the worker)", hint=each.hint or None)
        for each in found.checks
    ]
    if not found.usable:
        hint = "where the worker is started, set a key, or log in with the agent's own program, and start it anew"
        checks.append(Check(check="agents", ok=False, detail="the worker has no agent with a key", hint=hint))
    return checks
