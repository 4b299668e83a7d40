"""What a worker imports while the SDK's sandbox runs workflows in its threads."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BESIDE_WORKFLOWS = """
import asyncio, os, threading
from temporalio.worker.workflow_sandbox import SandboxRestrictions
from temporalio.worker.workflow_sandbox._importer import Importer, RestrictionContext
from activities.agents.entry_points import installed_catalog
from workers.housekeeping import load_agents, load_extensions

def workflows():
    importer = Importer(SandboxRestrictions.default, RestrictionContext())
    while True:
        with importer.applied():
            for _ in range(1000):
                pass

load_extensions()
threading.Thread(target=workflows, daemon=True).start()
asyncio.run(load_agents(list(installed_catalog().make(os.environ, frozenset())[0].values())))
os._exit(0)
"""


def test_agents_are_loaded_beside_workflows_that_run() -> None:
    command = [sys.executable, "-c", BESIDE_WORKFLOWS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    assert done.stdout + done.stderr == ""
