"""The prompt of an iteration, and the promise in an answer. Pure."""

import re
from collections.abc import Sequence

from steersman.contracts.loop import PLACEHOLDERS, LoopRequest
from steersman.contracts.loop_state import FeedbackNote, Item, Verification
from steersman.contracts.request import MAX_REQUEST, json_size
from workflows.agent_loop.carried_state import CarriedState

MAX_OPEN_ITEMS = 50
"""Items that a prompt lists."""
MAX_FAILURE = 4000
"""Characters of a failed verification's output in a prompt."""
PROMPT_SIZE = "prompt-size"
"""The patch of loops that end where a prompt is too long: no run would begin with it, and somewhat longer no workflow
task could be completed.
"""
REVISION_SIZE = "revision-size"
"""The patch of loops that accept no revision with which a prompt would be too long."""
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")

BEGIN = """\
Work on the plan below until it is done. This is iteration {iteration} of at most {iterations}; other iterations came \
before it or will follow, so leave the workspace in a state from which the next one can go on.

{plan}

{open_items}
Take the next open step and finish it completely. Say what is finished where the plan keeps its state, \
and only what is really finished."""

CONTINUE = """\
Go on with the plan: iteration {iteration} of at most {iterations}. Take the next open step and finish it completely.
{open_items}"""

RESUME = """\
You were interrupted in the middle of iteration {iteration}. Go on where you were."""


def iteration_prompt(request: LoopRequest, carried: CarriedState, *, resumes: bool) -> str:
    """The prompt of the iteration that begins now. `resumes`: its run resumes the known session."""
    template = _template(carried, resumes=resumes)
    parts = _parts(request, carried)
    # In one pass: placeholders in what is put in stay text.
    text = _PLACEHOLDER.sub(lambda found: parts[found[1]], template)
    used = set(_PLACEHOLDER.findall(template))
    added = [parts[name] for name in ("verification", "feedback") if name not in used]
    if template is RESUME:
        added = [parts["feedback"]]  # the session knows how the last verification ended
    revised = _revised(carried) if carried.revised and "plan" not in used else ""
    criteria = _done_criteria(request) if template in (BEGIN, CONTINUE) else ""
    paragraphs = (text, carried.notice, revised, *added, criteria)
    # What programs print may contain a NUL, which no prompt may.
    return "\n\n".join(part.strip("\n") for part in paragraphs if part.strip()).replace(
        "\0", "\N{REPLACEMENT CHARACTER}"
    )


def size_of(request: LoopRequest, carried: CarriedState, *, resumes: bool = False) -> int:
    """Bytes of JSON that `iteration_prompt` has, or some more. None of it is made here: a placeholder may stand in a
    template ten thousand times.
    """
    template, parts = _template(carried, resumes=resumes), _parts(request, carried)
    sizes, used = {name: json_size(part) for name, part in parts.items()}, _PLACEHOLDER.findall(template)
    around = json_size(template) + json_size(carried.notice) + json_size(_done_criteria(request))
    added = {"verification", "feedback", *(("plan",) if carried.revised else ())} - set(used)
    return around + sum(sizes[name] for name in (*used, *added))


def too_long(size: int) -> str:
    """Why a prompt of so many bytes is refused."""
    what = f"filled in, it has {size:,} bytes, and may have {MAX_REQUEST:,}"
    return f"{what}: have fewer placeholders, or put the plan in a file"


def _template(carried: CarriedState, *, resumes: bool) -> str:
    if carried.unfinished and carried.heard and resumes:
        return RESUME
    return carried.template or (CONTINUE if resumes and carried.briefed else BEGIN)


def _parts(request: LoopRequest, carried: CarriedState) -> dict[str, str]:
    version, verified = carried.plan_version, carried.verification
    return {
        "plan": version.text if version.text is not None else _plan_location(carried),
        "iteration": str(carried.iteration),
        "iterations": str(carried.limits.iterations),
        "phase": current_phase(carried) or "",
        "promise": request.done.promise or "",
        "open_items": _open_items(carried),
        "feedback": _feedback(carried.feedback),
        "verification": _verification_failure(verified) if verified and verified.status != "passed" else "",
    }


def ends_with_promise(answer: str, prompt: str, promise: str) -> bool:
    """Whether an answer ends with the promise on a line of its own, and does not merely repeat the prompt up to it."""
    lines, asked = _lines(answer), _lines(prompt)
    if not lines or lines[-1] != promise:
        return False
    return not any(before == lines[-2:-1] for before in _before(asked, promise))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _before(lines: list[str], wanted: str) -> list[list[str]]:
    """The line above each line that is `wanted`."""
    return [lines[place - 1 : place] for place, line in enumerate(lines) if line == wanted and place]


def _revised(carried: CarriedState) -> str:
    version = carried.plan_version
    if version.text is not None:
        return f"The plan was revised. It is now:\n\n{version.text}"
    return f"The plan was revised: read `{version.path}` again."


def _plan_location(carried: CarriedState) -> str:
    path = carried.plan_version.path or ""
    if not carried.phases:
        return f"The plan is in the file `{path}`; read it first."
    name = current_phase(carried)
    now = f" Now it is the turn of phase `{name}`." if name else ""
    return f"The plan is in the directory `{path}`, one file for each phase.{now} Read that file first."


def current_phase(carried: CarriedState) -> str | None:
    """The name of the first phase that is open or in progress; None if there is none."""
    return next((each.name for each in carried.phases if each.state in ("open", "in_progress")), None)


def _open_items(carried: CarriedState) -> str:
    if carried.items is None:
        return ""
    if carried.items.error:
        return f"What is left to do could not be read: {carried.items.error}\n"
    phase = current_phase(carried)
    left = [each for each in carried.items.items if each.state not in ("closed", "blocked", "needs_review")]
    here = [each for each in left if phase is None or each.phase in (None, phase)]
    if not here:
        return ""
    shown = [_item(each) for each in here[:MAX_OPEN_ITEMS]]
    unlisted = carried.items.count.workable - len(left) if phase is None else 0
    more = len(here) - len(shown) + unlisted
    more_line = [f"- ... and {more} more"] if more > 0 else []
    return "\n".join(["Open:", *shown, *more_line]) + "\n"


def _item(item: Item) -> str:
    return f"- {item.id}: {item.text}" if item.text and item.text != item.id else f"- {item.id}"


def _feedback(notes: Sequence[FeedbackNote]) -> str:
    if not notes:
        return ""
    return "\n".join(["Feedback, which goes before the plan:", *(f"- {note.text}" for note in notes)])


def _verification_failure(verification: Verification) -> str:
    if verification.status == "missing":
        what = f"The verification `{verification.command}` could not be run: there is no such command."
    elif verification.status == "timed_out":
        what = f"The verification `{verification.command}` did not end in time."
    elif verification.exit_code is None:
        what = f"The verification `{verification.command}` failed: a signal ended it."
    else:
        what = f"The verification `{verification.command}` failed with exit code {verification.exit_code}."
    output = verification.output[-MAX_FAILURE:].strip("\n")
    return f"{what} The end of its output:\n\n{_code_block(output)}" if output else what


def _code_block(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _done_criteria(request: LoopRequest) -> str:
    parts = []
    if request.done.verify:
        parts.append(f"After your turn `{request.done.verify.shown()}` is run; the work is done only when it passes.")
    if request.done.promise:
        # Never on a line of its own: an agent that echoes its prompt must not seem to promise.
        parts.append(f'When everything is done, end your answer with a line that says only "{request.done.promise}".')
    return " ".join(parts)
