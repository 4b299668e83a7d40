"""The property tests of tests/hostile for as long as one likes: `make fuzz FUZZ_S=3600` gives each file an hour.

Round after round with fresh seeds; the first finding of a file is printed with the example that shows it, kept in
.hypothesis/, and the next file has its turn.
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-m", "property", "-p", "no:cacheprovider")


def main(argv: list[str]) -> int:
    """0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="bench.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="for each file (default: an hour)")
    parser.add_argument("rest", nargs="*", help="what else goes to pytest")
    asked = parser.parse_args(argv)
    files = _files()
    found = [file for file in files if not _holds(file, asked.seconds, asked.rest)]
    print(f"{len(files)} files, {len(found)} with findings" + "".join(f"\n  {file}" for file in found))
    return 1 if found or not files else 0


def _files() -> list[str]:
    """The files of tests/hostile that hold property tests."""
    command = [*PYTEST, "--collect-only", "tests/hostile"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return sorted({line.partition("::")[0] for line in listed.splitlines() if "::" in line})


def _holds(file: str, seconds: float, rest: list[str]) -> bool:
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        command = [*PYTEST, "--timeout", "0", f"--hypothesis-seed={secrets.randbelow(1 << 32)}", file, *rest]
        env = {**os.environ, "STEERSMAN_EXAMPLES": "hour"}
        ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        rounds += 1
        if ran.returncode:
            print(f"{file}: a finding in round {rounds}\n{ran.stdout}\n{ran.stderr}")
            return False
    print(f"{file}: held, {rounds} rounds in {seconds:g} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
