"""Where the program keeps its sessions: so that they are brought to copies of the workspace, and back."""

from collections.abc import Mapping
from pathlib import PurePath
from re import fullmatch

from activities.agents.command_ids import uuid_for
from activities.ports.sessions import SessionFiles
from steersman.contracts.activities import RunKey


class RecipeSessions:
    """See activities.ports.sessions.AgentSessions."""

    def home(self, environment: Mapping[str, str]) -> str | None:
        """RECIPE_HOME, else in the home of the user."""
        home = environment.get("HOME")
        return environment.get("RECIPE_HOME") or (f"{home}/.recipe" if home else None)

    def files(self, session: str, directory: PurePath) -> SessionFiles | None:
        """One file each, wherever the session was held."""
        is_id = fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", session)
        return SessionFiles(f"sessions/{session}.jsonl") if is_id else None

    def begun(self, key: RunKey, attempt: int) -> str:
        """The program takes the id that it is given."""
        return uuid_for(key, f"session-{attempt}")

    def kept(self, key: RunKey, session: str) -> str:
        """Another id, the same whoever asks."""
        return uuid_for(key, f"kept-{session}")
