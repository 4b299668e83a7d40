"""A copy of a workspace, at the place where an agent works in it: made of a snapshot, and made into one again.

Runs there, on Python 3.9 and git alone, from one file: `known`, `receive`, `send`, `back_up` and `remove`. The
snapshot's format is in carry/snapshots.py. Nothing in the copy is run: neither hooks nor filters, nor what its
configuration names.

    ROOT/ready          the snapshot that the copy was made of; until then there is no copy
        /run            the run that it was made for, by a name of its own
        /name           the name of the copy's directory
        /copy/<name>/   the copy: with a .git of its own where the workspace is a git repository; no remote
        /store/         a bare repository of ours: objects that were brought here
        /index          the copy's files as they were brought
        /objects        the name of the object store that the copy shares with others, if any
        /refreshing     there while the copy is made into one of another snapshot
        /backup/        a bare repository of ours: what snapshots have that were taken while an agent works
        /backup.lock    held while that is written

    STORES/<store>/objects/pack/   an object store: packs of one workspace's snapshots, for copies that come
                  /state.json      these packs, and the snapshots of which they have everything
                  /lock            held while that is read or changed
                  /consolidation/  one pack on its way to take the place of all
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader
    from typing import IO, Any, BinaryIO

FORMAT = 1
TIMEOUT_S = 1800
"""No git may take longer than this many seconds."""
MAX_HEADER = 64 * 1024 * 1024
MAX_WALKED = 200_000
"""Empty directories are looked for among this many entries of untracked directories."""
MAX_INDEX = 1024 * 1024 * 1024
MAX_REFS = 50_000
CARRIED_REFS = ("refs/heads/", "refs/tags/")
STASHES = "refs/stashes/"
"""A snapshot has all stashes of a copy but the newest by their ids below this name."""
CHUNK = 1024 * 1024
KEPT_SNAPSHOTS = 16
"""An object store keeps what this many snapshots have: the newest."""
MAX_TIPS = 5_000
"""Branches and tags of the newest snapshot that a store names."""
MAX_RULES = 100
"""A refresh looks this many times for what files of rules had hidden that it has removed."""
SILENCE_S = 60
"""The way of a pack is cut where nothing of it comes for this many seconds."""
REMOVE_S = 30
"""A removal waits this many seconds for programs of a worker that is gone, and that are still at work in the copy."""
_held: list[int] = []
"""Descriptors of locks. Every program that we run has them, too: it may work on when this one is killed."""
MANY_PACKS = 24
SPARE_BYTES = 256 * 1024 * 1024
"""A store is consolidated with more packs than MANY_PACKS, or once it has this beyond twice what it then had."""
LOCK_S = 5.0
"""A store that somebody keeps locked for this many seconds is done without."""
UNUSED_S = 30 * 86400
"""A store that no copy was made or sent with for this many seconds is removed."""
OPENED_NAMES = frozenset([".gitignore", ".gitattributes", ".gitmodules"])
_OBJECT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SHARED_INDEX = re.compile(r"sharedindex\.[0-9a-f]{40,64}")
_PACK = re.compile(r"pack-[0-9a-f]{40,64}\.(?:pack|idx)")
_STORE = re.compile(r"[0-9a-f]{32}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")

_CONFIG = """[core]
	repositoryFormatVersion = {version}
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = {case}
	precomposeUnicode = {case}
	logAllRefUpdates = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	autocrlf = false
	safecrlf = false
	fsmonitor = false
	untrackedCache = false
	splitIndex = false
	quotePath = false
