"""The files under deploy/ and the compose file: what an operator starts with them.

No container engine is needed; the parts that talk to Temporal run against a real dev server.
"""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio import workflow
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from steersman.cli.devserver import SERVER_SETTINGS
from steersman.cli.weborigin import BLOCKED_PORTS
from steersman.contracts import names

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "docker-compose.temporal.yml"
BIN = Path(sys.executable).parent

SECRET = uuid.uuid4().hex


@pytest.fixture(scope="module")
def compose() -> Iterator[dict[str, Any]]:
    with COMPOSE.open() as file:
        yield yaml.safe_load(file)


@pytest.fixture
async def temporal() -> AsyncIterator[Client]:
    settings = [word for each in SERVER_SETTINGS for word in ("--dynamic-config-value", each)]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(BIN / "temporal"), dev_server_extra_args=settings
    ) as env:
        yield env.client


def environment(client: Client, **more: str) -> dict[str, str]:
    """A program's environment in which the Temporal CLI and SDK find the client's server."""
    address = client.service_client.config.target_host
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": client.namespace, **more}


def test_long_running_services_come_back_and_tell_their_health(compose: dict[str, Any]) -> None:
    one_shot = {"schema", "namespace", "image"}
    for name, service in compose["services"].items():
        if name in one_shot:
            assert service["restart"].startswith("on-failure"), name
        else:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"][0] == "CMD", name


def test_images_are_pinned_and_server_and_tools_are_of_one_version(compose: dict[str, Any]) -> None:
    built = {service["image"] for service in compose["services"].values() if "build" in service}
    images = {name: each["image"] for name, each in compose["services"].items() if each["image"] not in built}
    named = {name: re.fullmatch(r"\$\{[A-Z_]+_IMAGE:-[a-z/-]+:([\w.]+)\}", image) for name, image in images.items()}
    tags = {name: found[1] if found else "" for name, found in named.items()}
    assert [name for name, tag in tags.items() if tag in {"", "latest"}] == []
    assert tags["temporal"] == tags["schema"] == tags["namespace"]


def test_each_image_is_built_once_before_anything_uses_it(compose: dict[str, Any]) -> None:
    services = compose["services"]
    builders = {service["image"]: name for name, service in services.items() if "build" in service}
    assert len(builders) == len([name for name, service in services.items() if "build" in service])
    # `--scale worker=0` and the like leave the builder.
    assert not set(builders.values()) & {"worker", "web"}
    users = {name for name, service in services.items() if service["image"] in builders} - set(builders.values())
    assert users == {"worker", "web"}
    for name in users:
        needed = services[name]["depends_on"][builders[services[name]["image"]]]
        assert needed == {"condition": "service_completed_successfully"}, name
        assert services[name]["pull_policy"] == "never", name


