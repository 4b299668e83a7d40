"""What the demo's agent finds, is told and, without a key, is played: files, prompts, the scripted model's answers."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.scripted_model import Answer, Request, Script, ScriptedModel, answer, say, tool

FIRST_CHECK: Final = 34
"""Half seconds: long enough that the worker dies and is replaced meanwhile."""
LONG_CHECK: Final = 2000

PROMPT: Final = f"""\
Work in these steps, one after the other, with your Bash and Write tools, and do not run anything in the background:
1. Run `python3 check.py {FIRST_CHECK}` in the foreground and wait for it. It takes about {FIRST_CHECK // 2} seconds.
2. Write wordcount.py: it prints how many words standard input holds.
3. Run `python3 check.py {LONG_CHECK}` in the foreground with a timeout of 600000 ms and wait for it."""
STEER: Final = "While you are at it: wordcount.py should print the number of lines, too."
INTERRUPTION: Final = (
    "Stop, that check takes too long; do not run it again. Say in two sentences what you made, and finish."
)
STUBBORN_PROMPT: Final = (
    "Run exactly `python3 stubborn.py` with your Bash tool, in the foreground, and wait for it to end. Nothing else."
)

CHECK: Final = '''\
"""A check that takes its time: one line every half second, to the screen and to check.log."""

import sys
import time

for number in range(1, int(sys.argv[1]) + 1):
    line = f"check {number} ok"
    print(line, flush=True)
    with open("check.log", "a") as log:
        log.write(line + "\\n")
    time.sleep(0.5)
'''

STUBBORN: Final = '''\
"""Everything a process can do to be left behind: ignore every polite signal, fork twice, leave the session."""

import os
import signal
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        break
with open("stubborn.pids", "a") as pids:
    pids.write(f"{os.getpid()}\\n")
while True:
    time.sleep(60)
'''

README: Final = "# wordcount\n\nA scratch project.\n"


def lay_out(workspace: Path, more: Mapping[str, str] | None = None) -> None:
    """Fill a new directory, with `more` files by name, as a git repository where there is git."""
    workspace.mkdir(parents=True)
    files = {"check.py": CHECK, "stubborn.py": STUBBORN, "README.md": README, **(more or {})}
    for name, text in files.items():
        (workspace / name).write_text(text)
    (workspace / ".gitignore").write_text("check.log\nstubborn.pids\n")
    if shutil.which("git") is None:
        return
    me = {f"GIT_{who}_{what}": "demo@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    quiet = {**os.environ, **me, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "Begin"]):
        subprocess.run(["git", *words], cwd=workspace, env=quiet, check=True)


def play_work(model: ScriptedModel, workspace: Path) -> Script:
    """The model's part in the first run."""
    written = False

    def write(request: Request) -> Answer | None:
        nonlocal written
        if written:
            return None
        written = True
        lines = request.saw(STEER)
        said = "The check is through. " + ("You want lines as well: both go in." if lines else "Now the program.")
        return answer(
            say(said, chunks=12, delay_s=0.04),
            tool("Write", file_path=str(workspace / "wordcount.py"), content=_program(lines=lines)),
        )

    return model.script(
        "work",
        answer(
            say("I begin with the check, in the foreground, and wait for it.", chunks=12, delay_s=0.04),
            tool("Bash", command=f"python3 check.py {FIRST_CHECK}", description="Run the check"),
        ),
        write,
        answer(
            say("Written. Now the long check.", chunks=6, delay_s=0.04),
            tool("Bash", command=f"python3 check.py {LONG_CHECK}", description="Run the long check", timeout=600_000),
        ),
        say(
            "I made wordcount.py: it counts words and, as you asked on the way, lines. "
            "The long check was left off, as you said.",
            chunks=30,
            delay_s=0.03,
        ),
    )


def play_stubborn(model: ScriptedModel) -> Script:
    """The model's part in the second run."""
    return model.script("stubborn", answer(say("Here it goes."), tool("Bash", command="python3 stubborn.py")))


def _program(*, lines: bool) -> str:
    more = '\nprint(text.count("\\n"), "lines")' if lines else ""
    return f'import sys\n\ntext = sys.stdin.read()\nprint(len(text.split()), "words"){more}\n'
