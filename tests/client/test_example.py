"""The example in docs/python.md is the one that is type-checked, and it runs."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from steersman import client
from steersman.client import Steersman
from tests.client import example_threads
from tests.client.fake_host import FakeHost, succeeded

pytestmark = pytest.mark.integration


def test_the_documentation_shows_the_example_that_is_checked() -> None:
    source = Path(example_threads.__file__).read_text()
    shown = source[source.index("import asyncio") :]
    assert f"```python\n{shown}```\n" in (Path(__file__).parents[2] / "docs" / "python.md").read_text()


def test_what_most_programs_need_is_at_the_top_and_loaded_on_demand() -> None:
    from steersman import RunCancelled, RunError, Steersman  # noqa: PLC0415 - what is tried

    assert issubclass(RunCancelled, Exception)
    assert issubclass(RunError, Exception)
    assert Steersman is client.Steersman
    light = "import steersman, sys; sys.exit(bool({'pydantic', 'temporalio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0


async def test_it_runs(
    steersman: Steersman, fake_host: FakeHost, workspace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer_each() -> None:
        while True:
            for run, fake in fake_host.fake_runs.items():
                if fake.started.is_set() and not fake.ending.done():
                    fake_host.finish(run, succeeded(f"the answer of {run}"))
            await asyncio.sleep(0.01)

    answering = asyncio.create_task(answer_each())
    thread = await example_threads.begin(steersman, workspace)
    await example_threads.go_on(steersman, thread)
    answering.cancel()

    assert f"the answer of {thread}" in capsys.readouterr().out
    assert [each.id for each in await steersman.list(f'WorkflowId="{thread}"')][:1] == [thread]
