"""One door to the program: `run` and `serve` load the shim alone, which stays, all other commands what they need.

What must not live here: anything that is not in the standard library of Python 3.9.
"""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    """One command; its exit code."""
    if arguments[:1] in (["run"], ["serve"]):
        from . import shim

        return shim.main(arguments)
    from . import control

    return control.main(arguments)
