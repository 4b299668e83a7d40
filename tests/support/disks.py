"""Small file systems of a test's own, that can be filled, freed, broken and made read-only. Needs root."""

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN."""


class Disk:
    """A file system mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "filling"

    def fill(self) -> None:
        """Until not a byte fits, nor a file, also where somebody deletes something meanwhile."""
        before = -1
        while (now := self._taken) != before:
            before = now
            self._fill()
            time.sleep(0.05)

    @property
    def _taken(self) -> int:
        """Bytes and files of `fill`."""
        return sum(1 + each.stat().st_size for each in self.path.glob("filling*"))

    def _fill(self) -> None:
        with self._filling.open("ab", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue
        number = len(list(self.path.glob("filling*")))
        while True:
            try:
                (self.path / f"filling-{number}").touch(exist_ok=False)
            except OSError:
                return
            number += 1

    def free(self) -> None:
        """What `fill` took."""
        for each in self.path.glob("filling*"):
            each.unlink()

    def fail(self) -> None:
        """From now on every access to it is an error of input and output (ext4 alone), as of a disk that died."""
        with _opened(self.path) as directory:
            fcntl.ioctl(directory, SHUTDOWN, struct.pack("I", 2))

    def turn_read_only(self) -> None:
        """As ext4 does when it finds itself damaged: under open files, too (ext4 alone)."""
        device = self.path.stat().st_dev
        loop = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
        Path("/sys/fs/ext4", loop, "trigger_fs_error").write_text("a test")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def small_disk(path: Path, size: str = "2m") -> Iterator[Disk]:
    """A file system in memory with room for this much and a few hundred files."""
    path.mkdir(mode=0o700)
    options = f"size={size},nr_inodes=400,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def ext4_disk(path: Path, image: Path) -> Iterator[Disk]:
    """The same as ext4, in a file: what it does when it is full is not what memory does."""
    path.mkdir(mode=0o700)
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "400", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop,errors=remount-ro", str(image), str(path)], check=True)
    path.chmod(0o700)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def may_mount() -> bool:
    """Whether this user can mount."""
    return os.geteuid() == 0
