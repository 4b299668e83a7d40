"""What runs where the agent runs: the shim, and looking at shims and at what they left, living or dead.

Standard library of Python 3.9, copied to other machines as it is. What must not live here: asyncio, and anything that
knows Temporal, a run or an agent's protocol.
"""
