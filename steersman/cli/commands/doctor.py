"""`steer doctor`: what could keep a run from working, each problem with a hint."""

import json
import os
from typing import Any

import typer

from steersman.cli.checkout import worker_command
from steersman.cli.connection import connection_options, silence_sdk_logs
from steersman.cli.exits import Exit
from steersman.cli.formatting import flat
from steersman.cli.json_output import last_json
from steersman.cli.options import AsJson
from steersman.cli.output import console, write_line

CHECK_TIMEOUT_S = 60


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Check the server, the workers, and what this machine's worker would find. Each problem comes with a hint."""
    import asyncio

    from steersman._client.server_checks import check_server

    options = connection_options(ctx)
    silence_sdk_logs()
    checks = [
        each.model_dump() for each in asyncio.run(check_server(options.profile, options.address, options.namespace))
    ]
    checks += _worker_checks(options.environment())
    if as_json:
        write_line(json.dumps(checks))
    else:
        _print(checks)
    raise typer.Exit(Exit.OK if all(each["ok"] for each in checks) else Exit.FAILED)


def _worker_checks(environment: dict[str, str]) -> list[dict[str, Any]]:
    import subprocess

    command = worker_command("check")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECK_TIMEOUT_S,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        return [_problem("worker", f"`worker.py check` took more than {CHECK_TIMEOUT_S} s", "run it by itself")]
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
