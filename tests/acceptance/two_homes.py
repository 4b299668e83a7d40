"""A worker that has an agent's program, and another machine that has it, too, each with a home of its own."""

import asyncio
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.acceptance.site import Site
from tests.support.programs import program
from tests.support.sshd import Sshd


class TwoHomes:
    """`here`, `there`: the homes of both. `variables`: what the worker has for the agent, and requests may set."""

    def __init__(self, site: Site, name: str, **variables: str) -> None:
        self.site, self.here, self.there = site, site.root / "here", site.root / "elsewhere"
        self._name, self._variables = name, variables
        self.here.mkdir()
        (self.there / ".local" / "bin").mkdir(parents=True)
        (self.there / ".profile").write_text('export PATH="$HOME/.local/bin:$PATH"\n')
        wrapper = self.there / ".local" / "bin" / name
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(program(name))} "$@"\n')
        wrapper.chmod(0o755)
        self.sshd = Sshd(site.root / "sshd", self.there)

    async def worker(self, *flags: str) -> None:
        """One that is at work."""
        path = f"{Path(program(self._name)).parent}{os.pathsep}{os.environ['PATH']}"
        allowed = (part for name in self._variables for part in ("--allow-env", name))
        ssh = ("--allow-ssh", "place", "--ssh-config", str(self.sshd.config))
        environment = {"HOME": str(self.here), "PATH": path, **self._variables}
        await self.site.worker(*ssh, *allowed, *flags, **environment).ready()

    def end(self) -> None:
        self.site.end()
        self.sshd.close()


Homes = TypeVar("Homes", bound=TwoHomes)


@contextmanager
def at_work(homes: Homes) -> Iterator[Homes]:
    """With a worker, for the length of a block."""
    try:
        asyncio.run(homes.worker())
        yield homes
    finally:
        homes.end()
