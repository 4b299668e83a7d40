"""Workspaces: their files, read as hostile input, kept as checkpoints in git, compared and restored."""
