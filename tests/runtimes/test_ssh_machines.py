"""Which machines a worker reaches: those that its operator allows, and those that a run was let go to."""

from pathlib import Path

import pytest

from activities.admission.policy import Policy
from activities.admission.ssh_patterns import SshPattern
from activities.runtimes.ssh_machines import SshMachines
from activities.shim.client import MachineUnusable
from steersman.contracts.model import JsonObject
from steersman.contracts.runtime import SshRuntime


def machines(state: Path, *patterns: str) -> SshMachines:
    policy = Policy({}, allow_ssh=tuple(map(SshPattern.of, patterns)))
    return SshMachines(policy.check_runtime, {}, admitted=state / "machines")


def at(address: str) -> JsonObject:
    return SshRuntime(kind="ssh", address=address).model_dump(mode="json")


def test_what_was_let_go_there_is_reached_when_the_machine_is_not_allowed_any_more(tmp_path: Path) -> None:
    with pytest.raises(MachineUnusable, match="place is not allowed on this worker"):
        machines(tmp_path, "other").of(at("place"))
    assert machines(tmp_path, "pl*").of(at("place")).name == "place"
    again = machines(tmp_path, "other")
    assert again.of(at("place")).name == "place"
    again.bulk(at("place"))


def test_another_machine_than_the_one_that_was_allowed_is_not(tmp_path: Path) -> None:
    machines(tmp_path, "place").of(at("place"))
    with pytest.raises(MachineUnusable, match="secret is not allowed"):
        machines(tmp_path, "place").of(at("secret"))
