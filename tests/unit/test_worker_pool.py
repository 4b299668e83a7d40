"""`worker.py pool`: a Deployment for kubectl, or what is wrong with what was asked for."""

import json

import pytest

from steersman.contracts.kubernetes import PREFIX
from workers.arguments import argument_parser
from workers.settings import BadSettings, pool_of

RUNTIME = {"kind": "kubernetes", "namespace": "agents", "image": "example.com/agent:1", "pool": "warm"}


def test_it_keeps_so_many_pods_with_the_label_of_the_pool() -> None:
    printed = pool_of(argument_parser({}).parse_args(["pool", json.dumps(RUNTIME), "--replicas", "3"]))
    assert (printed["kind"], printed["metadata"]["name"]) == ("Deployment", "steersman-pool-warm")  # type: ignore[index, call-overload]
    spec = json.loads(json.dumps(printed))["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["metadata"]["labels"][f"{PREFIX}pool"] == "warm"
    assert spec["template"]["spec"]["containers"][0]["image"] == "example.com/agent:1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pool", "x"], "pool: "),
        (["pool", json.dumps({**RUNTIME, "pool": None})], "has to name it"),
        (["pool", json.dumps({**RUNTIME, "pool": "A B"})], "pool"),
        (["pool", json.dumps({**RUNTIME, "queue": "q"})], "its pods wait for no queue"),
        (["pool", json.dumps({"kind": "local"})], "pool: "),
        (["pool", json.dumps(RUNTIME), "--replicas", "-1"], "--replicas"),
        (["pool", json.dumps(RUNTIME), "--replicas", "10000"], "--replicas"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        pool_of(argument_parser({}).parse_args(words))
