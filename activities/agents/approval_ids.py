"""The ids of approvals, by the requests that ask for them."""

import hashlib
import json


def of_request(request_id: object) -> str:
    """An approval's id: of the request, which a second worker sees again in the journal.

    Not the tool call's: a model chooses that, and one that gives two calls one id would have the second one done by the
    word that was given on the first.
    """
    return hashlib.sha256(json.dumps(request_id, default=str).encode()).hexdigest()[:12]
