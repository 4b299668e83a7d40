"""The workflow AgentRun: one run of one agent."""

from workflows.agent_run.workflow import AgentRun

__all__ = ["AgentRun"]
