"""What the server says of itself: its version, and which APIs there are. No object must be looked at here."""

from aiohttp import web

from tests.support.kubernetes.kinds import BY_PLURAL
from tests.support.kubernetes.settings import Release


def version(release: Release) -> web.Response:
    major, minor, _ = release.name.removeprefix("v").split(".")
    return web.json_response(
        {
            "major": major,
            "minor": minor,
            "gitVersion": release.name,
            "gitCommit": "0" * 40,
            "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z",
            "goVersion": "go1.25",
            "compiler": "gc",
            "platform": "linux/amd64",
        }
    )


def discovery(path: str) -> web.Response | None:
    """What says which APIs there are."""
    groups = sorted({(each.group, each.version) for each in BY_PLURAL.values() if each.group})
    if path == "/api":
        return web.json_response({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
    if path == "/apis":
        listing = [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in groups
        ]
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": listing})
    for group, version in [("", "v1"), *groups]:
        if path == (f"/apis/{group}/{version}" if group else "/api/v1"):
            resources = [
                {"name": each.plural, "singularName": "", "namespaced": each.namespaced, "kind": each.name, "verbs": []}
                for each in BY_PLURAL.values()
                if each.group == group
            ]
            version_name = f"{group}/{version}" if group else version
            return web.json_response({"kind": "APIResourceList", "groupVersion": version_name, "resources": resources})
    return None
