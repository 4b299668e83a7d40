"""What the operator decides: flags, else STEERSMAN_* variables, else the defaults. Read once and frozen."""

import argparse
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from temporalio.converter import PayloadCodec
from temporalio.envconfig import ClientConfig

from activities.admission.pod_patterns import ClusterPattern, PodPattern
from activities.admission.policy import Policy, lent_commands
from activities.admission.ssh_patterns import SshPattern
from activities.admission.webhook_patterns import Target
from activities.agents.entry_points import Catalog
from activities.runtimes.kubernetes import manifest
from activities.store.held_sessions import held_in
from activities.webhooks.webhooks import OwnWebhook
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.kubernetes import KubernetesRuntime
from steersman.contracts.model import JsonObject
from steersman.contracts.request import PERMISSION_ORDER, Caps, PermissionMode, parse_object
from steersman.contracts.runtime import RUNTIMES, SshRuntime
from steersman.hosts import host_name
from steersman.trust import TrustUnreadable, trusted_directories
from workers import logs

P = TypeVar("P")
HOST = re.compile(r"[\w.-]+", re.ASCII)
"""What a host may be called: its name is part of the names of task queues, schedules and workers."""
MAX_REPLICAS = 1000
"""The most pods that a pool is printed for: more is a typing error."""


class BadSettings(Exception):
    """A flag or a variable has a wrong value. The message is the operator's."""


@dataclass(frozen=True)
class Settings:
    """`state`: the state directory. `host`: this machine's name in task queues."""

    state: Path
    host: str
    catalog: Catalog
    policy: Policy
    ssh_config: Path | None
    max_runs: int
    keep_days: float
    profile: str | None
    codec: PayloadCodec | None
    webhook: OwnWebhook | None = None


def check_profile(profile: str | None) -> None:
    """Raises BadSettings where the connection's profile cannot be loaded."""
    try:
        ClientConfig.load_client_connect_config(profile=profile)
    except Exception as error:
        raise BadSettings(f"--profile: cannot load the connection's profile: {error}") from error


def agents_named(arguments: argparse.Namespace, env: Mapping[str, str]) -> list[str]:
    """The agents that the operator has named; none: all may run here."""
    return arguments.agents or _listed(env.get("STEERSMAN_AGENTS"), ",")


def settings_of(
    arguments: argparse.Namespace, env: Mapping[str, str], codec: PayloadCodec | None, catalog: Catalog
) -> Settings:
    """The settings of this worker. Raises BadSettings."""
    state = Path(arguments.state_dir).expanduser().absolute()
    agents = agents_named(arguments, env) or list(catalog.kinds)
    runtimes = arguments.runtimes or _listed(env.get("STEERSMAN_RUNTIMES"), ",") or list(RUNTIMES)
    _check_known("--agent", agents, catalog.kinds, catalog.unusable)
    _check_known("--runtime", runtimes, RUNTIMES)
    if "\n" in str(state):  # which ends the path where a shim is told of it
        raise BadSettings("--state-dir: the path has a line break in it")
    permission: PermissionMode = arguments.max_permission
    if permission not in PERMISSION_ORDER:
        raise BadSettings(f"--max-permission: {permission} is none of {', '.join(PERMISSION_ORDER)}")
    if arguments.max_runs < 1:
        raise BadSettings(f"--max-runs: {arguments.max_runs} is less than 1")
    if not arguments.keep_days >= 0:  # nor what is no number: all would be older than that
        raise BadSettings(f"--keep-days: {arguments.keep_days:g} is no number of days")
    policy = replace(_policy(arguments, env, state, frozenset(agents), frozenset(runtimes)), kinds=catalog.kinds)
    explicit = arguments.host or env.get("STEERSMAN_HOST")
    if explicit and not HOST.fullmatch(explicit):
        raise BadSettings(f"--host: {explicit!r} is no name: letters, digits, dots, hyphens and underscores")
    host = explicit or host_name(state)
    ssh_config = _absolute([arguments.ssh_config])[0] if arguments.ssh_config else None
    try:
        webhook = OwnWebhook.of(env)
    except ValueError as error:
        raise BadSettings(str(error)) from error
    return Settings(
        state=state,
        host=host,
        catalog=catalog,
        policy=policy,
        ssh_config=ssh_config,
        max_runs=arguments.max_runs,
        keep_days=arguments.keep_days,
        profile=arguments.profile,
        codec=codec,
        webhook=webhook,
    )


def machine_of(arguments: argparse.Namespace) -> SshRuntime | KubernetesRuntime | None:
    """Where `check --on` looks; None for this machine. Raises BadSettings."""
    if getattr(arguments, "on", None) is None:
        return None
    try:
        said = json.loads(arguments.on)
        if isinstance(said, dict) and said.get("kind") == "kubernetes":
            return parse_object(KubernetesRuntime, said)
        return parse_object(SshRuntime, said)
    except (ValueError, InvalidRequest) as error:
        raise BadSettings(f"--on: {error}") from error


