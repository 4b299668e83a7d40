"""Where a run's processes live: `runtime` of a RunRequest."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field

from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.model import AbsolutePath, StrictModel

RUNTIMES = ("local", "ssh", "kubernetes")
"""The kinds there are: `runtime.kind`."""

# What these let through means nothing to a shell: a user's ProxyCommand may have them as %h and %r (CVE-2023-51385).
HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,254}")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,63}(?<!\\)")
_PROGRAM = re.compile(r"[A-Za-z0-9_/~.+-]{1,1000}")


def _host(text: str) -> str:
    if not HOST.fullmatch(text):
        raise ValueError("must be a host's name, an address, or an alias of the ssh config, without a user or a port")
    return text


def _user(text: str) -> str:
    if not USER.fullmatch(text):
        raise ValueError("must be a user's name")
    return text


def _python(text: str) -> str:
    if not _PROGRAM.fullmatch(text) or text.startswith("-"):
        raise ValueError("must be the name or the path of a Python there, 3.9 or newer")
    return text


class LocalRuntime(StrictModel):
    """On the machine of the host that leads the run."""

    kind: Literal["local"] = "local"


def _direct(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError('must have no ".."')
    return path


class SshRuntime(StrictModel):
    """On a machine that the leader reaches by ssh, in a copy of the workspace.

    The ssh config of the worker's user counts for all that is not given; the operator allows the machine (--allow-ssh).
    """

    kind: Literal["ssh"]
    address: Annotated[str, AfterValidator(_host)]
    user: Annotated[str, AfterValidator(_user)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: AbsolutePath | None = None
    """A private key on the leader's machine; beside it only those are offered that the ssh config names."""
    directory: Annotated[AbsolutePath, AfterValidator(_direct)] | None = None
    """There, without "..": what Steersman keeps lies in it; null: .local/state/steersman in the user's home."""
    python: Annotated[str, AfterValidator(_python)] = "python3"

    @property
    def name(self) -> str:
        """USER@ADDRESS:PORT, as far as they are given."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        user = "" if self.user is None else f"{self.user}@"
        return f"{user}{address}" if self.port is None else f"{user}{address}:{self.port}"


Runtime = Annotated[LocalRuntime | SshRuntime | KubernetesRuntime, Discriminator("kind")]
