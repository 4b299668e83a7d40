"""The commands of `steer`: one module for a command or for a family of commands.

At its top a module imports only Typer, the standard library and light modules of this package, because `steer --help`
imports all of them; what a command needs of the client, Rich or pydantic it imports when it runs.
"""
