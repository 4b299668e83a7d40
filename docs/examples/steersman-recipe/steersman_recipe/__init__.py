"""A small program as an agent of Steersman: see docs/agents.md."""
