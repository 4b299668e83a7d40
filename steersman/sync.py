"""The client for programs without an event loop: scripts, notebooks, threads.

    from steersman.sync import Steersman

    with Steersman.connect() as client:
        result = client.run({"agent": "claude", "prompt": "Mend the build", "workspace": {"path": "/src/app"}})

Each call is that of steersman.client.Steersman of the same name, with the same arguments, results and errors, and
returns when it is done. What is a stream there is an iterator here. Ctrl-C in `run` stops the run, as a cancel does
there. Many threads may share a client.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from temporalio.converter import PayloadCodec

from steersman import client, loops, threads
from steersman.contracts.loop_messages import LoopReceipt
from steersman.portal import Portal

if TYPE_CHECKING:
    from typing import Unpack

    from steersman.contracts.request import AgentName, RunRequest
    from steersman.threads import ThreadOptions, WorkspaceOption

A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class Blocking(Generic[A_co]):
    """Something asynchronous, and the portal through which it is used."""

    def __init__(self, portal: Portal, asynchronous: A_co) -> None:
        self._portal, self._async = portal, asynchronous


def _call(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Blocking[A_co], P], R]:
    def call(self: Blocking[A_co], /, *arguments: P.args, **named: P.kwargs) -> R:
        return self._portal.call(method(self._async, *arguments, **named))

    return functools.update_wrapper(call, method)


def _iterate(
    method: Callable[Concatenate[A_co, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Blocking[A_co], P], Generator[R, None, None]]:
    def iterate(self: Blocking[A_co], /, *arguments: P.args, **named: P.kwargs) -> Generator[R, None, None]:
        return self._portal.iterate(method(self._async, *arguments, **named))

    return functools.update_wrapper(iterate, method)


class Thread(Blocking[threads.Thread]):
    """See steersman.threads.Thread. `run` has no use for a signal here: another thread calls `interrupt`."""

    @property
    def id(self) -> str:
        """See there."""
        return self._async.id

    @property
    def template(self) -> "RunRequest":
        """See there."""
        return self._async.template

    run = _call(threads.Thread.run)
    run_streamed = _iterate(threads.Thread.run_streamed)
    start = _call(threads.Thread.start)
    runs = _call(threads.Thread.runs)
    attach = _iterate(threads.Thread.attach)
    interrupt = _call(threads.Thread.interrupt)

    def with_options(self, **fields: "Unpack[ThreadOptions]") -> "Thread":
        """See there."""
        return Thread(self._portal, self._async.with_options(**fields))

    def fork(self) -> "Thread":
        """See there."""
        return Thread(self._portal, self._portal.call(self._async.fork()))


class Loops(Blocking[loops.Loops]):
    """See steersman.loops.Loops."""

    start = _call(loops.Loops.start)
    fork = _call(loops.Loops.fork)
    result = _call(loops.Loops.result)
    stop = _call(loops.Loops.stop)
    follow = _iterate(loops.Loops.follow)
    state = _call(loops.Loops.state)
    list = _call(loops.Loops.list)
    checkpoints = _call(loops.Loops.checkpoints)
    clean = _call(loops.Loops.clean)
    diff = _call(loops.Loops.diff)
    pause = _call(loops.Loops.pause)
    resume = _call(loops.Loops.resume)
    feedback = _call(loops.Loops.feedback)
    remove_feedback = _call(loops.Loops.remove_feedback)
    revise = _call(loops.Loops.revise)
    restart = _call(loops.Loops.restart)
    skip_wait = _call(loops.Loops.skip_wait)
    exit = _call(loops.Loops.exit)
    rollback = _call(loops.Loops.rollback)

    def set_limits(self, loop: str, **limits: float | None) -> LoopReceipt:
        """See there."""
        return self._portal.call(self._async.set_limits(loop, **limits))


class Steersman(Blocking[client.Steersman]):
    """A client. `close` it, or use it in a `with`: that leaves all runs at work."""

    @classmethod
    def connect(
        cls,
        profile: str | None = None,
        address: str | None = None,
        namespace: str | None = None,
        codec: PayloadCodec | None = None,
    ) -> Self:
        """See steersman.client.Steersman.connect."""
        portal = Portal()
        try:
            return cls(portal, portal.call(client.Steersman.connect(profile, address, namespace, codec)))
        except BaseException:
            portal.close()
            raise

    def close(self) -> None:
        """End the client's thread. Runs go on, but for those that a call of another thread is waiting for in `run`.
        What other threads wait for raises RuntimeError.
        """
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def loops(self) -> Loops:
        """Everything that can be done to loops."""
        return Loops(self._portal, self._async.loops)

    def thread(
        self,
        *,
        agent: "AgentName",
        workspace: "WorkspaceOption",
        thread_id: str | None = None,
        session: str | None = None,
        fork_session: bool = False,
        **options: "Unpack[ThreadOptions]",
    ) -> Thread:
        """See steersman.client.Steersman.thread."""
        made = self._async.thread(
            agent=agent,
            workspace=workspace,
            thread_id=thread_id,
            session=session,
            fork_session=fork_session,
            **options,
        )
        return Thread(self._portal, made)

    def resume_thread(
        self, thread_id: str, *, workspace: "WorkspaceOption | None" = None, **options: "Unpack[ThreadOptions]"
    ) -> Thread:
        """See steersman.client.Steersman.resume_thread."""
        known = self._async.resume_thread(thread_id, workspace=workspace, **options)
        return Thread(self._portal, self._portal.call(known))

    start = _call(client.Steersman.start)
    run = _call(client.Steersman.run)
    result = _call(client.Steersman.result)
    attach = _iterate(client.Steersman.attach)
    attach_pages = _iterate(client.Steersman.attach_pages)
    events = _call(client.Steersman.events)
    state = _call(client.Steersman.state)
    list = _call(client.Steersman.list)
    steer = _call(client.Steersman.steer)
    interrupt = _call(client.Steersman.interrupt)
    decide = _call(client.Steersman.decide)
    stop = _call(client.Steersman.stop)
    diff = _call(client.Steersman.diff)
    undo = _call(client.Steersman.undo)
    checkpoints = _call(client.Steersman.checkpoints)
    workspaces = _call(client.Steersman.workspaces)
    describe_workspace = _call(client.Steersman.describe_workspace)
    retry_workspace = _call(client.Steersman.retry_workspace)
    discard_workspace = _call(client.Steersman.discard_workspace)
    history = _call(client.Steersman.history)
    prune = _call(client.Steersman.prune)
