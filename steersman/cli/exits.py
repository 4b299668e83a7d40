"""Exit codes of `steer`, and which error means which."""

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes, which scripts rely on. `steer --help` shows them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    REFUSED = 5
    CANCELLED = 6
    EXITED = 7
    BUG = 70
    DETACHED = 130
    TERMINATED = 143


MEANING: dict[Exit, str] = {
    Exit.OK: "done; of run and attach: the run succeeded, the loop is completed",
    Exit.FAILED: "the run or loop failed; undo left something; doctor found a problem; the replay diverged; "
    "a process of dev ended; stop could not verify; a file or the output could not be written",
    Exit.USAGE: "wrong usage or settings, a request that is refused as invalid, or a file that is named in it and "
    "cannot be read",
    Exit.NOT_FOUND: "no such run, loop or checkpoint, or file of replay; nothing was kept of what a run changed",
    Exit.UNREACHABLE: "no server, worker or host answers",
    Exit.REFUSED: "the run or loop did not take it: closed, already running, already decided, no such approval, "
    "or it cannot",
    Exit.CANCELLED: "the run or loop was cancelled",
    Exit.EXITED: "the loop exited before it was done: exit, or a limit",
    Exit.BUG: "an error in steer itself",
    Exit.DETACHED: "left with Ctrl-C or q, or by the reader of the output (`| head`), or not confirmed; the run or "
    "loop goes on, or stays paused; of stop, it ends all the same",
    Exit.TERMINATED: "left by SIGTERM or SIGHUP; the run or loop goes on",
}


def epilog() -> str:
    """The table for the end of `steer --help`."""
    # Blank lines, because the help joins the lines of a paragraph.
    return "Exit codes:\n\n" + "\n\n".join(f"{code.value:>3}  {meaning}" for code, meaning in MEANING.items())


def code_of(error: Exception) -> Exit | None:
    """The exit code for an error of the client; None for an error that is a bug."""
    from steersman import errors
    from steersman.contracts.errors import InvalidRequest, RunError
    from steersman.trust import TrustUnreadable

    table: tuple[tuple[type[Exception], Exit], ...] = (
        (InvalidRequest, Exit.USAGE),
        (RunError, Exit.FAILED),
        (errors.RunCancelled, Exit.CANCELLED),
        (errors.RunNotFound, Exit.NOT_FOUND),
        (errors.NothingKept, Exit.NOT_FOUND),
        (errors.Unreachable, Exit.UNREACHABLE),
        (errors.BadProfile, Exit.USAGE),
        (TrustUnreadable, Exit.FAILED),
        (errors.BadCodec, Exit.USAGE),
        (errors.UnreadablePayload, Exit.USAGE),
        (errors.ServerRefused, Exit.REFUSED),
        (errors.MessageRefused, Exit.REFUSED),
        (errors.RunNotRunning, Exit.REFUSED),
        (errors.AlreadyRunning, Exit.REFUSED),
    )
    return next((code for kind, code in table if isinstance(error, kind)), None)
