"""Credentials of a cluster that run out, are renewed, or cannot be had: as kubeconfigs of clouds have them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.runtimes.kubernetes import api_client
from activities.runtimes.kubernetes.api import ApiRefused, KubernetesApi
from activities.shim.client import MachineUnreachable
from tests.acceptance.own_cluster import NAMESPACE
from tests.support.kubernetes import BackgroundServer
from tests.support.kubernetes.account import Account

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
def account(cluster: BackgroundServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setattr(api_client, "_RENEWAL_S", 0.0)
    return Account(cluster, tmp_path, NAMESPACE)


@pytest.fixture
async def api(account: Account) -> AsyncIterator[KubernetesApi]:
    found = KubernetesApi(None, {"KUBECONFIG": str(account.config)})
    yield found
    await found.aclose()


async def test_a_plugin_is_asked_anew_once_its_token_has_run_out(api: KubernetesApi, account: Account) -> None:
    account.gives_token_by(exec=account.plugin())
    for _ in range(3):
        await api.get(PODS)
    assert account.calls == 1
    account.renew()
    for _ in range(3):
        await api.get(PODS)
    assert account.calls == 2


async def test_a_file_of_a_token_is_read_anew(api: KubernetesApi, account: Account) -> None:
    account.gives_token_by(tokenFile=str(account.file))
    await api.get(PODS)
    account.renew()
    await api.get(PODS)


async def test_a_plugin_that_fails_meanwhile_is_asked_again(api: KubernetesApi, account: Account) -> None:
    account.gives_token_by(exec=account.plugin())
    await api.get(PODS)
    account.renew()
    (account.directory / "fails").touch()
    with pytest.raises(MachineUnreachable, match="gives no token any more"):
        await api.get(PODS)
    (account.directory / "fails").unlink()
    await api.get(PODS)


async def test_a_kubeconfig_that_is_written_anew_leads_to_another_server(api: KubernetesApi, account: Account) -> None:
    account.gives_token_by(tokenFile=str(account.file))
    await api.get(PODS)
    account.renew()
    content = json.loads(account.config.read_text())
    content["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    account.config.write_text(json.dumps(content))
    with pytest.raises(MachineUnreachable, match=r"127\.0\.0\.1"):
        await api.get(PODS)


async def test_who_has_no_others_is_refused(
    api: KubernetesApi, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "_RENEWAL_S", 3600.0)
    account.gives_token_by(exec=account.plugin())
    account.file.write_text("nobody's")
    for _ in range(3):
        with pytest.raises(ApiRefused, match="Unauthorized"):
            await api.get(PODS)
    assert account.calls == 2
