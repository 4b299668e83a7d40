"""What the Temporal UI says of each update, signal and query."""

import json
from typing import Any

import pytest
from temporalio import workflow

from steersman.contracts import names
from steersman.contracts.descriptions import OF_LOOP, OF_RUN
from steersman.contracts.loop import PLACEHOLDERS
from steersman.contracts.loop_messages import CheckpointQuery
from steersman.contracts.messages import Decision, Message, parse_message
from steersman.contracts.model import StrictModel
from workflows.agent_loop.handlers import UPDATE_HANDLERS
from workflows.agent_loop.workflow import AgentLoop
from workflows.agent_run.workflow import AgentRun

MODELS: dict[str, type[StrictModel]] = {
    names.STEER: Message,
    names.INTERRUPT: Message,
    names.DECIDE: Decision,
    **{name: each.model for name, each in UPDATE_HANDLERS.items()},
}


@pytest.mark.parametrize("made", [AgentRun, AgentLoop])
def test_each_has_one(made: type) -> None:
    definition = workflow._Definition.must_from_class(made)  # noqa: SLF001 - as the worker reads it
    for kind in (definition.signals, definition.updates, definition.queries):
        assert [name for name, each in kind.items() if not each.description] == []


@pytest.mark.parametrize(("name", "text"), [*OF_RUN.items(), *OF_LOOP.items()])
def test_the_json_that_it_names_is_taken(name: str, text: str) -> None:
    assert len(text) <= 255
    for example in examples(text):
        # Of the name `checkpoints` there is a query, too.
        is_query = name == names.CHECKPOINTS and "after" in example
        parse_message(CheckpointQuery if is_query else MODELS[name], example)


def test_the_template_that_it_names_is_filled_in() -> None:
    (template,) = [each["prompt"] for each in examples(OF_LOOP[names.REVISE]) if "prompt" in each]
    for placeholder in PLACEHOLDERS:
        template = template.replace(f"{{{placeholder}}}", "")
    assert "{" not in template


def examples(text: str) -> list[dict[str, Any]]:
    found, at = [], 0
    while (at := text.find("{", at)) >= 0:
        value, at = json.JSONDecoder().raw_decode(text, at)
        found.append(value)
    return found
