"""The Steersman worker: the composition root. Reads flags and environment once, wires everything, polls Temporal.

    python worker.py [--state-dir DIR] [--workspace-root DIR]... [--allow-env NAME]... [...]
    python worker.py check            what this machine has: agents, keys, state directory (JSON)
    python worker.py replay FILE      replay a history with the code at hand (JSON)

Nothing imports this module. SIGTERM and SIGINT end the worker; its agents work on.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import GetClusterInfoRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    WorkflowHistory,
)
from temporalio.converter import PayloadCodec
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.agents.claude import ClaudeAgent
from activities.agents.process import ProcessAgent
from activities.checks import check_host
from activities.hosting import HostActivities, Keeping
from activities.identity import Identity, StoreGone
from activities.looping import LoopActivities
from activities.loops.places import LoopStore
from activities.policy import Policy, lent_commands
from activities.ports import Agent
from activities.registry import Registry
from activities.running import AgentActivities, Shared
from activities.runtimes.local import LocalRuntime
from activities.shim import client as shim
from activities.store import Ownership, RunStore
from activities.takeover import Takeover
from steersman._client.search_attributes import indexed_types
from steersman.codec import codec_of, data_converter, name_of
from steersman.contracts import names
from steersman.contracts.agents import AGENT_VARIABLES, CAPABILITIES
from steersman.contracts.request import PERMISSION_ORDER, Caps, PermissionMode
from steersman.errors import BadCodec
from steersman.hosts import host_name, state_directory
from steersman.trust import TrustUnreadable, trusted_directories
from workflows.agent_loop import AgentLoop
from workflows.agent_run import AgentRun
from workflows.runner import Careful
from workflows.sweep import SweepHost

log = logging.getLogger("steersman.worker")

CAPS = (
    ("max-cost", "the most that a run may cost, in dollars"),
    ("max-duration-s", "the longest that a run may take"),
    ("max-lease-s", "the longest that a run's agent may work without a worker"),
    ("max-stop-s", "the longest that a run may ask between a stop and SIGKILL"),
)
WATCH_S = 1.0
"""How often it is looked whether the state directory is still the same."""
WORKFLOWS = [AgentRun, AgentLoop, SweepHost]

# The sandbox would load the workflows' files anew for each run: a checkout that changes under a living worker must not
# mix old and new code. Tests and `replay` run them in the full sandbox.
AS_STARTED = Careful(
    SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules("workflows", "steersman", "pydantic")
    )
)


@dataclass(frozen=True)
class Settings:
    """What the operator decides, from flags, else STEERSMAN_* variables, else the defaults."""

    state: Path
    host: str
    policy: Policy
    max_runs: int
    keep_days: float
    profile: str | None
    codec: PayloadCodec | None


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 after SIGTERM or SIGINT, 1 where the worker could not work, 2 for wrong flags."""
    arguments = _parser().parse_args(argv)
    _log_as_json()
    try:
        codec = codec_of(os.environ)
    except BadCodec as error:
        _parser().error(str(error))
    if arguments.command == "replay":
        return asyncio.run(_replay(arguments.file, codec))
    settings = _settings(arguments, codec)
    if arguments.command == "check":
        checks = asyncio.run(check_host(settings.host, settings.state, settings.policy.environ, name_of(codec)))
        print(json.dumps([check.model_dump() for check in checks]))
        return 0 if all(check.ok for check in checks) else 1
    return asyncio.run(_work(settings))


# ---- settings


def _parser() -> argparse.ArgumentParser:
    env = os.environ
    parser = argparse.ArgumentParser(prog="worker.py", description="The Steersman worker.")
    add = parser.add_argument
    add("--state-dir", type=Path, default=state_directory(), help="where runs are kept (STEERSMAN_STATE_DIR)")
    add("--host", default=None, help="this machine's name in task queues (STEERSMAN_HOST)")
    add("--profile", default=None, help="connection profile, as of the Temporal CLI (TEMPORAL_PROFILE)")
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
        choices=sorted(CAPABILITIES),
        dest="agents",
        help="an agent that may run here; default all (STEERSMAN_AGENTS, ','-separated)",
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
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("check", help="what this machine has, as JSON")
    replay = commands.add_parser("replay", help="replay a history file, as JSON")
    replay.add_argument("file", type=Path)
    return parser


