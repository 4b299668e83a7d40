"""The state directory: which runs there are, their event logs, snapshots and session locks. Knows no Temporal."""
