"""Decisions and durable state. No I/O, no clock but the workflow's, no environment."""
