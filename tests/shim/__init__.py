"""The shim and its client: real processes, real sockets, nothing replaced."""
