"""Limits are held in the middle of a turn, over all attempts, and for agents that say nothing."""

import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from steersman.client import Steersman
from steersman.contracts.errors import AgentFailed, BudgetExceeded, RunError, RunTimedOut
from tests.acceptance.programs import OBEDIENT, STUBBORN, python
from tests.acceptance.site import Site, claudes, following, gone, in_order
from tests.scripted_model import ScriptedModel, Usage, answer, fail, hold, say, tool
from tests.scripted_model.steps import Hold
from tests.support.processes import marked, until

FULL = {"mode": "full"}


async def fails(steersman: Steersman, run: str, mark: str, kind: type[RunError], field: str) -> RunError:
    """The failure by which the run closes, when it is of that kind, names the field and nothing is left."""
    with pytest.raises(kind, match=field) as failure:
        await steersman.result(run)
    await gone(mark)
    events = await steersman.events(run)
    assert in_order(events)
    assert events[-1].type == "failed"
    assert events[-1].error == kind.type
    return failure.value


@pytest.mark.exhaustive
async def test_turns(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("turns", tool("Bash", command="sleep 0.5"), repeat=True)
    request = shared.claude(script, mark=mark, permissions=FULL, limits={"turns": 3})
    run = await steersman.start(request)

    await fails(steersman, run, mark, BudgetExceeded, "limits.turns")

    assert 3 <= len(script.requests) <= 4


@pytest.mark.exhaustive
async def test_cost_in_the_middle_of_a_turn(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    dear = answer(say("this will be dear"), Hold(), usage=Usage(input=1_000_000))
    script = model.script("cost", dear)
    run = await steersman.start(shared.claude(script, mark=mark, limits={"cost_usd": 0.5}))

    failure = await fails(steersman, run, mark, BudgetExceeded, "limits.cost_usd")

    assert await script.wait_outcome(script.requests[0]) == "hung up"
    assert "cost" in failure.message
    assert (await steersman.state(run)).cost_usd > 0.5


async def test_cost_over_attempts(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    dear = answer(say("half of it"), Hold(), usage=Usage(input=100_000))
    script = model.script("cost", dear, dear, say("never said"))
    run = await steersman.start(shared.claude(script, mark=mark, limits={"cost_usd": 0.5}))
    async with following(steersman, run) as attached:
        await attached.until(lambda e: e.type == "usage" and e.cost_usd > 0.3)
        agents = claudes(mark)
        os.kill(agents[0], signal.SIGKILL)

    await fails(steersman, run, mark, BudgetExceeded, "limits.cost_usd")
    assert (await steersman.state(run)).attempt == 2


@pytest.mark.exhaustive
async def test_tokens_in_the_middle_of_a_turn(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    much = answer(say("this will be long"), Hold(), usage=Usage(input=600, cache_read=300, cache_write=200))
    script = model.script("tokens", much)
    run = await steersman.start(shared.claude(script, mark=mark, limits={"tokens": 1000}))

    await fails(steersman, run, mark, BudgetExceeded, "limits.tokens")

    assert await script.wait_outcome(script.requests[0]) == "hung up"


@pytest.mark.exhaustive
async def test_a_limit_of_the_provider_is_told_as_a_fact(
    shared: Site, steersman: Steersman, model: ScriptedModel, mark: str
) -> None:
    script = model.script("refused", tool("Bash", command="true"), fail(429, "slow down", retry_after_s=45))
    began = datetime.now(UTC)
    run = await steersman.start(shared.claude(script, mark=mark, permissions=FULL, limits={"rate_limit_s": 60}))

    failure = await fails(steersman, run, mark, AgentFailed, "limits this account")

    limit = failure.result.facts["rate_limit"] if failure.result else None
    assert isinstance(limit, dict)
    assert limit["limit"] is None
    assert began + timedelta(seconds=44) < datetime.fromisoformat(str(limit["resets_at"]))


@pytest.mark.exhaustive
async def test_duration_of_a_program_that_will_not_go(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(STUBBORN), mark=mark, limits={"duration_s": 1.5}))

    await fails(steersman, run, mark, RunTimedOut, "limits.duration_s")

    report = (await steersman.state(run)).stop_report
    assert report is not None
    assert (report.outcome, report.how) == ("stopped", "killed")


@pytest.mark.exhaustive
async def test_a_silent_program(shared: Site, steersman: Steersman, mark: str) -> None:
    run = await steersman.start(shared.process(*python(OBEDIENT), mark=mark, limits={"idle_s": 1}))

    await fails(steersman, run, mark, RunTimedOut, "limits.idle_s")


@pytest.mark.exhaustive
async def test_a_model_that_hangs(shared: Site, steersman: Steersman, model: ScriptedModel, mark: str) -> None:
    script = model.script("hang", hold("thinking"))
    run = await steersman.start(shared.claude(script, mark=mark, limits={"idle_s": 2}))

    await fails(steersman, run, mark, RunTimedOut, "limits.idle_s")


@pytest.mark.exhaustive
async def test_who_says_something_now_and_then_is_not_idle(shared: Site, steersman: Steersman) -> None:
    talk = "import time\nfor number in range(14):\n    print(number); time.sleep(0.3)"
    result = await steersman.run(shared.process(*python(talk), limits={"idle_s": 2.5}))

    assert result.text.splitlines()[-1] == "13"


@pytest.mark.exhaustive
async def test_a_limit_that_passed_while_the_worker_was_dead(site: Site, mark: str) -> None:
    worker = site.worker()
    steersman = await site.steersman()
    await worker.ready()
    run = await steersman.start(site.process(*python(OBEDIENT), mark=mark, limits={"duration_s": 3}))
    await until(lambda: marked(mark))
    worker.kill()

    await site.worker().ready()

    await fails(steersman, run, mark, RunTimedOut, "limits.duration_s")
