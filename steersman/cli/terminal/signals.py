"""Signals in a running loop, also where its kind takes no handlers (Windows)."""

import asyncio
import signal
from collections.abc import Callable


def handle(name: str, act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` in the loop at each signal of that name, which the system may not have; what ends that."""
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
