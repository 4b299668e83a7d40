"""A home that has Claude Code, for pods whose image has none."""

import shutil
from pathlib import Path

from activities.agents.claude.agent import ClaudeAgent


def furnish(home: Path) -> None:
    """Put it on the PATH of a login there; whoever lives there may keep more beside it."""
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local").chmod(0o777)
    (home / ".profile").write_text('PATH="$HOME/.local/bin:$PATH"\n')
    program = ClaudeAgent({}).program()
    try:
        (home / ".local" / "bin" / "claude").hardlink_to(program)
    except OSError:
        shutil.copy(program, home / ".local" / "bin" / "claude")
