"""Whether another Temporal server answers this worker than before, with a database that was set up anew.

To that one all runs of before are unknown, and what this worker writes down for its runs would be the lost server's.
"""

import asyncio
from datetime import timedelta
from typing import Final, NamedTuple

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetClusterInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

LOOK_S: Final = 5.0
ANSWER: Final = timedelta(seconds=5)


class ServerIdentity(NamedTuple):
    """What a database was set up with: the ids of its cluster and of the namespace, "" where there is no such one."""

    cluster: str
    namespace: str

    def is_replaced_by(self, other: "ServerIdentity") -> bool:
        """A namespace that fails over to another cluster keeps its id."""
        return self.cluster != other.cluster and self.namespace != other.namespace


async def until_replaced(client: Client) -> None:
    """Return once a server answers that was set up anew."""
    first: ServerIdentity | None = None
    while True:
        try:
            if first is None:
                first = await _identity(client)
            elif await _namespace(client) != first.namespace and first.is_replaced_by(await _identity(client)):
                return
        except RPCError:
            pass  # it is away, or does not say
        await asyncio.sleep(LOOK_S)


async def _identity(client: Client) -> ServerIdentity:
    """Raises RPCError."""
    cluster = await client.workflow_service.get_cluster_info(GetClusterInfoRequest(), timeout=ANSWER)
    return ServerIdentity(cluster.cluster_id, await _namespace(client))


async def _namespace(client: Client) -> str:
    """Raises RPCError."""
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        found = await client.workflow_service.describe_namespace(asked, timeout=ANSWER)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return ""
    return found.namespace_info.id