def _settings(arguments: argparse.Namespace, codec: PayloadCodec | None) -> Settings:
    env = os.environ
    state = Path(arguments.state_dir).expanduser().absolute()
    agents = arguments.agents or _listed(env.get("STEERSMAN_AGENTS"), ",") or list(CAPABILITIES)
    roots = arguments.workspace_root or [Path(each) for each in _listed(env.get("STEERSMAN_WORKSPACE_ROOT"), ":")]
    stores = arguments.git_root or [Path(each) for each in _listed(env.get("STEERSMAN_GIT_ROOT"), ":")]
    files = arguments.allow_file or [Path(each) for each in _listed(env.get("STEERSMAN_ALLOW_FILE"), ":")]
    unknown = set(agents) - set(CAPABILITIES)
    permission: PermissionMode = arguments.max_permission
    if unknown or permission not in PERMISSION_ORDER or arguments.max_runs < 1 or arguments.keep_days < 0:
        _parser().error(
            f"wrong value: {', '.join(sorted(unknown)) or f'{permission}, {arguments.max_runs}, {arguments.keep_days}'}"
        )
    rules = arguments.allow_rule or _listed(env.get("STEERSMAN_ALLOW_RULE"), "\n")
    trust = arguments.trust or [Path(each) for each in _listed(env.get("STEERSMAN_TRUST"), ":")]
    trusted = tuple(each.expanduser().absolute() for each in trust)
    policy = Policy(
        environ=dict(env),
        allow_env=frozenset(arguments.allow_env or _listed(env.get("STEERSMAN_ALLOW_ENV"), ",")),
        allow_file=tuple(files),
        workspace_roots=tuple(root.expanduser().absolute() for root in roots) or (Path("/"),),
        allow_rules=frozenset(rules),
        allow_commands=_commands(arguments.allow_command or _listed(env.get("STEERSMAN_ALLOW_COMMAND"), "\n")),
        allow_approvals=arguments.allow_approvals,
        trusted=lambda: (*trusted, *_kept_as_trusted(state)),
        git_roots=tuple(each.expanduser().absolute() for each in stores),
        agents=frozenset(agents),
        max_permission=permission,
        caps=Caps(
            cost_usd=arguments.max_cost,
            duration_s=arguments.max_duration_s,
            lease_s=arguments.max_lease_s,
            stop_s=arguments.max_stop_s,
        ),
    )
    host = arguments.host or host_name(state)
    return Settings(state, host, policy, arguments.max_runs, arguments.keep_days, arguments.profile, codec)


def _listed(value: str | None, separator: str) -> list[str]:
    return [each.strip() for each in (value or "").split(separator) if each.strip()]


def _commands(texts: list[str]) -> frozenset[tuple[str, ...]]:
    try:
        return lent_commands(texts)
    except ValueError as error:
        _parser().error(f"--allow-command: {error}")


def _kept_as_trusted(state: Path) -> tuple[Path, ...]:
    try:
        return trusted_directories(state)
    except TrustUnreadable as error:
        _say("trust_unreadable", str(error), level=logging.ERROR)
        return ()


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _agents(policy: Policy) -> dict[str, Agent]:
    names_allowed = frozenset({"HOME"}).union(*AGENT_VARIABLES.values()) | policy.allow_env
    environ = {name: value for name, value in policy.environ.items() if name in names_allowed}
    return {"claude": ClaudeAgent(environ, lent=policy.allow_env), "process": ProcessAgent()}


# ---- working


async def _work(settings: Settings) -> int:
    identity = Identity(settings.state)
    try:
        identity.open()
    except (OSError, StoreGone) as error:
        _say("state_unusable", f"{settings.state}: {error}; make it writable, or name another", level=logging.ERROR)
        return 1
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    client, polls = await _connect(settings, f"{name}@{socket.gethostname()}")
    try:
        await _register(client)
    except RPCError as error:
        wanted = f"{names.AGENT_NAME} and {names.RUN_PHASE} (Keyword), {names.COST_USD} (Double)"
        hint = f"create the search attributes {wanted} in namespace {client.namespace} (see `steer doctor`)"
        _say("search_attributes_missing", f"{error.message}; {hint}", level=logging.ERROR)
        return 1
    async with contextlib.AsyncExitStack() as stack:
        owner = await _owner(client)
        queue = names.worker_queue(settings.host, name)
        registry = await asyncio.to_thread(Registry.open, settings.state, owner, client.identity, queue)
        stack.callback(registry.close)
        parts = Parts(client, polls, owner, identity, registry, await stack.enter_async_context(shim.Spare()))
        failures = await _poll(settings, parts)
    if failures:
        _say("worker_failed", "; ".join(failures), level=logging.ERROR)
        return 1
    _say("worker_stopped", "done")
    return 0


