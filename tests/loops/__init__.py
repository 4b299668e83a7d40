"""What a loop sees of a workspace and keeps of it, with real git and real programs, without Temporal."""
