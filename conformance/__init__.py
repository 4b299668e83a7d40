"""What the kit of an agent is made of, for `steer agents test NAME`: the names that other packages may import.

A kit (`Kit`) makes one agent answer, work, wait and die; the suite (tests/agents/test_conformance.py) holds it to what
every agent owes. An agent that asks a model is given the address of a `ScriptedModel`, which needs no network.

    class MyKit(Kit): ...           # declared as an entry point of the group `steersman.agent_kits`
"""

from tests.agents.kits import FAMILY, Kit, Staged
from tests.agents.stage import Stage, staged
from tests.scripted_model import Hold, Say, Script, ScriptedModel, Tool, answer, fail, hold, say, structured, tool

__all__ = [
    "FAMILY",
    "Hold",
    "Kit",
    "Say",
    "Script",
    "ScriptedModel",
    "Stage",
    "Staged",
    "Tool",
    "answer",
    "fail",
    "hold",
    "say",
    "staged",
    "structured",
    "tool",
]
