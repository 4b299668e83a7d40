"""Packages with agents, as pip leaves them in a directory. What their agents do must not live here."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "steersman-recipe"


def install_example(target: Path) -> None:
    """Install the worked example, of a copy: a build may leave something beside its sources."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    flags = ("--no-build-isolation", "--no-deps", "--no-index", "--no-compile", "--target", str(target))
    subprocess.run([*pip, *flags, str(EXAMPLE)], check=True, capture_output=True)


def write_package(target: Path, package: str, points: str, source: str = "") -> None:
    """Write a package down: a module of its name, and these lines of entry points."""
    module = package.replace("-", "_")
    target.mkdir(exist_ok=True)
    (target / f"{module}.py").write_text(source)
    about = target / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)


def agent_point(name: str, value: str) -> str:
    """The entry point of an agent."""
    return f"[steersman.agents]\n{name} = {value}\n"
