"""The Steersman worker: the composition root. Reads flags and environment once, wires everything, polls Temporal.

    python worker.py [--state-dir DIR] [--workspace-root DIR]... [--allow-env NAME]... [...]
    python worker.py check            what this machine has: agents, keys, state directory (JSON)
    python worker.py check --on JSON  what the machine or the cluster of a request's `runtime` has (JSON)
    python worker.py pool JSON        a warm pool of pods for requests with this `runtime`: a Deployment (JSON)
    python worker.py agents           the agents of this installation, and what each can (JSON)
    python worker.py replay FILE...   replay histories with the code at hand (JSON)

Nothing imports this module; its parts are in workers/. SIGTERM and SIGINT end the worker; its agents work on.
"""

import gc

gc.disable()  # a start makes hardly any garbage: to look for it would take a tenth of the time

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from temporalio.converter import PayloadCodec

from activities.agents.entry_points import installed_catalog
from activities.doctor import agents_here, check_host
from steersman.codec import codec_of, name_of
from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.runtime import SshRuntime
from steersman.errors import BadCodec
from workers.arguments import argument_parser
from workers.logs import log_as_json
from workers.machine_check import check_machine
from workers.pod_check import check_pod
from workers.replay import replay, step_through
from workers.service import serve
from workers.settings import BadSettings, Settings, agents_named, check_profile, machine_of, pool_of, settings_of

gc.freeze()  # nor do later looks go through what was loaded
gc.enable()


def debugged(file: Path, codec: PayloadCodec | None) -> int:
    """Step through a replay; 0 where it came to its end, 1 where it diverged, 2 for what is no history."""
    try:
        divergence = asyncio.run(step_through(file, codec))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"diverges: {divergence}" if divergence else "replays")
    return 1 if divergence else 0


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 where the worker could not work, 2 for wrong flags."""
    parser = argument_parser(os.environ)
    arguments = parser.parse_args(argv)
    log_as_json()
    try:
        codec = codec_of(os.environ)
        if arguments.command == "replay" and arguments.debug:
            return debugged(arguments.file[0], codec)
        if arguments.command == "replay":
            answers = asyncio.run(replay(arguments.file, codec))
            print(json.dumps(answers))
            return 0 if all(answer["ok"] for answer in answers) else 1
        if arguments.command == "pool":
            print(json.dumps(pool_of(arguments), indent=2))
            return 0
        catalog = installed_catalog(agents_named(arguments, os.environ))
        if arguments.command == "agents":
            print(json.dumps(agents_here(catalog, os.environ)))
            return 0
        settings = settings_of(arguments, os.environ, codec, catalog)
        other = machine_of(arguments)
        if arguments.command is None:
            check_profile(settings.profile)
    except (BadCodec, BadSettings) as error:
        parser.error(str(error))
    return _check(settings, other) if arguments.command == "check" else asyncio.run(serve(settings))


def _check(settings: Settings, runtime: SshRuntime | KubernetesRuntime | None) -> int:
    if isinstance(runtime, KubernetesRuntime):
        try:
            checks = asyncio.run(check_pod(runtime, settings))
        except asyncio.CancelledError:
            return 130  # by a signal
    elif runtime is not None:
        checks = asyncio.run(check_machine(runtime, settings))
    else:
        codec = name_of(settings.codec)
        checks = asyncio.run(
            check_host(settings.host, settings.state, settings.policy.environ, codec, settings.catalog)
        )
    print(json.dumps([check.model_dump() for check in checks]))
    return 0 if all(check.ok for check in checks) else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None where whoever started this has closed it
            stream.flush()
    os._exit(code)  # the SDK's runtime can crash the interpreter at exit
