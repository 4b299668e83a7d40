"""How the conformance suite makes agent "recipe" do things. Loaded by `steer agents test recipe` alone."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance import FAMILY, Kit, ScriptedModel, Stage, Staged, staged
from steersman_recipe.agent import RecipeAgent
from steersman_recipe.kind import RECIPE


class RecipeKit(Kit):
    """See conformance.Kit. An agent with a model gives its program the address of a script of `model`."""

    name = "recipe"
    streams = False
    kind = RECIPE

    def __init__(self, directory: Path, model: ScriptedModel) -> None:
        self._directory, self._model = directory, model

    def run(self, *steps: str, **fields: Any) -> Staged:
        """A run with these steps."""
        environment = {"RECIPE_HOME": str(self._directory / "home")}
        request = {"agent": "recipe", "prompt": "\n".join(steps), **fields}
        return staged(self._directory, RecipeAgent(environment), environment, request)

    def answering(self, text: str, **fields: Any) -> Staged:
        return self.run(f"say {text}", **fields)

    def answering_by_schema(self, value: Mapping[str, Any], **fields: Any) -> Staged:
        return self.run(f"answer {json.dumps(value)}", **fields)

    def working(self, **fields: Any) -> Staged:
        family = self._directory / "family.py"
        family.write_text(FAMILY)
        return self.run("say at work", f"run {sys.executable} {family}", **fields)

    def waiting(self, text: str, **fields: Any) -> Staged:
        return self.run("say at work", "wait go", f"say {text}", **fields)

    async def go_on(self, stage: Stage) -> None:
        (stage.workspace / "go").touch()

    def missing(self) -> Staged:
        return staged(self._directory, RecipeAgent({"PATH": "/nowhere"}), {}, {"agent": "recipe", "prompt": "say no"})

    def elsewhere(self, directory: Path) -> Kit:
        return RecipeKit(directory, self._model)
