"""A terminal's input that stays raw while text is printed above the line: what is typed meanwhile is neither lost nor
echoed into the text. It is loaded with the line itself: prompt_toolkit is large.
"""

from contextlib import AbstractContextManager, nullcontext

from prompt_toolkit.input.vt100 import Vt100Input


class RawInput(Vt100Input):
    """prompt_toolkit takes the terminal out of raw mode for whatever prints above: there Ctrl-D ends nothing, Backspace
    erases nothing, and keys are echoed.
    """

    def cooked_mode(self) -> AbstractContextManager[None]:
        """Nothing: who needs a terminal that edits and echoes asks for `line_mode`."""
        return nullcontext()

    def line_mode(self) -> AbstractContextManager[None]:
        """Meanwhile the terminal edits and echoes lines, as it did before."""
        return super().cooked_mode()
