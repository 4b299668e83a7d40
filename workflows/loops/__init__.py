"""The parts of AgentLoop."""
