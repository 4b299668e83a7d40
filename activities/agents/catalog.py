"""The catalog of agents: one row each. A new agent is added to AGENTS."""

from collections.abc import Mapping
from typing import Final

from activities.agents import process
from activities.agents.agent_kind import AgentKind
from activities.agents.claude.kind import CLAUDE

AGENTS: Final[Mapping[str, AgentKind]] = {kind.name: kind for kind in (CLAUDE, process.PROCESS)}

GUARDED_PREFIXES: Final = tuple(prefix for kind in AGENTS.values() for prefix in kind.guarded_prefixes)
GUARDED_NAMES: Final = frozenset().union(*(kind.guarded_names for kind in AGENTS.values()))
