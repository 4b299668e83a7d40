"""What a request may say of agent "recipe" in `options`."""

from typing import Annotated

from pydantic import Field

from steersman.contracts.model import StrictModel


class RecipeOptions(StrictModel):
    """RunRequest.options for agent "recipe"."""

    pace_s: Annotated[float, Field(ge=0, le=60)] = 0
    """It waits this many seconds before each step."""
