"""The seam to the operator's policy: what a request gets on this machine, and what of it the policy must know.

How that is judged must not live here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Protocol

from activities.ports.place import PlaceInfo


@dataclass(frozen=True)
class WorkspaceFiles:
    """Files of a workspace that an agent loads by itself, relative to it.

    `instructions` are texts for the model. `programs` name programs, variables or permissions: whoever wrote them
    decides what runs before anybody is asked, so they are for trusted workspaces alone.

    `from_root` and `from_top` are files with programs that it loads of the directories above a workspace, too: up to
    the root; up to the top of the repository that the workspace lies in, or to the root where it lies in none.
    """

    instructions: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    from_root: tuple[str, ...] = ()
    from_top: tuple[str, ...] = ()


@dataclass(frozen=True)
class Untrusted:
    """A workspace that nobody has trusted: the agent loads no programs of it, and gets its instructions as text."""

    left_out: tuple[str, ...] = ()
    """The files with programs that are there, relative to the workspace."""
    instructions: str = ""
    """The text of its instructions, each file under its name."""
    git_runs_programs: bool = False
    """Its repository's configuration, or one within it, may make git run programs: no git command is harmless there."""
    leads_out: bool = False
    """Links in it lead elsewhere, so a harmless command would read what is there: no command is harmless."""
    above: tuple[Path, ...] = ()
    """Files with programs above the workspace for which alone it is not trusted: the agent would load them with it."""
    to_trust: Path | None = None
    """The directory in which all of those lie, or another one for which the workspace is not trusted; None: itself."""


@dataclass(frozen=True)
class Admission:
    """A request that may run on this machine, at this moment. The environment is complete and may hold secrets."""

    environment: Mapping[str, str] = field(repr=False)
    directory: PurePath
    """The workspace or the copy of it, symbolic links resolved: the agent's working directory."""
    further: tuple[Path, ...] = ()
    """The other directories that the agent may work in, resolved."""
    untrusted: Untrusted | None = None
    """None where the operator trusts the workspace, directly or by the agent's own record of it."""
    restricted: bool = False
    """The operator allows requesters less than everything: a text must not reach the agent's own commands."""
    place: PlaceInfo | None = None
    """The machine on which the agent works, where it is another one; `directory` is there."""
    home: PurePath | None = None
    """The run's own directory for settings, logins and sessions of the agent, which the environment names."""


@dataclass(frozen=True)
class Program:
    """A program that a request names and that runs without anybody's permission.

    `words` is the whole command line; it is empty where nobody can tell what runs, which no operator can have allowed.
    """

    field: str
    words: tuple[str, ...] = ()
    of_workspace: bool = False
    """The workspace's own files name it."""


class AdmissionControl(Protocol):
    """What this machine allows one run: a further process, and an agent's session of its own."""

    def admit(self, place: PlaceInfo | None, attempt: int, home: PurePath) -> Admission:
        """What this attempt gets at this moment. Scans the workspace, so it is not for an event loop. Raises RunError.

        `place`: the machine of the run's processes; None for this one. `home`: the directory there for what the agent
        keeps, where the request gives it one of its own.
        """
        ...

    async def lock_session(self, session: str) -> None:
        """Keep other runs from this session of the agent, as far as that can be done."""
        ...
