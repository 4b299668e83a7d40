"""The command line of worker.py. What an argument means for the worker must not live here: see settings."""

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from activities.admission.pod_patterns import FIELDS
from steersman.contracts.request import PERMISSION_ORDER
from steersman.contracts.runtime import RUNTIMES
from steersman.hosts import state_directory

CAPS = (
    ("max-cost", "the most that a run may cost, in dollars"),
    ("max-duration-s", "the longest that a run may take"),
    ("max-lease-s", "the longest that a run's agent may work without a worker"),
    ("max-stop-s", "the longest that a run may ask between a stop and SIGKILL"),
)


Add = Callable[..., argparse.Action]


def argument_parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """Flags, with single values from the environment as their defaults; of lists, settings reads the environment."""
    parser = argparse.ArgumentParser(prog="worker.py", description="The Steersman worker.")
    _add_place(parser.add_argument)
    _add_permissions(parser.add_argument, env)
    _add_limits(parser.add_argument, env)
    commands = parser.add_subparsers(dest="command")
    check = commands.add_parser("check", help="what this machine has, as JSON")
    check.add_argument(
        "--on", metavar="JSON", help="what the machine or cluster of this `runtime` of a request has instead"
    )
    pool = commands.add_parser("pool", help="a warm pool's Deployment, as JSON for kubectl")
    pool.add_argument("runtime", metavar="JSON", help="`runtime` of the requests that are to have their pods from it")
    pool.add_argument("--replicas", type=int, default=2, metavar="N", help="so many pods wait; default 2")
    commands.add_parser("agents", help="the agents of this installation and what each can, as JSON")
    replay = commands.add_parser("replay", help="replay history files, as JSON")
    replay.add_argument("file", type=Path, nargs="+")
    replay.add_argument("--debug", action="store_true", help="step through the first one in pdb")
    return parser


def _add_place(add: Add) -> None:
    add("--state-dir", type=Path, default=state_directory(), help="where runs are kept (STEERSMAN_STATE_DIR)")
    add("--host", default=None, help="this machine's name in task queues (STEERSMAN_HOST)")
    add("--profile", default=None, help="connection profile, as of the Temporal CLI (TEMPORAL_PROFILE)")


def _add_permissions(add: Add, env: Mapping[str, str]) -> None:
    add(
        "--workspace-root",
        action="append",
        type=Path,
        default=None,
        metavar="DIR",
        help="workspaces must lie in one of these; default any (STEERSMAN_WORKSPACE_ROOT, ':'-separated)",
    )
    add(
        "--git-root",
        action="append",
        type=Path,
        default=None,
        metavar="DIR",
        help="git directories of workspaces may lie here, too (STEERSMAN_GIT_ROOT, ':'-separated)",
    )
    add(
        "--allow-env",
        action="append",
        default=None,
        metavar="NAME",
        help="a variable that requests may hand to agents, beside the agents' own (STEERSMAN_ALLOW_ENV, ','-separated)",
    )
    add(
        "--allow-file",
        action="append",
        type=Path,
        default=None,
        metavar="PATH",
        help="a file or directory that requests may hand to agents (STEERSMAN_ALLOW_FILE, ':'-separated)",
    )
    add(
        "--allow-ssh",
        action="append",
        default=None,
        metavar="[USER@]ADDRESS[:PORT]",
        help="a machine that requests may have their agents on, * for any characters; a part that is not named here "
        "may not be named by a request (STEERSMAN_ALLOW_SSH, ','-separated)",
    )
    add(
        "--allow-webhook",
        action="append",
        default=None,
        metavar="URL",
        help="where requests may have webhooks told of their runs: what their addresses begin with "
        "(STEERSMAN_ALLOW_WEBHOOK, ','-separated)",
    )
    add(
        "--allow-kubernetes",
        action="append",
        default=None,
        metavar="[CONTEXT/]NAMESPACE",
        help="where requests may have their agents in pods, * for any characters; a context that is not named here may "
        "not be named by a request (STEERSMAN_ALLOW_KUBERNETES, ','-separated)",
    )
    add(
        "--allow-pod",
        action="append",
        default=None,
        metavar="FIELD=PATTERN",
        help=f"what requests may say of a pod: {', '.join(FIELDS)}; * for any characters (STEERSMAN_ALLOW_POD, "
        "','-separated)",
    )
    add(
        "--ssh-config",
        type=Path,
        default=env.get("STEERSMAN_SSH_CONFIG") or None,
        metavar="FILE",
        help="in place of the user's ssh config and the system's (STEERSMAN_SSH_CONFIG)",
    )
    add(
        "--allow-rule",
        action="append",
        default=None,
        metavar="RULE",
        help="below full: a tool or rule that requests may allow, e.g. 'Bash(make *)'; a tool's name lends all of it "
        "(STEERSMAN_ALLOW_RULE, one a line)",
    )
    add(
        "--allow-command",
        action="append",
        default=None,
        metavar="COMMAND",
        help="below full: a program with its arguments that requests may run unasked, e.g. 'make test' "
        "(STEERSMAN_ALLOW_COMMAND, one a line)",
    )
    add(
        "--allow-approvals",
        action="store_true",
        default=env.get("STEERSMAN_ALLOW_APPROVALS", "") not in ("", "0"),
        help="below full: requests may use mode ask; whoever may signal a run then decides what it runs "
        "(STEERSMAN_ALLOW_APPROVALS)",
    )
    add(
        "--trust",
        action="append",
        type=Path,
        default=None,
        metavar="DIR",
        help="agents may load what workspaces in there bring along: settings, hooks, servers; beside those of "
        "`steer trust` (STEERSMAN_TRUST, ':'-separated)",
    )


def _add_limits(add: Add, env: Mapping[str, str]) -> None:
    for flag, what in CAPS:
        add(
            f"--{flag}",
            type=_positive,
            default=env.get(f"STEERSMAN_{flag.replace('-', '_').upper()}"),
            help=f"{what}, whatever its request says (STEERSMAN_{flag.replace('-', '_').upper()})",
        )
    add(
        "--agent",
        action="append",
        default=None,
        metavar="NAME",
        dest="agents",
        help="an agent that may run here, of packages that are installed, too; default all (STEERSMAN_AGENTS, "
        "','-separated)",
    )
    add(
        "--runtime",
        action="append",
        default=None,
        choices=sorted(RUNTIMES),
        dest="runtimes",
        help="where agents of this worker's runs may live; default all (STEERSMAN_RUNTIMES, ','-separated)",
    )
    add(
        "--max-permission",
        choices=PERMISSION_ORDER,
        default=env.get("STEERSMAN_MAX_PERMISSION", "full"),
        help="the most a request may permit its agent (STEERSMAN_MAX_PERMISSION)",
    )
    add(
        "--max-runs",
        type=int,
        default=env.get("STEERSMAN_MAX_RUNS", "50"),
        help="runs at once; more wait (STEERSMAN_MAX_RUNS)",
    )
    add(
        "--keep-days",
        type=float,
        default=env.get("STEERSMAN_KEEP_DAYS", "30"),
        help="state of closed runs is kept for this long (STEERSMAN_KEEP_DAYS)",
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if value == math.inf:
        raise argparse.ArgumentTypeError("must be finite: without this flag there is no limit")
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
