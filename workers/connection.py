"""The connection to Temporal, and what the worker needs of a namespace before it can poll."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from activities.store.ownership import Ownership
from steersman import timeouts
from steersman._client.execution_status import know_paused
from steersman._client.search_attributes import indexed_types
from steersman.codec import data_converter
from steersman.contracts import names
from workers import logs
from workers.settings import Settings

T = TypeVar("T")

_ANSWER_S = 5.0
_PAUSE_S = 1.0
_NOT_READY = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.UNKNOWN,  # "transport error": the server ended in the middle of its answer
)


async def connect(settings: Settings, identity: str) -> tuple[Client, Client]:
    """The client, and one for calls that wait.

    The second has a connection of its own: proxies before a server allow a connection a hundred calls or so at a time,
    and there is one such call for each run.
    """
    know_paused()
    config = ClientConfig.load_client_connect_config(profile=settings.profile)
    config.setdefault("target_host", "127.0.0.1:7233")
    converter = data_converter(settings.codec)
    # Push cancellation (15 ms instead of a heartbeat's pace) needs a runtime that heartbeats its workers.
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporal.core"))
    logging_config = LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding
    )
    telemetry = TelemetryConfig(logging=logging_config)
    runtime = Runtime(telemetry=telemetry, worker_heartbeat_interval=timedelta(seconds=10))
    connecting = partial(Client.connect, **config, data_converter=converter, runtime=runtime, identity=identity)

    async def both() -> tuple[Client, Client]:
        return await connecting(), await connecting()

    def unreachable(error: RuntimeError | RPCError) -> str:
        hint = "start one with `steer dev`, or set TEMPORAL_ADDRESS; waiting for it"
        return f"{config['target_host']}: {error}; {hint}"

    return await _waited_for(both, "server_unreachable", unreachable)


async def add_search_attributes(client: Client) -> bool:
    """Make sure that ours exist: a workflow that sets an unknown one would hang. False, and logged, if not."""
    try:
        await _once_ready(lambda: _add_missing(client))
    except RPCError as error:
        wanted = f"{names.AGENT_NAME} and {names.RUN_PHASE} (Keyword), {names.COST_USD} (Double)"
        hint = f"create the search attributes {wanted} in namespace {client.namespace} (see `steer doctor`)"
        logs.write("search_attributes_missing", f"{error.message}; {hint}", level=logging.ERROR)
        return False
    return True


async def _add_missing(client: Client) -> None:
    operator = client.operator_service
    known = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    missing = {name: kind for name, kind in indexed_types().items() if name not in known.custom_attributes}
    if missing:
        await operator.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
        logs.write("search_attributes_added", ", ".join(missing))


async def owner_of(client: Client) -> Ownership:
    """Which Temporal the runs of this worker belong to."""
    cluster = await _once_ready(lambda: client.workflow_service.get_cluster_info(GetClusterInfoRequest()))
    return Ownership(cluster=cluster.cluster_id, namespace=client.namespace)


async def _once_ready(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a server that may be starting still: it takes connections before it can answer."""

    def not_ready(error: RuntimeError | RPCError) -> str | None:
        is_starting = isinstance(error, RPCError) and error.status in _NOT_READY
        return f"{error}; waiting for it" if is_starting else None

    return await _waited_for(ask, "server_not_ready", not_ready)


async def _waited_for(
    ask: Callable[[], Awaitable[T]], action: str, reason: Callable[[RuntimeError | RPCError], str | None]
) -> T:
    """The answer, asked for once a second. `reason`: what is logged of the first error; None: it is raised."""
    said = False
    while True:
        try:
            return await ask()
        except (RuntimeError, RPCError) as error:
            message = reason(error)
            if message is None:
                raise
            if not said:
                logs.write(action, message, level=logging.WARNING)
                said = True
            await asyncio.sleep(_PAUSE_S)


async def owner_if_reached(settings: Settings) -> Ownership | None:
    """The same for this process; None where no server answers soon."""
    try:
        config = ClientConfig.load_client_connect_config(profile=settings.profile)
        config.setdefault("target_host", "127.0.0.1:7233")
        async with timeouts.timeout(_ANSWER_S):
            return await owner_of(await Client.connect(**config))
    except (RuntimeError, RPCError, OSError, ValueError):
        return None
