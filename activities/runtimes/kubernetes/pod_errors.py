"""Pods that nothing can be asked of, because they are not there."""

from activities.runtimes.kubernetes.pod_record import PodRecord
from activities.shim.client import MachineGone, MachineUnreachable


class PodMissing(MachineUnreachable):
    """There is no pod yet: nothing can be at work in it."""


class PodGone(MachineGone):
    """The pod is gone, with all that was in it."""

    def __init__(self, message: str, record: PodRecord) -> None:
        super().__init__(message)
        self.record = record
