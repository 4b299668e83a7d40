"""The real cluster that KUBECONFIG names, for tests; its nodes are this machine, and its pods reach it at BRIDGE."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

BRIDGE = "10.88.0.1"
"""The address of this machine, as pods have it."""
IMAGE = os.environ.get("STEERSMAN_TEST_IMAGE", "docker.io/local/steersman-agent:1")
"""Has Python, git and Claude Code: made by `python -m tests.support.cluster_image`."""


def missing() -> str | None:
    """Why the tests that need a cluster cannot run; None where they can."""
    return None if os.environ.get("KUBECONFIG") else "no cluster here: KUBECONFIG is not set"


class Cluster:
    """`namespace`: one of the test's own."""

    def __init__(self, namespace: str) -> None:
        self.kubeconfig = Path(os.environ["KUBECONFIG"])
        self.namespace = namespace
        self._volumes: list[str] = []
        self.kubectl("create", "namespace", namespace)

    def runtime(self, **fields: Any) -> dict[str, Any]:
        """A request's `runtime`: here."""
        return {"kind": "kubernetes", "namespace": self.namespace, "image": IMAGE, "grace_s": 10, **fields}

    @property
    def flags(self) -> tuple[str, ...]:
        """Of a worker that may use it."""
        fields = ("image", "claim", "secret", "node_selector", "queue", "pool")
        allowed = (word for field in fields for word in ("--allow-pod", f"{field}=*"))
        return ("--allow-kubernetes", self.namespace, *allowed)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """What kubectl says."""
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def objects(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of this kind in the namespace."""
        words = ("-l", selector) if selector else ()
        found = json.loads(self.kubectl("-n", self.namespace, "get", kind, *words, "-o", "json"))
        items: list[dict[str, Any]] = found["items"]
        return items

    @property
    def left(self) -> list[str]:
        """Jobs and pods of ours that are there."""
        return [f"{kind}/{each['metadata']['name']}" for kind in ("jobs", "pods") for each in self.objects(kind)]

    def claim(self, name: str, directory: Path) -> None:
        """A claim of this name for a directory of the node, which is this machine."""
        volume = f"{self.namespace}-{name}"
        size = {"storage": "1Gi"}
        common = {"accessModes": ["ReadWriteOnce"], "storageClassName": volume}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {**common, "capacity": size, "hostPath": {"path": str(directory)}},
            }
        )
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {**common, "resources": {"requests": size}},
            }
        )
        self._volumes.append(volume)

    def apply(self, manifest: dict[str, Any]) -> None:
        """As kubectl does."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def exec(self, pod: str, *argv: str) -> str:
        """What a program in the pod says."""
        return self.kubectl("-n", self.namespace, "exec", pod, "--", *argv)

    def close(self) -> None:
        """Delete all of it; nobody waits."""
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")
        for volume in self._volumes:
            self.kubectl("delete", "pv", volume, "--wait=false")
