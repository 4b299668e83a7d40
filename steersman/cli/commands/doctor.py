"""`steer doctor`: what could keep a run from working, each problem with a hint."""

import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from steersman.cli.connection import ConnectionOptions, connection_options, silence_sdk_logs
from steersman.cli.exits import Exit
from steersman.cli.formatting import flat
from steersman.cli.json_output import last_json
from steersman.cli.options import AsJson
from steersman.cli.output import console, write_line
from steersman.cli.request import given, kubernetes_runtime, ssh_runtime
from steersman.cli.worker_code import worker_command

CHECK_TIMEOUT_S = 90.0
PROBE_TIMEOUT_S = 180.0
"""Beyond what a pod may take to start and to end."""


Where = Annotated[
    str | None,
    typer.Argument(
        metavar="[USER@]ADDRESS[:PORT] or [CONTEXT/]NAMESPACE",
        help="Another machine, with --runtime ssh; where pods are made, with --runtime kubernetes.",
    ),
]
RuntimeKind = Annotated[str, typer.Option("--runtime", help="local; or ssh, kubernetes: look there instead.")]
Identity = Annotated[str | None, typer.Option("--identity-file", help="A private key, for ssh.")]
Python = Annotated[str | None, typer.Option("--python", help="Python there; default python3.")]
Image = Annotated[str | None, typer.Option("--image", help="With kubernetes: the image of the pod, as of a run.")]
Pod = Annotated[
    list[str] | None, typer.Option("--pod", metavar="FIELD=JSON", help="With kubernetes: as of a run. Repeatable.")
]


def doctor(
    ctx: typer.Context,
    where: Where = None,
    runtime: RuntimeKind = "local",
    identity_file: Identity = None,
    python: Python = None,
    image: Image = None,
    pod: Pod = None,
    times: Annotated[
        bool, typer.Option("--measure", help="How long a start, a message and a cancel take here, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the server, the workers, and what this machine's worker would find. Each problem comes with a hint.

    With --runtime ssh: what it would find on another machine. With --runtime kubernetes: in a cluster, by a pod that is
    made as for a run, and deleted.
    """
    import asyncio

    from steersman._client.server_checks import check_server

    if runtime not in ("local", "ssh", "kubernetes") or (runtime != "local") != (where is not None):
        raise typer.BadParameter("expected --runtime ssh and ADDRESS, --runtime kubernetes and NAMESPACE, or none")
    if runtime != "kubernetes" and (image or pod):
        raise typer.BadParameter("--image and --pod go with --runtime kubernetes")
    if times and runtime != "local":
        raise typer.BadParameter("--measure is for this machine")
    environment = connection_options(ctx).environment()
    if runtime == "ssh":
        on = {**(ssh_runtime(where) or {}), **given(identity_file=_absolute(identity_file), python=python)}
        _report(_worker_checks(environment, *_on(on)), as_json=as_json)
    if runtime == "kubernetes":
        fields = {**(kubernetes_runtime(where, image, pod) or {}), **given(python=python)}
        if identity_file:
            raise typer.BadParameter("--identity-file goes with --runtime ssh")
        _report(_worker_checks(environment, *_on(fields), patience_s=_patience_s(fields)), as_json=as_json)

    options = connection_options(ctx)
    silence_sdk_logs()
    checks = [
        each.model_dump() for each in asyncio.run(check_server(options.profile, options.address, options.namespace))
    ]
    # A loop that waits for another machine is no reason not to measure this one.
    if times and all(each["ok"] for each in checks if each["check"] != "loops"):
        checks += asyncio.run(_measured(options))
    elif times:
        checks.append(_problem("measured", "nothing: something above is wrong", "mend that first"))
    # What the worker itself says of its agents goes before what this terminal would find.
    asked = {each["check"] for each in checks}
    checks += [each for each in _worker_checks(environment) if each["check"] not in asked]
    _report(checks, as_json=as_json)


async def _measured(options: ConnectionOptions) -> list[dict[str, Any]]:
    from steersman.client import Steersman
    from steersman.measurement import measure

    found = await measure(await Steersman.connect(options.profile, options.address, options.namespace))
    return [each.model_dump() for each in found]


def _on(fields: dict[str, Any]) -> tuple[str, str]:
    """What the worker is told to look at. Raises BadParameter."""
    from steersman.contracts.errors import InvalidRequest
    from steersman.contracts.kubernetes import KubernetesRuntime
    from steersman.contracts.request import parse_object
    from steersman.contracts.runtime import SshRuntime

    try:
        parse_object(KubernetesRuntime if fields.get("kind") == "kubernetes" else SshRuntime, fields)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message) from error
    return "--on", json.dumps(fields)


def _patience_s(fields: dict[str, Any]) -> float:
    """Longer than a look at a cluster takes, which ends by itself."""
    return PROBE_TIMEOUT_S + float(fields.get("start_s", 120)) + float(fields.get("grace_s", 30))


def _absolute(path: str | None) -> str | None:
    return str(Path(path).expanduser().absolute()) if path else None


def _report(checks: list[dict[str, Any]], *, as_json: bool) -> NoReturn:
    if as_json:
        write_line(json.dumps(checks))
    else:
        _print(checks)
    raise typer.Exit(Exit.OK if all(each["ok"] for each in checks) else Exit.FAILED)


def _worker_checks(
    environment: dict[str, str], *arguments: str, patience_s: float = CHECK_TIMEOUT_S
) -> list[dict[str, Any]]:
    import subprocess

    # In a session of its own: a terminal's Ctrl-C must reach it once, through us, so that it can tidy up.
    child = subprocess.Popen(
        worker_command("check", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return [_problem("worker", f"`worker.py check` took more than {patience_s:.0f} s", "run it by itself")]
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        child.communicate()  # a second Ctrl-C leaves it alone with that
        raise
    found = last_json(stdout)
    if not isinstance(found, list):
        last = (stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
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
