"""Which Temporal cluster and namespace a directory of the state belongs to. What it holds must not live here."""

import json
from dataclasses import dataclass
from pathlib import Path

from activities.store import disk


@dataclass(frozen=True)
class Ownership:
    """Which Temporal a run belongs to: a machine may serve several, and a sweep must touch its own only."""

    cluster: str
    namespace: str

    def recorded(self, meta: Path) -> bool | None:
        """Whether the JSON file names this owner; None where there is no such file or it names nobody.

        Raises OSError where no descriptors are left.
        """
        try:
            facts = json.loads(disk.read_text(meta))
            return bool((facts["cluster"], facts["namespace"]) == (self.cluster, self.namespace))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if disk.exhaustion(error):
                raise
            return None
