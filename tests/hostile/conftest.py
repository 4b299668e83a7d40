"""What attacks are tried on: the fixtures of the tiers that they belong to."""

from tests.acceptance.conftest import site
from tests.agents.conftest import claude, model
from tests.shim.conftest import every_shim, shims

__all__ = ["claude", "every_shim", "model", "shims", "site"]
