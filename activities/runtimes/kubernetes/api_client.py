"""A client of one cluster's API server, with the credentials that there are now.

The official library does what differs from cluster to cluster: kubeconfig, certificates, credential plugins. It reads
them once; where the server does not know us any more (a token has run out, a certificate was renewed), all is read
anew. What is asked must not live here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from activities.shim.client import MachineUnreachable, MachineUnusable
from steersman import timeouts
from steersman.contracts.text import flat

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import ApiClient

_LOAD_S: Final = 30.0
"""A credential plugin may take this many seconds."""
_RENEWAL_S: Final = 2.0
"""Between two times at which credentials are read anew: one that is nobody's would have its plugin called all the time.
"""
_MAX_FORMER: Final = 4
"""Sessions with other certificates than today's, by which programs may still be connected."""
_LONGEST: Final = 500


class Clients:
    """`context`: of the kubeconfig; None: its current one, or the service account of the worker's own pod."""

    def __init__(self, context: str | None, environ: Mapping[str, str]) -> None:
        self._context, self._environ = context, environ
        self._client: ApiClient | None = None
        self._loading = asyncio.Lock()
        self._renewed_at = float("-inf")
        self._former: list[aiohttp.ClientSession] = []
        self.namespace = "default"
        """The context's own. Known once there is a client."""

    @property
    def name(self) -> str:
        return self._context or "kubernetes"

    async def current(self) -> ApiClient:
        """The client. Raises MachineUnusable."""
        async with self._loading:
            if self._client is None:
                self._client = await self._load()
                _open(self._client)
            return self._client

    async def renewed(self, refused: ApiClient) -> ApiClient | None:
        """The client with the credentials that there are now, after the server has refused those of this one; None
        where there are no others. Raises MachineUnreachable where they cannot be had now.
        """
        async with self._loading:
            if self._client is not refused:
                return self._client
            if time.monotonic() - self._renewed_at < _RENEWAL_S:
                return None
            self._renewed_at = time.monotonic()
            try:
                renewed = await self._load()
            except MachineUnusable as error:
                raise MachineUnreachable(str(error)) from error
            if not await self.headers(renewed) and await self.headers(refused):
                raise MachineUnreachable(f"{self.name}: the kubeconfig's plugin gives no token any more")
            if await self._same_ways(renewed, refused):
                renewed.rest_client.pool_manager = refused.rest_client.pool_manager
            else:
                _open(renewed)
                self._former.append(session_of(refused))
            self._client = renewed
            while len(self._former) > _MAX_FORMER:
                await self._former.pop(0).close()
            return renewed

    async def _same_ways(self, one: ApiClient, other: ApiClient) -> bool:
        """Whether they reach the same server by the same certificates. Raises MachineUnreachable."""
        try:
            return await asyncio.to_thread(_ways, one) == await asyncio.to_thread(_ways, other)
        except OSError as error:
            raise MachineUnreachable(f"{self.name}: a certificate cannot be read: {error}") from error

    async def headers(self, client: ApiClient) -> dict[str, str]:
        """Of authentication. Raises MachineUnusable."""
        try:
            settings = await client.configuration.auth_settings()
        except Exception as error:  # whatever a credential plugin may raise
            raise MachineUnusable(f"{self.name}: no credentials for the cluster: {flat(str(error))}") from error
        bearer = settings.get("BearerToken")
        return {"Authorization": bearer["value"]} if bearer and bearer.get("value") else {}

    async def aclose(self) -> None:
        """Every connection."""
        if self._client is not None:
            await self._client.close()  # type: ignore[no-untyped-call]
        for each in self._former:
            await each.close()

    async def _load(self) -> ApiClient:
        """One without a session. Raises MachineUnusable."""
        try:
            # Loaded here: it takes a second and 30 MB, which a worker without pods should not pay.
            await asyncio.to_thread(_import)
            from kubernetes.aio.client import ApiClient, Configuration
            from kubernetes.aio.config import load_incluster_config, load_kube_config
            from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, SERVICE_TOKEN_FILENAME
        except ImportError as error:
            text = "the library that reaches Kubernetes is not installed here: pip install kubernetes"
            raise MachineUnusable(text) from error
        configuration = Configuration()
        in_pod = self._context is None and SERVICE_HOST_ENV_NAME in self._environ and "KUBECONFIG" not in self._environ
        try:
            if in_pod:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                with contextlib.suppress(OSError):
                    own = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")
                    self.namespace = (await asyncio.to_thread(own.read_text)).strip() or self.namespace
            else:
                async with timeouts.timeout(_LOAD_S):
                    loader = await load_kube_config(  # type: ignore[no-untyped-call]
                        self._environ.get("KUBECONFIG"),
                        self._context,
                        client_configuration=configuration,
                        persist_config=False,
                    )
                context = loader.current_context.get("context") or {}
                self.namespace = context.get("namespace") or self.namespace
        except Exception as error:  # whatever a kubeconfig and its plugins may raise
            where = f"context {self._context!r}" if self._context else "the kubeconfig"
            why = f"its plugin took more than {_LOAD_S:.0f} s" if isinstance(error, TimeoutError) else flat(str(error))
            raise MachineUnusable(f"kubernetes: {where} cannot be used: {why[:_LONGEST]}") from error
        configuration.connection_pool_maxsize = 0  # as many as there are pods
        return ApiClient(configuration)


def session_of(client: ApiClient) -> aiohttp.ClientSession:
    """What its requests are made with."""
    session = client.rest_client.pool_manager
    assert session
    return session


def _open(client: ApiClient) -> None:
    client.rest_client.pool_manager = client.rest_client._create_pool_manager()  # noqa: SLF001 - which it does late


def _ways(client: ApiClient) -> tuple[object, ...]:
    """All that a session is made of: where the server is, and its certificates and ours. Raises OSError."""
    of = client.configuration
    files = [Path(each).read_bytes() if each else b"" for each in (of.ssl_ca_cert, of.cert_file, of.key_file)]
    return (of.host, of.verify_ssl, of.tls_server_name, of.proxy, *files)


def _import() -> None:
    import kubernetes.aio.client
    import kubernetes.aio.config  # noqa: F401