[gc]
	auto = 0
{extensions}"""
_ATTRIBUTES = "* -text !eol !crlf -ident -filter !working-tree-encoding !diff\n"


class Failed(Exception):
    """The message is a sentence."""


class Lacking(Failed):
    """What is here does not make the copy: all of it has to be sent."""


class CutOff(Failed):
    """What is sent does not come, or has no room: it would not if all were sent either."""


class Git:
    """git with a git directory of ours."""

    def __init__(self, git_directory: str, **variables: str) -> None:
        self.environment: dict[str, str] = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": git_directory,
            "XDG_CONFIG_HOME": git_directory,
            "LC_ALL": "C",
            "TZ": "UTC",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_DIR": git_directory,
            **{
                f"GIT_{role}_{name}": value
                for role in ("AUTHOR", "COMMITTER")
                for name, value in (("NAME", "Steersman"), ("EMAIL", "steersman@localhost"))
            },
            **variables,
        }

    def run(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        stdout: int | IO[bytes] = subprocess.PIPE,
        ok: tuple[int, ...] = (0,),
    ) -> bytes:
        """What git prints. `stdin`: bytes, or a file. Raises Failed for another exit code than `ok`."""
        directory = self.environment.get("GIT_WORK_TREE") or self.environment["GIT_DIR"]
        if not os.path.isdir(directory):
            raise Failed(f"{directory} is gone")
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        try:
            done = subprocess.run(
                ["git", *arguments],
                env=self.environment,
                cwd=directory,
                stdout=stdout,
                stderr=subprocess.PIPE,
                timeout=TIMEOUT_S,
                check=False,
                pass_fds=_held,
                **given,
            )
        except FileNotFoundError:
            raise Failed("git is not installed here") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"git {_command(arguments)} took too long and was stopped") from None
        # git only warns about a directory that it cannot read, and leaves its files out.
        if done.returncode not in ok or b"could not open directory" in done.stderr:
            # A disk that is full kills a git that writes into memory mapped to a file.
            code = "SIGBUS, as where a disk is full" if done.returncode == -signal.SIGBUS else done.returncode
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"]
            raise Failed(f"git {_command(arguments)}: {said[0][:500]}")
        return done.stdout or b""


class StoreState:
    """`files`: packs and their indexes, with their sizes in bytes. `snapshots`: newest first; `tips`: branches and tags
    of the newest one. Everything that these lead to is in the packs. `settled`: bytes when there was one pack last.
    """

    def __init__(
        self,
        files: dict[str, int] | None = None,
        snapshots: Iterable[str] = (),
        tips: Iterable[str] = (),
        settled: int = 0,
    ) -> None:
        self.files = files or {}
        self.snapshots, self.tips, self.settled = list(snapshots), list(tips), settled

    @property
    def size(self) -> int:
        return sum(self.files.values())


class ObjectStore:
    """Objects of earlier copies of one workspace, which the next ones need not be sent again.

    A copy has links of its own to the packs: whatever becomes of the store, no object is taken from a copy. A store
    only saves bytes: without it, or with one that is not what it was, everything is sent.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.packs = os.path.join(path, "objects", "pack")
        self._file = os.path.join(path, "state.json")

    def known(self) -> StoreState:
        """What the store has. Raises Failed, OSError."""
        if not os.path.isdir(self.path):
            return StoreState()
        with self._locked():
            return self._state()

    def lend(self, packs: str) -> None:
        """Link all packs into a copy's directory of packs. Raises Failed, OSError."""
        with self._locked():
            for name in self._state().files:
                _link(os.path.join(self.packs, name), os.path.join(packs, name))

    def add(self, packs: str, snapshot: str, tips: Iterable[str]) -> None:
        """Take over a copy's packs: in these is everything of the snapshot and the tips. Raises Failed, OSError."""
        with self._locked():
            state = self._state()
            self._sweep(state)
            fresh = not state.files
            # Not only the newest: others may have been dropped since the copy was made.
            for name, size in _packs(packs).items():
                if name not in state.files:
                    _link(os.path.join(packs, name), os.path.join(self.packs, name))
                    state.files[name] = size
            state.snapshots = [snapshot, *(each for each in state.snapshots if each != snapshot)][:KEPT_SNAPSHOTS]
            state.tips = sorted(set(tips))[:MAX_TIPS]
            if fresh:
                state.settled = state.size
            self._keep(state)

    def forget(self) -> None:
        """Begin anew: what is here is not what was taken for it. Raises Failed, OSError."""
        with self._locked():
            self._keep(StoreState())
            self._sweep(StoreState())

    def consolidate(self) -> None:
        """Make one pack of what the kept snapshots have, where there are many. Raises Failed, OSError."""
        scratch = os.path.join(self.path, "consolidation")
        with self._alone() as alone:
            if not alone:
                return
            _remove_tree(scratch)  # of one that was killed
            with self._locked():
                state = self._state()
                self._sweep(state)
                if len(state.files) <= 2 * MANY_PACKS and state.size <= 2 * state.settled + SPARE_BYTES:
                    return
                _init(scratch, "sha256" if len(state.snapshots[0]) == 64 else "sha1", _CONFIG)
                for name in state.files:
                    _link(os.path.join(self.packs, name), os.path.join(scratch, "objects", "pack", name))
            roots = "".join(f"{each}\n" for each in (*state.snapshots, *state.tips))
            try:
                Git(scratch).run(
                    *("pack-objects", "--revs", "--delta-base-offset", "-q", os.path.join(scratch, "pack")),
                    stdin=roots.encode(),
                )
            except Failed:
                self.forget()
                return
            made = _packs(scratch)
            with self._locked():
                now = self._state()
                for name in made:
                    _link(os.path.join(scratch, name), os.path.join(self.packs, name))
                added = {name: size for name, size in now.files.items() if name not in state.files}
                if now.files.keys() >= state.files.keys():  # else it was begun anew meanwhile
                    now.files, now.settled = {**added, **made}, sum(made.values())
                    self._keep(now)
                self._sweep(now)
            _remove_tree(scratch)

    def remove_unused(self) -> None:
        """Remove the store if nobody has added to it for long: copies have links of their own. Raises nothing."""
        with contextlib.suppress(Failed, OSError), self._locked():
            if time.time() - os.lstat(self._file).st_mtime > UNUSED_S:
                _remove_tree(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + LOCK_S
        while True:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            os.makedirs(self.packs, exist_ok=True)
            with _lock(os.path.join(self.path, "lock")) as held:
                if held:
                    yield
                    return
            if time.monotonic() > deadline:
                raise Failed(f"{self.path} is locked")
            time.sleep(0.02)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        if not os.path.isdir(self.path):
            yield False
            return
        with _lock(os.path.join(self.path, "consolidation.lock")) as held:
            yield held

    def _state(self) -> StoreState:
        """What was written down; nothing where the packs are not as it says."""
        try:
            told = json.loads(_bounded(self._file))
            state = StoreState(dict(told["files"]), told["snapshots"], told["tips"], int(told["settled"]))
            objects: list[object] = [*state.snapshots, *state.tips]
            known = all(isinstance(each, str) and _OBJECT.fullmatch(each.encode()) for each in objects)
            if known and state.snapshots and state.files == _packs(self.packs, state.files):
                return state
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Failed, OSError):
            pass
        return StoreState()

    def _keep(self, state: StoreState) -> None:
        _write(self._file, json.dumps(state.__dict__))

    def _sweep(self, state: StoreState) -> None:
        """Remove files that are none of the store's: of one who was killed, or of before."""
        for name in os.listdir(self.packs):
            if name not in state.files:
                _remove_tree(os.path.join(self.packs, name))


def _store_of(directory: str, name: str) -> ObjectStore | None:
    """The store of this name among all stores in a directory, if there are any."""
    if not directory or not _STORE.fullmatch(name):
        return None
    return ObjectStore(os.path.join(os.path.abspath(directory), name))


def _command(arguments: tuple[str, ...]) -> str:
    """The command of a git, behind settings."""
    return arguments[2] if arguments[0] == "-c" else arguments[0]


