"""The kinds of objects that the server keeps, as one table.

What becomes of an object of a kind must not live here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One resource: `jobs` of the group `batch`."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    default_propagation: str = "Background"
    """What a DELETE without a propagation policy does with dependents."""
    answers_deleted: bool = False
    """A DELETE is answered with the object, not with a Status."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Kind("", "v1", "nodes", "Node", namespaced=False)
PODS = Kind("", "v1", "pods", "Pod", answers_deleted=True)
EVENTS = Kind("", "v1", "events", "Event")
SECRETS = Kind("", "v1", "secrets", "Secret")
CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
CLAIMS = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", answers_deleted=True)
QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota", answers_deleted=True)
JOBS = Kind("batch", "v1", "jobs", "Job", default_propagation="Orphan")
DEPLOYMENTS = Kind("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Kind("apps", "v1", "replicasets", "ReplicaSet")
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

STORED = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    SECRETS,
    CONFIG_MAPS,
    CLAIMS,
    QUOTAS,
    JOBS,
    DEPLOYMENTS,
    REPLICA_SETS,
)
BY_PLURAL = {(each.group, each.plural): each for each in (*STORED, ACCESS_REVIEWS)}
BY_OWNER = {(each.api_version, each.name): each for each in STORED}
