"""A worker that comes up beside a server that comes up: what the server says until it is ready ends nothing."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.workflowservice.v1 import GetClusterInfoResponse
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from steersman._client.search_attributes import indexed_types
from workers import connection


class Server:
    """Answers once it has refused as often as it is told to."""

    def __init__(self, *refusals: RPCStatusCode) -> None:
        self.refusals = list(refusals)

    async def list_search_attributes(self, _: Any) -> ListSearchAttributesResponse:
        self._refuse()
        return ListSearchAttributesResponse(custom_attributes=indexed_types())

    async def get_cluster_info(self, _: Any) -> GetClusterInfoResponse:
        self._refuse()
        return GetClusterInfoResponse(cluster_id="one")

    def client(self) -> Client:
        return cast("Client", SimpleNamespace(operator_service=self, workflow_service=self, namespace="default"))

    def _refuse(self) -> None:
        if self.refusals:
            raise RPCError("Frontend is not healthy yet", self.refusals.pop(), b"")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PAUSE_S", 0.0)


@pytest.mark.parametrize("refusal", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.UNKNOWN])  # UNKNOWN: "transport error"
async def test_a_server_that_is_starting_is_waited_for(
    refusal: RPCStatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    starting = Server(refusal, refusal)
    assert await connection.add_search_attributes(starting.client())
    assert [record.action for record in caplog.records] == ["server_not_ready"]  # type: ignore[attr-defined]
    starting.refusals = [RPCStatusCode.UNAVAILABLE]
    assert (await connection.owner_of(starting.client())).cluster == "one"


async def test_a_server_that_refuses_is_not(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Server(RPCStatusCode.PERMISSION_DENIED)
    assert not await connection.add_search_attributes(refusing.client())
    assert [record.action for record in caplog.records] == ["search_attributes_missing"]  # type: ignore[attr-defined]
