"""The `steer` command: one module per group of commands, and what they show.

`steer --help` must be quick: at the top of a module only Typer, the standard library and this package's own light
modules are imported; a command imports the client when it runs. What a run is or does is the client's business.
"""
