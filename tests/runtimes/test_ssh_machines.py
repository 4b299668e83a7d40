"""Which machines a worker reaches: those that its operator allows, and those that a run was let go to."""

import json
from pathlib import Path

import pytest

from activities.admission.policy import Policy
from activities.admission.ssh_patterns import SshPattern
from activities.runtimes.ssh_machines import SshMachines
from activities.shim.client import MachineUnusable
from activities.store.ownership import Ownership
from activities.store.run_directory import RunDirectory
from activities.store.runs import RunStore
from steersman.contracts.activities import RunKey
from steersman.contracts.runtime import SshRuntime


def machines(*patterns: str) -> SshMachines:
    policy = Policy({}, allow_ssh=tuple(map(SshPattern.of, patterns)))
    return SshMachines(policy.check_runtime, {})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    placement = SshRuntime(kind="ssh", address="place").model_dump(mode="json")
    return RunStore(tmp_path, Ownership("c", "n")).create(RunKey(run="run", execution="e"), placement)


def test_what_was_let_go_there_is_reached_when_the_machine_is_not_allowed_any_more(run: RunDirectory) -> None:
    with pytest.raises(MachineUnusable, match="place is not allowed on this worker"):
        machines("other").of(run)
    assert machines("pl*").of(run).name == "place"
    assert machines("other").of(run).name == "place"
    machines("other").bulk(run)


def test_another_machine_than_the_one_that_was_allowed_is_not(run: RunDirectory) -> None:
    machines("place").of(run)
    meta = run.path / "run.json"
    facts = json.loads(meta.read_text())
    meta.write_text(json.dumps({**facts, "runtime": {**facts["runtime"], "address": "secret"}}))
    with pytest.raises(MachineUnusable, match="secret is not allowed"):
        machines("place").of(run)
