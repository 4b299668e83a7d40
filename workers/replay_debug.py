"""What the workflows' own code does in a replay: watched, to say which line diverged, and stepped through in pdb."""

import pdb  # noqa: T100 - what this is for
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

import workflows
from workers.wiring import WORKFLOWS
from workflows.runner import ReplaySafeRunner

_OURS: Final = str(Path(workflows.__file__).resolve().parent)
MAX_LINES: Final = 4

WELCOME = """\
The workflow begins here, in pdb. Breakpoints: b workflows/agent_run/workflow.py:100 and c; n and s go on by lines;
workflow.info().get_current_history_length() says how much of the history it has been given; q leaves.
"""


@dataclass(frozen=True)
class Deed:
    """Something that the workflow's code asked Temporal for: `what`, and the lines of ours that did, innermost first.
    `events`: how many of the history it had been given by then.
    """

    events: int
    what: str
    lines: tuple[str, ...]


async def last_deeds(history: WorkflowHistory, converter: DataConverter, runtime: Runtime) -> list[Deed]:
    """What the code at hand asked for in the last step that it came to. Timers are not seen."""
    deeds: list[Deed] = []
    replayer = _replayer(_Watched(deeds), converter, runtime)
    await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return [each for each in deeds if each.events == deeds[-1].events]


async def debug(history: WorkflowHistory, converter: DataConverter, runtime: Runtime) -> BaseException | None:
    """Replay with pdb on this process's terminal; what it diverged by. One thread: pdb traces no other."""
    with ThreadPoolExecutor(1) as executor:
        replayer = _replayer(_Stepped(), converter, runtime, executor)
        return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure


def _replayer(
    interceptor: Interceptor, converter: DataConverter, runtime: Runtime, executor: ThreadPoolExecutor | None = None
) -> Replayer:
    return Replayer(
        workflows=WORKFLOWS,
        data_converter=converter,
        build_id="replay",
        runtime=runtime,
        interceptors=[interceptor],
        workflow_runner=ReplaySafeRunner(UnsandboxedWorkflowRunner()),
        workflow_task_executor=executor,
        debug_mode=True,
    )


def _lines(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < MAX_LINES:
        name = str(Path(frame.f_code.co_filename).resolve())
        if name.startswith(_OURS):
            found.append(f"{Path('workflows', Path(name).relative_to(_OURS))}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)


class _Watched(Interceptor):
    def __init__(self, deeds: list[Deed]) -> None:
        self._deeds = deeds

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        deeds = self._deeds

        def note(what: str) -> None:
            events = workflow.info().get_current_history_length()
            deeds.append(Deed(events, what, _lines(sys._getframe(2))))  # noqa: SLF001 - documented

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
                note(f"activity {input.activity}")
                return super().start_activity(input)

            async def start_child_workflow(
                self, input: StartChildWorkflowInput
            ) -> workflow.ChildWorkflowHandle[Any, Any]:
                note(f"child {input.workflow}")
                return await super().start_child_workflow(input)

            async def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
                note(f"signal {input.signal}")
                await super().signal_child_workflow(input)

            async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
                note(f"signal {input.signal}")
                await super().signal_external_workflow(input)

            def continue_as_new(self, input: ContinueAsNewInput) -> Any:
                note("continue as new")
                super().continue_as_new(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


class _Stepped(Interceptor):
    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                sys.stdout.write(WELCOME)
                pdb.Pdb(nosigint=True).set_trace()
                return await super().execute_workflow(input)

        return Inbound
