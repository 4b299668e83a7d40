"""The agent's promise: its own last line, never an echo of what it was told."""

import pytest

from workflows.agent_loop.prompts import ends_with_promise

PROMPT = "Work on the plan.\nWhen all is done, say:\nALL DONE\nand nothing else."


@pytest.mark.parametrize(
    "answer",
    ["ALL DONE", "It works.\nALL DONE", "It works.\n\n  ALL DONE  \n\n", f"You said:\n{PROMPT}\nIt works.\nALL DONE"],
)
def test_a_promise(answer: str) -> None:
    assert ends_with_promise(answer, PROMPT, "ALL DONE")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n\n",
        "I cannot say ALL DONE",
        "ALL DONE\nbut for the tests",
        "all done",
        "ALL DONE.",
        "> ALL DONE",
        "`ALL DONE`",
        "```\nALL DONE\n```",
        "You said:\nWork on the plan.\nWhen all is done, say:\nALL DONE",
        "When all is done, say:\n\n   ALL DONE",
    ],
)
def test_no_promise(answer: str) -> None:
    assert not ends_with_promise(answer, PROMPT, "ALL DONE")


def test_a_prompt_that_ends_with_it() -> None:
    prompt = "Work.\nALL DONE"
    assert not ends_with_promise(prompt, prompt, "ALL DONE")
    assert ends_with_promise("I worked.\nALL DONE", prompt, "ALL DONE")
    assert ends_with_promise("ALL DONE", "ALL DONE", "ALL DONE")
