"""Every agent on the real local runtime, without Temporal: one conformance suite, and each protocol's own tests."""
