"""What the demo's loop finds and, without a key, is played: plan, verification, the scripted model's answers."""

from pathlib import Path
from typing import Final

from bench import story
from tests.scripted_model import Answer, Script, ScriptedModel, answer, say, tool

LONG_CHECK: Final = f"check.py {story.LONG_CHECK}"
FEEDBACK: Final = (
    "Leave the long check out: it takes too long, do not run it. Just say in README.md how to use greet.py."
)
VERIFY: Final = "python3 verify.py"

PLAN: Final = f"""\
# greet

One step an iteration; tick its box when it is finished.

- [{{first}}] `python3 greet.py Ada` prints `Hello, Ada!`
- [{{second}}] `python3 {LONG_CHECK}` ran in the foreground (give it 600000 ms), then README.md says how to use greet.py
"""

VERIFICATION: Final = '''\
"""What has to hold, whoever says that it does."""

import pathlib
import subprocess
import sys

said = subprocess.run([sys.executable, "greet.py", "Ada"], capture_output=True, text=True).stdout
if said.strip() != "Hello, Ada!":
    sys.exit(f"greet.py Ada printed {said!r}")
if "greet.py" not in pathlib.Path("README.md").read_text():
    sys.exit("README.md does not say how to use greet.py")
print("greet.py greets, README.md says how")
'''


def plan(*, first: bool = False, second: bool = False) -> str:
    """The plan with its boxes."""
    return PLAN.format(first="x" if first else " ", second="x" if second else " ")


def lay_out(workspace: Path) -> None:
    """A git repository with the plan and what verifies it."""
    story.lay_out(workspace, {"PLAN.md": plan(), "verify.py": VERIFICATION})


def play(model: ScriptedModel, workspace: Path) -> Script:
    """The model's part in both iterations."""

    def write(name: str, content: str) -> Answer:
        return tool("Write", file_path=str(workspace / name), content=content)

    tick = "sed -i '0,/\\[ \\]/s//[x]/' PLAN.md"
    greet = 'import sys\n\nprint(f"Hello, {sys.argv[1]}!")\n'
    readme = "printf '\\n    python3 greet.py NAME\\n' >> README.md"
    return model.script(
        "loop",
        answer(say("The first step: greet.py.", chunks=6, delay_s=0.04), write("greet.py", greet)),
        tool("Bash", command=tick, description="Tick the first box"),
        say("greet.py greets. The second step is for the next iteration.", chunks=10, delay_s=0.03),
        answer(
            say("The second step: the long check.", chunks=6, delay_s=0.04),
            tool("Bash", command=f"python3 {LONG_CHECK}", description="Run the long check", timeout=600_000),
        ),
        answer(
            say("As you say: no check. README.md, then.", chunks=8, delay_s=0.04),
            tool("Bash", command=readme, description="Say how to use greet.py"),
        ),
        tool("Bash", command=tick, description="Tick the second box"),
        say("Both steps are finished; the check was left out, as you said.", chunks=12, delay_s=0.03),
    )
