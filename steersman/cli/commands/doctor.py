"""`steer doctor`: what could keep a run from working, each problem with a hint."""

import json
import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from steersman.cli.checkout import worker_command
from steersman.cli.connection import connection_options, silence_sdk_logs
from steersman.cli.exits import Exit
from steersman.cli.formatting import flat
from steersman.cli.json_output import last_json
from steersman.cli.options import AsJson
from steersman.cli.output import console, write_line
from steersman.cli.request import given, ssh_runtime

CHECK_TIMEOUT_S = 90


Address = Annotated[
    str | None, typer.Argument(metavar="[USER@]ADDRESS[:PORT]", help="Another machine, with --runtime ssh.")
]
RuntimeKind = Annotated[str, typer.Option("--runtime", help="local, or ssh: look at ADDRESS instead.")]
Identity = Annotated[str | None, typer.Option("--identity-file", help="A private key, for ssh.")]
Python = Annotated[str | None, typer.Option("--python", help="Python there; default python3.")]


def doctor(
    ctx: typer.Context,
    address: Address = None,
    runtime: RuntimeKind = "local",
    identity_file: Identity = None,
    python: Python = None,
    as_json: AsJson = False,
) -> None:
    """Check the server, the workers, and what this machine's worker would find. Each problem comes with a hint.

    With --runtime ssh: what it would find on another machine.
    """
    import asyncio

    from steersman._client.server_checks import check_server
    from steersman.contracts.errors import InvalidRequest
    from steersman.contracts.request import parse_object
    from steersman.contracts.runtime import SshRuntime

    if runtime not in ("local", "ssh") or (runtime == "ssh") != (address is not None):
        raise typer.BadParameter("expected --runtime ssh and ADDRESS, or neither")
    if runtime == "ssh":
        on = {**(ssh_runtime(address) or {}), **given(identity_file=_absolute(identity_file), python=python)}
        try:
            parse_object(SshRuntime, on)
        except InvalidRequest as error:
            raise typer.BadParameter(error.message) from error
        _report(_worker_checks(connection_options(ctx).environment(), "--on", json.dumps(on)), as_json=as_json)

    options = connection_options(ctx)
    silence_sdk_logs()
    checks = [
        each.model_dump() for each in asyncio.run(check_server(options.profile, options.address, options.namespace))
    ]
    checks += _worker_checks(options.environment())
    _report(checks, as_json=as_json)


def _absolute(path: str | None) -> str | None:
    return str(Path(path).expanduser().absolute()) if path else None


def _report(checks: list[dict[str, Any]], *, as_json: bool) -> NoReturn:
    if as_json:
        write_line(json.dumps(checks))
    else:
        _print(checks)
    raise typer.Exit(Exit.OK if all(each["ok"] for each in checks) else Exit.FAILED)


def _worker_checks(environment: dict[str, str], *arguments: str) -> list[dict[str, Any]]:
    import subprocess

    command = worker_command("check", *arguments)
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
