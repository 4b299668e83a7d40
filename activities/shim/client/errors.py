"""What can go wrong between a program and a shim: one tree of errors, and the table from a shim's codes to it.

    ShimError
    ├ StartRefused         no agent was started
    │ ├ AlreadyRunning     a shim lives in this directory
    │ ├ AlreadyUsed        a shim lived there and is gone
    │ ├ Tombstoned         the directory was entombed before anything started
    │ ├ AgentNotFound, AgentNotExecutable, NoDirectory, Moved, InvalidSpec
    │ └ StartFailed        the system refused, or the shim died while it was starting
    ├ ShimGone             no shim lives there
    ├ ShimUnresponsive     one lives there and does not answer
    ├ ProtocolMismatch     it speaks another version; its agent is left at work
    ├ CommandRefused       it answered no
    │ ├ NotAdmitted        this process descends from an agent
    │ ├ Fenced             a newer controller has taken over
    │ ├ StdinClosed, AgentExited, AgentRunning, NotController, JournalFull, InvalidCommand
    ├ MachineUnreachable   the machine cannot be asked now
    │ ├ MachineUnusable    nor later, until a person has mended what the message names
    │ └ MachineGone        nor ever: it is gone, with all that was on it
    └ JournalCorrupt       the file is not what a shim writes

What must not live here: what to do about an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ShimError(Exception):
    """Every error of this package."""


class StartRefused(ShimError):
    """No agent was started."""


class AlreadyRunning(StartRefused):
    """A shim lives in this directory."""


class AlreadyUsed(StartRefused):
    """A shim lived in this directory and is gone: a directory is used once."""


class Tombstoned(StartRefused):
    """The directory was entombed: it was stopped before it was started."""


class AgentNotFound(StartRefused):
    """There is no program of this name."""


class AgentNotExecutable(StartRefused):
    """The program's file cannot be run."""


class NoDirectory(StartRefused):
    """The agent's working directory cannot be entered."""


class Moved(StartRefused):
    """The agent's working directory is no longer where its path led when it was resolved."""


class InvalidSpec(StartRefused):
    """The spec names something that cannot be."""


class StartFailed(StartRefused):
    """The system refused, or the shim died while it was starting."""


class ShimGone(ShimError):
    """No shim lives in this directory, or it went away before it answered."""


class ShimUnresponsive(ShimError):
    """A shim lives in this directory and does not answer."""


class ProtocolMismatch(ShimError):
    """The shim speaks no version of the protocol that this program speaks. Its agent is left at work."""


class CommandRefused(ShimError):
    """The shim answered no."""


class NotAdmitted(CommandRefused):
    """This process descends from an agent, and agents do not lead shims."""


class Fenced(CommandRefused):
    """A newer controller has taken over."""


class StdinClosed(CommandRefused):
    """The agent's stdin is closed."""


class AgentExited(CommandRefused):
    """The agent has ended."""


class AgentRunning(CommandRefused):
    """The agent has not ended."""


class NotController(CommandRefused):
    """An observer may not do this."""


class JournalFull(CommandRefused):
    """The journal cannot be written now; nothing was written to the agent."""


class InvalidCommand(CommandRefused):
    """The shim could not read the command."""


class MachineUnreachable(ShimError):
    """The machine on which a shim may live cannot be asked now. What was on its way may have been done there or not."""


class MachineUnusable(MachineUnreachable):
    """The machine cannot be asked until a person has mended what the message names: a host key, a key, Python there."""


class MachineGone(MachineUnreachable):
    """The machine is gone for good, with all that was on it: one that had been made for a run."""


class JournalCorrupt(ShimError):
    """The journal holds what no shim writes."""


BY_CODE: Mapping[str, type[ShimError]] = {
    "already_running": AlreadyRunning,
    "already_used": AlreadyUsed,
    "stopped": Tombstoned,
    "not_found": AgentNotFound,
    "not_executable": AgentNotExecutable,
    "no_directory": NoDirectory,
    "moved": Moved,
    "invalid_spec": InvalidSpec,
    "os_error": StartFailed,
    "not_admitted": NotAdmitted,
    "fenced": Fenced,
    "protocol": ProtocolMismatch,
    "stdin_closed": StdinClosed,
    "exited": AgentExited,
    "running": AgentRunning,
    "observer": NotController,
    "journal_full": JournalFull,
    "invalid": InvalidCommand,
    "too_long": InvalidCommand,
    "gone": ShimGone,
    "corrupt": JournalCorrupt,
}


def error_of(reply: Mapping[str, Any]) -> ShimError:
    """The error that a reply with `ok: false` stands for; its cause is an OSError where the reply has the errno."""
    code, message = str(reply.get("error")), str(reply.get("message", ""))
    if code == "protocol":
        message += ": the agent is left at work, and a program that speaks its version can go on with it"
    error = BY_CODE.get(code, CommandRefused)(message or code)
    if code == "os_error" and isinstance(number := reply.get("errno"), int):
        error.__cause__ = OSError(number, message)
    return error
