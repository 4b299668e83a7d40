"""The program of an agent whose command line the request has."""

import shutil
from pathlib import Path

from activities.ports.admission import Admission
from steersman.contracts.errors import AgentNotInstalled
from steersman.contracts.request import RunRequest


def executables(request: RunRequest) -> tuple[str, ...]:
    """The command's program, where its name is no path. On a PATH of the request its shim looks for it."""
    program = (request.command or ("",))[0]
    return () if "/" in program or "PATH" in request.env else (program,)


def check_here(request: RunRequest) -> None:
    """Raise AgentNotInstalled where the program is not on this machine; of another one nothing is said."""
    if request.runtime.kind != "local":
        return
    program = (request.command or ("",))[0]
    found = Path(request.workspace.path, program).exists() if "/" in program else True
    if not found or any(shutil.which(each) is None for each in executables(request)):
        raise AgentNotInstalled(f"command: {program} is not on this host")


def check_there(request: RunRequest, admission: Admission) -> None:
    """Raise AgentNotInstalled where another machine, on which the agent is to work, lacks the program."""
    if admission.place:
        for missing in set(executables(request)) - admission.place.programs.keys():
            raise AgentNotInstalled(f"command: {missing} is not on {admission.place.name}")
