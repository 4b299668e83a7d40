"""Processes of agents that ended without an answer, as errors of the run."""

from activities.ports.agent import ExitFact
from steersman.contracts.errors import AgentCrashed
from steersman.contracts.model import JsonObject


def crash(exit_fact: ExitFact) -> AgentCrashed:
    """The error of a process that ended before its answer."""
    if exit_fact.lost:
        how = "nobody saw the end of the agent's process: its shim or the machine died"
    elif exit_fact.reason == "lease":
        how = "no worker looked after the agent for longer than lease_s, so its shim stopped it"
    elif exit_fact.signal:
        how = f"the agent's process was killed by signal {exit_fact.signal}"
    else:
        how = f"the agent's process ended with exit code {exit_fact.code} before its work was done"
    return AgentCrashed((how + last_words(exit_fact))[:4000], **exit_facts(exit_fact))


def last_words(exit_fact: ExitFact) -> str:
    """What its place says of why it ended, and its last line on stderr, to append to a message."""
    cause = f" ({exit_fact.cause})" if exit_fact.cause else ""
    return cause + last_line(exit_fact)


def last_line(exit_fact: ExitFact) -> str:
    """The process's last line on stderr, to append to a message; empty if it wrote none."""
    return f": {exit_fact.stderr[-1]}" if exit_fact.stderr else ""


def exit_facts(exit_fact: ExitFact) -> JsonObject:
    """The facts of an AgentCrashed."""
    known = {"cause": exit_fact.cause} if exit_fact.cause else {}
    return {"exit_code": exit_fact.code, "signal": exit_fact.signal, "stderr": list(exit_fact.stderr), **known}
