"""What the Temporal UI and CLI say of each update, signal and query: what it does, and the JSON that it takes."""

from collections.abc import Mapping
from typing import Final

from steersman.contracts import names

_INTERNAL: Final = "Not for people: the worker that leads the run tells its workflow."

OF_RUN: Final[Mapping[str, str]] = {
    names.STEER: 'Say something to the agent in its turn. {"text": "Leave the tests alone."}',
    names.INTERRUPT: (
        'End the agent\'s turn, keep its session. {} waits for the next message, {"text": "Do that instead."} goes on '
        'with it, {"end": true} ends the run.'
    ),
    names.DECIDE: (
        'Answer an approval, whose id Current Details has; the first answer counts. {"id": "ID", "decision": "allow"}; '
        '{"id": "ID", "decision": "deny", "message": "why"}; "remember": true answers for this tool from now on.'
    ),
    names.HURRY: "Make the stop at work, or the next one, as quick as it can be. It takes nothing.",
    names.STATE_QUERY: "Where the run stands: a RunState.",
    names.SESSION_STARTED: _INTERNAL,
    names.PROGRESSED: _INTERNAL,
    names.APPROVAL_ASKED: _INTERNAL,
    names.MESSAGES_SETTLED: _INTERNAL,
}
OF_LOOP: Final[Mapping[str, str]] = {
    names.PAUSE: 'Pause after this iteration, {}; or end the turn at once, {"now": true}. "reason" is kept.',
    names.RESUME: (
        'Go on after a pause, or take the decision that the loop waits for. {}; {"text": "for the next iteration"}; '
        '{"session": "fresh"}; {"mode": "checkpoint"}.'
    ),
    names.FEEDBACK: 'Tell the next iteration something. {"text": "Mind the docs."}',
    names.REMOVE_FEEDBACK: 'Take back what no iteration was told yet. {"id": "ID"}',
    names.REVISE: (
        'Give a new plan or a new template of the prompt, from the next iteration on. {"plan": {"path": "PLAN.md"}}; '
        '{"plan": "text"}; {"prompt": "Work on {plan}. Open: {open_items}"}'
    ),
    names.RESTART: 'Start over: {}, or {"from": "iteration", "number": 3}. "files": false leaves the files.',
    names.SKIP_WAIT: "Begin the next iteration now, though its time has not come. It takes {}.",
    names.SET_LIMITS: 'Change limits: {"cost_usd": 50, "iterations": 20}; 0 removes one, iterations excepted.',
    names.EXIT: 'End the loop as exited, after this iteration; nothing is lost. {"reason": "why"}',
    names.ROLLBACK: 'Put the files back as they were at a checkpoint, and pause. {"checkpoint": 3}',
    names.CHECKPOINTS: (
        'The query lists checkpoints, {"after": 0, "limit": 100}. The update deletes some: {"numbers": [1, 2]}, '
        '{"older_than_s": 86400}, {"oldest": 5} or {"all": true}.'
    ),
    names.STATE_QUERY: "Where the loop stands: a LoopState.",
    names.FORK_POINT: "Not for people: what another loop begins with.",
}
