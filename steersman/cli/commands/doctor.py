"""`steer doctor`: what could keep a run from working, each with a hint; and `steer prune`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from steersman.cli.checkout import worker_command
from steersman.cli.clean import flat
from steersman.cli.exits import Exit
from steersman.cli.link import act, link_of
from steersman.cli.output import console, emit, write_line
from steersman.cli.replaying import last_json

if TYPE_CHECKING:
    from steersman.client import Steersman

CHECK_PATIENCE_S = 60


def doctor(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False
) -> None:
    """Check the server, the workers, and what this machine's worker would find. Each problem comes with a hint."""
    import asyncio

    from steersman.cli.link import quiet
    from steersman.serverchecks import check_server

    link = link_of(ctx)
    quiet()
    checks = [each.model_dump() for each in asyncio.run(check_server(link.profile, link.address, link.namespace))]
    checks += _worker_checks(link.environment())
    if as_json:
        import json

        write_line(json.dumps(checks))
    else:
        _print(checks)
    raise typer.Exit(Exit.OK if all(each["ok"] for each in checks) else Exit.FAILED)


def _worker_checks(environment: dict[str, str]) -> list[dict[str, Any]]:
    import os
    import subprocess

    command = worker_command("check")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECK_PATIENCE_S,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        return [_problem("worker", f"`worker.py check` took more than {CHECK_PATIENCE_S} s", "run it by itself")]
    found = last_json(done.stdout)
    if not isinstance(found, list):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [
            _problem("worker", f"`worker.py check` failed: {last}", "install what a worker needs: steersman[worker]")
        ]
    return [_problem("", "", "") | each for each in found if isinstance(each, dict)]


def _problem(check: str, detail: str, hint: str) -> dict[str, Any]:
    return {"check": check, "ok": False, "detail": detail, "hint": hint}


def _print(checks: list[dict[str, Any]]) -> None:
    from rich.text import Text

    for each in checks:
        mark = ("ok  ", "green") if each["ok"] else ("no  ", "bold red")
        console().print(Text.assemble(mark, f"{flat(str(each['check'])):<20} ", flat(str(each["detail"] or ""))))
        if each["hint"] and not each["ok"]:
            console().print(Text(f"    {'':<20} {flat(str(each['hint']))}", style="yellow"))


def prune(
    ctx: typer.Context,
    keep_days: Annotated[float, typer.Option(min=0, help="Of runs that closed longer ago than this.")] = 30,
    host: Annotated[str | None, typer.Option(help="Which machine; default: this one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> None:
    """Remove the state that closed runs left on a machine (event logs, journals). An open run's is never touched."""
    from steersman.hosts import host_name, state_directory

    where = host or host_name(state_directory())

    async def work(steersman: "Steersman") -> None:
        swept = await steersman.prune(where, keep_days, dry_run=dry_run)
        if as_json:
            emit(swept)
            return
        verb = "would remove" if dry_run else "removed"
        console().print(f"{verb} {len(swept.pruned)} runs on {where}, {swept.bytes_freed / 1e6:.1f} MB")
        for run in swept.pruned:
            console().print(f"  {flat(run)}")

    act(ctx, work)
