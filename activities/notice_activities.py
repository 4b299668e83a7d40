"""The activity that sends a notice. What a notice is of is the workflow's to say; retries are Temporal's."""

import logging
import time
from collections.abc import Mapping

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.activity_helpers import as_application_error
from activities.admission.policy import Policy
from activities.temporal.callers import caller
from activities.webhooks.body import answer_of, body_of, headers_of
from activities.webhooks.sender import Unsent, post
from activities.webhooks.webhooks import OwnWebhook, Receiver, receiver_of
from steersman.contracts import names
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.notices import Notice, NoticeAnswer, NoticeInput

log = logging.getLogger(__name__)
UNSENT = "WebhookUnsent"
"""The type of the failure while nobody has taken a notice."""
TELLERS = frozenset({names.RUN_WORKFLOW, names.LOOP_WORKFLOW})
MAX_AT_ONCE = 100
"""Of this worker: receivers that do not answer must not take the places of what stops agents."""


class NoticeActivities:
    """Stateless: any worker of the host can send it."""

    def __init__(self, client: Client, policy: Policy, own: OwnWebhook | None) -> None:
        self._client, self._policy, self._own = client, policy, own
        self._at_work = 0

    @activity.defn(name=names.SEND_NOTICE)
    async def send_notice(self, given: NoticeInput) -> NoticeAnswer:
        """Send it once. Its id is that of its workflow, in each try and after a reset: receivers know it by that."""
        with as_application_error():
            if given.webhook is not None:
                receiver = receiver_of(given.webhook, self._policy)
            else:
                receiver = await self._receiver_of_operator(given.notice)
            body = body_of(given.notice, receiver.format)
            ident = activity.info().workflow_id or ""
            try:
                headers = headers_of(body, ident=ident, seconds=int(time.time()), secret=receiver.secret)
            except ValueError as error:
                raise InvalidRequest(f"notify: {error}") from error
        try:
            status, data = await self._post(receiver, headers, body)
        except Unsent as error:
            facts = {"run": given.notice.run, "kind": given.notice.type, "attempt": activity.info().attempt}
            log.warning("%s", error, extra={"action": "notice_unsent", "facts": facts})
            raise ApplicationError(str(error), type=UNSENT, non_retryable=error.final) from error
        answer = answer_of(status, data)
        return answer if receiver.decides else NoticeAnswer(status=status)

    async def _receiver_of_operator(self, notice: Notice) -> Receiver:
        """The operator's own, whose secret signs what runs and loops tell of themselves alone. Raises InvalidRequest,
        RPCError.
        """
        if self._own is None or notice.type not in self._own.on:
            raise InvalidRequest(f'the operator of this worker names no webhook for "{notice.type}" any more')
        asking = await caller(self._client)
        told_by = asking.parent.run if asking and asking.parent and asking.parent_type in TELLERS else None
        if told_by != notice.run:
            raise InvalidRequest("notice.run: it is for that run or loop itself to tell of it")
        return self._own.receiver

    async def _post(self, receiver: Receiver, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if self._at_work >= MAX_AT_ONCE:
            raise Unsent(f"this worker waits for {MAX_AT_ONCE} receivers already")
        self._at_work += 1
        try:
            return await post(receiver.target, headers, body, may_be_inside=receiver.may_be_inside)
        finally:
            self._at_work -= 1
