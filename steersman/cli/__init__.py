"""The `steer` command.

`main` has the table of commands; `commands` and `loop` define them, `terminal` is what a person sees and types while
something is followed, `formatting` makes text. What a run or a loop is or does is known to the client alone.
"""

from steersman.contracts import deferral

deferral.models_are_deferred = True
