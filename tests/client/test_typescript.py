"""TypeScript's types of the wire, made from the schemas, and the official client that they are used with.

Where a shape has changed, write the file anew: `python -m tests.client.test_typescript`.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from steersman.client import Steersman
from steersman.contracts import schemas
from tests.client.fake_host import FakeHost, succeeded
from tests.support.processes import until
from tests.support.programs import NODE_MODULES, program
from tests.support.temporal import Namespace

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "typescript"
TYPES = EXAMPLE / "steersman.d.ts"
HEAD = "/** What goes over Steersman's wire. Made from docs/schemas.json: not to be changed by hand. */\n\n"
_NOISE = re.compile(
    r"( \*\n)? \* This interface was referenced by `Schemas`'s JSON-Schema\n \* via the `definition` .*\n"
)
_EMPTY = re.compile(r"/\*\*\n \*/\n|export interface Schemas \{\n.*\n\}\n")


def types() -> str:
    """The text of the file. Skips where the generator is not installed."""
    given = json.dumps({**_bare(schemas.schemas()), "title": "Schemas"})
    command = [program("json2ts"), "--unreachableDefinitions", "--additionalProperties=false", "--bannerComment", ""]
    made = subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
    return HEAD + _EMPTY.sub("", _NOISE.sub("", made)).lstrip()


def _bare(node: Any) -> Any:
    """Without titles, which would become types of their own. What tells models apart is in each of them."""
    if isinstance(node, list):
        return [_bare(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {
        name: {key: _bare(each) for key, each in value.items()} if name in ("properties", "$defs") else _bare(value)
        for name, value in node.items()
        if name != "title" or not isinstance(value, str)
    }
    if told := [name for name, each in found.get("properties", {}).items() if "const" in each]:
        found["required"] = [
            *found.get("required", ()),
            *(name for name in told if name not in found.get("required", ())),
        ]
    return found


def test_what_is_written_is_what_is_spoken() -> None:
    assert TYPES.read_text() == types()


async def test_the_official_client(
    fake_host: FakeHost, steersman: Steersman, client_namespace: Namespace, workspace: str, tmp_path: Path
) -> None:
    compiler = program("tsc")
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    compiled = subprocess.run([compiler, "-p", tmp_path], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stdout
    with subprocess.Popen(
        ["node", tmp_path / "run.js", workspace, "go"],
        env={**os.environ, **client_namespace.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        run = f"typescript-{process.pid}"
        await until(lambda: fake_host.fake_run(run).messages)
        assert [each.text for each in fake_host.fake_run(run).messages] == ["Leave the slow tests out"]
        assert process.stdout
        said = [await asyncio.to_thread(process.stdout.readline) for _ in range(2)]
        fake_host.finish(run, succeeded("all of them pass"))
        result = await steersman.result(run)
        said.append((await asyncio.to_thread(process.communicate, timeout=60))[0])
    assert result.status == "succeeded"
    assert "".join(said).splitlines() == [
        "slow-tests is acknowledged",
        "phase running",
        "succeeded: all of them pass",
    ]


if __name__ == "__main__":
    TYPES.write_text(types())
