"""The row of agent "recipe": all that a worker knows of it before it leads a run. Loaded at the worker's start."""

import shutil
from collections.abc import Mapping, Sequence

from activities.agents.agent_kind import AgentKind, Finding
from steersman.contracts.agents import Capabilities
from steersman_recipe.agent import RecipeAgent


def _findings(environ: Mapping[str, str]) -> Sequence[Finding]:
    found = shutil.which("python3", path=environ.get("PATH"))
    if found is None:
        return (Finding("program of recipe", "no python3 on PATH", ok=False, hint="install it"),)
    return (Finding("program of recipe", f"runs by {found}"),)


RECIPE = AgentKind(
    name="recipe",
    make=lambda environ, _lent: RecipeAgent(environ),
    findings=_findings,
    # All that it can is said, and so is what it cannot: a row without `turns` is read as one of an older version.
    can=Capabilities(
        steer=True,
        interrupt=False,
        resume=True,
        fork=False,
        structured_output=True,
        permissions=False,
        turns=False,
        tokens=False,
        cost=False,
    ),
    variables=frozenset({"RECIPE_HOME"}),
    variables_of_machine=frozenset({"RECIPE_HOME"}),
)