class Copy:
    """A copy below `root`. `stores`: the directory of the object stores, "" for none."""

    def __init__(self, root: str, stores: str = "") -> None:
        self.root, self.stores = os.path.realpath(root), stores
        self.store = os.path.join(self.root, "store")
        self.index = os.path.join(self.root, "index")

    @property
    def ready(self) -> str:
        return _read(os.path.join(self.root, "ready"))

    def is_for(self, header: dict[str, Any]) -> bool:
        """Whether it was made for this run: another may have taken it since. One of an earlier version says none."""
        return _read(os.path.join(self.root, "run")) in ("", header["run"])

    @property
    def top(self) -> str:
        return os.path.join(self.root, "copy", _read(os.path.join(self.root, "name"), strip=False))

    @property
    def _scratch(self) -> str:
        """Where temporary files of a snapshot are."""
        return self.root

    @property
    def own_git(self) -> str:
        return os.path.join(self.top, ".git")

    def git(self, **variables: str) -> Git:
        """Git for the copy's files: what is in the copy's own repository is only read."""
        ours = {"GIT_WORK_TREE": self.top, "GIT_INDEX_FILE": self.index}
        return Git(self.store, **{**ours, **variables})

    @contextlib.contextmanager
    def alone(self, wait_s: float, *, makes: bool) -> Iterator[None]:
        """Nobody else makes or removes the copy meanwhile. `makes`: the directory, where there is none.

        Raises Failed after `wait_s` seconds, OSError.
        """
        begun = time.monotonic()
        while (descriptor := self._locked(makes=makes)) is None and (makes or os.path.lexists(self.root)):
            if time.monotonic() - begun > wait_s:
                raise Failed(f"another program is still at work in {self.root}")
            time.sleep(0.05)
        if descriptor is None:  # there is no copy
            yield
            return
        _held.append(descriptor)
        try:
            yield
        finally:
            _held.remove(descriptor)
            os.close(descriptor)

    def _locked(self, *, makes: bool) -> int | None:
        """A descriptor that has the lock: of the directory itself, as a file beside it would outlive it.

        Raises OSError.
        """
        if makes:
            with contextlib.suppress(FileExistsError):
                os.makedirs(self.root, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(self.root, 0o700)
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                has_lock = _locks(descriptor, self.root)
            except OSError:  # on a file system without locks it is done without
                has_lock = True
            if has_lock:
                return descriptor
            os.close(descriptor)
        return None

    # ---- remove

    def remove(self) -> None:
        """Remove the copy; and put its store in order, for which nobody waits now."""
        store = self._shared_store()
        with contextlib.suppress(FileNotFoundError):  # first: half a copy must not be taken for one
            os.unlink(os.path.join(self.root, "ready"))
        _remove_tree(self.root)
        if store:
            with contextlib.suppress(Failed, OSError):
                store.consolidate()
            with contextlib.suppress(OSError):
                for name in filter(_STORE.fullmatch, os.listdir(self.stores)):
                    ObjectStore(os.path.join(os.path.abspath(self.stores), name)).remove_unused()

    # ---- known

    def known(self, header: dict[str, Any]) -> dict[str, Any]:
        """The snapshots of which everything is here, newest first, and branches and tags of the newest one."""
        state = StoreState()
        store = _store_of(self.stores, header["store"])
        if store:
            with contextlib.suppress(Failed, OSError):
                state = store.known()
        ready = [self.ready] if self.ready else []
        return {"snapshots": [*ready, *state.snapshots], "tips": state.tips}

    # ---- receive

    def receive(self, header: dict[str, Any], stream: BufferedReader) -> None:
        """Make the copy of a snapshot; nothing where it is there already: an agent may have worked in it.

        Raises Lacking where objects of `header["have"]`, without which the pack was made, are not here.
        """
        if self.ready == header["snapshot"] and self.is_for(header):
            return
        if header["refresh"] and (self.ready or os.path.lexists(self.refreshing)):
            self._refresh(header, stream)
        elif self.ready:
            raise Failed(f"another snapshot was brought to {self.root}")
        else:
            self._make(header, stream)
        _write(os.path.join(self.root, "run"), header["run"])
        _write(os.path.join(self.root, "ready"), header["snapshot"])
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.refreshing)
        self._share(header["snapshot"], header["refs"].values())

    def _make(self, header: dict[str, Any], stream: BufferedReader) -> None:
        for name in os.listdir(self.root):
            _remove_tree(os.path.join(self.root, name))
        os.mkdir(os.path.join(self.root, "copy"), mode=0o700)
        _write(os.path.join(self.root, "name"), header["name"])
        os.mkdir(self.top)
        self._make_store(header)
        self._take_objects(header, stream)
        git = self.git()
        with self._counting_on_store(header):
            git.run("read-tree", header["files"])
            try:
                git.run("checkout-index", "--all", "--index", "--force", "--quiet")
            except Failed as error:  # git does not say why it cannot write
                free = shutil.disk_usage(self.root).free / 1024**2
                raise Failed(f"{error}; in {self.root}, where {free:.1f} MiB are free") from None
            if header["have"]:
                self._check_files(self._entries(git, header["files"]))
        self._finish(header)

    def _finish(self, header: dict[str, Any]) -> None:
        for path in (*header["empty"], header["within"]):
            os.makedirs(os.path.join(os.fsencode(self.top), as_bytes(path)), exist_ok=True)
        for path in header["private"]:
            place = os.path.join(os.fsencode(self.top), as_bytes(path))
            os.chmod(place, stat.S_IMODE(os.lstat(place).st_mode) & 0o700)
        if header["repository"]:
            self._make_repository(header)

    def _take_objects(self, header: dict[str, Any], stream: BufferedReader) -> None:
        store = _store_of(self.stores, header["store"])
        if store:
            _write(os.path.join(self.root, "objects"), header["store"])
        if not header["size"]:
            return
        have = header["have"]
        with self._counting_on_store(header):
            if store and have:
                store.lend(os.path.join(self.store, "objects", "pack"))
            self._unpack(stream, header["size"])
            # What is new leads to nothing but what is here.
            tips = (header["snapshot"], *header["refs"].values(), *(f"^{each}" for each in have))
            if have:
                listed = "".join(f"{each}\n" for each in tips).encode()
                Git(self.store).run("rev-list", "--objects", "--quiet", "--stdin", stdin=listed)

    @contextlib.contextmanager
    def _counting_on_store(self, header: dict[str, Any]) -> Iterator[None]:
        """What fails here may have failed over objects that were thought to be here."""
        try:
            yield
        except CutOff:
            raise
        except Failed as error:
            if not header["have"]:
                raise
            store = self._shared_store()
            if store:
                with contextlib.suppress(Failed, OSError):
                    store.forget()
            raise Lacking(str(error)) from None

    def _entries(self, git: Git, tree: str) -> dict[bytes, tuple[bytes, str]]:
        """Mode and object of each path in an index, which is this tree. Raises Failed where it is not: git does not
        look whether an object that it has is the one that it is named as.
        """
        lines = _paths(git.run("ls-files", "-s", "-z"))
        scratch = os.path.join(self.root, "check")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        other = self.git(GIT_INDEX_FILE=scratch)
        other.run("update-index", "-z", "--index-info", stdin=_listed(lines))
        if other.run("write-tree").decode().strip() != tree:
            raise Failed("the objects that are here are damaged")
        os.unlink(scratch)
        entries = {}
        for line in lines:
            head, path = line.split(b"\t", 1)
            mode, object_id, _ = head.split(b" ")
            entries[path] = mode, object_id.decode()
        return entries

    def _check_files(self, entries: dict[bytes, tuple[bytes, str]]) -> None:
        """Raises Failed where what was written is something else."""
        for path, (mode, object_id) in entries.items():
            if mode != b"160000" and not self._holds(path, mode, object_id):
                raise Failed(f"the objects that are here are damaged: {_shown(path)}")

    def _holds(self, path: bytes, mode: bytes, object_id: str) -> bool:
        """Whether a file or a link has this mode and content. What lies above it must not be links."""
        place = os.path.join(os.fsencode(self.top), path)
        found = os.lstat(place)
        if mode == b"120000":
            if not stat.S_ISLNK(found.st_mode):
                return False
            target = os.readlink(place)
            return _blob_id(len(object_id), len(target), [target]) == object_id
        if not stat.S_ISREG(found.st_mode) or (mode == b"100755") != bool(found.st_mode & 0o100):
            return False
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return _blob_id(len(object_id), found.st_size, iter(lambda: file.read(CHUNK), b"")) == object_id

    def _shared_store(self) -> ObjectStore | None:
        return _store_of(self.stores, _read(os.path.join(self.root, "objects")))

    def _share(self, snapshot: str, tips: Iterable[str]) -> None:
        """Give the store what the copy has; one that cannot be used is done without."""
        store = self._shared_store()
        if store:
            with contextlib.suppress(Failed, OSError):
                store.add(os.path.join(self.store, "objects", "pack"), snapshot, tips)

    def _unpack(self, stream: BufferedReader, size: int) -> None:
        free = shutil.disk_usage(self.root).free
        if size > free:
            needed = f"{size / 1024**2:.1f} MiB would be brought to {self.root}"
            raise CutOff(f"{needed}, and {free / 1024**2:.1f} MiB are free there")
        with tempfile.TemporaryFile(dir=self.root) as pack:
            while size and (chunk := _comes(stream, size)):
                pack.write(chunk)
                size -= len(chunk)
            if size:
                raise CutOff("the pack was cut off on its way")
            pack.flush()
            pack.seek(0)
            self._index_pack(pack)

    def _index_pack(self, pack: IO[bytes]) -> None:
        # What a thin pack goes without is added to it: fast, as it is here anyway.
        words = ("-c", "core.compression=1", "index-pack", "--stdin", "--fix-thin")
        Git(self.store).run(*words, stdin=pack, stdout=subprocess.DEVNULL)

    def _make_store(self, header: dict[str, Any]) -> None:
        _init(self.store, header["format"], _CONFIG)
        _write(os.path.join(self.store, "info", "attributes"), _ATTRIBUTES)
        _write(os.path.join(self.store, "info", "exclude"), header["excludes"])
        _write(
            os.path.join(self.store, "objects", "info", "alternates"),
            "".join(f"{quoted(each)}\n" for each in header["borrow"]),
        )

    def _make_repository(self, header: dict[str, Any]) -> None:
        own = self.own_git
        _init(own, header["format"], "[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n"
              "\tlogAllRefUpdates = true\n{extensions}")  # fmt: skip
        for key, value in sorted(header["config"].items()):
            section, name = key.split(".")
            with open(os.path.join(own, "config"), "a", encoding="utf-8") as file:
                file.write(f"[{section}]\n\t{name} = {json.dumps(value, ensure_ascii=False)}\n")
        _write(os.path.join(own, "info", "exclude"), header["excludes"])
        if header["attributes"]:
            _write(os.path.join(own, "info", "attributes"), header["attributes"])
        _write(os.path.join(own, "objects", "info", "alternates"), quoted(os.path.join(self.store, "objects")) + "\n")
        refs = "".join(f"{value} {name}\n" for name, value in sorted(header["refs"].items()))
        _write(os.path.join(own, "packed-refs"), refs)
        _write(os.path.join(own, "HEAD"), f"ref: {header['head']}\n" if header["head"] else f"{header['commit']}\n")
        index = os.path.join(own, "index")
        _copy_index(self.index, index)
        # What both have keeps what is known of the file: the agent's first `git status` need not read it.
        self.git(GIT_INDEX_FILE=index).run("read-tree", "--reset", header["index"])

    # ---- refresh

    @property
    def refreshing(self) -> str:
        return os.path.join(self.root, "refreshing")

    def _refresh(self, header: dict[str, Any], stream: BufferedReader) -> None:
        """Make the copy that is there into one of another snapshot. What is ignored stays, what is as it shall be is
        not written, and all else that an agent has left goes: its repository with what that has, too.

        Goes by what is on the disk, so that it may be begun again. Raises Lacking where the copy is to be made anew.
        """
        try:
            if not self._can_be_refreshed(header):
                raise Failed("what is there is no copy of this workspace")
            _write(self.refreshing, "")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.root, "ready"))
            _remove_scratch(self.root)
            for name in os.listdir(self.store):
                if name != "objects":
                    _remove_tree(os.path.join(self.store, name))
            self._make_store(header)
            self._take_objects(header, stream)
            for path in list(self._blocking()):
                os.unlink(path)
            self._refresh_files(header)
            _remove_tree(self.own_git)
            self._finish(header)
        except CutOff:
            raise
        except (Failed, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.root, "ready"))
            raise Lacking(str(error)) from None

    def _can_be_refreshed(self, header: dict[str, Any]) -> bool:
        digits = {len(name) for name in (header["snapshot"], self.ready) if name}
        directories = (os.path.join(self.root, "copy"), self.top, self.store, os.path.join(self.store, "objects"))
        named = _read(os.path.join(self.root, "name"), strip=False) == header["name"]
        indexed = os.path.isfile(self.index) and not os.path.islink(self.index)
        return named and indexed and len(digits) == 1 and all(map(_is_directory, directories))

    def _refresh_files(self, header: dict[str, Any]) -> None:
        new = os.path.join(self.root, "index.new")
        old = set(_paths(self.git().run("ls-files", "-z")))
        _copy_index(self.index, new)  # what both have keeps what is known of the file
        git = self.git(GIT_INDEX_FILE=new)
        git.run("read-tree", "--reset", header["files"])
        wanted = self._entries(git, header["files"])
        kept = {*map(as_bytes, (*header["empty"], header["within"])), b""}
        kept |= {path for path, (mode, _) in wanted.items() if mode == b"160000"}
        above = {parent for path in (*wanted, *kept) for parent in _parents(path)} | kept
        # First: what was brought and is no more goes, also where it would be ignored now.
        for path in old - wanted.keys():
            self._remove_within(path)
        for path in above:
            self._make_way(path)
        due = [path for path, (mode, object_id) in wanted.items() if not self._is_as_wanted(path, mode, object_id)]
        for path in due:
            _remove_tree(os.path.join(self.top, os.fsdecode(path)))
        git.run("checkout-index", "--index", "--force", "--quiet", "-z", "--stdin", stdin=_listed(due))
        self._check_files({path: wanted[path] for path in due})
        self._open_up(wanted, set(map(as_bytes, header["private"])))
        for _ in range(MAX_RULES):
            if not self._remove_unwanted(wanted.keys(), above, everything=not header["repository"]):
                break
        else:
            raise Failed("rules to ignore hide one another")
        os.replace(new, self.index)

    def _is_as_wanted(self, path: bytes, mode: bytes, object_id: str) -> bool:
        if mode == b"160000":  # a submodule is not checked out
            place = os.path.join(os.fsencode(self.top), path)
            return not os.path.islink(place) and os.path.isdir(place) and not os.listdir(place)
        try:
            return self._holds(path, mode, object_id)
        except FileNotFoundError:
            return False

    def _remove_within(self, path: bytes) -> None:
        """Remove a file, where it is not behind a link, and the directories above that are empty then."""
        if self._kind(path, {})[0] in ("file", "special"):
            os.unlink(os.path.join(os.fsencode(self.top), path))
            with contextlib.suppress(OSError):
                for parent in _parents(path):
                    os.rmdir(os.path.join(os.fsencode(self.top), parent))

    def _make_way(self, directory: bytes) -> None:
        """Remove what is no directory there, or above."""
        for path in (*reversed(_parents(directory)), directory):
            place = os.path.join(os.fsencode(self.top), path)
            if os.path.lexists(place) and (os.path.islink(place) or not os.path.isdir(place)):
                os.unlink(place)

    def _open_up(self, wanted: Iterable[bytes], private: set[bytes]) -> None:
        """Let others read what is not private, as in a copy that was made anew."""
        for path in wanted:
            place = os.path.join(os.fsencode(self.top), path)
            found = os.lstat(place)
            if stat.S_ISREG(found.st_mode) and path not in private and not found.st_mode & 0o077:
                os.chmod(place, 0o755 if found.st_mode & 0o100 else 0o644)

    def _remove_unwanted(self, wanted: Iterable[bytes], above: set[bytes], *, everything: bool) -> bool:
        """Remove what a copy made anew would not have, but for what is ignored. Returns whether rules to ignore were
        among it: what those hid is not removed yet.
        """
        top, wanted = os.fsencode(self.top), set(wanted)
        waiting, seen, rules = [b""], [], False
        while waiting:
            found: dict[bytes, bool] = {}
            for directory in waiting:
                with os.scandir(os.path.join(top, directory)) as entries:
                    for entry in entries:
                        found[os.path.join(directory, entry.name)] = entry.is_dir(follow_symlinks=False)
            found = {path: is_directory for path, is_directory in found.items() if path not in wanted}
            found.pop(b".git", None)
            waiting = [path for path, is_directory in found.items() if is_directory and path in above]
            unknown = [path for path in found if path not in above]
            ignored = set() if everything else self._ignored(unknown)
            for path in unknown:
                if path in ignored:
                    continue
                if found[path] and not os.path.lexists(os.path.join(top, path, b".git")):
                    waiting.append(path)
                    seen.append(path)
                else:
                    rules = rules or os.path.basename(path) == b".gitignore"
                    _remove_tree(os.path.join(self.top, os.fsdecode(path)))
        for path in reversed(seen):
            with contextlib.suppress(OSError):  # something ignored is in it
                os.rmdir(os.path.join(top, path))
        return rules

    def _ignored(self, paths: list[bytes]) -> set[bytes]:
        """Those of these paths that rules of the work tree or the repository ignore. None is behind a link."""
        if not paths:
            return set()
        git = self.git(GIT_LITERAL_PATHSPECS="0")
        # So that no name is taken for a pattern.
        asked = _listed(b"./" + path for path in paths)
        found = git.run("check-ignore", "--no-index", "-z", "--stdin", stdin=asked, ok=(0, 1))
        return {path[2:] for path in _paths(found)}

    # ---- send

    def send(self, header: dict[str, Any], out: BinaryIO) -> None:
        """Write a line of JSON and, where there is something that the other side lacks, a pack of it."""
        self._check(repository=header["repository"])
        with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            snapshot, refs = self._snapshot(header, scratch)
            if not self.ready:  # somebody removes the copy: what has gone already is no deletion of the agent's
                raise Failed(f"the copy in {self.root} is being removed")
            if not self.is_for(header):
                raise Failed(f"the copy in {self.root} is another run's by now")
            wanted = [snapshot, *sorted(set(refs.values())), *(f"^{each}" for each in header["have"])]
            pack = os.path.join(scratch, "pack")
            self._pack(wanted, pack)
            if self._shared_store():
                with contextlib.suppress(Failed), open(pack, "rb") as file:
                    self._index_pack(file)
                    self._share(snapshot, refs.values())
            file = open(pack, "rb")  # noqa: SIM115 - it is sent once the directory is gone: who has all of it kills us
        with file:
            _say(out, {"ok": True, "snapshot": snapshot, "size": os.fstat(file.fileno()).st_size})
            shutil.copyfileobj(file, out, CHUNK)
            out.flush()

    def _snapshot(self, header: dict[str, Any], scratch: str) -> tuple[str, dict[str, str]]:
        """The copy's snapshot, and all its refs."""
        repository = header["repository"]
        head: str | None = None
        commit: str | None = None
        refs: dict[str, str] = {}
        if repository:
            self._borrow_objects(scratch)
            head, commit, refs = self._refs()
            refs.update(self._older_stashes(refs.get("refs/stash")))
            _copy_bounded(os.path.join(self.own_git, "index"), os.path.join(scratch, "own"))
            for name in filter(_SHARED_INDEX.fullmatch, os.listdir(self.own_git)):
                _copy_bounded(os.path.join(self.own_git, name), os.path.join(self.store, name))
        files, private, nested = self._files(scratch, header, everything=not repository)
        if nested:
            shown = ", ".join(sorted(_shown(each) for each in nested)[:5])
            raise Failed(f"a repository of its own lies in the copy: {shown}")
        empty = self._empty(scratch, header["empty"], everything=not repository)
        index = self._staged(scratch) if repository else files
        state = {
            "steersman": FORMAT,
            "head": head,
            "commit": commit,
            "refs": {name: value for name, value in refs.items() if name.startswith(CARRIED_REFS)},
            "others": {
                name: value for name, value in refs.items() if not name.startswith((*CARRIED_REFS, "refs/steersman/"))
            },
            "empty": sorted(map(as_text, empty)),
            "private": sorted(map(as_text, private)),
            "include": header["include"],
        }
        git = self.git()
        parent = ("-p", commit) if commit else ()
        kept = git.run("commit-tree", *parent, "-F", "-", files, stdin=b"files\n").decode().strip()
        parents = [word for each in (kept, *self._commits(refs.values())) for word in ("-p", each)]
        made = git.run("commit-tree", *parents, "-F", "-", index, stdin=json.dumps(state).encode())
        return made.decode().strip(), refs

    def _pack(self, wanted: list[str], pack: str) -> None:
        with open(pack, "wb") as file:
            self.git().run(
                *("pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q"),
                stdin="".join(f"{each}\n" for each in wanted).encode(),
                stdout=file,
            )

    def _check(self, *, repository: bool) -> None:
        """Raises Failed for a copy that cannot be made into a snapshot."""
        if not self.ready:
            raise Failed(f"there is no copy in {self.root}")
        if repository and not _is_directory(self.own_git):
            if not os.access(self.root, os.R_OK | os.X_OK):
                raise Failed("the copy's directory cannot be read any more")
            raise Failed("the copy's .git is no directory any more")
        if not repository and os.path.lexists(self.own_git):
            raise Failed("a repository was made in the copy, and there is none in the workspace")
        self._check_blocking()
        if repository:
            self._check_work_trees()
            self._check_lfs()

    def _files(self, scratch: str, header: dict[str, Any], *, everything: bool) -> tuple[str, list[bytes], set[bytes]]:
        """The tree of the files; paths that only their user may read; nested repositories."""
        index = os.path.join(scratch, "files")
        _copy_index(self.index, index)
        git = self.git(GIT_INDEX_FILE=index)
        modes = {line.split(b"\t", 1)[1]: line[:6] for line in _paths(git.run("ls-files", "-s", "-z"))}
        known = modes.keys()
        staged, left_out = self._own_entries(os.path.join(scratch, "own"))
        paths = known | staged.keys() | self._untracked(git, header["include"], everything=everything)
        update: list[bytes] = []
        remove: list[bytes] = []
        private: list[bytes] = []
        skipped: list[bytes] = []
        nested: set[bytes] = set()
        behind: dict[bytes, bool] = {}
        for path in sorted(paths):
            kind, mode = self._kind(path.rstrip(b"/"), behind)
            if kind == "repository":
                nested.add(path.rstrip(b"/"))
            elif kind == "file":
                update.append(path)
                if stat.S_ISREG(mode) and not mode & 0o077:
                    private.append(path)
            elif kind == "directory" and modes.get(path) == b"160000":
                pass  # a submodule that is not checked out
            elif kind == "missing" and path in left_out:
                skipped.append(staged[path])
            elif kind == "special" and path in known:
                raise Failed(f"{_shown(path)} is neither a file nor a link nor a directory any more")
            else:
                remove.append(path)
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=_listed(remove))
        git.run("update-index", "-z", "--add", "--replace", "--stdin", stdin=_listed(update))
        self._add_changed(git, header, skipped)
        # git only remarks that it leaves a path out.
        if refused := sorted(set(update) - set(_paths(git.run("ls-files", "-z")))):
            raise Failed(f"git takes no file of this name: {_shown(refused[0])}")
        return git.run("write-tree").decode().strip(), private, nested

    def _untracked(self, git: Git, include: list[str], *, everything: bool) -> set[bytes]:
        rules = () if everything else ("--exclude-standard",)
        found = set(_paths(git.run("ls-files", "-z", "-o", *rules)))
        if include and not everything:
            included = (os.fsdecode(as_bytes(each)) for each in include)
            found |= set(_paths(git.run("ls-files", "-z", "-o", "--", *included)))
        return found

    def _own_entries(self, own: str) -> tuple[dict[bytes, bytes], set[bytes]]:
        """The entries of the copy's own index by path, and the paths that its work tree leaves out (skip-worktree)."""
        if not os.path.exists(own):
            return {}, set()
        lines = _paths(self.git(GIT_INDEX_FILE=own).run("ls-files", "-s", "-t", "-z"))
        entries = {entry.split(b"\t", 1)[1]: entry for entry in staged_entries(line[2:] for line in lines)}
        return entries, {line.split(b"\t", 1)[1] for line in lines if line.startswith(b"S ")}

    def _add_changed(self, git: Git, header: dict[str, Any], entries: list[bytes]) -> None:
        """Add those of these entries that the index had otherwise, or not, when the copy was made."""
        if entries:
            lines = (line.split(b" ", 2) for line in _paths(self.git().run("ls-tree", "-r", "-z", header["index"])))
            before = {mode + b" " + named for mode, _, named in lines}
            changed = _listed(entry for entry in entries if entry not in before)
            git.run("update-index", "-z", "--index-info", stdin=changed)

    def _kind(self, path: bytes, behind: dict[bytes, bool]) -> tuple[str, int]:
        top = os.fsencode(self.top)
        parent = os.path.dirname(path)
        if parent and self._is_behind_link(top, parent, behind):
            return "other", 0
        try:
            mode = os.lstat(os.path.join(top, path)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return "missing", 0
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            return "file", mode
        if stat.S_ISDIR(mode):
            return ("repository" if os.path.lexists(os.path.join(top, path, b".git")) else "directory"), mode
        return "special", mode

    def _is_behind_link(self, top: bytes, directory: bytes, behind: dict[bytes, bool]) -> bool:
        parent, found = b"", False
        for part in directory.split(b"/"):
            parent = os.path.join(parent, part)
            if parent not in behind:
                behind[parent] = found or os.path.islink(os.path.join(top, parent))
            found = behind[parent]
        return found

    def _empty(self, scratch: str, known: list[str], *, everything: bool) -> list[bytes]:
        """Directories without any entry that are not ignored, and those of `known` that are there still."""
        git = self.git(GIT_INDEX_FILE=os.path.join(scratch, "files"))
        listed = _paths(
            git.run("ls-files", "-z", "-o", "--directory", *(() if everything else ("--exclude-standard",)))
        )
        top = os.fsencode(self.top)
        found = set(empty_directories(top, [path.rstrip(b"/") for path in listed if path.endswith(b"/")]))
        return sorted(found.union(path for path in map(as_bytes, known) if os.path.isdir(os.path.join(top, path))))

    def _staged(self, scratch: str) -> str:
        """The tree of the copy's own index. Of a path that is not merged our side counts."""
        own = os.path.join(scratch, "own")
        if not os.path.exists(own):
            return self.git(GIT_INDEX_FILE=os.path.join(scratch, "empty")).run("write-tree").decode().strip()
        with contextlib.suppress(Failed):  # what is not merged cannot be written
            return self.git(GIT_INDEX_FILE=own).run("write-tree").decode().strip()
        lines = _paths(self.git(GIT_INDEX_FILE=own).run("ls-files", "-s", "-z"))
        git = self.git(GIT_INDEX_FILE=os.path.join(scratch, "staged"))
        git.run("update-index", "-z", "--index-info", stdin=_listed(staged_entries(lines)))
        return git.run("write-tree").decode().strip()

    def _check_blocking(self) -> None:
        for path in self._blocking():
            raise Failed(f"{os.path.relpath(path, self.top)} is no file")

    def _blocking(self) -> Iterator[str]:
        """Paths that git opens by their names, and at which it would wait for ever."""
        waiting = [self.top]
        while waiting:
            directory = waiting.pop()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            if entry.name != ".git":
                                waiting.append(entry.path)
                        elif entry.name in OPENED_NAMES and not entry.is_symlink() and not entry.is_file():
                            yield entry.path
            except OSError:
                continue  # git says so, too, and is asked next

    def _check_work_trees(self) -> None:
        """Raises Failed where the agent has made further work trees: their files are not carried."""
        place = os.path.join(self.own_git, "worktrees")
        for name in sorted(os.listdir(place)) if _is_directory(place) else ():
            with contextlib.suppress(OSError):
                other = os.path.dirname(
                    _bounded(os.path.join(place, name, "gitdir")).decode("utf-8", "replace").strip()
                )
                if other and os.path.isdir(other):
                    raise Failed(f"the agent has made a work tree of its own, which is not carried: {other}")

    def _check_lfs(self) -> None:
        """Raises Failed where the agent has committed with Git LFS: contents lie beside the commits."""
        place = os.path.join(self.own_git, "lfs", "objects")
        if glob.glob(os.path.join(glob.escape(place), "*", "*", "*")):
            raise Failed(
                "the agent has kept files with Git LFS, whose contents are not carried: move them from "
                f"{place} into .git/lfs/objects of the workspace"
            )

    def _borrow_objects(self, scratch: str) -> None:
        """Have our git find the copy's objects; whatever else its object directory names is left out."""
        borrowed = os.path.join(scratch, "objects")
        os.makedirs(os.path.join(borrowed, "info"))
        own = os.path.join(self.own_git, "objects")
        for name in os.listdir(own) if _is_directory(own) else ():
            place = os.path.join(own, name)
            if (name == "pack" or _FAN_OUT.fullmatch(name)) and _is_directory(place):
                for entry in os.scandir(place):
                    if not entry.is_file(follow_symlinks=False):
                        raise Failed(f"the copy's .git/objects/{name}/{entry.name} is no file")
                os.symlink(place, os.path.join(borrowed, name))
        # As long as the scratch directory is there; git itself looks over alternates that are not.
        alternates = os.path.join(self.store, "objects", "info", "alternates")
        _write(alternates, "".join(f"{line}\n" for line in (*self._lenders(alternates), quoted(borrowed))))

    def _lenders(self, alternates: str) -> list[str]:
        """Where our git finds objects, beside its own and the copy's."""
        return [line for line in _read(alternates).split("\n") if line and f"{self.root}/" not in line]

    def _refs(self) -> tuple[str | None, str | None, dict[str, str]]:
        """The branch that is checked out, its commit, and all refs. Without git, which would open whatever is there."""
        refs, symbolic = self._loose_refs()
        refs = {**{name: value for name, value in self._packed_refs() if name not in symbolic}, **refs}
        try:
            text = _bounded(os.path.join(self.own_git, "HEAD"), 8192).strip()
        except FileNotFoundError:
            raise Failed("the copy's HEAD is gone") from None
        if not text.startswith(b"ref:"):
            return None, text.decode("ascii", "replace"), refs
        branch = _ref_name(text[4:].strip())
        if branch in symbolic or not branch.startswith("refs/heads/"):
            raise Failed(f"the copy has {branch} checked out, which is no branch of its own")
        return branch, refs.get(branch), refs

    def _older_stashes(self, newest: str | None) -> dict[str, str]:
        """Stashes but for the newest, each under a name of its own, the newer first: git has them in a log alone."""
        lines: list[bytes] = []
        with contextlib.suppress(FileNotFoundError):
            lines = _bounded(os.path.join(self.own_git, "logs", "refs", "stash")).split(b"\n")
        # What was there before, too: the log may have been begun later.
        words = [word for line in lines for word in line.split(b" ", 2)[:2]]
        values = dict.fromkeys(word.decode() for word in reversed(words) if _OBJECT.fullmatch(word))
        if len(values) > MAX_REFS:
            raise Failed(f"the copy has more than {MAX_REFS:,} stashes")
        known = set(self._commits(values))
        return {f"{STASHES}{value}": value for value in values if value in known and value != newest}

    def _packed_refs(self) -> list[tuple[str, str]]:
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in _bounded(os.path.join(self.own_git, "packed-refs")).split(b"\n"):
                value, _, name = line.partition(b" ")
                if _OBJECT.fullmatch(value):
                    found.append((_ref_name(name), value.decode()))
        return found

    def _loose_refs(self) -> tuple[dict[str, str], set[str]]:
        """Refs, and names of symbolic ones."""
        refs: dict[str, str] = {}
        symbolic: set[str] = set()
        waiting = ["refs"] if _is_directory(os.path.join(self.own_git, "refs")) else []
        while waiting:
            directory = waiting.pop()
            for entry in os.scandir(os.path.join(self.own_git, directory)):
                place = f"{directory}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(place)
                elif not place.endswith(".lock"):
                    value = _bounded(entry.path, 4096).strip()
                    if _OBJECT.fullmatch(value):
                        refs[_ref_name(os.fsencode(place))] = value.decode()
                    elif value.startswith(b"ref:"):
                        symbolic.add(_ref_name(os.fsencode(place)))
            if len(refs) + len(waiting) > MAX_REFS:
                raise Failed(f"the copy has more than {MAX_REFS:,} refs")
        return refs, symbolic

    def _commits(self, objects: Iterable[str]) -> list[str]:
        """The commits among these, or to which tags among these lead."""
        asked = "".join(f"{each}^{{commit}}\n" for each in sorted(set(objects))).encode()
        answers = (
            self.git().run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).decode().splitlines()
        )
        return sorted({line.split(" ")[0] for line in answers if line.endswith(" commit")})


