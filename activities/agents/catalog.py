"""The catalog of agents: one row each. A new agent is added to AGENTS."""

from collections.abc import Mapping
from typing import Final

from activities.agents.acp.kind import ACP
from activities.agents.agent_kind import AgentKind
from activities.agents.claude.kind import CLAUDE
from activities.agents.codex.kind import CODEX
from activities.agents.gemini.kind import GEMINI
from activities.agents.hermes.kind import HERMES
from activities.agents.opencode.kind import OPENCODE
from activities.agents.process.kind import PROCESS

_KINDS = (CLAUDE, CODEX, GEMINI, OPENCODE, HERMES, ACP, PROCESS)
AGENTS: Final[Mapping[str, AgentKind]] = {kind.name: kind for kind in _KINDS}

GUARDED_PREFIXES: Final = tuple(prefix for kind in AGENTS.values() for prefix in kind.guarded_prefixes)
GUARDED_NAMES: Final = frozenset().union(*(kind.guarded_names for kind in AGENTS.values()))
