"""A Kubernetes cluster for tests where none is at hand: an API server, its controllers and a node, in one process.

The API is spoken as the real one speaks it; pods are processes of this machine in namespaces of their own. That takes
root and Linux: `missing` says what is missing. What Steersman does with a cluster must not live here, and nothing of
Steersman is imported.

    with background_server(tmp_path / "cluster", Settings()) as cluster:
        cluster.server.kubeconfig(tmp_path / "config")
        ...
        cluster.server.faults.answer(429, times=2, retry_after_s=1)
        cluster.call(cluster.server.sessions.cut)
"""

from tests.support.kubernetes.access import Rule
from tests.support.kubernetes.background import BackgroundServer, background_server
from tests.support.kubernetes.containers import missing
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.settings import NEW, OLD, Settings

__all__ = ["NEW", "OLD", "ApiServer", "BackgroundServer", "Rule", "Settings", "background_server", "missing"]
