"""The machines that one worker process reaches by ssh.

Each is made once: the secret of its access owns the epochs of what this worker leads there. Which of them a request may
name must not live here.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from activities.runtimes.exec_access import ExecAccess
from activities.runtimes.remote_machine import RemoteMachine
from activities.runtimes.ssh import SshMachine
from activities.runtimes.ssh_address import SshAddress
from activities.shim.client import MachineUnusable
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.model import JsonObject
from steersman.contracts.request import parse_object
from steersman.contracts.runtime import SshRuntime

_CLIENT = ("HOME", "KRB5CCNAME", "LANG", "LOGNAME", "PATH", "SSH_AUTH_SOCK", "TMPDIR", "USER", "XDG_RUNTIME_DIR")
"""Variables of OpenSSH's client: it sends to other machines what the ssh config names (SendEnv), so it gets no more."""

Check = Callable[[SshRuntime], Path | None]
"""The private key for a machine; None: as the ssh config says. Raises InvalidRequest where it may not be reached."""


class SshMachines:
    """`environ`: the worker's. `config`: a file in place of the user's ssh config and the system's."""

    def __init__(self, check: Check, environ: Mapping[str, str], config: Path | None = None) -> None:
        self._check, self._config = check, config
        self._env = {name: environ[name] for name in _CLIENT if name in environ}
        self._machines: dict[SshRuntime, RemoteMachine] = {}
        self._connections: dict[SshAddress, SshMachine] = {}
        self._bulk: dict[SshAddress, SshMachine] = {}

    def of(self, placement: JsonObject) -> RemoteMachine:
        """The machine that a run's placement names, which may be forged. Raises MachineUnusable."""
        runtime = self._allowed(placement)
        if runtime not in self._machines:
            access = ExecAccess(self._connected(runtime, self._connections), runtime.python, runtime.name)
            self._machines[runtime] = RemoteMachine(runtime.name, access, runtime.directory)
        return self._machines[runtime]

    def bulk(self, placement: JsonObject) -> SshMachine:
        """The same, by connections of their own: what is large must not be in the way of a stop. Raises
        MachineUnusable.
        """
        return self._connected(self._allowed(placement), self._bulk)

    def python(self, placement: JsonObject) -> str:
        """The interpreter there. Raises MachineUnusable."""
        return self._allowed(placement).python

    async def aclose(self) -> None:
        """Let go of all; what was started there works on."""
        await asyncio.gather(*(each.aclose() for each in (*self._connections.values(), *self._bulk.values())))

    def _allowed(self, placement: JsonObject) -> SshRuntime:
        try:
            runtime = parse_object(SshRuntime, placement)
            self._check(runtime)
        except InvalidRequest as error:
            raise MachineUnusable(f"the run's machine: {error.message}") from error
        return runtime

    def _connected(self, runtime: SshRuntime, known: dict[SshAddress, SshMachine]) -> SshMachine:
        """One for each address, whatever else a request says of the machine."""
        identity = self._check(runtime)
        address = SshAddress(runtime.address, runtime.user, runtime.port, identity, config=self._config)
        if address not in known:
            known[address] = SshMachine(address, self._env)
        return known[address]
