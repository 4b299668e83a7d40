"""The seams between agents, runtimes, policy and the run's controller: Protocols and plain data, one module a seam.

Nothing is re-exported: an import names the seam that it crosses, and import-linter holds each package to its own.
"""