class CopyBackup(Copy):
    """The copy while an agent works in it: a snapshot is written beside the store, and may be thrown away again.

    Not into it: git leaves out of the copy's own repository what the store has already.
    """

    def __init__(self, root: str, stores: str = "") -> None:
        super().__init__(root, stores)
        self._lender = os.path.join(self.store, "objects")
        self.store = os.path.join(self.root, "backup")

    def back_up(self, header: dict[str, Any], out: BinaryIO) -> None:
        """As `send`. `header["anew"]`: what earlier ones have left is removed first, so that it cannot fill the disk.

        Raises Failed where another program is at it.
        """
        os.nice(10)  # the agent's work comes first
        if not self.ready:
            raise Failed(f"there is no copy in {self.root}")
        with _lock(f"{self.store}.lock") as alone:
            if not alone:
                raise Failed("another worker takes a snapshot of the copy")
            if os.path.isdir(self.store):
                _remove_scratch(self.store)
            if header["anew"]:
                _remove_tree(self.store)
                _init(self.store, header["format"], _CONFIG)
                _write(os.path.join(self.store, "info", "attributes"), _ATTRIBUTES)
                excludes = _read(os.path.join(os.path.dirname(self._lender), "info", "exclude"), strip=False)
                _write(os.path.join(self.store, "info", "exclude"), excludes)
                _write(os.path.join(self.store, "objects", "info", "alternates"), f"{quoted(self._lender)}\n")
            self.send(header, out)

    @property
    def _scratch(self) -> str:
        return self.store

    def _lenders(self, alternates: str) -> list[str]:
        return [quoted(self._lender)]

    def _shared_store(self) -> ObjectStore | None:
        return None


