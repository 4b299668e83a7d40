"""What a run tells its workflow is told, in order, whatever the payload codec does meanwhile."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from activities.running.progress import ProgressReporter
from activities.running.starts import Starts
from activities.temporal.notifier import WorkflowNotifier
from steersman.contracts.activities import ApprovalAsked, Progressed
from steersman.contracts.names import APPROVAL_ASKED, PROGRESSED
from steersman.contracts.run import Approval
from tests.support.processes import until


class Handle:
    """A workflow's, by a codec whose keys are away at first."""

    id = "run-1"

    def __init__(self) -> None:
        self.away = 2
        self.heard: list[str] = []

    async def signal(self, name: str, _argument: Any) -> None:
        if self.away:
            self.away -= 1
            raise OSError("the key service does not answer")
        self.heard.append(name)


async def test_a_codec_that_fails_for_a_while_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    handle: Any = Handle()

    @activity.defn
    async def lead() -> None:
        reporter = ProgressReporter(notifier := WorkflowNotifier(handle, "queue", approvals=True), Starts())
        approval = Approval(id="a", tool="Bash", input={}, since=datetime.now(UTC))
        reporter.put(lambda: notifier.progressed(Progressed()))
        reporter.put(lambda: notifier.asked(ApprovalAsked(approval=approval)))

        telling = asyncio.create_task(reporter.run())
        await until(lambda: len(handle.heard) == 2)
        telling.cancel()

    with caplog.at_level(logging.WARNING):
        await ActivityEnvironment().run(lead)
    assert handle.heard == [PROGRESSED, APPROVAL_ASKED]
    (line,) = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "not_told"]
    assert "the key service does not answer" in line
