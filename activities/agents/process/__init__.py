"""Agent "process": any program. What several agents need is in the package above."""
