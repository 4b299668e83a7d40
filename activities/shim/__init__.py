"""The program that owns an agent's process, and its client. Standard library only: it is copied to hosts as it is."""
