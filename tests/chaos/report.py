"""What a campaign did and found, and how it is told. No judgement here."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Report:
    """`steps`: the faults in their order, as they were made; `findings`: one sentence each."""

    seed: int
    root: Path
    steps: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    took_s: float = 0.0


def table(report: Report) -> str:
    """What was done and found, for a terminal."""
    rows = [
        f"seed {report.seed}: {report.faults.total()} faults in {report.took_s:.0f} s, {len(report.findings)} findings"
    ]
    rows += [f"  {each}" for each in report.findings]
    for title, counted in (("faults", report.faults), ("ends", report.ends), ("counted", report.numbers)):
        rows.append(f"{title}:")
        rows += [f"  {what:<28}{number:>8}" for what, number in sorted(counted.items())]
    if report.findings:
        rows += [
            f"state, logs and database: {report.root}",
            "faults, in their order:",
            *(f"  {each}" for each in report.steps),
        ]
    return "\n".join(rows)
