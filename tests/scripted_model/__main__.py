"""The scripted model as its own process: `python -m tests.scripted_model --script FILE.json`.

Prints its URL, serves until SIGINT or SIGTERM, and exits with 1 if a script ran out.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from tests.scripted_model.files import load_scripts
from tests.scripted_model.server import ScriptedModel


async def serve(port: int, file: Path) -> int:
    scripts = load_scripts(file)
    model = ScriptedModel(port)
    await model.start()
    for name, (steps, repeat) in scripts.items():
        model.script(name, *steps, repeat=repeat)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sys.stdout.write(model.url + "\n")
    sys.stdout.flush()
    await stop.wait()
    if complaint := model.complaint():
        sys.stderr.write(complaint + "\n")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scripted_model", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--script", type=Path, required=True, help="scripts as JSON, see tests/scripted_model/files.py")
    args = parser.parse_args()
    return asyncio.run(serve(args.port, args.script))


if __name__ == "__main__":
    sys.exit(main())
