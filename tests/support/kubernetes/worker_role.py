"""What `deploy/kubernetes/` allows a worker's account: the Role itself, and as rules of the tests' cluster."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.kubernetes.access import Rule

ACCESS = Path(__file__).parents[3] / "deploy/kubernetes/access.yaml"


def role() -> dict[str, Any]:
    """The object."""
    (found,) = [each for each in yaml.safe_load_all(ACCESS.read_text()) if each["kind"] == "Role"]
    return dict(found)


def worker_role(namespace: str) -> tuple[Rule, ...]:
    """One rule for each verb, in this namespace alone."""
    return tuple(
        Rule(verb, resource, group, namespace)
        for rule in role()["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )
