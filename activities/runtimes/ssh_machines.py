"""The machines that one worker process reaches by ssh.

Each is made once: the secret of its access owns the epochs of what this worker leads there. A machine that was allowed
when a run came to it is reached also when the operator allows it no more: what is there is stopped and carried back.
That no process is started there any more is the policy's to say, as is which machines a request may name.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
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

Check = Callable[[SshRuntime], object]
"""Raises InvalidRequest where the machine may not be reached, or not with that key."""


class SshMachines:
    """`environ`: the worker's. `config`: a file in place of the user's ssh config and the system's. `admitted`: a
    directory in which is kept what was allowed once; None: nothing is.
    """

    def __init__(
        self, check: Check, environ: Mapping[str, str], config: Path | None = None, admitted: Path | None = None
    ) -> None:
        self._check, self._config, self._admitted = check, config, admitted
        self._env = {name: environ[name] for name in _CLIENT if name in environ}
        self._machines: dict[SshRuntime, RemoteMachine] = {}
        self._connections: dict[SshAddress, SshMachine] = {}
        self._bulk: dict[SshAddress, SshMachine] = {}

    def of(self, placement: JsonObject) -> RemoteMachine:
        """The machine that a run's placement names, which may be forged. Raises MachineUnusable."""
        return self.machine(self._allowed(placement))

    def machine(self, runtime: SshRuntime) -> RemoteMachine:
        """One that the operator has named."""
        if runtime not in self._machines:
            access = ExecAccess(self._connected(runtime, self._connections), runtime.python, runtime.name)
            self._machines[runtime] = RemoteMachine(runtime.name, access, runtime.directory)
        return self._machines[runtime]

    def bulk(self, placement: JsonObject) -> SshMachine:
        """The same, by connections of their own: what is large must not be in the way of a stop. Raises
        MachineUnusable.
        """
        return self.connection(self._allowed(placement))

    def connection(self, runtime: SshRuntime) -> SshMachine:
        """The same, of one that the operator has named."""
        return self._connected(runtime, self._bulk)

    def python(self, placement: JsonObject) -> str:
        """The interpreter there. Raises MachineUnusable."""
        return self._allowed(placement).python

    async def aclose(self) -> None:
        """Let go of all; what was started there works on."""
        await asyncio.gather(*(each.aclose() for each in (*self._connections.values(), *self._bulk.values())))

    def _allowed(self, placement: JsonObject) -> SshRuntime:
        try:
            runtime = parse_object(SshRuntime, placement)
            admitted = (
                self._admitted and self._admitted / hashlib.sha256(runtime.model_dump_json().encode()).hexdigest()
            )
            try:
                self._check(runtime)
            except InvalidRequest:
                if not admitted or not os.path.lexists(admitted):
                    raise
            else:
                with suppress(OSError):  # a disk that is full is in no stop's way
                    if admitted and not os.path.lexists(admitted):
                        admitted.parent.mkdir(mode=0o700, exist_ok=True)
                        admitted.touch(mode=0o600)
        except InvalidRequest as error:
            raise MachineUnusable(f"the run's machine: {error.message}") from error
        return runtime

    def _connected(self, runtime: SshRuntime, known: dict[SshAddress, SshMachine]) -> SshMachine:
        """One for each address, whatever else a request says of the machine."""
        identity = Path(os.path.realpath(runtime.identity_file)) if runtime.identity_file else None
        address = SshAddress(runtime.address, runtime.user, runtime.port, identity, config=self._config)
        if address not in known:
            known[address] = SshMachine(address, self._env)
        return known[address]
