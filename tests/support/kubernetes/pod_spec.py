"""A pod's spec as processes and directories: environment, command, user, volumes.

When they are started must not live here.
"""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.kubernetes.containers import ContainerSpec, Mount
from tests.support.kubernetes.kinds import CLAIMS, CONFIG_MAPS, SECRETS, Kind
from tests.support.kubernetes.settings import Settings
from tests.support.kubernetes.store import Object, Store

_REFERENCE = re.compile(r"\$(\$|\([A-Za-z_][A-Za-z0-9_.-]*\))")


class ConfigError(Exception):
    """Something that a container refers to is not there; the message is the kubelet's."""


class VolumeError(Exception):
    """A volume cannot be mounted yet; the message is the kubelet's."""


class Volumes:
    """A pod's volumes as directories below one directory; claims have theirs elsewhere, and outlive the pod."""

    def __init__(self, pod: Object, directory: Path, claims: Path, store: Store) -> None:
        self._pod, self._directory, self._claims, self._store = pod, directory, claims, store
        self._sources: dict[str, Path] = {}

    def prepare(self) -> None:
        """Make what is not made yet. Raises VolumeError."""
        for volume in self._pod["spec"].get("volumes") or []:
            if volume["name"] not in self._sources:
                self._sources[volume["name"]] = self._make(volume)

    def mounts(self, container: Object) -> list[Mount]:
        made = []
        for each in container.get("volumeMounts") or []:
            source = self._sources[each["name"]]
            if each.get("subPath"):
                source = source / str(each["subPath"])
                source.mkdir(parents=True, exist_ok=True)
            made.append(Mount(str(source), each["mountPath"], bool(each.get("readOnly"))))
        return made

    def _make(self, volume: Object) -> Path:
        namespace = self._pod["metadata"]["namespace"]
        if path := (volume.get("hostPath") or {}).get("path"):
            return Path(path)
        if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found = self._store.find(CLAIMS, namespace, claim)
            if found is None:
                raise VolumeError(f'persistentvolumeclaim "{claim}" not found')
            return self._open_directory(self._claims / str(found["metadata"]["uid"]))
        place = self._directory / str(volume["name"])
        for key, name, kind in (("secret", "secretName", SECRETS), ("configMap", "name", CONFIG_MAPS)):
            if key in volume:
                self._write(kind, volume[key], volume[key][name], place)
                return place
        return self._open_directory(place)

    def _open_directory(self, place: Path) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is not None:
            os.chown(place, -1, group)
            place.chmod(0o2777)
        return place

    def _write(self, kind: Kind, source: Object, name: str, place: Path) -> None:
        data = _data(self._store, kind, self._pod["metadata"]["namespace"], name)
        if data is None:
            if not source.get("optional"):
                raise VolumeError(
                    f'MountVolume.SetUp failed for volume "{place.name}" : {kind.plural[:-1]} "{name}" not found'
                )
            data = {}
        place.mkdir(parents=True, exist_ok=True)
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            path = place / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[item["key"]])
            path.chmod(item.get("mode", source.get("defaultMode", 0o644)))
            group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
            if group is not None:
                os.chown(path, -1, group)
                path.chmod(path.stat().st_mode & 0o777 | 0o040)


def container_spec(pod: Object, container: Object, volumes: Volumes, store: Store, settings: Settings) -> ContainerSpec:
    """Raises ConfigError."""
    own = container.get("securityContext") or {}
    security = {**(pod["spec"].get("securityContext") or {}), **own}
    uid = security.get("runAsUser") or 0
    if security.get("runAsNonRoot") and uid == 0:
        raise ConfigError("container has runAsNonRoot and image will run as root")
    environment = _environment(pod, container, store, settings)
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if not command:
        raise ConfigError("no command specified")
    dropped = (own.get("capabilities") or {}).get("drop") or []
    return ContainerSpec(
        argv=[_expand(each, environment) for each in command],
        environment=environment,
        directory=container.get("workingDir") or "/",
        uid=uid,
        gid=security.get("runAsGroup") or 0,
        groups=[each for each in (security.get("fsGroup"), *(security.get("supplementalGroups") or [])) if each],
        mounts=[
            *volumes.mounts(container),
            *(Mount(each, each) for each in settings.shared),
            *(Mount(path, f"/usr/local/bin/{name}", read_only=True) for name, path in settings.programs.items()),
        ],
        hidden=settings.hidden,
        hostname=pod["metadata"]["name"][:63],
        read_only_root=bool(own.get("readOnlyRootFilesystem")),
        drop_capabilities="ALL" in [each.upper() for each in dropped],
        no_new_privileges=own.get("allowPrivilegeEscalation") is False,
    )


def _environment(pod: Object, container: Object, store: Store, settings: Settings) -> dict[str, str]:
    namespace = pod["metadata"]["namespace"]
    made = {"PATH": os.environ["PATH"], "HOME": settings.home, "HOSTNAME": pod["metadata"]["name"]}
    for each in container.get("envFrom") or []:
        for key, kind in (("secretRef", SECRETS), ("configMapRef", CONFIG_MAPS)):
            if key in each:
                for name, value in _referred(store, kind, namespace, each[key]).items():
                    made[each.get("prefix", "") + name] = value.decode(errors="surrogateescape")
    for each in container.get("env") or []:
        source = each.get("valueFrom") or {}
        if not source:
            made[each["name"]] = _expand(each.get("value") or "", made)
        elif (text := _value(pod, store, source)) is not None:
            made[each["name"]] = text
    return made


def _value(pod: Object, store: Store, source: Mapping[str, Any]) -> str | None:
    """Of an environment variable that refers to something."""
    for key, kind in (("secretKeyRef", SECRETS), ("configMapKeyRef", CONFIG_MAPS)):
        if reference := source.get(key):
            data = _referred(store, kind, pod["metadata"]["namespace"], reference)
            if reference["key"] in data:
                return data[reference["key"]].decode(errors="surrogateescape")
            if not reference.get("optional"):
                where = f"{kind.name} {pod['metadata']['namespace']}/{reference['name']}"
                raise ConfigError(f"couldn't find key {reference['key']} in {where}")
            return None
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    known = {"metadata.name": "name", "metadata.namespace": "namespace", "metadata.uid": "uid"}
    return str(pod["metadata"][known[path]]) if path in known else ""


def _referred(store: Store, kind: Kind, namespace: str, reference: Mapping[str, Any]) -> dict[str, bytes]:
    data = _data(store, kind, namespace, reference["name"])
    if data is None and not reference.get("optional"):
        raise ConfigError(f'{kind.plural[:-1]} "{reference["name"]}" not found')
    return data or {}


def _data(store: Store, kind: Kind, namespace: str, name: str) -> dict[str, bytes] | None:
    found = store.find(kind, namespace, name)
    if found is None:
        return None
    data = found.get("data") or {}
    if kind is SECRETS:
        return {key: base64.b64decode(value) for key, value in data.items()}
    return {key: value.encode() for key, value in data.items()}


def _expand(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` is replaced where there is such a variable; `$$` is a dollar."""

    def one(found: re.Match[str]) -> str:
        inner = found[1]
        return "$" if inner == "$" else environment.get(inner[1:-1], found[0])

    return _REFERENCE.sub(one, text)