def pool_of(arguments: argparse.Namespace) -> JsonObject:
    """The Deployment that `pool` prints. Raises BadSettings."""
    try:
        runtime = parse_object(KubernetesRuntime, json.loads(arguments.runtime))
    except (ValueError, InvalidRequest) as error:
        raise BadSettings(f"pool: {error}") from error
    if runtime.pool is None:
        raise BadSettings("pool: the runtime has to name it: pool")
    if not 0 <= arguments.replicas <= MAX_REPLICAS:
        raise BadSettings(f"--replicas: from 0 to {MAX_REPLICAS}")
    return manifest.pool(runtime, arguments.replicas)


def _policy(
    arguments: argparse.Namespace,
    env: Mapping[str, str],
    state: Path,
    agents: frozenset[str],
    runtimes: frozenset[str],
) -> Policy:
    roots = arguments.workspace_root or _paths(env.get("STEERSMAN_WORKSPACE_ROOT"))
    git_roots = arguments.git_root or _paths(env.get("STEERSMAN_GIT_ROOT"))
    trusted = _absolute(arguments.trust or _paths(env.get("STEERSMAN_TRUST")))
    return Policy(
        environ=dict(env),
        allow_env=frozenset(arguments.allow_env or _listed(env.get("STEERSMAN_ALLOW_ENV"), ",")),
        allow_file=tuple(arguments.allow_file or _paths(env.get("STEERSMAN_ALLOW_FILE"))),
        workspace_roots=_workspace_roots(roots),
        allow_ssh=_patterns(
            SshPattern.of, "--allow-ssh", arguments.allow_ssh or _listed(env.get("STEERSMAN_ALLOW_SSH"), ",")
        ),
        allow_kubernetes=_patterns(
            ClusterPattern.of,
            "--allow-kubernetes",
            arguments.allow_kubernetes or _listed(env.get("STEERSMAN_ALLOW_KUBERNETES"), ","),
        ),
        allow_pod=_patterns(
            PodPattern.of, "--allow-pod", arguments.allow_pod or _listed(env.get("STEERSMAN_ALLOW_POD"), ",")
        ),
        allow_webhooks=_patterns(
            Target.of, "--allow-webhook", arguments.allow_webhook or _listed(env.get("STEERSMAN_ALLOW_WEBHOOK"), ",")
        ),
        allow_rules=frozenset(arguments.allow_rule or _listed(env.get("STEERSMAN_ALLOW_RULE"), "\n")),
        allow_commands=_commands(arguments.allow_command or _listed(env.get("STEERSMAN_ALLOW_COMMAND"), "\n")),
        allow_approvals=arguments.allow_approvals,
        trusted=lambda: (*trusted, *_recorded_as_trusted(state)),
        held=partial(held_in, state),
        git_roots=_absolute(git_roots),
        agents=agents,
        runtimes=runtimes,
        max_permission=arguments.max_permission,
        caps=Caps(
            cost_usd=arguments.max_cost,
            duration_s=arguments.max_duration_s,
            lease_s=arguments.max_lease_s,
            stop_s=arguments.max_stop_s,
        ),
    )


def _check_known(flag: str, named: Collection[str], known: Collection[str], unusable: Collection[str] = ()) -> None:
    if unknown := set(named) - set(known) - set(unusable):
        raise BadSettings(f"{flag}: {', '.join(sorted(unknown))} is none of {', '.join(sorted(known))}")


def _workspace_roots(named: list[Path]) -> tuple[Path, ...]:
    """Those that the operator has named, else all. One that is not there is a mistake in typing, or not mounted yet:
    every agent outside of the others would be stopped.
    """
    roots = _absolute(named)
    for root in roots:
        if not root.is_dir():
            raise BadSettings(f"--workspace-root: {root} is no directory")
    return roots or (Path("/"),)


def _listed(value: str | None, separator: str) -> list[str]:
    return [each.strip() for each in (value or "").split(separator) if each.strip()]


def _paths(value: str | None) -> list[Path]:
    return [Path(each) for each in _listed(value, ":")]


def _absolute(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(each.expanduser().absolute() for each in paths)


def _commands(texts: list[str]) -> frozenset[tuple[str, ...]]:
    try:
        return lent_commands(texts)
    except ValueError as error:
        raise BadSettings(f"--allow-command: {error}") from error


def _patterns(of: Callable[[str], P], flag: str, texts: list[str]) -> tuple[P, ...]:
    try:
        return tuple(map(of, texts))
    except ValueError as error:
        raise BadSettings(f"{flag}: {error}") from error


def _recorded_as_trusted(state: Path) -> tuple[Path, ...]:
    """The directories of `steer trust`, as they stand now."""
    try:
        return trusted_directories(state)
    except TrustUnreadable as error:
        logs.write("trust_unreadable", str(error), level=logging.ERROR)
        return ()
