"""What is known of another machine on which a run's processes live.

How it was asked must not live here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlaceInfo:
    """What a login has there. It is that machine's to say."""

    name: str
    """The machine, as people know it."""
    environ: Mapping[str, str] = field(repr=False)
    programs: Mapping[str, str] = field(default_factory=dict)
    """Name -> path, of the programs that were asked for and are on PATH there."""
    is_root: bool = False
