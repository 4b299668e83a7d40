"""When a session of Gemini CLI may be loaded. Only looked at here.

Its file is named by the minute in which it began and the id's beginning (`session-2026-11-24T21-35-b7f963ac.jsonl`).
`session/load` in that minute finds no session, and leaves a file that is none any more (measured with 0.61.0).
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

MARGIN_S = 1.0


def wait_s(session: str, environ: Mapping[str, str], *, is_here: bool) -> float:
    """Seconds until the session may be loaded; until the next minute for one that is elsewhere.

    `session`: an id as requests may have it.
    """
    left = 60 - time.time() % 60 + MARGIN_S
    if not is_here:
        return left
    home = environ.get("GEMINI_CLI_HOME") or environ.get("HOME")
    minute = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M")
    name = f"session-{minute}-{session[:8]}.json*"
    return left if home and any(Path(home, ".gemini", "tmp").glob(f"*/chats/{name}")) else 0.0
