"""Hermes: its gateway on stdin and stdout, driven over JSON-RPC, one object a line."""
