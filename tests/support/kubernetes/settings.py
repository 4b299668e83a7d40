"""How the cluster behaves, as tests set it: its release, how long it takes, what it refuses.

Faults of the connection to it must not live here.
"""

from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True)
class Release:
    """What of Kubernetes depends on its age and matters to whoever runs agents in it."""

    name: str
    dropped_job_fields: tuple[str, ...] = ()
    """Fields of a Job's spec that are dropped without a word."""
    exec_protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    """The best first."""
    exec_takes_create: bool = True
    """A websocket for exec is opened by GET; without this `get` alone is asked for."""
    replaces_deleted_pods: bool = False
    """A Job's pod that somebody deletes is no failure: another one is made, whatever `backoffLimit` says."""


NEW = Release("v1.35.0")
OLD = Release(
    "v1.20.2",
    dropped_job_fields=(
        "suspend",
        "ttlSecondsAfterFinished",
        "podFailurePolicy",
        "podReplacementPolicy",
        "backoffLimitPerIndex",
        "successPolicy",
        "managedBy",
        "completionMode",
    ),
    exec_protocols=("v4.channel.k8s.io",),
    exec_takes_create=False,
    replaces_deleted_pods=True,
)


@dataclass
class Settings:
    """May be changed while the cluster runs, from any thread."""

    release: Release = NEW
    nodes: dict[str, dict[str, str]] = field(default_factory=lambda: {"node-1": {"kubernetes.io/os": "linux"}})
    """Name of a node -> its labels. Those that are there at the start count."""
    hidden: tuple[str, ...] = ()
    """Paths of the machine that containers find empty; its other files are what is in every image."""
    shared: tuple[str, ...] = ()
    """Directories of the machine that every container has at the same path, and may write: what is of the root is a
    layer of its own else.
    """
    programs: dict[str, str] = field(default_factory=dict)
    """Name -> a program of the machine that every image has in /usr/local/bin."""
    home: str = "/root"
    """HOME of every image."""

    schedules_pods: bool = True
    """Without it pods stay Pending, and nothing says why."""
    unschedulable: str | None = None
    """What the scheduler says of every pod."""
    pods_refused: str | None = None
    """Why no pod can be created: `exceeded quota: ...`."""
    image_errors: dict[str, str] = field(default_factory=dict)
    """Image -> what is wrong with it: ErrImagePull, InvalidImageName."""

    sandbox_error: str | None = None
    """Why the node cannot set a pod up, which only the pod's events say."""
    starting_takes: timedelta = timedelta(0)
    """From the scheduling of a pod to its first container."""
    crash_back_off: timedelta = timedelta(seconds=0.5)
    """Before a container's second restart and each later one; a real one begins with 10 s and doubles it."""
    job_back_off: timedelta = timedelta(seconds=0.2)
    """Before a Job's next pod after a failed one; a real one begins with 10 s and doubles it."""
    image_back_off: timedelta = timedelta(seconds=0.3)
    """How long ErrImagePull is shown before it becomes ImagePullBackOff, and before an image is tried again."""
    forced_deletion_leaves_processes: bool = False
    """A pod that is deleted with a grace of 0 is gone, and its processes go on."""
