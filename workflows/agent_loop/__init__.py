"""The workflow AgentLoop: one agent on one plan, run after run."""

from workflows.agent_loop.workflow import AgentLoop

__all__ = ["AgentLoop"]