def test_images_are_pinned_by_digest_where_the_operator_asks(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo "sha256:${#4}"\n')
    docker.chmod(0o700)
    script = ["sh", str(ROOT / "deploy/pin_images.sh")]
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    pinned = subprocess.run(script, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    names = set(re.findall(r"\$\{([A-Z_]+_IMAGE):-", COMPOSE.read_text()))
    assert {line.partition("=")[0] for line in pinned} == names | {"NODE_IMAGE"}
    assert len(names) == 5
    assert "POSTGRES_IMAGE=postgres:16@sha256:11" in pinned
    docker.write_text("#!/bin/sh\necho nothing\n")
    assert subprocess.run(script, env=env, capture_output=True, check=False).returncode == 1


def test_every_service_has_its_limits(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["mem_limit"], name
        assert service["cpus"], name
        assert service["pids_limit"], name


def test_no_page_in_a_browser_comes_past_the_proxy(compose: dict[str, Any]) -> None:
    services = compose["services"]
    published = {name for name, service in services.items() if "ports" in service}
    assert published == {"temporal", "web"}
    port = int(services["ui"]["environment"]["TEMPORAL_UI_PORT"])
    assert port in BLOCKED_PORTS
    assert services["web"]["command"][1:3] == ["-m", "steersman.cli.webproxy"]
    assert f"http://ui:{port}" in services["web"]["command"]


def test_the_unit_gives_agents_no_more_than_they_need() -> None:
    lines = (ROOT / "deploy/steersman-worker.service").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert settings["LimitCORE"] == "0"
    assert int(settings["TasksMax"]) > 0
    assert settings["CapabilityBoundingSet"] == settings["AmbientCapabilities"] == ""
    assert settings["ProtectHome"] == settings["RestrictNamespaces"] == settings["NoNewPrivileges"] == "yes"
    assert settings["KillMode"] == "process"
    # A child that is not dumpable would be out of the shim's sight.
    assert settings["ProtectProc"] == "default"
    assert "PrivateTmp" not in settings


def test_ports_are_on_the_loopback_address_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:7233:7233", "127.0.0.1:8080:8080"]


def test_the_file_holds_no_secret(compose: dict[str, Any]) -> None:
    secrets = [
        value
        for service in compose["services"].values()
        for key, value in service.get("environment", {}).items()
        if any(word in key for word in ("PASSWORD", "PWD", "KEY", "TOKEN"))
    ]
    assert secrets
    assert [value for value in secrets if not value.startswith("${POSTGRES_PASSWORD:?")] == []
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/deploy/worker.env"} <= set(ignored)


def test_agents_cannot_reach_the_database(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert compose["networks"]["database"]["internal"] is True
    assert "database" not in services["worker"]["networks"]


def test_worker_keeps_its_state_and_its_name(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    mounts = dict(volume.split(":") for volume in worker["volumes"])
    assert mounts.keys() <= compose["volumes"].keys()
    targets = tuple(mounts.values())
    assert worker["environment"]["STEERSMAN_HOST"]
    assert worker["environment"]["STEERSMAN_STATE_DIR"].startswith(targets)
    assert worker["environment"]["STEERSMAN_WORKSPACE_ROOT"].startswith(targets)


def test_mounted_and_built_files_exist(compose: dict[str, Any]) -> None:
    sources = [
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    for path in [*sources, compose["services"]["image"]["build"]["dockerfile"]]:
        assert (ROOT / path).exists(), path


def test_server_has_the_settings_of_the_dev_server() -> None:
    config = yaml.safe_load((ROOT / "deploy/temporal/dynamicconfig.yaml").read_text())
    for setting in SERVER_SETTINGS:
        name, _, value = setting.partition("=")
        assert config[name] == [{"value": yaml.safe_load(value)}], name


def test_docker_accepts_the_file() -> None:
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no docker compose here")
    command = [docker, "compose", "-f", str(COMPOSE), "config", "--format", "json"]
    env = {**os.environ, "POSTGRES_PASSWORD": SECRET}
    resolved = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert resolved.returncode == 0, resolved.stderr
    assert SECRET in resolved.stdout
    without = {name: value for name, value in env.items() if name != "POSTGRES_PASSWORD"}
    refused = subprocess.run(command, env=without, cwd="/", capture_output=True, text=True, check=False)
    assert refused.returncode != 0 or (ROOT / ".env").exists()


@pytest.mark.integration
async def test_namespace_is_made_once_and_can_be_made_again(temporal: Client) -> None:
    env = environment(temporal, TEMPORAL_NAMESPACE="team")
    script = ["sh", str(ROOT / "deploy/temporal/namespace.sh")]
    for _ in range(2):
        made = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    listing = subprocess.run(
        [BIN / "temporal", "operator", "search-attribute", "list"], env=env, capture_output=True, text=True, check=True
    )
    attributes = dict(line.split() for line in listing.stdout.splitlines() if line.strip())
    expected = dict(names.SEARCH_ATTRIBUTES)
    assert {name: attributes.get(name) for name in expected} == expected


@workflow.defn(name="Nothing")
class Nothing:
    @workflow.run
    async def run(self) -> None:
        return


async def worker_health(client: Client, **more: str) -> tuple[int | None, str]:
    """Exit code and complaint of the health check on the client's server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "deploy/worker_health.py"),
        env=environment(client, PYTHONPATH=str(ROOT)) | more,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaint = await process.communicate()
    return process.returncode, complaint.decode()


@pytest.mark.integration
async def test_health_check_sees_whether_a_worker_polls(temporal: Client) -> None:
    code, complaint = await worker_health(temporal)
    assert code == 1
    assert names.TASK_QUEUE in complaint

    runner = UnsandboxedWorkflowRunner()
    async with Worker(temporal, task_queue=names.TASK_QUEUE, workflows=[Nothing], workflow_runner=runner):
        async with asyncio.timeout(30):
            while (await worker_health(temporal))[0] != 0:
                pass


@pytest.mark.integration
async def test_health_check_counts_no_worker_whose_name_begins_alike(temporal: Client) -> None:
    identity = f"1-a@{socket.gethostname()}0"
    other = await Client.connect(temporal.service_client.config.target_host, identity=identity)
    asked = DescribeTaskQueueRequest(
        namespace=other.namespace,
        task_queue=TaskQueue(name=names.TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    runner = UnsandboxedWorkflowRunner()
    async with Worker(other, task_queue=names.TASK_QUEUE, workflows=[Nothing], workflow_runner=runner):
        async with asyncio.timeout(30):
            while not (await other.workflow_service.describe_task_queue(asked)).pollers:
                await asyncio.sleep(0.1)
        assert (await worker_health(temporal))[0] == 1


@pytest.mark.integration
async def test_health_check_says_that_temporal_is_away(temporal: Client) -> None:
    code, complaint = await worker_health(temporal, TEMPORAL_ADDRESS="")  # as the worker: 127.0.0.1:7233
    assert "Traceback" not in complaint
    code, complaint = await worker_health(temporal, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert code == 1
    assert "does not answer" in complaint
