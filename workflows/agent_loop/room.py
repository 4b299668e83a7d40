"""Room in what continue-as-new carries: the request and the state count together, and Temporal takes 2 MiB of them.

Old checkpoints go first. What people say is refused before there would be no room for the newest ones.
"""

from temporalio import workflow

from steersman.contracts.request import json_size
from workflows.agent_loop.carried_state import CarriedState
from workflows.agent_loop.state import LoopContext

WITH_REQUEST = "room-with-request"
"""The patch of loops that count their request, too, and may forget checkpoints that are not packed yet."""
MAX_INPUT = 1_900_000
"""Bytes of JSON of request and state together; encryption adds to it."""
MAX_CARRIED = 1_800_000
"""Bytes of JSON of the state alone."""
RESERVED = 500_000
"""Bytes that people cannot use up: for the newest checkpoints, items, phases, the agent's last answer."""
NOTE = 500
"""Bytes of JSON that a note of feedback has beside its text, or less."""
LACKING = "there is no room for it beside the request and what was said before: put it in a file and give its path"


def excess_checkpoints(loop: LoopContext) -> tuple[int, ...]:
    """Numbers of the oldest checkpoints, if there is more than continue-as-new can carry."""
    state = loop.state
    size = _size(state.to_carry())
    if size > MAX_CARRIED and (packed := state.archive.oldest_packed()):
        return packed
    if size + _size_of_request(loop) <= MAX_INPUT:
        return ()
    oldest = state.archive.oldest_packed() or state.archive.oldest(but=state.carried.last_kept)
    return oldest if oldest and workflow.patched(WITH_REQUEST) else ()


def is_lacking_for(loop: LoopContext, text: str) -> bool:
    """Whether a note of feedback with this text is to be refused."""
    return is_lacking(loop, loop.state.carried, json_size(text) + NOTE)


def is_lacking(loop: LoopContext, carried: CarriedState, more: int = 0) -> bool:
    """Whether a state whose texts would be these, and so many bytes more, is to be refused.

    Asked once more when it is carried out: what a history says was accepted stays so.
    """
    said = {"chunks": (), "checkpoints": (), "items": None, "phases": (), "text": "", "verification": None}
    size = _size(carried.model_copy(update=said)) + more + _size_of_request(loop)
    return size > MAX_INPUT - RESERVED and (workflow.unsafe.is_read_only() or workflow.patched(WITH_REQUEST))


def _size(carried: CarriedState) -> int:
    return len(carried.model_dump_json().encode())


def _size_of_request(loop: LoopContext) -> int:
    return len(loop.request.model_dump_json().encode())
