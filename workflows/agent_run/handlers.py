"""The updates and signals of AgentRun: from clients, and from the activity `run_agent`."""

import hashlib
import json
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from steersman.contracts import names
from steersman.contracts.activities import ApprovalAsked, MessagesSettled, Progressed, SessionStarted
from steersman.contracts.agents import Capabilities, at_most, cannot, cannot_see
from steersman.contracts.attachments import images
from steersman.contracts.descriptions import OF_RUN
from steersman.contracts.errors import REFUSED, ErrorType, InvalidRequest
from steersman.contracts.messages import (
    MESSAGE_ID,
    Decision,
    DecisionReceipt,
    Message,
    MessageReceipt,
    parse_message,
)
from steersman.contracts.model import TolerantModel
from steersman.contracts.request import RunRequest, not_one
from steersman.contracts.run import MessageKind
from workflows.agent_run.approvals import not_waiting
from workflows.agent_run.delivery import MessageDelivery
from workflows.agent_run.messages import invalid
from workflows.agent_run.visibility import RunVisibility
from workflows.waiting import all_dispatched

Told = TypeVar("Told", bound=TolerantModel)


class RunHandlers:
    """Checks what is sent to a run, and passes it on."""

    bounded: bool
    """False for runs from before there were bounds in bytes, which must replay as their histories say."""
    request: RunRequest | None
    """None if the input is no valid RunRequest."""
    claimed: Capabilities | None
    """What the claim has said of the request's own agent."""
    visibility: RunVisibility
    delivery: MessageDelivery
    hurry_requested = False
    """The stop is to be as quick as it can be."""

    # From clients.

    @workflow.update(name=names.STEER, description=OF_RUN[names.STEER])
    async def steer(self, *inputs: Any) -> MessageReceipt:
        """Message -> MessageReceipt: into the running turn, without stopping it."""
        return await self._take_message("steer", inputs)

    @steer.validator
    def _check_steer(self, *inputs: Any) -> None:
        _check_number(Message, inputs)
        self._check_message("steer", inputs)

    @workflow.update(name=names.INTERRUPT, description=OF_RUN[names.INTERRUPT])
    async def interrupt(self, *inputs: Any) -> MessageReceipt:
        """Message -> MessageReceipt: ends the turn, keeps the session; with a text, goes on with it."""
        return await self._take_message("interrupt", inputs)

    @interrupt.validator
    def _check_interrupt(self, *inputs: Any) -> None:
        _check_number(Message, inputs)
        self._check_message("interrupt", inputs)

    @workflow.update(name=names.DECIDE, description=OF_RUN[names.DECIDE])
    async def decide(self, *inputs: Any) -> DecisionReceipt:
        """Decision -> DecisionReceipt. The first decision on an approval counts."""
        await self._after_signals()
        return self.delivery.decide(self._decidable(inputs))  # a signal may have decided since the validator looked

    @decide.validator
    def _check_decide(self, *inputs: Any) -> None:
        _check_number(Decision, inputs)
        self._check_decision(inputs)

    def _check_decision(self, inputs: tuple[Any, ...]) -> None:
        decision = _parsed(Decision, inputs)
        if refusal := self.delivery.approvals.refusal(decision):
            raise ApplicationError(refusal, type=REFUSED, non_retryable=True)

    def _decidable(self, inputs: tuple[Any, ...]) -> Decision:
        """The decision, if it is not refused."""
        self._check_decision(inputs)
        decision: Decision = _parsed(Decision, inputs)
        if self.delivery.approvals.between_sessions(decision) and not workflow.patched("decide-between-sessions"):
            raise ApplicationError(not_waiting(decision.id), type=REFUSED, non_retryable=True)
        return decision

    @workflow.signal(name=names.STEER, description=OF_RUN[names.STEER])
    def steer_signal(self, *inputs: Any) -> None:
        """As the update, without an answer."""
        self._take_message_signal("steer", inputs)

    @workflow.signal(name=names.INTERRUPT, description=OF_RUN[names.INTERRUPT])
    def interrupt_signal(self, *inputs: Any) -> None:
        """As the update, without an answer."""
        self._take_message_signal("interrupt", inputs)

    @workflow.signal(name=names.DECIDE, description=OF_RUN[names.DECIDE])
    def decide_signal(self, *inputs: Any) -> None:
        """As the update, without an answer; a second decision changes nothing."""
        try:
            decision = self._decidable(inputs)
        except ApplicationError as error:
            workflow.logger.warning("decision refused: %s", error.message)
            return
        self.delivery.decide(decision)

    @workflow.signal(name=names.HURRY, description=OF_RUN[names.HURRY])
    def hurry(self, *inputs: Any) -> None:
        """Make the stop under way, or the next one, as quick as it can be."""
        self.hurry_requested = True

    async def _take_message(self, kind: MessageKind, inputs: tuple[Any, ...]) -> MessageReceipt:
        await self._after_signals()
        if self.bounded:
            self._check_message(kind, inputs)  # another message may have been accepted since the validator looked
        return await self.delivery.accept_and_wait(kind, _parsed(Message, inputs), _update_id())

    def _take_message_signal(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        try:
            self._check_message(kind, inputs)
        except ApplicationError as error:
            workflow.logger.warning("%s refused: %s", kind, error.message)
            return
        self.delivery.accept(kind, _parsed(Message, inputs))

    async def _after_signals(self) -> None:
        """The state that an update finds must not depend on the signals that it arrived between."""
        if self.bounded:
            await all_dispatched()

    def _check_message(self, kind: MessageKind, inputs: tuple[Any, ...]) -> None:
        message = _parsed(Message, inputs)
        if (message.id or _update_id()) in self.delivery.mailbox:
            return
        if reason := invalid(kind, message):
            raise _invalid_request(reason)
        if refusal := self._refusal(kind, message):
            raise ApplicationError(refusal, type=REFUSED, non_retryable=True)

    def _refusal(self, kind: MessageKind, message: Message) -> str | None:
        """Why the run takes no such message at the moment; None if it does."""
        if self.request is None:
            return "the run's request is wrong: it never began"
        if self.visibility.in_phase("stopping", "carrying_back", "finalizing", "closed"):
            return f"the run is {self.visibility.state.phase}: it takes no more messages"
        if self.delivery.mailbox.end_requested and not message.end:
            return "the run is ending: it takes no more messages"
        agent = self.visibility.state.agent or self.request.agent
        if refusal := cannot(agent, self._capabilities(agent), kind):
            return refusal
        if images(message.attachments) and (refusal := cannot_see(agent, self._capabilities(agent))):
            return refusal
        return self.delivery.mailbox.refusal(message)

    def _capabilities(self, agent: str) -> Capabilities:
        return self.visibility.state.capabilities or at_most(agent)

    # From run_agent. Anybody can send a signal: one that says nothing of the kind is dropped, whatever comes with it.

    @workflow.signal(name=names.SESSION_STARTED, description=OF_RUN[names.SESSION_STARTED])
    def session_started(self, *inputs: Any) -> None:
        """A worker leads the run; with a handle, the agent's process runs."""
        session = _told(SessionStarted, inputs)
        if session is None or not self.delivery.on_session_started(session):
            return
        if self.visibility.in_phase("queued", "preparing"):
            self.visibility.update(phase="running" if session.handle else "preparing")
        known = self.visibility.state
        # Only the first word counts: later ones are read from a file that the agent could have changed. But a run that
        # has begun anew after its end, with another first process, has heard of the one before.
        anew = (
            session.attempt == 1 and session.handle and known.handle and session.handle.process != known.handle.process
        )
        if session.baseline and (known.baseline is None or anew):
            self.visibility.update(baseline=session.baseline)
        if session.handle:
            self.visibility.update(handle=session.handle, attempt=session.attempt)
            self._take_part(session, anew=bool(anew))

    def _take_part(self, session: SessionStarted, *, anew: bool) -> None:
        """Another of the request's agents is at work from now on. `anew`: perhaps an earlier one, as at first."""
        state = self.visibility.state
        is_other = session.part != state.part if anew else session.part > state.part
        if self.request is None or not is_other or session.part > len(self.request.fallback):
            return
        agent = self.request.of_part(session.part).agent
        can = session.capabilities or (self.claimed if session.part == 0 else None) or at_most(agent)
        own = state.own_session_id if state.part else state.session_id
        self.visibility.update(
            agent=agent,
            capabilities=can,
            part=session.part,
            session_id=None,
            own_session_id=None if anew else own,
        )
        self.delivery.on_claimed(agent, can)

    @workflow.signal(name=names.PROGRESSED, description=OF_RUN[names.PROGRESSED])
    def progressed(self, *inputs: Any) -> None:
        """Usage, cost and the last event so far."""
        progress = _told(Progressed, inputs)
        if progress is None:
            return
        state = self.visibility.state
        # Runs of older workers do not tell it; the branch may go with the last of them.
        awaits = progress.awaits_message and workflow.patched("awaits-message")
        self.visibility.update(
            session_id=progress.session_id or state.session_id,
            own_session_id=progress.own_session_id or state.own_session_id,
            usage=progress.usage,
            cost_usd=progress.cost_usd,
            turns=progress.turns,
            attempt=progress.attempt,
            last_event=progress.last_event or state.last_event,
            awaits_message=awaits,
        )
        if awaits != state.awaits_message:  # else the phase is as the last handler left it, in older histories, too
            self.visibility.update_waiting()

    @workflow.signal(name=names.APPROVAL_ASKED, description=OF_RUN[names.APPROVAL_ASKED])
    def approval_asked(self, *inputs: Any) -> None:
        """The agent asks for an approval, or withdraws its question."""
        if (asked := _told(ApprovalAsked, inputs)) is not None:
            self.delivery.on_approval_asked(asked)

    @workflow.signal(name=names.MESSAGES_SETTLED, description=OF_RUN[names.MESSAGES_SETTLED])
    def messages_settled(self, *inputs: Any) -> None:
        """The agent has taken messages that had been delivered before."""
        if (settled := _told(MessagesSettled, inputs)) is not None:
            self.delivery.on_messages_settled(settled)


def _parsed(model: type[Any], inputs: tuple[Any, ...]) -> Any:
    try:
        return parse_message(model, inputs[0] if inputs else None)
    except InvalidRequest as error:
        raise _invalid_request(error.message) from None


def _check_number(model: type[Any], inputs: tuple[Any, ...]) -> None:
    """Refuse a second input, which would be ignored. For validators alone: what was accepted once stays so."""
    if len(inputs) > 1:
        raise _invalid_request(not_one(model.__name__, len(inputs)))


def _invalid_request(message: str) -> ApplicationError:
    return ApplicationError(message, type=ErrorType.INVALID_REQUEST, non_retryable=True)


def _update_id() -> str:
    """The message id for a message that the current update brings without one; empty in a signal's handler."""
    info = workflow.current_update_info()
    if info is None or MESSAGE_ID.fullmatch(info.id):
        return info.id if info else ""
    return f"update-{hashlib.sha256(info.id.encode()).hexdigest()[:24]}"


def _told(model: type[Told], inputs: tuple[Any, ...]) -> Told | None:
    """What a signal of run_agent says; None of another's that says something else."""
    try:
        return model.model_validate_json(json.dumps(inputs[0] if inputs else None))
    except (TypeError, ValueError):
        workflow.logger.warning("a signal was dropped: it is no %s", model.__name__)
        return None
