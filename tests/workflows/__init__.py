"""The real workflows on real Temporal servers, with activities that a test plays."""
