"""The row of agent "acp"."""

from activities.agents.acp.agent import AcpAgent
from activities.agents.agent_kind import AgentKind

ACP = AgentKind(name="acp", make=lambda _environ, _lent: AcpAgent())
