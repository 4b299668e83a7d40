"""A kubeconfig, and a certificate where the server speaks TLS.

Who may do what with it must not live here.
"""

import base64
import json
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, url: str, token: str, *, namespace: str = "default", authority: Path | None = None) -> Path:
    """One cluster, one user, one context; JSON is YAML."""
    cluster: dict[str, object] = {"server": url}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": namespace}}],
        "current-context": "tests",
    }
    return write_private(path, content)


def write_private(path: Path, content: Mapping[str, object]) -> Path:
    """There is a token in it, which nobody else may read, not even while it is written."""
    path.touch(0o600)
    path.write_text(json.dumps(content, indent=2))
    return path


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """One of its own signing for 127.0.0.1, and a context that speaks with it. Needs openssl."""
    cert, key = directory / "server.crt", directory / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context
