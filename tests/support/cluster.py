"""The real cluster that KUBECONFIG names, for tests; its nodes are this machine, and its pods reach it at BRIDGE.

The tests look and clear up as whom KUBECONFIG names; their workers have the Role of `deploy/kubernetes/` alone.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.support.kubernetes.kubeconfig import write_private
from tests.support.kubernetes.worker_role import role
from tests.support.processes import until

BRIDGE = "10.88.0.1"
"""The address of this machine, as pods have it."""
IMAGE = os.environ.get("STEERSMAN_TEST_IMAGE", "docker.io/local/steersman-agent:1")
"""Has Python, git and Claude Code: made by `python -m tests.support.cluster_image`."""


def missing() -> str | None:
    """Why the tests that need a cluster cannot run; None where they can."""
    return None if os.environ.get("KUBECONFIG") else "no cluster here: KUBECONFIG is not set"


class Cluster:
    """`namespace`: one of the test's own. `kubeconfig`: of a worker, who may do there what `deploy/kubernetes/` allows,
    and nothing else.
    """

    def __init__(self, namespace: str) -> None:
        self._admin = os.environ["KUBECONFIG"]
        self.namespace = namespace
        self._volumes: list[str] = []
        self.kubectl("create", "namespace", namespace)
        self._directory = Path(tempfile.mkdtemp(prefix="steersman-kubeconfig-"))
        self.kubeconfig = self._directory / "config"
        try:
            self._let_worker_in()
        except BaseException:
            self.close()
            raise

    def _let_worker_in(self) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._named("worker")}
        allowed = {**role(), "metadata": self._named("worker")}
        group = "rbac.authorization.k8s.io"
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": self._named("worker"),
            "subjects": [{"kind": "ServiceAccount", "name": "worker", "namespace": self.namespace}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "worker"},
        }
        for each in (account, allowed, binding):
            self.apply(each)
        token = self.kubectl("-n", self.namespace, "create", "token", "worker", "--duration", "12h").strip()
        config = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        config["users"][0]["user"] = {"token": token}
        write_private(self.kubeconfig, config)

    def _named(self, name: str) -> dict[str, str]:
        return {"name": name, "namespace": self.namespace}

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
        """What kubectl says, asked by whom KUBECONFIG names."""
        command = ["kubectl", "--kubeconfig", self._admin, *words]
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

    async def begin(self) -> None:
        """Have run a pod: BRIDGE is no address of this machine before the node's first one."""
        container = {"name": "first", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["true"]}
        spec = {"restartPolicy": "Never", "containers": [container]}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": self._named("first"), "spec": spec})
        await until(lambda: self.objects("pods")[0]["status"]["phase"] == "Succeeded", 60)
        self.kubectl("-n", self.namespace, "delete", "pod", "first")

    def exec(self, pod: str, *argv: str) -> str:
        """What a program in the pod says."""
        return self.kubectl("-n", self.namespace, "exec", pod, "--", *argv)

    def close(self) -> None:
        """Delete all of it; nobody waits."""
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")
        for volume in self._volumes:
            self.kubectl("delete", "pv", volume, "--wait=false")
        shutil.rmtree(self._directory)
