"""How figures are told: a table on the screen, JSON for programs, Markdown for the repository."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.figures import Figure
from bench.stack import ROOT

RESULTS = ROOT / "bench" / "results"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
COLUMNS = ("what", "goal", "p50", "p99", "n", "baseline in the same run", "met")
WIDTH = 160


def show(console: Console, figures: Sequence[Figure]) -> None:
    """The table, and what missed its goal or was lost."""
    table = Table(title="Steersman, measured", show_lines=True)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("p50", "p99", "n") else "left")
    for figure in figures:
        style = {None: "", True: "green", False: "bold red"}[figure.met]
        table.add_row(*(Text(cell, style=style if name == "met" else "") for name, cell in _row(figure).items()))
    console.print(table)
    console.print("p99 of fewer than 100 samples is the largest one.", style="dim")
    for figure in figures:
        if figure.note:
            console.print(f"{figure.what}: {figure.note}", style="dim")
        if figure.lost:
            console.print(f"{figure.what}: {figure.lost}", style="bold red")


def keep(figures: Sequence[Figure], load: tuple[float, float, float]) -> Path:
    """Write the JSON; its path."""
    now = datetime.now(UTC)
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "what": figure.what,
            "unit": figure.unit,
            "goal": str(figure.goal) if figure.goal else None,
            "p50": figure.p50,
            "p99": figure.p99,
            "met": figure.met,
            "baseline": figure.baseline,
            "note": figure.note,
            "lost": figure.lost,
            "hops_ms": figure.hops,
            "samples": [round(sample, 3) for sample in figure.samples],
        }
        for figure in figures
    ]
    file = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    facts = {"at": now.isoformat(), "machine": machine(), "load_before": load, "figures": rows}
    file.write_text(json.dumps(facts, indent=1))
    return file


def document(figures: Sequence[Figure], load: tuple[float, float, float]) -> None:
    """Write the table that the repository shows."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Real Claude Code (bundled with claude-agent-sdk) against the scripted model on",
        "loopback, Temporal's dev server on a file database, one worker, all on one machine; baselines are of the",
        "same run.",
        "p99 of fewer than 100 samples is the largest one.",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}; load before: {load[0]:.1f}",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *(f"| {' | '.join(_row(figure).values())} |" for figure in figures),
        "",
        *(f"- {figure.what}: {told}" for figure in figures for told in (figure.note, figure.lost) if told),
    ]
    DOCUMENT.write_text("\n".join(lines).rstrip() + "\n")


def machine() -> str:
    """What it was measured on."""
    model = "unknown CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = named[0] if named else platform.machine()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({model}), {gib:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def _row(figure: Figure) -> dict[str, str]:
    met = {None: "", True: "yes", False: "MISSED"}[figure.met]
    goal = f"{figure.goal} {figure.unit}" if figure.goal else ""
    cells = (figure.what, goal, _told(figure.p50, figure.unit), _told(figure.p99, figure.unit))
    return dict(
        zip(COLUMNS, (*cells, str(len(figure.samples)), figure.baseline, "BROKEN" if figure.lost else met), strict=True)
    )


def _told(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if unit == "MiB" else f"{value:.1f} {unit}" if unit == "s" else f"{value:.0f} {unit}"
