"""What attacks need: the machines of the acceptance tests."""

from tests.acceptance.conftest import mark, model, shared, site, steersman

__all__ = ["mark", "model", "shared", "site", "steersman"]
