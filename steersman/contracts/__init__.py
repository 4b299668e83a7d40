"""The wire contract: names and models that clients, workflows and activities exchange.

Only pydantic and the standard library may be imported here, because workflow code imports this package. Nothing in it
performs I/O or reads the environment. Names and JSON shapes are used by other SDKs and stand in recorded histories:
tests/unit/test_wire.py fails when one changes.
"""
