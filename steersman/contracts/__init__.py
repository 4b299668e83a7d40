"""The wire contract: what clients, workflows and activities say to each other.

Only pydantic and the standard library may be imported here: workflow code imports this package, and so does any
client. Nothing in it performs I/O or reads the environment. Names and shapes are JSON on the wire and are used by
other SDKs: they never change silently.
"""
