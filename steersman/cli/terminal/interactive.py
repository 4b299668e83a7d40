"""Whether a person can be asked at the terminal."""

import sys

try:
    import termios
except ImportError:  # Windows
    CAN_ASK = False
else:
    CAN_ASK = bool(termios)


def is_interactive() -> bool:
    """Whether stdin and stdout are a terminal, on a system whose terminals this program can ask at."""
    return CAN_ASK and sys.stdin.isatty() and sys.stdout.isatty()