async def _poll(settings: Settings, parts: "Parts") -> list[str]:
    """Take work until a signal, or the end of what must not end; what each said that had ended by itself."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    workers, hosting = _workers(settings, parts)
    polling = [asyncio.create_task(worker.run()) for worker in workers]
    takeover = asyncio.create_task(Takeover(parts.client, parts.registry).run())
    over = [asyncio.create_task(stop.wait()), *polling, takeover]
    beside: list[asyncio.Task[None]] = []
    failures: list[str] = []
    try:
        if await _all_poll(workers, over):
            beside = [
                asyncio.create_task(_schedule_sweeps(parts.client, settings.host)),
                asyncio.create_task(_sweep_now(hosting)),
                asyncio.create_task(_watch_store(parts.identity)),
            ]
            queues = [worker.task_queue for worker in workers]
            about = {"namespace": parts.client.namespace, "codec": name_of(settings.codec)}
            about["store"] = parts.identity.first
            _say("worker_ready", "polling", logging.INFO, host=settings.host, queues=queues, **about)
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if takeover.done():
            failures.append(f"looking after the other workers has ended: {takeover.exception()}")
        elif not any(task.done() for task in polling):
            parts.registry.leave()
            _say("worker_stopping", "agents work on; the next worker goes on with them")
        for task in (over[0], takeover, *beside):
            task.cancel()
        failures += await _shut_down(workers, polling)
    return failures


async def _connect(settings: Settings, identity: str) -> tuple[Client, Client]:
    """The client, and one for calls that wait. Those have a connection of their own: proxies before a server allow a
    connection a hundred calls or so at a time, and there is one such call for each run.
    """
    config = ClientConfig.load_client_connect_config(profile=settings.profile)
    config.setdefault("target_host", "127.0.0.1:7233")
    converter = data_converter(settings.codec)
    # Push cancellation (15 ms instead of a heartbeat's pace) needs a runtime that heartbeats its workers.
    forwarding = LogForwardingConfig(logger=logging.getLogger("temporal.core"))
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    runtime = Runtime(telemetry=TelemetryConfig(logging=logs), worker_heartbeat_interval=timedelta(seconds=10))
    connect = partial(Client.connect, **config, data_converter=converter, runtime=runtime, identity=identity)
    said = False
    while True:
        try:
            return await connect(), await connect()
        except (RuntimeError, RPCError) as error:
            if not said:
                hint = "start one with `steer dev`, or set TEMPORAL_ADDRESS; waiting for it"
                _say("server_unreachable", f"{config['target_host']}: {error}; {hint}", level=logging.WARNING)
                said = True
            await asyncio.sleep(1)


async def _register(client: Client) -> None:
    """A workflow that sets an unknown search attribute would hang: make sure that they exist."""
    operator = client.operator_service
    known = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    missing = {name: kind for name, kind in indexed_types().items() if name not in known.custom_attributes}
    if missing:
        await operator.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
        _say("search_attributes_added", ", ".join(missing))


async def _owner(client: Client) -> Ownership:
    cluster = await client.workflow_service.get_cluster_info(GetClusterInfoRequest())
    return Ownership(cluster=cluster.cluster_id, namespace=client.namespace)


@dataclass(frozen=True)
class Parts:
    """What the workers of this process share. `polls`: a client for calls that wait."""

    client: Client
    polls: Client
    owner: Ownership
    identity: Identity
    registry: Registry
    spare: shim.Spare


def _workers(settings: Settings, parts: Parts) -> tuple[list[Worker], HostActivities]:
    client, registry = parts.client, parts.registry
    store = RunStore(settings.state, parts.owner, parts.identity)
    loops = LoopStore(settings.state, parts.owner, parts.identity)
    runtime = LocalRuntime(store, settings.host, parts.spare)
    agents = _agents(settings.policy)
    keeping = Keeping(settings.keep_days, loops)
    hosting = HostActivities(client, settings.host, agents, runtime, store, settings.policy, keeping)
    shared = Shared(registry, hosting.lock_session)
    running = AgentActivities(client, agents, runtime, store, settings.policy, shared, parts.polls)
    looping = LoopActivities(client, agents, loops, settings.policy)
    return [
        Worker(
            client,
            task_queue=names.TASK_QUEUE,
            workflows=WORKFLOWS,
            activities=[hosting.claim_host, running.deliver_messages],
            workflow_runner=AS_STARTED,
            # How long the runs of a worker that was killed wait for it before another answers for them.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        ),
        Worker(
            client,
            task_queue=names.host_queue(settings.host),
            activities=[
                hosting.claim_host,
                running.deliver_messages,
                hosting.stop_agent,
                hosting.finalize_run,
                hosting.read_events,
                hosting.end_run,
                hosting.sweep_host,
                hosting.prune_host,
                looping.admit_loop,
                looping.survey_workspace,
                looping.restore_checkpoint,
                looping.drop_checkpoints,
                looping.diff_checkpoints,
                looping.list_checkpoints,
                looping.read_fork_point,
                looping.look_at_run,
            ],
            max_concurrent_activities=1000,
        ),
        Worker(
            client,
            task_queue=names.runs_queue(settings.host),
            activities=[running.run_agent],
            max_concurrent_activities=settings.max_runs,
            max_heartbeat_throttle_interval=timedelta(seconds=1),
        ),
        Worker(
            client, task_queue=registry.queue, activities=[running.deliver_messages], max_concurrent_activities=1000
        ),
    ], hosting


async def _all_poll(workers: Sequence[Worker], over: Sequence["asyncio.Task[Any]"]) -> bool:
    """Wait until all have begun to poll; False where one of `over` came first.

    A worker begins once the server has answered for its namespace, which may take long. Until then `is_running` says
    the same as after its end: that it has ended is told by its task alone.
    """
    while not all(worker.is_running for worker in workers):
        done, _ = await asyncio.wait(over, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return False
    return True


async def _shut_down(workers: Sequence[Worker], polling: Sequence["asyncio.Task[None]"]) -> list[str]:
    """End them all; what each said that had ended by itself."""
    failures = []
    for worker, task in zip(workers, polling, strict=True):
        if task.done():
            failures.append(f"polling of {worker.task_queue} has ended: {task.exception()}")
        elif not worker.is_running:
            task.cancel()  # it still waits for the server's first answer
    await asyncio.gather(*(worker.shutdown() for worker in workers if worker.is_running))
    await asyncio.gather(*polling, return_exceptions=True)
    return failures


async def _schedule_sweeps(client: Client, host: str) -> None:
    sweep = ScheduleActionStartWorkflow(
        names.SWEEP_WORKFLOW, host, id=f"steersman-sweep-{host}", task_queue=names.TASK_QUEUE
    )
    schedule = Schedule(
        action=sweep,
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(minutes=10))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(minutes=1)),
    )
    pause = 1.0
    while True:
        try:
            await client.create_schedule(f"steersman-sweep-{host}", schedule)
        except ScheduleAlreadyRunningError:
            return
        except RPCError as error:  # the server may be away just now
            _say("schedule_failed", f"{error.message}; it is tried again", level=logging.WARNING)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 60.0)
        else:
            return


async def _sweep_now(hosting: HostActivities) -> None:
    try:
        swept = await hosting.sweep_host()
    except Exception as error:  # noqa: BLE001 - nobody waits for this task: what it says is lost otherwise
        _say("sweep_failed", f"{type(error).__name__}: {error}", level=logging.ERROR)
        return
    if swept.stopped or swept.pruned:
        _say("swept", "stopped agents of closed runs, pruned old state", **swept.model_dump())


async def _watch_store(identity: Identity) -> None:
    """Say when the state directory goes, is replaced or comes back: until then this worker leads nothing of it."""
    here = identity.first
    while True:
        await asyncio.sleep(WATCH_S)
        why = ""
        try:
            now = await asyncio.to_thread(identity.check)
        except StoreGone as error:
            now, why = "", str(error)
        if now == here:
            continue
        here = now
        if now == identity.first:
            _say("state_back", f"{identity.state} is store {now} again")
        else:
            replaced = f"{identity.state} is store {now} now; runs that began in {identity.first} are not led in it"
            _say("state_gone", why or replaced, level=logging.ERROR, store=identity.first, now=now)


# ---- replay


async def _replay(file: Path, codec: PayloadCodec | None) -> int:
    began = time.monotonic()
    try:
        text = file.read_text()  # noqa: ASYNC240 - nothing else runs
        history = WorkflowHistory.from_json(file.stem, text)
        started = history.events[0].workflow_execution_started_event_attributes
        # A loop names its runs after itself: the file's name would not do.
        history = WorkflowHistory.from_json(started.workflow_id or file.stem, text)
    except (OSError, ValueError, IndexError) as error:
        print(json.dumps({"ok": False, "workflow": None, "events": 0, "took_ms": 0, "divergence": f"{file}: {error}"}))
        return 1
    # Without a build id the SDK hashes every loaded module, which takes longer than the replay.
    replayer = Replayer(workflows=WORKFLOWS, data_converter=data_converter(codec), build_id="replay")
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    failure = result.replay_failure
    answer = {
        "ok": failure is None,
        "workflow": started.workflow_type.name,
        "events": len(history.events),
        "took_ms": round((time.monotonic() - began) * 1000),
        "divergence": str(failure) if failure else None,
    }
    print(json.dumps(answer))
    return 0 if failure is None else 1


# ---- logging


class JsonLines(logging.Formatter):
    """One JSON object a line, with a machine-readable `action`."""

    def format(self, record: logging.LogRecord) -> str:
        """As text."""
        body = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", record.name),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


def _log_as_json() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _say(action: str, message: str, level: int = logging.INFO, **facts: object) -> None:
    log.log(level, message, extra={"action": action, "facts": facts})


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the SDK's runtime can crash the interpreter at exit
