"""Makes the image of tests that need a cluster, as an OCI archive: `python -m tests.support.cluster_image ROOTFS FILE`.

ROOTFS is a Debian with git, Python's minimal package and Claude Code (as of the cluster that tests use); what is added
is all of Python's standard library, which agents' pods need. As root on Debian.
"""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.cluster import IMAGE

_TYPE = "application/vnd.oci.image"


def main(rootfs: Path, archive: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory(prefix="steersman-image-") as scratch:
        further, layer = Path(scratch, "further"), Path(scratch, "layer")
        version = next(rootfs.glob("usr/lib/python3.*")).name
        subprocess.run(["apt-get", "download", "-qq", f"lib{version}-stdlib"], cwd=scratch, check=True)
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(further)], check=True)
        with tarfile.open(layer, "w") as tar:
            for each in (rootfs, further):
                tar.add(each, arcname=".")
        _write(archive, layer)


def _write(archive: Path, layer: Path) -> None:
    with layer.open("rb") as file:
        digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    rootfs = {"type": "layers", "diff_ids": [digest]}
    config = _json({"architecture": "amd64", "os": "linux", "config": {"Env": [path]}, "rootfs": rootfs})
    layers = [{"mediaType": f"{_TYPE}.layer.v1.tar", "digest": digest, "size": layer.stat().st_size}]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": _described(f"{_TYPE}.config.v1+json", config),
            "layers": layers,
        }
    )
    names = {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": IMAGE.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [_described(f"{_TYPE}.manifest.v1+json", manifest, names)]}
    with tarfile.open(archive, "w") as tar:
        for name, data in (
            ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
            ("index.json", _json(index)),
            (f"blobs/sha256/{hashlib.sha256(config).hexdigest()}", config),
            (f"blobs/sha256/{hashlib.sha256(manifest).hexdigest()}", manifest),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        tar.add(layer, arcname=f"blobs/sha256/{digest.removeprefix('sha256:')}")


def _described(kind: str, data: bytes, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    said = {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
    return {**said, **({"annotations": dict(annotations)} if annotations else {})}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
