"""The versions of a loop's plan, each with its prompt template. Pure."""

import hashlib
from datetime import datetime

from steersman.contracts.loop import LoopRequest, PlanFile
from steersman.contracts.loop_messages import Revise
from steersman.contracts.loop_state import PlanVersion
from workflows.agent_loop.carried_state import CarriedState

MAX_TEXTS = 256 * 1024
"""Bytes of all plans and templates together: continue-as-new carries them."""
MAX_VERSIONS = 100
"""Versions that are kept. A plan file that changes all the time loses its oldest; the checkpoints have its texts."""


def initial_state(request: LoopRequest, now: datetime) -> CarriedState:
    """The carried state of a loop that begins."""
    plan = request.plan
    first = PlanVersion(number=1, hash="", since=now, prompt=request.prompt)
    return CarriedState(
        mode=request.mode,
        limits=request.limits,
        plans=(first.model_copy(update=_content(plan)),),
        template=request.prompt,
        session_id=request.run.session,
        lent=request.run.session is not None,
        forks=request.run.fork_session,
        started_at=now,
    )


def with_revision(carried: CarriedState, revise: Revise, now: datetime) -> CarriedState:
    """The state with the revised plan or template as its newest version."""
    changes = _content(revise.plan) if revise.plan is not None else {}
    version = carried.plan_version.model_copy(
        update={"number": carried.plans[-1].number + 1, "since": now, "prompt": revise.prompt, **changes}
    )
    template = revise.prompt if revise.prompt is not None else carried.template
    unread = carried.revised or revise.plan is not None
    return _with_newest(carried, version).model_copy(update={"template": template, "revised": unread})


def is_too_long(carried: CarriedState, revise: Revise) -> bool:
    """Whether all texts together would be more than continue-as-new can carry."""
    new = revise.plan if isinstance(revise.plan, str) else ""
    kept = [text or "" for each in carried.plans for text in (each.text, each.prompt)]
    return sum(len(text.encode()) for text in (*kept, new, revise.prompt or "")) > MAX_TEXTS


def with_survey(
    carried: CarriedState, number: int, found: str, now: datetime, *, returned: bool = False
) -> CarriedState:
    """The state after a survey that found the file of version `number` with the hash `found`.

    A changed file is a new version; after a return to a checkpoint (`returned`) it may be an old one.
    """
    version = carried.plan_version
    if version.number != number or not version.path or not found or version.hash == found:
        return carried
    if not version.hash:
        filled = version.model_copy(update={"hash": found})
        plans = tuple(filled if each.number == number else each for each in carried.plans)
        return carried.model_copy(update={"plans": plans})
    if returned:
        same = [each.number for each in carried.plans if each.path == version.path and each.hash == found]
        if same:
            return carried.model_copy(update={"plan": same[-1]})
    number = carried.plans[-1].number + 1
    changes = {"number": number, "hash": found, "since": now, "prompt": None}
    return _with_newest(carried, version.model_copy(update=changes))


def with_version(carried: CarriedState, number: int) -> CarriedState:
    """The state with a checkpoint's version, and its template, in force again."""
    if not any(each.number == number for each in carried.plans):
        return carried
    return carried.model_copy(update={"plan": number, "template": template_of(carried, number)})


def template_of(carried: CarriedState, number: int) -> str | None:
    """The template that was in force with a version."""
    given = [each.prompt for each in carried.plans if each.number <= number and each.prompt is not None]
    return given[-1] if given else None


def _with_newest(carried: CarriedState, version: PlanVersion) -> CarriedState:
    plans = (*carried.plans, version)
    if len(plans) > MAX_VERSIONS:
        # What a person wrote is never dropped: its length is limited.
        edited = next((each for each in plans[1:-1] if each.text is None and each.prompt is None), None)
        plans = tuple(each for each in plans if each is not edited)
    return carried.model_copy(update={"plans": plans, "plan": version.number})


def _content(plan: str | PlanFile) -> dict[str, str | None]:
    if isinstance(plan, PlanFile):
        return {"hash": "", "text": None, "path": plan.path, "phase": plan.phase}
    digest = hashlib.sha256(plan.encode()).hexdigest()[:16]
    return {"hash": digest, "text": plan, "path": None, "phase": None}
