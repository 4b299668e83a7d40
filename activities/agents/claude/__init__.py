"""Agent "claude": Claude Code through claude-agent-sdk. What several agents need is in the package above."""
