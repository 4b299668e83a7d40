"""The row of an agent: what the worker knows of a kind of agent beside its protocol.

What an agent that comes along can do at most, and the variables that it inherits, must not live here: workflows and
clients go by them before a host has claimed the run, so they are in steersman/contracts/agents.py. Of an agent that
another package brings only workers know, so its row says both.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from activities.ports.agent import Agent
from steersman.contracts.agents import AGENT_VARIABLES, CAPABILITIES, WHERE_ASKED_FOR, Capabilities
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import AGENT_NAME, RunRequest
from steersman.contracts.run import StopOutcome

_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{2,99}")
_NEVER: Final = ("STEERSMAN_", "TEMPORAL_")
"""Variables of the worker itself, which are no agent's."""

_SETS: Final = ("guarded_names", "private_variables", "variables")


@dataclass(frozen=True)
class Finding:
    """One thing that `worker.py check` found on this machine. `hint` says what to do about it.

    `lacks`: a run of the agent would fail for want of it; no failure of the machine, where another worker may have it.
    """

    check: str
    detail: str
    ok: bool = True
    hint: str = ""
    lacks: bool = False


@dataclass(frozen=True)
class AgentKind:
    """One kind of agent. The last four fields are for agents of other packages."""

    name: str
    make: Callable[[Mapping[str, str], frozenset[str]], Agent]
    """The agent, given the environment that its checks see, and the variables that the operator lends to requests."""
    findings: Callable[[Mapping[str, str]], Sequence[Finding]] = lambda _environ: ()
    """The doctor's check of its program and key. It may start processes: not for an event loop at work."""
    guarded_prefixes: tuple[str, ...] = ()
    """Beginnings of variables that the agent reads itself: requests may not choose their values."""
    guarded_names: frozenset[str] = frozenset()
    """Further such variables."""
    private_variables: frozenset[str] = frozenset()
    """Of the worker's environment, variables that its own code reads: no process inherits and no request names them."""
    narrow: Callable[[Capabilities, RunRequest], Capabilities] = lambda can, _request: can
    """What is left of the agent's capabilities in a run of this request. It adds none. Raises InvalidRequest."""
    home: Callable[[PurePath], Mapping[str, str]] | None = None
    """The variables by which it keeps settings, logins and sessions below this directory; None where nothing does."""
    end_elsewhere: Callable[[Mapping[str, str], RunRequest, Iterable[bytes]], StopOutcome | None] | None = None
    """Make sure, once a stop has ended all processes of a run, that what they had begun elsewhere is over; None where
    they never begin anything there. It is given the worker's environment and all lines that the processes have put out,
    and may block for 15 s; None: nothing was at work.
    """
    can: Capabilities | None = None
    """What it can at most; None: as the contract's table has it."""
    where_asked_for: Mapping[str, str] = field(default_factory=dict)
    """Capability -> the field of a request without which a run does not have it, such as `options.messages`."""
    variables: frozenset[str] = frozenset()
    """Its own variables: passed on from the worker's environment, and what `from_env` may name. All are guarded."""
    variables_of_machine: frozenset[str] = frozenset()
    """Those of them that say something of one machine: they are not passed on to another one."""

    @property
    def at_most(self) -> Capabilities:
        """What it can at most."""
        return self.can or CAPABILITIES[self.name]

    @property
    def asked_for(self) -> Mapping[str, str]:
        """See `where_asked_for`."""
        return self.where_asked_for or WHERE_ASKED_FOR.get(self.name, {})

    @property
    def own_variables(self) -> frozenset[str]:
        """See `variables`."""
        return self.variables | AGENT_VARIABLES.get(self.name, frozenset())

    def guards(self, name: str) -> bool:
        """Whether requests may not choose the value of the variable with this name, which is in capitals."""
        named = self.guarded_names | self.private_variables | self.variables
        return name in named or name.startswith(self.guarded_prefixes)

    def capabilities(self, request: RunRequest) -> Capabilities:
        """What a run of this request can do: no more than `at_most`. Raises InvalidRequest."""
        most, left = self.at_most, self.narrow(self.at_most, request)
        return Capabilities(**{name: getattr(most, name) and getattr(left, name) for name in Capabilities.model_fields})

    def check(self, request: RunRequest) -> None:
        """Raise InvalidRequest where the request asks for what the agent lacks."""
        if wrong := request.unsupported(self.at_most):
            raise InvalidRequest(f"RunRequest: {wrong}")
        if request.home == "isolated" and self.home is None:
            raise InvalidRequest(f'home: agent "{self.name}" cannot be given one of the run\'s own')


def what_is_wrong(kind: AgentKind) -> str | None:
    """Why a row of another package cannot be used, in words; None where it can. May raise what such a row may."""
    typed = {
        "name": isinstance(kind.name, str),
        "can": isinstance(kind.can, Capabilities),  # else nobody knows what it can do
        **{name: callable(getattr(kind, name)) for name in ("make", "findings", "narrow")},
        "home": kind.home is None or callable(kind.home),
        "end_elsewhere": kind.end_elsewhere is None or callable(kind.end_elsewhere),
        "guarded_prefixes": isinstance(kind.guarded_prefixes, tuple),
        **{name: isinstance(getattr(kind, name), frozenset) for name in _SETS},
        "where_asked_for": isinstance(kind.where_asked_for, Mapping),
    }
    if wrong := [name for name, right in typed.items() if not right]:
        return f"its row lacks, or has of the wrong type: {', '.join(wrong)}"
    names = (*kind.variables, *kind.private_variables, *kind.guarded_names, *kind.guarded_prefixes)
    if wrong := [name for name in names if not _VARIABLE.fullmatch(name) or name.startswith(_NEVER)]:
        return f"{wrong[0]!r} cannot be a variable of an agent, or the beginning of some"
    if not kind.variables_of_machine <= kind.variables:
        return "AgentKind.variables_of_machine has others than AgentKind.variables"
    if wrong := sorted(kind.where_asked_for.keys() - Capabilities.model_fields.keys()):
        return f"AgentKind.where_asked_for names no capabilities: {', '.join(wrong)}"
    return None if re.fullmatch(AGENT_NAME, kind.name) else f"its name is not of the form {AGENT_NAME}"
