"""Signal handlers in a running event loop, also on Windows, whose event loop takes none."""

import asyncio
import signal
from collections.abc import Callable


def handle(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` in the event loop at each signal of that name; a function that undoes it.

    Nothing is done for a signal that the system does not have.
    """
    number: signal.Signals | None = getattr(signal, name, None)
    if number is None:
        return lambda: None
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, act)
    except NotImplementedError:
        before = signal.signal(number, lambda *_: loop.call_soon_threadsafe(act))
        return lambda: _restore(number, before)
    return lambda: _remove(loop, number)


def _remove(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
    loop.remove_signal_handler(number)


def _restore(number: signal.Signals, before: "signal._HANDLER") -> None:
    signal.signal(number, before)
