"""The official client, and the shortest ways to what tests want of it."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client import ApiException
from kubernetes.stream import stream

from tests.support.processes import until

NAMESPACE = "default"

# What the client's authors have not annotated.
_load_config: Any = config.load_kube_config
_watch: Any = watch.Watch
FOR_EVER = ("sh", "-c", "trap 'exit 3' TERM; while :; do sleep 0.05; done")


@dataclass(frozen=True)
class Executed:
    """What a command came to; `status` is empty where none came."""

    stdout: bytes
    stderr: bytes
    status: dict[str, Any]

    @property
    def code(self) -> int | None:
        if self.status.get("status") == "Success":
            return 0
        causes = (self.status.get("details") or {}).get("causes") or []
        return next((int(each["message"]) for each in causes if each.get("reason") == "ExitCode"), None)


class Kube:
    """A client of one kubeconfig."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.api = self.new_api()
        # Any, since they take plain JSON, which their annotations do not know, and most of what they say may be None.
        self.core: Any = client.CoreV1Api(self.api)
        self.batch: Any = client.BatchV1Api(self.api)
        self.apps: Any = client.AppsV1Api(self.api)
        self.rights: Any = client.AuthorizationV1Api(self.api)

    def new_api(self) -> Any:
        """One that does not try again by itself, as it does by default where nothing or a 429 comes."""
        settings = client.Configuration()
        settings.retries = 0
        _load_config(str(self.path), client_configuration=settings)
        return client.ApiClient(settings)

    def close(self) -> None:
        self.api.close()

    def pod(self, name: str = "p", command: tuple[str, ...] = FOR_EVER, **spec: Any) -> Any:
        """Create a pod with one container `main`; keys of `container` are the container's own."""
        return self.core.create_namespaced_pod(
            NAMESPACE, {"metadata": {"name": name, "labels": spec.pop("labels", {})}, "spec": pod_spec(command, **spec)}
        )

    def job(self, name: str = "j", command: tuple[str, ...] = FOR_EVER, **spec: Any) -> Any:
        """Create a Job; keys of `pod` are its pod's."""
        pod = pod_spec(command, **spec.pop("pod", {}))
        body = {"metadata": {"name": name}, "spec": {"backoffLimit": 0, **spec, "template": {"spec": pod}}}
        return self.batch.create_namespaced_job(NAMESPACE, body)

    def get(self, name: str = "p") -> dict[str, Any]:
        """A pod as its JSON."""
        return self.json(self.core.read_namespaced_pod, name)

    def json(self, read: Callable[..., Any], name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.sanitize_for_serialization(read(name, NAMESPACE))
        return found

    def pods(self, selector: str = "") -> list[Any]:
        return list(self.core.list_namespaced_pod(NAMESPACE, label_selector=selector).items)

    async def phase(self, name: str, *phases: str) -> dict[str, Any]:
        """The pod once it is in one of these phases."""
        return await until(lambda: found if (found := self.get(name))["status"]["phase"] in phases else None)

    async def waiting(self, name: str, reason: str) -> str:
        """The message of a container that waits for this reason."""

        def message() -> str | None:
            for each in self.get(name)["status"].get("containerStatuses", []):
                waiting = each["state"].get("waiting", {})
                if waiting.get("reason") == reason:
                    return waiting.get("message") or " "
            return None

        return await until(message)

    async def of_job(self, name: str = "j") -> Any:
        """The Job's first pod, once it runs."""
        return await until(
            lambda: next((each for each in self.pods(f"job-name={name}") if each.status.phase == "Running"), None)
        )

    async def gone(self, name: str = "p") -> None:
        await until(lambda: not [each for each in self.pods() if each.metadata.name == name])

    def reasons(self, name: str) -> set[str]:
        """Of the Events about an object."""
        events = self.core.list_namespaced_event(NAMESPACE, field_selector=f"involvedObject.name={name}")
        return {each.reason for each in events.items}

    def open(self, pod: str, *command: str, **options: Any) -> Any:
        """An exec connection."""
        wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
        api = self.new_api()
        opened = stream(
            client.CoreV1Api(api).connect_get_namespaced_pod_exec,
            pod,
            NAMESPACE,
            command=list(command),
            _preload_content=False,
            binary=True,
            **wanted,
        )
        api.close()
        return opened

    def exec(self, pod: str, *command: str, stdin: bytes | None = None, **options: Any) -> Executed:
        """Run a command to its end; with `stdin` that is what it reads, and then the end of it."""
        opened = self.open(pod, *command, stdin=stdin is not None, **options)
        if stdin is not None:
            opened.write_stdin(stdin)
            opened.close_channel(0)
        return drain(opened)


def watched(read: Callable[..., Any], **options: Any) -> Iterator[Any]:
    """What the client's own watch says of a list in the namespace."""
    yield from _watch().stream(read, NAMESPACE, **options)


def drain(opened: Any) -> Executed:
    """What comes until the connection ends."""
    opened.run_forever(timeout=20)
    status = opened.read_channel(3)
    opened.sock.shutdown()  # its `close` leaves the socket open where the server was the first
    return Executed(opened.read_channel(1), opened.read_channel(2), json.loads(status) if status else {})


def pod_spec(command: tuple[str, ...], **spec: Any) -> dict[str, Any]:
    """With one container `main`."""
    own = spec.pop("container", {})
    main = {"name": "main", "image": "local/agent:1", "command": list(command), **own}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [main], **spec}


def refused(code: int) -> "AbstractContextManager[pytest.ExceptionInfo[ApiException]]":
    """A request that is answered with this code."""
    return pytest.raises(ApiException, check=lambda error: error.status == code)


def no_websocket(code: int, message: str) -> "AbstractContextManager[pytest.ExceptionInfo[ApiException]]":
    """A request for exec that is answered with this code: the client says so in its own words."""
    return pytest.raises(ApiException, match=f"Handshake status {code}.*{message}")


def said(raised: "pytest.ExceptionInfo[ApiException]") -> dict[str, Any]:
    """The Status of a refusal."""
    status: dict[str, Any] = json.loads(raised.value.body or "{}")
    return status