def staged_entries(lines: Iterable[bytes]) -> list[bytes]:
    """Entries of `ls-files -s`, each path once: as it is merged, else as it was on our side, else on theirs."""
    best: dict[bytes, tuple[int, bytes]] = {}
    for line in lines:
        head, path = line.split(b"\t", 1)
        mode, object_id, stage = head.split(b" ")
        rank = (b"0", b"2", b"3", b"1").index(stage)
        if path not in best or rank < best[path][0]:
            best[path] = rank, mode + b" " + object_id + b"\t" + path
    return [line for _, line in best.values()]


def empty_directories(top: bytes, directories: Iterable[bytes]) -> list[bytes]:
    """Those of these directories, and below them, that have no entry. `top` and they are bytes."""
    found: list[bytes] = []
    walked, waiting = 0, list(directories)
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(os.path.join(top, directory)) as entries:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        walked += len(names)
        if walked > MAX_WALKED:
            break
        if not names:
            found.append(directory)
        elif b".git" not in (name for name, _ in names):
            waiting.extend(os.path.join(directory, name) for name, is_directory in names if is_directory)
    return found


def quoted(path: str) -> str:
    """A path as git takes it in lists of object directories, whatever is in it."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@contextlib.contextmanager
def _lock(path: str) -> Iterator[bool]:
    """Whether the lock could be had; it lasts as long as the context."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _locks(descriptor, path)
    finally:
        os.close(descriptor)


