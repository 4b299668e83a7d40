"""What a loop answers to a request, on the terminal."""

from typing import TYPE_CHECKING

from steersman.cli.formatting import flat
from steersman.cli.output import console, emit

if TYPE_CHECKING:
    from steersman.contracts.loop_messages import LoopReceipt


def print_receipt(receipt: "LoopReceipt", *, as_json: bool) -> None:
    """Print a receipt as one line, or as JSON."""
    from steersman.cli.loop.formatting import STATUS_WORDS, clock

    if as_json:
        emit(receipt)
        return
    facts = [
        f"{STATUS_WORDS.get(receipt.status, receipt.status)}, iteration {receipt.iteration}",
        receipt.note,
        f"feedback {receipt.id}" if receipt.id else None,
        f"plan version {receipt.plan_version}" if receipt.plan_version else None,
        f"checkpoint {receipt.checkpoint}" if receipt.checkpoint is not None else None,
        f"what was there is kept as checkpoint {receipt.rescue}" if receipt.rescue is not None else None,
        f"goes on {clock(receipt.wakes_at)}" if receipt.wakes_at else None,
    ]
    console().print(flat(" · ".join(filter(None, facts))))
