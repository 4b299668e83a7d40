"""Names on the wire: task queues, workflow and activity types, signals, updates, queries, search attributes.

Other SDKs, the Temporal CLI and recorded histories use these strings: a changed value is a broken contract.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

TASK_QUEUE: Final = "steersman"

RUN_WORKFLOW: Final = "AgentRun"
LOOP_WORKFLOW: Final = "AgentLoop"
SWEEP_WORKFLOW: Final = "SweepHost"
NOTICE_WORKFLOW: Final = "RunNotice"

STATE_QUERY: Final = "state"
STEER: Final = "steer"
INTERRUPT: Final = "interrupt"
DECIDE: Final = "decide"
HURRY: Final = "hurry"
"""A signal: the stop at work, or the next one, sends SIGTERM at once and SIGKILL 1.5 s later. Temporal tells a workflow
of its first cancel only, so a second cancel cannot say this.
"""

# Updates of a loop, and signals of the same names.
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
"""A query for a page of checkpoints; an update that deletes some."""
FORK_POINT: Final = "fork_point"

# Signals that `run_agent` sends to its own workflow.
SESSION_STARTED: Final = "session_started"
PROGRESSED: Final = "progressed"
APPROVAL_ASKED: Final = "approval_asked"
MESSAGES_SETTLED: Final = "messages_settled"

CLAIM_HOST: Final = "claim_host"
RUN_AGENT: Final = "run_agent"
DELIVER_MESSAGES: Final = "deliver_messages"
CARRY_OUT: Final = "carry_out"
CARRY_BACK: Final = "carry_back"
STOP_AGENT: Final = "stop_agent"
FINALIZE_RUN: Final = "finalize_run"
READ_EVENTS: Final = "read_events"
CHECK_AGENTS: Final = "check_agents"
END_RUN: Final = "end_run"
DIFF_RUN: Final = "diff_run"
UNDO_RUN: Final = "undo_run"
LIST_WORKSPACE_CHECKPOINTS: Final = "list_workspace_checkpoints"
HOLD_WORKSPACE: Final = "hold_workspace"
RELEASE_WORKSPACE: Final = "release_workspace"
LIST_WORKSPACES: Final = "list_workspaces"
DESCRIBE_WORKSPACE: Final = "describe_workspace"
RETRY_WORKSPACE: Final = "retry_workspace"
DISCARD_WORKSPACE: Final = "discard_workspace"
SWEEP_HOST: Final = "sweep_host"
PRUNE_HOST: Final = "prune_host"
ADMIT_LOOP: Final = "admit_loop"
SURVEY_WORKSPACE: Final = "survey_workspace"
RESTORE_CHECKPOINT: Final = "restore_checkpoint"
DROP_CHECKPOINTS: Final = "drop_checkpoints"
DIFF_CHECKPOINTS: Final = "diff_checkpoints"
LIST_CHECKPOINTS: Final = "list_checkpoints"
READ_FORK_POINT: Final = "read_fork_point"
SEND_NOTICE: Final = "send_notice"
LOOK_AT_RUN: Final = "look_at_run"

AGENT_NAME: Final = "AgentName"
"""A search attribute: the agent of a run or loop, e.g. "claude"."""
RUN_PHASE: Final = "RunPhase"
"""A search attribute: a run's phase (steersman.contracts.run.Phase), or a loop's status (loop_state.LoopStatus)."""
COST_USD: Final = "CostUsd"
"""A search attribute: US dollars spent so far, as of the last milestone."""
SEARCH_ATTRIBUTES: Final[Mapping[str, Literal["Keyword", "Double"]]] = MappingProxyType(
    {AGENT_NAME: "Keyword", RUN_PHASE: "Keyword", COST_USD: "Double"}
)
"""Every search attribute with its type, as Temporal's tools name it."""


def host_queue(host: str) -> str:
    """The task queue of one host (machine, user and state directory): stops, ends of runs, reading events, sweeps."""
    return f"{TASK_QUEUE}@{host}"


def runs_queue(host: str) -> str:
    """The task queue from which a host's workers take runs, as many at once as the operator allows."""
    return f"{TASK_QUEUE}@{host}:runs"


def worker_queue(host: str, worker: str) -> str:
    """The task queue of one worker process: messages for the runs that it leads."""
    return f"{TASK_QUEUE}@{host}:{worker}"
