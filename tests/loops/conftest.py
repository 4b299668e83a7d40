"""As for agents: no shim outlives a test."""

from tests.agents.conftest import no_shim_is_left

__all__ = ["no_shim_is_left"]
