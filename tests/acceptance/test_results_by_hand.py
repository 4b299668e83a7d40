"""Somebody completes a run's activity by hand, with what looks like a result of it, while the agent is at work."""

import json
from functools import partial

from steersman.client import Steersman
from tests.acceptance.site import Site, in_order
from tests.support.processes import marked, until


async def test_the_run_has_closed_once_its_agent_is_gone(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process("sleep", "600", mark=mark))
    await until(partial(marked, mark))
    agent = await until(partial(pending, shared, run, "run_agent"))

    by_hand = json.dumps({"status": "succeeded", "text": "by hand"})
    await shared.temporal("activity", "complete", "-w", run, "-a", agent, "--result", by_hand)
    result = await steersman.result(run)

    assert marked(mark) == {}
    assert (result.status, result.text) == ("succeeded", "by hand")
    events = await steersman.events(run)
    assert in_order(events)
    assert events[-1].type == "done"


async def pending(site: Site, run: str, activity: str) -> str | None:
    """The id of the run's activity of that type, while it is under way."""
    found = (await site.temporal("workflow", "describe", "-w", run)).get("pendingActivities", [])
    return next((each["activityId"] for each in found if each["activityType"]["name"] == activity), None)
