"""A user of the cluster whose token runs out, as those of clouds do, and the kubeconfig that goes by it."""

import json
import stat
from pathlib import Path
from typing import Any

from tests.support.kubernetes.background import BackgroundServer
from tests.support.kubernetes.worker_role import worker_role

PLUGIN = """#!/bin/sh
echo called >> '{directory}/calls'
test -e '{directory}/fails' && exit 1
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' \\
    "$(cat '{directory}/token')"
"""


class Account:
    """A user of the cluster, whose token is in a file, and a kubeconfig that goes by it."""

    def __init__(self, cluster: BackgroundServer, directory: Path, namespace: str) -> None:
        """`directory`: for the plugin and what it goes by."""
        self.cluster, self.directory, self._namespace = cluster, directory, namespace
        self.config, self.file = directory / "config", directory / "token"
        self._token = ""
        self.renew()

    def renew(self) -> None:
        """A new token; the old one is nobody's any more."""
        access, former = self.cluster.server.access, self._token
        self._token = access.grant("worker", *worker_role(self._namespace))
        self.file.write_text(self._token)
        if former:
            access.revoke(former)

    def gives_token_by(self, **user: Any) -> None:
        """What the kubeconfig says of its user."""
        path = self.cluster.server.kubeconfig(self.config)
        content = json.loads(path.read_text())
        content["users"][0]["user"] = user
        path.write_text(json.dumps(content))

    def plugin(self) -> dict[str, Any]:
        """A credential plugin that gives the token; it fails while there is a file `fails`."""
        path = self.directory / "plugin"
        path.write_text(PLUGIN.format(directory=self.directory))
        path.chmod(stat.S_IRWXU)
        return {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}

    @property
    def calls(self) -> int:
        """How often the plugin was called."""
        return len((self.directory / "calls").read_text().splitlines())
