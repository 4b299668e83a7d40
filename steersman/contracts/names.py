"""Names on the wire: task queues, workflow and activity types, signals, queries, search attributes.

Other SDKs, the Temporal CLI and recorded histories use these strings: a changed value is a broken contract.
"""

from typing import Final

TASK_QUEUE: Final = "steersman"

RUN_WORKFLOW: Final = "AgentRun"
LOOP_WORKFLOW: Final = "AgentLoop"
SWEEP_WORKFLOW: Final = "SweepHost"

STATE_QUERY: Final = "state"
STEER: Final = "steer"
INTERRUPT: Final = "interrupt"
DECIDE: Final = "decide"
HURRY: Final = "hurry"
"""A signal: the stop at work, or the next one, sends SIGTERM at once and SIGKILL 1.5 s later. Temporal shows a workflow
its first cancel only, so a second one cannot say this.
"""

# What a loop is told: updates, and signals of the same names.
PAUSE: Final = "pause"
RESUME: Final = "resume"
FEEDBACK: Final = "feedback"
REMOVE_FEEDBACK: Final = "remove_feedback"
REVISE: Final = "revise"
RESTART: Final = "restart"
SKIP_WAIT: Final = "skip_wait"
SET_LIMITS: Final = "set_limits"
EXIT: Final = "exit"
ROLLBACK: Final = "rollback"
CHECKPOINTS: Final = "checkpoints"
"""As a query, a page of checkpoints; as an update, which to delete."""
FORK_POINT: Final = "fork_point"

# Signals that `run_agent` sends to its own workflow.
SESSION_STARTED: Final = "session_started"
PROGRESSED: Final = "progressed"
APPROVAL_ASKED: Final = "approval_asked"
MESSAGES_SETTLED: Final = "messages_settled"

CLAIM_HOST: Final = "claim_host"
RUN_AGENT: Final = "run_agent"
DELIVER_MESSAGES: Final = "deliver_messages"
STOP_AGENT: Final = "stop_agent"
FINALIZE_RUN: Final = "finalize_run"
READ_EVENTS: Final = "read_events"
END_RUN: Final = "end_run"
SWEEP_HOST: Final = "sweep_host"
PRUNE_HOST: Final = "prune_host"
ADMIT_LOOP: Final = "admit_loop"
SURVEY_WORKSPACE: Final = "survey_workspace"
RESTORE_CHECKPOINT: Final = "restore_checkpoint"
DROP_CHECKPOINTS: Final = "drop_checkpoints"
DIFF_CHECKPOINTS: Final = "diff_checkpoints"
LIST_CHECKPOINTS: Final = "list_checkpoints"
READ_FORK_POINT: Final = "read_fork_point"
LOOK_AT_RUN: Final = "look_at_run"

AGENT_NAME: Final = "AgentName"
RUN_PHASE: Final = "RunPhase"
COST_USD: Final = "CostUsd"


def host_queue(host: str) -> str:
    """The queue of one machine (one user, one state directory): stopping, finalizing, reading events, sweeping."""
    return f"{TASK_QUEUE}@{host}"


def runs_queue(host: str) -> str:
    """The queue from which a machine's workers take runs, as many at once as the operator allows."""
    return f"{TASK_QUEUE}@{host}:runs"


def worker_queue(host: str, worker: str) -> str:
    """The queue of one worker process: messages for the sessions that live in its memory."""
    return f"{TASK_QUEUE}@{host}:{worker}"
