"""Machines, models and marks, as the acceptance tests have them."""

from tests.acceptance.conftest import mark, model, shared, site, steersman
from tests.agents.conftest import no_shim_is_left

__all__ = ["mark", "model", "no_shim_is_left", "shared", "site", "steersman"]
