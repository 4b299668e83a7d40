"""What calls a person who looks elsewhere: the terminal's bell, or a notice of the desktop, which it passes on."""

from collections.abc import Callable
from typing import Final, Literal, TextIO

from steersman.cli.formatting import flat, shortened

Notify = Literal["bell", "desktop", "none"]
MAX_TEXT: Final = 200


def notifier(kind: Notify, out: TextIO) -> Callable[[str], None]:
    """What is told a short text. "desktop" is OSC 9, which terminals take over ssh, too; those that do not know it show
    nothing.
    """

    def ring(_text: str) -> None:
        out.write("\a")
        out.flush()

    def pass_on(text: str) -> None:
        out.write(f"\x1b]9;{shortened(flat(text), MAX_TEXT)}\x1b\\")
        out.flush()

    def say_nothing(_text: str) -> None:
        """Nobody wants to be called."""

    return {"bell": ring, "desktop": pass_on, "none": say_nothing}[kind]
