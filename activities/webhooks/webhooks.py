"""Which webhook a notice goes to: that of the request, or the one that the operator has named for all runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from activities.admission.policy import Policy
from activities.admission.webhook_patterns import Target, WrongUrl
from steersman.contracts.notices import NOTICE_KINDS, USUAL_KINDS, NoticeKind, Webhook, WebhookFormat

URL, SECRET = "STEERSMAN_WEBHOOK", "STEERSMAN_WEBHOOK_SECRET"
KINDS, FORMAT = "STEERSMAN_WEBHOOK_ON", "STEERSMAN_WEBHOOK_FORMAT"
"""Of the worker's environment: addresses of webhooks are secrets, often, and argv is no place for them."""


@dataclass(frozen=True)
class Receiver:
    """Where a notice goes to, and how. `may_be_inside`: the operator has named it."""

    target: Target
    format: WebhookFormat
    secret: str | None = field(repr=False)
    may_be_inside: bool
    decides: bool


@dataclass(frozen=True)
class OwnWebhook:
    """The operator's, for all runs of the worker."""

    receiver: Receiver
    on: tuple[NoticeKind, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "OwnWebhook | None":
        """None where the operator names none. Raises ValueError."""
        url = environ.get(URL)
        if not url:
            return None
        kinds = [each.strip() for each in environ.get(KINDS, ",".join(USUAL_KINDS)).split(",") if each.strip()]
        form = environ.get(FORMAT, "json")
        if unknown := set(kinds) - set(NOTICE_KINDS):
            raise ValueError(f"{KINDS}: {', '.join(sorted(unknown))}: what there is are {', '.join(NOTICE_KINDS)}")
        if form not in ("json", "slack"):
            raise ValueError(f"{FORMAT}: json or slack")
        try:
            target = Target.of(url)
        except WrongUrl as error:
            raise ValueError(f"{URL}: {error}") from error
        receiver = Receiver(target, "slack" if form == "slack" else "json", environ.get(SECRET), True, decides=False)
        return cls(receiver, tuple(each for each in NOTICE_KINDS if each in kinds))


def receiver_of(webhook: Webhook, policy: Policy) -> Receiver:
    """As the operator allows it now. Raises InvalidRequest."""
    target = policy.webhook_target(webhook, "notify")
    secret = policy.webhook_secret(webhook, "notify")
    return Receiver(target, webhook.format, secret, target.address is not None, webhook.decides)
