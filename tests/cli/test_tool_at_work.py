"""What a tool at work puts out, at a real terminal."""

import pytest

from steersman.client import Steersman
from tests.cli.steer import Steer
from tests.cli.test_commands import begin
from tests.cli.test_input_line import attached
from tests.cli.test_terminal import MENU, until
from tests.client.fake_host import FakeHost, init, said, succeeded, tool_output, tool_result, tool_use

pytestmark = pytest.mark.acceptance


@pytest.fixture
async def run(fake_host: FakeHost, steersman: Steersman, workspace: str) -> str:
    """At work."""
    run = await begin(steersman, workspace)
    fake_host.show(run, init())
    return run


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1", "COLUMNS": "60"}], ids=["100", "60-no-color"])
async def test_output_of_a_tool_at_work_gives_way_to_its_result(
    steer: Steer, fake_host: FakeHost, run: str, env: dict[str, str]
) -> None:
    terminal = await attached(steer, run, **env)
    if "COLUMNS" in env:
        terminal.resize(int(env["COLUMNS"]))
    terminal.type("half a line")
    fake_host.show(run, tool_use("Bash", command="make test"))
    for number in range(30):
        output = f"\x1b[32mtest_{number}\x1b[0m \x1b[1A10%\r{'x' * 200}\rnumber {number} passed\r\n"
        fake_host.show(run, tool_output("Bash", output))
    last = [f"  │ number {number} passed" for number in range(25, 30)]
    await until(lambda: terminal.screen()[-8:-1] == ["▸ Bash make test", *last, "» half a line"])
    fake_host.show(run, tool_output("Bash", "number 29 went on " + "and on " * 30))
    await until(lambda: "went on" in "".join(terminal.screen()[-3:-2]))
    assert all(len(line) <= terminal.columns for line in terminal.screen())
    fake_host.show(run, tool_result("Bash", "30 passed"))
    await until(lambda: terminal.screen()[-3:-1] == ["  │ 30 passed", "» half a line"])
    assert not any("number" in line for line in terminal.screen())
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    assert not any("number" in line for line in terminal.screen()), "nothing of it is left"
    assert not any(char in terminal.raw for char in ("\x1b[32m", "\x1b[1A10%"))


async def test_what_an_agent_says_beside_its_tool_at_work(steer: Steer, fake_host: FakeHost, run: str) -> None:
    terminal = await attached(steer, run)
    fake_host.show(run, tool_use("Bash", command="make"), tool_output("Bash", "compiling\n"))
    await until(lambda: terminal.screen()[-3:-2] == ["  │ compiling"])
    fake_host.show(run, said("meanwhile ", delta=True, message_id="m"))
    await until(lambda: terminal.screen()[-3:-2] == ["meanwhile"])
    fake_host.show(run, tool_output("Bash", "linking\n"), said("nothing", delta=True, message_id="m"))
    await until(lambda: terminal.screen()[-3:-2] == ["meanwhile nothing"])
    fake_host.show(run, said("meanwhile nothing", message_id="m"))
    await until(lambda: terminal.screen()[-5:-2] == ["meanwhile nothing", "  │ compiling", "  │ linking"])
    terminal.ctrl_c()
    await terminal.until(MENU)
    terminal.type("k\n")
    await until(lambda: terminal.screen()[-3:-2] == ["  │ linking"])
    fake_host.finish(run, succeeded())
    assert await terminal.ended() == 0
    assert not any("linking" in line for line in terminal.screen()), "the run has ended, and its tools with it"
