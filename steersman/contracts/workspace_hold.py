"""Inputs and results of the activities that take a workspace, give it back, and tell who has which.

Whose hold it is says the server: the calling workflow's.
"""

from steersman.contracts.model import TolerantModel
from steersman.contracts.request import RunRequest
from steersman.contracts.run import MessageState
from steersman.contracts.workspace_holder import HolderKind, WorkspaceHolder, overlap


class HoldWorkspace(TolerantModel):
    """Input of hold_workspace, which ends when the calling workflow has the request's workspace."""

    request: RunRequest


class Steered(TolerantModel):
    """Whoever has the workspace was given the request's prompt."""

    kind: HolderKind
    id: str
    state: MessageState
    """As in a message's receipt; of a loop: it waits for the next iteration."""
    how: str | None = None


class WorkspaceHeld(TolerantModel):
    """Result of hold_workspace: the workflow has the workspace, unless another one was steered in its place."""

    path: str
    steered: Steered | None = None


class ListWorkspaces(TolerantModel):
    """Input of list_workspaces, a standalone activity on the host's queue."""


class Workspaces(TolerantModel):
    """Result of list_workspaces: those who have a workspace on the host, then those who wait, in their order. The runs
    of a loop work under its hold, and are not named.
    """

    holders: tuple[WorkspaceHolder, ...] = ()

    def before(self, run: str) -> tuple[WorkspaceHolder, ...]:
        """Those in whose way a run or loop is that waits, in order; none where it does not wait."""
        mine = next((place for place, each in enumerate(self.holders) if each.id == run and each.waits), 0)
        return tuple(each for each in self.holders[:mine] if overlap(each.path, self.holders[mine].path))
