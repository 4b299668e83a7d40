"""How many files and sockets this process may have open.

What becomes of a run that finds none left must not live here: see activities.run_failures.
"""

import contextlib
import logging
import resource

from workers import logs

OF_A_RUN = 6
"""A run that is led has 4 open (two connections, its log, its registration), and 2 more while it starts."""
OF_A_WORKER = 64
"""One without runs has 20 open, and a dozen more while it looks at workspaces and answers readers."""
MOST_OF_MACOS = 10240
"""All that macOS grants where its limit says "infinity"."""


def raise_limit(max_runs: int) -> int:
    """Take all that the system grants, and warn where that is too few for so many runs.

    Returns the limit that there was before, for the programs that this process starts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MOST_OF_MACOS):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return soft
    if most < (needed := OF_A_WORKER + OF_A_RUN * max_runs):
        text = (
            f"this worker may have {most} files and sockets open, and --max-runs {max_runs} may need {needed}: raise "
            "its limit (LimitNOFILE= of its unit, or ulimit -n), or lower --max-runs"
        )
        logs.write("few_descriptors", text, level=logging.WARNING, limit=most, needed=needed)
    return soft
