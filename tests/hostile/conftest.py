"""How long hypothesis attacks: for about an hour with `HYPOTHESIS_PROFILE=hour`, else as long as `make test` has."""

import os
from datetime import timedelta

from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]

settings.register_profile(
    "ci",
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "hour", max_examples=5_000, deadline=timedelta(minutes=1), suppress_health_check=_SLOW, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
