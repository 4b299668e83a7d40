"""The row of agent "process": how it is made, and what a run of it can do."""

from activities.agents.agent_kind import AgentKind
from activities.agents.process.agent import ProcessAgent
from activities.agents.process.options import options_of
from steersman.contracts.agents import Capabilities
from steersman.contracts.request import RunRequest


def _narrow(can: Capabilities, request: RunRequest) -> Capabilities:
    """It takes messages where the request asks for that."""
    asked = options_of(request).messages is not None
    return can.model_copy(update={"soft_steer": can.soft_steer and asked})


PROCESS = AgentKind(name="process", make=lambda _environ, _lent: ProcessAgent(), narrow=_narrow)
