"""What `<Tab>` offers, by the protocol of bash."""

import secrets

from steersman.client import Steersman
from tests.cli.steer import Steer
from tests.support.processes import until


async def offered(steer: Steer, *words: str, **env: str) -> list[str]:
    """What would complete the last of these words."""
    said = await steer(
        **env, _STEER_COMPLETE="complete_bash", COMP_WORDS=" ".join(("steer", *words)), COMP_CWORD=str(len(words))
    )
    assert said.code == 0, said.err
    return said.out.split()


async def test_ids_of_runs_and_loops_and_agents_are_offered(steer: Steer, steersman: Steersman) -> None:
    name = f"tab-{secrets.token_hex(3)}"
    request = {"agent": "process", "command": ["true"], "workspace": {"path": "/tmp"}}
    for each in ("one", "two"):
        await steersman.start(request, run_id=f"{name}-{each}")
    expected = [f"{name}-one", f"{name}-two"]

    async def listed() -> bool:
        return len(await steersman.list(f'WorkflowId STARTS_WITH "{name}"')) == 2

    await until(listed)
    for command in ("show", "attach", "result", "stop", "steer"):
        assert sorted(await offered(steer, command, name)) == expected
    assert await offered(steer, "show", f"{name}-o") == [f"{name}-one"]
    assert await offered(steer, "show", 'x" OR 1=1') == []
    assert await offered(steer, "loop", "pause", name) == []
    assert await offered(steer, "run", "c") == ["claude", "codex"]


async def test_without_a_server_nothing_is_offered_and_nothing_is_said(steer: Steer) -> None:
    assert await offered(steer, "show", "a", TEMPORAL_ADDRESS="127.0.0.1:1") == []
