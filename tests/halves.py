"""All tests, in two processes beside each other: most of their time is waiting. Then, alone, what keeps a machine busy.

`python -m tests.halves`, from the top.

What each prints is shown once it has ended. Exits with 1 where one of them failed.
"""

import asyncio
import sys
import time

HALVES = (
    ("tests/acceptance", "tests/client", "tests/cli", "tests/shim", "tests/runtimes"),
    (
        *("tests/hostile", "tests/agents", "tests/workflows", "tests/unit", "tests/histories"),
        *("tests/test_deploy.py", "tests/test_project.py", "tests/test_scripted_model.py"),
    ),
)
ALONE = ("tests/chaos",)


async def _run(paths: tuple[str, ...]) -> bool:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    sys.stdout.write(f"{output.decode('utf-8', 'replace')}\n{' '.join(paths)}: {time.monotonic() - began:.0f} s\n")
    sys.stdout.flush()
    return process.returncode == 0


async def _main() -> int:
    held = await asyncio.gather(*map(_run, HALVES))
    return 0 if all([*held, await _run(ALONE)]) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
