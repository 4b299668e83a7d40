"""The versions of a loop's plan, and the prompt's template that goes with each. Pure."""

import hashlib
from datetime import datetime

from steersman.contracts.loop import LoopRequest, PlanFile
from steersman.contracts.loop_messages import Revise
from steersman.contracts.loop_state import PlanVersion
from workflows.agent_loop.carried_state import Memory

MAX_TEXTS = 256 * 1024
"""Bytes of all plans and templates together: they are carried through continue-as-new."""
MAX_VERSIONS = 100
"""Of a file that somebody keeps changing only the newest versions are remembered; its texts are in the checkpoints."""


def opened(request: LoopRequest, now: datetime) -> Memory:
    """A loop's memory when it begins."""
    plan = request.plan
    first = PlanVersion(number=1, hash="", since=now, prompt=request.prompt)
    return Memory(
        mode=request.mode,
        limits=request.limits,
        plans=(first.model_copy(update=_content(plan)),),
        template=request.prompt,
        session_id=request.run.session,
        lent=request.run.session is not None,
        forks=request.run.fork_session,
        started_at=now,
    )


def revised(memory: Memory, revise: Revise, now: datetime) -> Memory:
    """With what a person wants from now on as its newest version."""
    changes = _content(revise.plan) if revise.plan is not None else {}
    version = memory.plan_version.model_copy(
        update={"number": memory.plans[-1].number + 1, "since": now, "prompt": revise.prompt, **changes}
    )
    template = revise.prompt if revise.prompt is not None else memory.template
    told = memory.revised or revise.plan is not None
    return _with(memory, version).model_copy(update={"template": template, "revised": told})


def too_long(memory: Memory, revise: Revise) -> bool:
    """Whether all the texts would be more than can be carried."""
    new = revise.plan if isinstance(revise.plan, str) else ""
    kept = [text or "" for each in memory.plans for text in (each.text, each.prompt)]
    return sum(len(text.encode()) for text in (*kept, new, revise.prompt or "")) > MAX_TEXTS


def seen(memory: Memory, number: int, found: str, now: datetime, *, returned: bool = False) -> Memory:
    """Version `number` was looked at in the workspace, and its hash is `found`.

    What somebody wrote into the file is a new version; after a return to a checkpoint it may be an old one.
    """
    version = memory.plan_version
    if version.number != number or not version.path or not found or version.hash == found:
        return memory
    if not version.hash:
        filled = version.model_copy(update={"hash": found})
        plans = tuple(filled if each.number == number else each for each in memory.plans)
        return memory.model_copy(update={"plans": plans})
    if returned:
        same = [each.number for each in memory.plans if each.path == version.path and each.hash == found]
        if same:
            return memory.model_copy(update={"plan": same[-1]})
    number = memory.plans[-1].number + 1
    changes = {"number": number, "hash": found, "since": now, "prompt": None}
    return _with(memory, version.model_copy(update=changes))


def returned_to(memory: Memory, number: int) -> Memory:
    """The version that a checkpoint was made with is in force again, and its template."""
    if not any(each.number == number for each in memory.plans):
        return memory
    return memory.model_copy(update={"plan": number, "template": template_of(memory, number)})


def template_of(memory: Memory, number: int) -> str | None:
    """The template that was in force with a version."""
    given = [each.prompt for each in memory.plans if each.number <= number and each.prompt is not None]
    return given[-1] if given else None


def _with(memory: Memory, version: PlanVersion) -> Memory:
    plans = (*memory.plans, version)
    if len(plans) > MAX_VERSIONS:
        # What a person wrote is never forgotten: its length is limited.
        edited = next((each for each in plans[1:-1] if each.text is None and each.prompt is None), None)
        plans = tuple(each for each in plans if each is not edited)
    return memory.model_copy(update={"plans": plans, "plan": version.number})


def _content(plan: str | PlanFile) -> dict[str, str | None]:
    if isinstance(plan, PlanFile):
        return {"hash": "", "text": None, "path": plan.path, "phase": plan.phase}
    digest = hashlib.sha256(plan.encode()).hexdigest()[:16]
    return {"hash": digest, "text": plan, "path": None, "phase": None}
