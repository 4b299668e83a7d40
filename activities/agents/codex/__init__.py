"""Codex: its app-server, driven over JSON-RPC, one object a line."""