def _locks(descriptor: int, path: str) -> bool:
    """Whether it has the lock now, and is still what the path names: not of what was removed meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _packs(directory: str, names: Iterable[str] | None = None) -> dict[str, int]:
    """The files of whole packs in a directory, or those of these names, with their sizes in bytes."""
    found: dict[str, int] = {}
    for name in filter(_PACK.fullmatch, os.listdir(directory) if names is None else names):
        other = f"{name[:-5]}.idx" if name.endswith(".pack") else f"{name[:-4]}.pack"
        with contextlib.suppress(FileNotFoundError):
            sizes = [os.lstat(os.path.join(directory, each)) for each in (name, other)]
            if all(stat.S_ISREG(each.st_mode) for each in sizes):
                found[name] = sizes[0].st_size
    return found


def _link(path: str, new: str) -> None:
    """Link a file, or copy it where that cannot be. One that is there stays."""
    with contextlib.suppress(FileExistsError):
        try:
            os.link(path, new, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            shutil.copyfile(path, f"{new}.new", follow_symlinks=False)
            os.replace(f"{new}.new", new)


def _blob_id(digits: int, size: int, chunks: Iterable[bytes]) -> str:
    """The id that git gives this content. `digits`: those of an id."""
    digest = hashlib.sha1(usedforsecurity=False) if digits == 40 else hashlib.sha256()
    digest.update(b"blob %d\0" % size)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _copy_index(index: str, new: str) -> None:
    """With its time: by that git tells which files may have changed since without looking changed."""
    shutil.copy2(index, new)


def _init(directory: str, object_format: str, config: str) -> None:
    for name in ("info", "objects/info", "objects/pack", "refs/heads", "refs/tags"):
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    sha1 = object_format == "sha1"
    extensions = "" if sha1 else f"[extensions]\n\tobjectFormat = {object_format}\n"
    case = "true" if sys.platform == "darwin" else "false"
    _write(os.path.join(directory, "config"), config.format(version=0 if sha1 else 1, extensions=extensions, case=case))
    _write(os.path.join(directory, "HEAD"), "ref: refs/heads/main\n")


def _remove_scratch(directory: str) -> None:
    """Remove what programs that were killed over a snapshot have left there. Raises OSError."""
    for name in os.listdir(directory):
        if name.startswith(tempfile.gettempprefix()):
            _remove_tree(os.path.join(directory, name))


def _remove_tree(path: str) -> None:
    """Remove whatever is there. A tree may be deeper than Python can go, and have directories that nobody may write."""
    if not os.path.lexists(path):
        return
    with contextlib.suppress(OSError):
        os.unlink(path)
        return
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        if os.path.lexists(path):
            nowhere = subprocess.DEVNULL
            subprocess.run([*command, "--", path], check=False, stderr=nowhere, stdout=nowhere, pass_fds=_held)


def _parents(path: bytes) -> list[bytes]:
    """The directories above a relative path, the nearest first."""
    parts = path.split(b"/")[:-1]
    return [b"/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _ref_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Failed("a branch or a tag has a name that is no UTF-8") from None


def _bounded(path: str, limit: int = MAX_HEADER) -> bytes:
    """The content of a file, no link and no pipe. Raises Failed, FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Failed(f"{path} is no file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Failed(f"{path} is larger than {limit:,} bytes")
    return data


def _copy_bounded(path: str, new: str) -> None:
    """Copy a file with its time (see _copy_index), if it is there. Raises Failed."""
    with contextlib.suppress(FileNotFoundError):
        data, found = _bounded(path, MAX_INDEX), os.lstat(path)
        with open(new, "wb") as file:
            file.write(data)
        os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _paths(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]


def _listed(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)


def as_text(path: bytes) -> str:
    """A path as a snapshot's state has it: names are bytes of any encoding."""
    return urllib.parse.quote_from_bytes(path)


def as_bytes(text: str) -> bytes:
    """The path that a snapshot's state has."""
    return urllib.parse.unquote_to_bytes(text)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _read(path: str, *, strip: bool = True) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip() if strip else file.read()
    except FileNotFoundError:
        return ""


def _write(path: str, text: str) -> None:
    """In one step: whoever finds the file finds it whole."""
    with open(f"{path}.new", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _comes(stream: BufferedReader, size: int) -> bytes:
    """What comes next, at most so many bytes; nothing where it was cut off. This program is killed where nothing comes
    for SILENCE_S: who sends may be gone without a word, and another one waits for the copy.
    """
    signal.alarm(SILENCE_S)
    try:
        return stream.read1(min(CHUNK, size))
    finally:
        signal.alarm(0)


def _say(out: BinaryIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer).encode() + b"\n")
    out.flush()


def _is_full(said: str) -> bool:
    return any(os.strerror(number) in said for number in (errno.ENOSPC, errno.EDQUOT)) or "SIGBUS" in said


def main(command: str, root: str, stores: str = "") -> None:
    """Do what is asked; the answer is a line of JSON on stdout. `stores`: the directory of the object stores."""
    os.umask(0o022)
    copy, stdin, out = Copy(root, stores), open(0, "rb", closefd=False), sys.stdout.buffer  # noqa: SIM115 - it is stdin
    try:
        if command == "remove":
            with copy.alone(REMOVE_S, makes=False):
                copy.remove()
            _say(out, {"ok": not os.path.lexists(copy.root), "error": f"{copy.root} cannot be removed"})
            return
        header = json.loads(stdin.readline(MAX_HEADER))
        if command == "known":
            _say(out, {"ok": True, **copy.known(header)})
        elif command == "receive":
            with copy.alone(TIMEOUT_S, makes=True):
                copy.receive(header, stdin)
            _say(
                out,
                {
                    "ok": True,
                    "directory": os.path.realpath(os.path.join(copy.top, os.fsdecode(as_bytes(header["within"])))),
                },
            )
        elif command == "back_up":
            CopyBackup(root, stores).back_up(header, out)
        else:
            copy.send(header, out)
    except Failed as error:
        text = f"{copy.root}: {error}" if _is_full(str(error)) and copy.root not in str(error) else str(error)
        _say(out, {"ok": False, "error": text, "lacking": isinstance(error, Lacking)})
    except OSError as error:
        _say(out, {"ok": False, "error": f"{_shown(os.fsencode(error.filename or copy.root))}: {error.strerror}"})
    finally:
        with contextlib.suppress(OSError):
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:4])
