"""Seeded faults against everything at once, and whether what ARCHITECTURE.md promises held: `python -m tests.chaos`."""
