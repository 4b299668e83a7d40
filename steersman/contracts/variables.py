"""Values that a request names and a worker reads, so that no secret is in a workflow's history."""

import re
from typing import Annotated, Final

from pydantic import Discriminator, Field, Tag

from steersman.contracts.model import AbsolutePath, StrictModel, Text

ENV_NAME: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


class FromEnv(StrictModel):
    """The value of a variable of the worker's environment."""

    from_env: Annotated[str, Field(pattern=ENV_NAME.pattern)]


class FromFile(StrictModel):
    """The contents of a file on the worker's machine, without a trailing newline."""

    from_file: AbsolutePath


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "literal"
    if isinstance(value, FromEnv | FromFile):
        return "from_env" if isinstance(value, FromEnv) else "from_file"
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value)))
    return None


EnvValue = Annotated[
    Annotated[Text, Tag("literal")] | Annotated[FromEnv, Tag("from_env")] | Annotated[FromFile, Tag("from_file")],
    Discriminator(
        _kind,
        custom_error_type="env_value",
        custom_error_message='must be a string, {"from_env": NAME} or {"from_file": PATH}',
    ),
]
"""A literal, or where the worker reads the value, so that no secret is in a workflow's history."""

UrlValue = Annotated[
    Annotated[Text, Field(min_length=1, max_length=2000), Tag("literal")] | Annotated[FromEnv, Tag("from_env")],
    Discriminator(_kind, custom_error_type="url_value", custom_error_message='must be a string or {"from_env": NAME}'),
]
"""The same of an address."""
