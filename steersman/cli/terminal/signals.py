"""Signal handlers in a running event loop, also on Windows, whose event loop takes none."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from steersman.cli.exits import Exit


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


@contextmanager
def leaving() -> Iterator[None]:
    """SIGTERM and SIGHUP cancel the task at hand, which puts away what it has begun; the command ends with 143."""
    told = asyncio.Event()
    task = asyncio.current_task()

    def leave() -> None:
        told.set()
        if task:
            task.cancel()

    undo = [handle("SIGTERM", leave)]
    if (hang_up := getattr(signal, "SIGHUP", None)) and signal.getsignal(hang_up) is not signal.SIG_IGN:
        undo.append(handle("SIGHUP", leave))  # nohup has it ignored
    try:
        yield
    except asyncio.CancelledError:
        if told.is_set():
            raise typer.Exit(Exit.TERMINATED) from None
        raise
    finally:
        for each in undo:
            each()


@contextmanager
def ending() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command with 143, also in a call that blocks: what it has begun is put away."""

    def end(*_: object) -> None:
        raise SystemExit(Exit.TERMINATED)

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {each: signal.signal(each, end) for each in known if signal.getsignal(each) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
