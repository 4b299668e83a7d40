"""What a person is told of runs that wait for one."""

from typing import TYPE_CHECKING

from steersman.cli.formatting import deadline_phrase, flat
from steersman.cli.output import console

if TYPE_CHECKING:
    from steersman.client import Steersman
    from steersman.contracts.run import Approval, RunState

STYLE = "magenta"
OF_LOOPS = 'RunPhase="waiting" AND ExecutionStatus="Running" AND ParentWorkflowId IS NOT NULL'
LISTED = 100
"""Of so many runs of loops, at most, it is said what they wait for."""


def approvals(state: "RunState") -> list[str]:
    """Each that is open, and until when."""
    return [_line(each) for each in state.approvals]


def awaited(state: "RunState") -> list[str]:
    """All that the run waits for a person for."""
    message = ["a message, as its turn was interrupted"] if state.awaits_message else []
    return [*approvals(state), *message]


async def print_waiting(steersman: "Steersman", runs: list[str], *, of_loops: bool = False) -> None:
    """Print what each of these runs waits for; nothing of one whose state cannot be had. `of_loops`: it is their loops
    that are told how to go on, so that of the runs only approvals are meant.
    """
    import asyncio

    from rich.text import Text

    from steersman.errors import SteersmanError

    async def lines(run: str) -> list[str]:
        try:
            state = await steersman.state(run)
        except SteersmanError:
            return []
        return [f"{flat(run)} waits for {each}" for each in (approvals if of_loops else awaited)(state)]

    for each in await asyncio.gather(*map(lines, runs)):
        for line in each:
            console().print(Text(line, style=STYLE))


async def print_waiting_of_loops(steersman: "Steersman", loops: set[str] | None = None) -> None:
    """The same of the runs of loops, which lists of runs leave out: of these loops, of all without."""
    runs = await steersman.list(OF_LOOPS, limit=LISTED)
    await print_waiting(steersman, [each.id for each in runs if loops is None or each.parent in loops], of_loops=True)


def _line(approval: "Approval") -> str:
    from steersman.contracts.text import main_argument

    return f"{flat(approval.id)}  {flat(approval.tool)}, {deadline_phrase(approval)}: {main_argument(approval.input)}"
