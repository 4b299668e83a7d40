"""Where a machine is as OpenSSH's client has it, and the command line that reaches it.

What must not live here: processes, and what follows from what the client says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steersman.contracts.runtime import HOST, USER

_FIXED = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes"),  # nobody is there to be asked
    *("RequestTTY=no", "RemoteCommand=none", "EscapeChar=none"),  # bytes pass as they are, to the program that we name
    *("ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "Tunnel=no"),
    "ControlPersist=no",  # no process of it stays in the background
)
"""First on the command line: nothing that comes later, and no file, changes them."""
_DEFAULTS = ("ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")


@dataclass(frozen=True)
class SshAddress:
    """A machine.

    Whoever gives `options` (as of `ssh -o`), `identity` (`-i`) or `config` (`-F`) runs programs here (ProxyCommand):
    they are an operator's to give, never a request's. Raises ValueError for a host, a user, a port or an option that
    could be anything else.

    Attributes:
        host: a name, an address, or an alias of the user's ssh config.
        user: there; by default what the config says.
        port: by default what the config says.
        identity: a file with a private key; then no other key is offered but those that the config names for the host:
            the client has no way to leave these out (measured, OpenSSH 9.2).
        options: further options, each `Name=value`. They come before ConnectTimeout and ServerAlive* of ours.
        config: in place of the user's config and the system's.
    """

    host: str
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    options: Sequence[str] = ()
    config: Path | None = None

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host):
            raise ValueError(f"no name of a host: {self.host!r:.100}")
        if self.user is not None and not USER.fullmatch(self.user):
            raise ValueError(f"no name of a user: {self.user!r:.100}")
        if self.port is not None and not 0 < self.port < 1 << 16:
            raise ValueError(f"no port: {self.port}")
        for option in self.options:
            if not re.fullmatch(r"[A-Za-z0-9]+=[^\0\r\n]+", option):
                raise ValueError(f"no option of ssh, Name=value: {option!r:.100}")

    def __str__(self) -> str:
        name = self.host if self.user is None else f"{self.user}@{self.host}"
        return name if self.port is None else f"{name} port {self.port}"

    def command(self, *flags: str, log_level: str = "ERROR") -> list[str]:
        """The client's command line up to the program that is to be run there. `flags`: its own, for this one time."""
        argv = ["ssh"]
        if self.config is not None:
            argv += ["-F", str(self.config)]
        argv += ["-T", *flags]
        for option in (*_FIXED, f"LogLevel={log_level}", *self.options, *_DEFAULTS):
            argv += ["-o", option]
        if self.identity is not None:
            # Not `-i`, which looks for the file before it expands what is in its name.
            name = re.sub(r'(["\\])', r"\\\1", str(self.identity).replace("%", "%%"))
            argv += ["-o", "IdentitiesOnly=yes", "-o", f'IdentityFile="{name}"']
        if self.user is not None:
            argv += ["-l", self.user]
        if self.port is not None:
            argv += ["-p", str(self.port)]
        return [*argv, "--", self.host]
