"""A scripted model: the APIs of Anthropic, OpenAI and Google on loopback, answered from a script.

The real programs (Claude Code, Codex, Gemini CLI, opencode) talk to it in tests, in benchmarks and in the demo, so
none of them needs the internet or a key. One script serves any of them; its tools are those of the program.

Nothing of Steersman may be imported here: it stands in for the outside.

    async with ScriptedModel() as model:
        script = model.script("a", tool("Bash", command="ls"), hold("working"), say("done"))
        ... run the CLI with script.env(config_dir) ...
        assert script.requests[-1].saw("the steer's text")
"""

from tests.scripted_model.requests import Request
from tests.scripted_model.script import Script, ScriptError, Steps
from tests.scripted_model.server import ScriptedModel
from tests.scripted_model.steps import (
    Answer,
    Cut,
    Failure,
    Hold,
    Part,
    Say,
    Step,
    Think,
    Tool,
    Usage,
    answer,
    cut,
    fail,
    hold,
    say,
    structured,
    think,
    tool,
)

__all__ = [
    "Answer",
    "Cut",
    "Failure",
    "Hold",
    "Part",
    "Request",
    "Say",
    "Script",
    "ScriptError",
    "ScriptedModel",
    "Step",
    "Steps",
    "Think",
    "Tool",
    "Usage",
    "answer",
    "cut",
    "fail",
    "hold",
    "say",
    "structured",
    "think",
    "tool",
]
