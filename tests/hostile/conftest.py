"""What attacks need: the machines of the acceptance tests, and how many examples a property is tried with."""

import os

from hypothesis import HealthCheck, settings

from tests.acceptance.conftest import mark, model, shared, site, site_with_server, steersman
from tests.agents.conftest import claude, no_shim_is_left
from tests.shim.conftest import every_shim, shims

__all__ = [
    "claude",
    "every_shim",
    "mark",
    "model",
    "no_shim_is_left",
    "shared",
    "shims",
    "site",
    "site_with_server",
    "steersman",
]

SLOW = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
)
settings.register_profile(
    "ci", max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW
)
# A round of many: `make fuzz` begins another with a fresh seed until its time is over.
settings.register_profile("hour", max_examples=200, deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("STEERSMAN_EXAMPLES", "ci"))
