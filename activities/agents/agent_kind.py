"""The row of an agent: what the worker knows of a kind of agent beside its protocol.

Its capabilities and the variables that it inherits must not live here: workflows and clients go by them, so they are in
steersman/contracts/agents.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from activities.ports.agent import Agent
from steersman.contracts.request import AgentName


@dataclass(frozen=True)
class Finding:
    """One thing that `worker.py check` found on this machine. `hint` says what to do about it."""

    check: str
    detail: str
    ok: bool = True
    hint: str = ""


@dataclass(frozen=True)
class AgentKind:
    """One kind of agent."""

    name: AgentName
    make: Callable[[Mapping[str, str], frozenset[str]], Agent]
    """The agent, given the environment that its checks see, and the variables that the operator lends to requests."""
    findings: Callable[[Mapping[str, str]], Sequence[Finding]] = lambda _environ: ()
    """The doctor's check of its program and key. It may start processes: not for an event loop at work."""
    guarded_prefixes: tuple[str, ...] = ()
    """Beginnings of variables that the agent reads itself: requests may not choose their values."""
    guarded_names: frozenset[str] = frozenset()
    """Further such variables."""
