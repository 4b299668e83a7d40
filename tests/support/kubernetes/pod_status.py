"""What a kubelet says of a pod, made of what its containers do. Nothing here touches the store or a process."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.kubernetes.store import Object, now

HOST_IP = "10.0.0.1"


@dataclass
class ContainerState:
    """One container of a pod over all its starts."""

    container: Object
    restarts: int = 0
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Object = field(default_factory=dict)
    id: str = ""

    @property
    def name(self) -> str:
        return str(self.container["name"])

    @property
    def code(self) -> int | None:
        """How it has ended, if it has."""
        ended = self.state.get("terminated")
        return int(ended["exitCode"]) if ended else None

    def wait(self, reason: str, message: str = "") -> None:
        if "terminated" in self.state:
            self.last = self.state
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def run(self) -> None:
        if "terminated" in self.state:
            self.last = self.state
        self.id = f"containerd://{secrets.token_hex(32)}"
        self.state = {"running": {"startedAt": now()}}

    def end(self, code: int, reason: str, message: str = "") -> None:
        started = self.state.get("running", {}).get("startedAt", "1970-01-01T00:00:00Z")
        self.id = self.id or f"containerd://{secrets.token_hex(32)}"
        ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now(), "containerID": self.id}
        if message:
            ended["message"] = message
        self.state = {"terminated": ended}

    def status(self) -> Object:
        image = self.container["image"]
        made: Object = {
            "name": self.name,
            "state": self.state,
            "lastState": self.last,
            "ready": "running" in self.state,
            "restartCount": self.restarts,
            "image": image,
            "imageID": f"{image}@sha256:{hashlib.sha256(image.encode()).hexdigest()}" if self.id else "",
            "started": "running" in self.state,
        }
        return {**made, "containerID": self.id} if self.id else made


def phase(policy: str, first: Sequence[ContainerState], main: Sequence[ContainerState]) -> str:
    """As the kubelet reckons it from init containers and containers."""
    for each in first:
        if each.code not in {None, 0} and policy == "Never":
            return "Failed"
        if each.code != 0:
            return "Pending"
    if any("waiting" in each.state and not each.last for each in main):
        return "Pending"
    if any("terminated" not in each.state for each in main) or policy == "Always":
        return "Running"
    if all(each.code == 0 for each in main):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def status(pod: Object, first: Sequence[ContainerState], main: Sequence[ContainerState], reckoned: str) -> Object:
    """The whole status of a pod in a phase, with conditions that keep their times while they do not change."""
    before = pod.get("status") or {}
    started = before.get("startTime") or now()
    made: Object = {
        "phase": reckoned,
        "conditions": _conditions(before.get("conditions") or [], first, main, reckoned),
        "hostIP": HOST_IP,
        "startTime": started,
        "qosClass": "BestEffort",
        "containerStatuses": [each.status() for each in main],
    }
    if first:
        made["initContainerStatuses"] = [each.status() for each in first]
    if any(each.id for each in (*first, *main)):
        made |= {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    return made


def condition(name: str, value: str, reason: str = "", message: str = "") -> Object:
    made: Object = {"type": name, "status": value, "lastProbeTime": None, "lastTransitionTime": now()}
    return {**made, **({"reason": reason} if reason else {}), **({"message": message} if message else {})}


def with_condition(conditions: Sequence[Object], wanted: Object) -> list[Object]:
    """The conditions with this one; its time is new only if its value is."""
    old = next((each for each in conditions if each["type"] == wanted["type"]), None)
    if old and old["status"] == wanted["status"]:
        wanted = {**wanted, "lastTransitionTime": old["lastTransitionTime"]}
    return [*(each for each in conditions if each["type"] != wanted["type"]), wanted]


def _conditions(
    before: Sequence[Object], first: Sequence[ContainerState], main: Sequence[ContainerState], reckoned: str
) -> list[Object]:
    unready = [each.name for each in main if "running" not in each.state]
    waiting = [each.name for each in first if each.code != 0]
    if reckoned in {"Succeeded", "Failed"}:
        why = "PodCompleted" if reckoned == "Succeeded" else "PodFailed"
        ready = [condition(name, "False", why) for name in ("Ready", "ContainersReady")]
        first_done = condition("Initialized", "True", "PodCompleted" if reckoned == "Succeeded" else "")
    else:
        message = f"containers with unready status: [{' '.join(unready)}]"
        ready = [
            condition(name, "False", "ContainersNotReady", message) if unready else condition(name, "True")
            for name in ("Ready", "ContainersReady")
        ]
        first_done = condition("Initialized", "True")
    if waiting:
        message = f"containers with incomplete status: [{' '.join(waiting)}]"
        first_done = condition("Initialized", "False", "ContainersNotInitialized", message)
    made = list(before)
    for each in (first_done, *ready):
        made = with_condition(made, each)
    return made
