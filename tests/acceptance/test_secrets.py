"""A secret's value reaches the agent's environment and nothing else: no history, log, argument, event or open file."""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from steersman.client import Steersman
from tests.acceptance.programs import python
from tests.acceptance.site import Site, following
from tests.scripted_model import ScriptedModel, say, tool
from tests.support.files import below, files_with
from tests.support.processes import command_lines, marked, until

DIGESTS = """
import hashlib, os, pathlib, time
for name in ("FROM_ENV", "FROM_FILE"):
    print(hashlib.sha256(os.environ[name].encode()).hexdigest())
while not pathlib.Path("go").exists():
    time.sleep(0.02)
raise SystemExit(3)
"""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def open_to_others(root: Path) -> list[tuple[Path, str]]:
    """What others than the owner may enter or read: anything that is not 0700 or 0600."""
    modes = []
    for path in [root, *below(root)]:
        with contextlib.suppress(FileNotFoundError):
            if not path.is_symlink():
                modes.append((path, stat.S_IMODE(path.lstat().st_mode)))
    return [(path, oct(mode)) for path, mode in modes if mode not in {0o700, 0o600}]


def others_may_read(path: Path) -> bool:
    """Not what is gone by now: what a closed run had beside it is cleared away."""
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
    except FileNotFoundError:
        return False


async def history_of(steersman: Steersman, run: str) -> str:
    """Everything that Temporal keeps of a run, payloads decoded."""
    history = await steersman.temporal.get_workflow_handle(run).fetch_history()
    return b"".join(event.SerializeToString() for event in history.events).decode("utf-8", "replace")


@pytest.fixture
def umask() -> Iterator[None]:
    """The most careless one there is."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.exhaustive
async def test_secrets_stay_with_the_agent(site: Site, model: ScriptedModel, mark: str, umask: None) -> None:
    in_env, in_file, token = (f"sentinel-{secrets.token_hex(12)}" for _ in range(3))
    vault = site.root / "vault"
    vault.mkdir(mode=0o700)
    (vault / "key").write_text(f"{in_file}\n")
    worker = site.worker("--allow-env", "VAULT_KEY", "--allow-file", str(vault), VAULT_KEY=in_env)
    steersman = await site.steersman()
    await worker.ready()
    workspace, other_workspace = site.workspace(), site.workspace()
    env = {"FROM_ENV": {"from_env": "VAULT_KEY"}, "FROM_FILE": {"from_file": str(vault / "key")}}
    script = model.script("secret", tool("Bash", command="until test -e go; do sleep 0.05; done"), say("done"))
    mcp = {"command": "true", "env": {"TOKEN": {"from_env": "VAULT_KEY"}}}
    program = await steersman.start(site.process(*python(DIGESTS), workspace=workspace, env=env, mark=mark))
    claude = await steersman.start(
        site.claude(
            script,
            workspace=other_workspace,
            env={**env, "OTHER": token},
            permissions={"mode": "full"},
            options={"mcp_servers": {"tools": mcp}},
        )
    )
    async with following(steersman, program) as attached, following(steersman, claude) as other:
        await attached.until(lambda e: e.type == "message" and e.text == digest(in_env))
        await attached.until(lambda e: e.type == "message" and e.text == digest(in_file))
        await other.until(lambda e: e.type == "tool_use")
        assert marked(in_env)
        seen = "\n".join(command_lines().values())
        for each in (workspace, other_workspace):
            (each / "go").touch()
        await attached.end()
        await other.end()

    histories = "".join([await history_of(steersman, run) for run in (program, claude)])
    logs = worker.log.read_text(encoding="utf-8")
    for value in (in_env, in_file):
        assert value not in seen
        assert value not in histories
        assert value not in logs
        readable = [
            path for path in files_with(site.root, value) if path.is_relative_to(site.state) and others_may_read(path)
        ]
        assert not readable
        assert not [path for path in files_with(site.state, value) if path.name in {"events.jsonl", "journal"}]
    # A literal is no secret, and is what tells that the histories were looked into.
    assert token in histories
    assert not open_to_others(site.state)


async def test_what_is_left_of_a_closed_run_holds_no_secret(site: Site) -> None:
    value = f"sentinel-{secrets.token_hex(12)}"
    await site.worker("--allow-env", "VAULT_KEY", VAULT_KEY=value).ready()
    steersman = await site.steersman()
    await steersman.run(site.process("true", env={"A": {"from_env": "VAULT_KEY"}}))

    await until(lambda: not files_with(site.state, value))
