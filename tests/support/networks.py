"""A network namespace with one interface to this one, which can be taken down. Needs root, and iproute2."""

import os
import subprocess


class Network:
    """`address` is in the namespace `name`, at the other end of a pair of interfaces."""

    def __init__(self) -> None:
        number = os.getpid() % 60_000
        self.name = f"steersman{number}"
        self._link = f"st{number}"
        there = f"{self._link}b"
        self.address, here = f"10.{200 + number % 50}.{number // 256}.2", f"10.{200 + number % 50}.{number // 256}.1"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", there)
        _ip("link", "set", there, "netns", self.name)
        _ip("addr", "add", f"{here}/30", "dev", self._link)
        _ip("link", "set", self._link, "up")
        for words in (("addr", "add", f"{self.address}/30", "dev", there), ("link", "set", there, "up")):
            _ip("-n", self.name, *words)
        _ip("-n", self.name, "link", "set", "lo", "up")

    def down(self) -> None:
        """Nothing passes, and nobody is told."""
        _ip("-n", self.name, "link", "set", f"{self._link}b", "down")

    def up(self) -> None:
        _ip("-n", self.name, "link", "set", f"{self._link}b", "up")

    def close(self) -> None:
        _ip("link", "delete", self._link)  # and its other end with it, also where a process keeps the namespace
        _ip("netns", "delete", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
