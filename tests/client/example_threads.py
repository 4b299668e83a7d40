"""The example of docs/python.md, as it stands there: checked by mypy, and run by test_example.

No test belongs here.
"""

# ruff: noqa: T201 - it shows what comes
import asyncio

from steersman.client import Steersman
from steersman.errors import RunInterrupted, ThreadBusy
from steersman.threads import AbortSignal


async def begin(steersman: Steersman, workspace: str) -> str:
    thread = steersman.thread(agent="claude", workspace=workspace, limits={"cost_usd": 2})
    result = await thread.run("Find out why the tests fail")
    print(result.text)

    async for event in thread.run_streamed("Mend the first of them"):
        print(event.seq, event.type)

    signal = AbortSignal()
    asyncio.get_running_loop().call_later(600, signal.abort, "ten minutes are over")
    try:
        result = await thread.run("Now the others", signal=signal)
        print(result.text)
    except RunInterrupted as error:
        print(error.code, error.reason)
    return thread.id


async def go_on(steersman: Steersman, thread_id: str) -> None:
    thread = await steersman.resume_thread(thread_id)
    try:
        await thread.run("What is left to do?")
    except ThreadBusy as busy:
        print(busy.run, "is at work")
        await thread.interrupt("something else comes first")
    fork = await thread.fork()
    await fork.run("Try it the other way round", on_running="interrupt")
