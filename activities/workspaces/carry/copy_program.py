"""A copy of a workspace, at the place where an agent works in it: made of a snapshot, and made into one again.

Runs there, on Python 3.9 and git alone, from one file: `receive`, `send` and `remove`. The snapshot's format is in
carry/snapshots.py. Nothing that is in the copy is run: neither hooks nor filters, nor what its configuration names.

    ROOT/ready          the snapshot that the copy was made of; until then there is no copy
        /name           the name of the copy's directory
        /copy/<name>/   the copy: with a .git of its own where the workspace is a git repository; no remote
        /store/         a bare repository of ours: objects that were brought here
        /index          the copy's files as they were brought
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterable
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
CHUNK = 1024 * 1024
OPENED_NAMES = frozenset([".gitignore", ".gitattributes", ".gitmodules"])
_OBJECT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SHARED_INDEX = re.compile(r"sharedindex\.[0-9a-f]{40,64}")
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

    def run(self, *arguments: str, stdin: bytes | IO[bytes] = b"", stdout: int | IO[bytes] = subprocess.PIPE) -> bytes:
        """What git prints. `stdin`: bytes, or a file. Raises Failed."""
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
                **given,
            )
        except FileNotFoundError:
            raise Failed("git is not installed here") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"git {arguments[0]} took too long and was stopped") from None
        # git only warns about a directory that it cannot read, and leaves its files out.
        if done.returncode or b"could not open directory" in done.stderr:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise Failed(f"git {arguments[0]}: {said[0][:500]}")
        return done.stdout or b""


class Copy:
    """A copy below `root`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.store = os.path.join(self.root, "store")
        self.index = os.path.join(self.root, "index")

    @property
    def ready(self) -> str:
        return _read(os.path.join(self.root, "ready"))

    @property
    def top(self) -> str:
        return os.path.join(self.root, "copy", _read(os.path.join(self.root, "name"), strip=False))

    @property
    def own_git(self) -> str:
        return os.path.join(self.top, ".git")

    def git(self, **variables: str) -> Git:
        """Git for the copy's files: what is in the copy's own repository is only read."""
        ours = {"GIT_WORK_TREE": self.top, "GIT_INDEX_FILE": self.index}
        return Git(self.store, **{**ours, **variables})

    # ---- receive

    def receive(self, header: dict[str, Any], stream: IO[bytes]) -> None:
        """Make the copy of a snapshot; nothing where it is there already: an agent may have worked in it."""
        if self.ready:
            if self.ready != header["snapshot"]:
                raise Failed(f"another snapshot was brought to {self.root}")
            return
        _remove_tree(self.root)
        os.makedirs(os.path.join(self.root, "copy"), mode=0o700)
        os.chmod(self.root, 0o700)
        _write(os.path.join(self.root, "name"), header["name"])
        os.mkdir(self.top)
        self._make_store(header)
        if header["size"]:
            self._unpack(stream, header["size"])
        git = self.git()
        git.run("read-tree", header["files"])
        git.run("checkout-index", "--all", "--index", "--force", "--quiet")
        for path in (*header["empty"], header["within"]):
            os.makedirs(os.path.join(os.fsencode(self.top), as_bytes(path)), exist_ok=True)
        for path in header["private"]:
            place = os.path.join(os.fsencode(self.top), as_bytes(path))
            os.chmod(place, stat.S_IMODE(os.lstat(place).st_mode) & 0o700)
        if header["repository"]:
            self._make_repository(header)
        _write(os.path.join(self.root, "ready"), header["snapshot"])

    def _unpack(self, stream: IO[bytes], size: int) -> None:
        with tempfile.TemporaryFile(dir=self.root) as pack:
            while size and (chunk := stream.read(min(CHUNK, size))):
                pack.write(chunk)
                size -= len(chunk)
            if size:
                raise Failed("the pack was cut off on its way")
            pack.flush()
            pack.seek(0)
            Git(self.store).run("index-pack", "--stdin", "--fix-thin", stdin=pack, stdout=subprocess.DEVNULL)

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

    # ---- send

    def send(self, header: dict[str, Any], out: BinaryIO) -> None:
        """Write a line of JSON and, where there is something that the other side lacks, a pack of it."""
        repository = header["repository"]
        self._check(repository=repository)
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            head: str | None = None
            commit: str | None = None
            refs: dict[str, str] = {}
            if repository:
                self._borrow_objects(scratch)
                head, commit, refs = self._refs()
                _copy_bounded(os.path.join(self.own_git, "index"), os.path.join(scratch, "own"))
                for name in filter(_SHARED_INDEX.fullmatch, os.listdir(self.own_git)):
                    _copy_bounded(os.path.join(self.own_git, name), os.path.join(self.store, name))
            files, private, nested = self._files(scratch, everything=not repository)
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
                    name: value
                    for name, value in refs.items()
                    if not name.startswith((*CARRIED_REFS, "refs/steersman/"))
                },
                "empty": sorted(map(as_text, empty)),
                "private": sorted(map(as_text, private)),
            }
            git = self.git()
            parent = ("-p", commit) if commit else ()
            kept = git.run("commit-tree", *parent, "-F", "-", files, stdin=b"files\n").decode().strip()
            tips = self._commits(refs.values())
            parents = [word for each in (kept, *tips) for word in ("-p", each)]
            snapshot = (
                git.run("commit-tree", *parents, "-F", "-", index, stdin=json.dumps(state).encode()).decode().strip()
            )
            if not self.ready:  # somebody removes the copy: what has gone already is no deletion of the agent's
                raise Failed(f"the copy in {self.root} is being removed")
            wanted = [snapshot, *sorted(set(refs.values())), *(f"^{each}" for each in header["have"])]
            self._send_pack(snapshot, wanted, os.path.join(scratch, "pack"), out)

    def _send_pack(self, snapshot: str, wanted: list[str], pack: str, out: BinaryIO) -> None:
        with open(pack, "wb") as file:
            self.git().run(
                *("pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q"),
                stdin="".join(f"{each}\n" for each in wanted).encode(),
                stdout=file,
            )
        _say(out, {"ok": True, "snapshot": snapshot, "size": os.path.getsize(pack)})
        with open(pack, "rb") as file:
            shutil.copyfileobj(file, out, CHUNK)
        out.flush()

    def _check(self, *, repository: bool) -> None:
        """Raises Failed for a copy that cannot be made into a snapshot."""
        if not self.ready:
            raise Failed(f"there is no copy in {self.root}")
        if repository and not _is_directory(self.own_git):
            raise Failed("the copy's .git is no directory any more")
        if not repository and os.path.lexists(self.own_git):
            raise Failed("a repository was made in the copy, and there is none in the workspace")
        self._check_blocking()
        if repository:
            self._check_work_trees()

    def _files(self, scratch: str, *, everything: bool) -> tuple[str, list[bytes], set[bytes]]:
        """The tree of the files; paths that only their user may read; nested repositories."""
        index = os.path.join(scratch, "files")
        _copy_index(self.index, index)
        git = self.git(GIT_INDEX_FILE=index)
        modes = {line.split(b"\t", 1)[1]: line[:6] for line in _paths(git.run("ls-files", "-s", "-z"))}
        known = modes.keys()
        paths = known | set(_paths(git.run("ls-files", "-z", "-o", *(() if everything else ("--exclude-standard",)))))
        own = os.path.join(scratch, "own")
        if not everything and os.path.exists(own):
            paths |= set(_paths(self.git(GIT_INDEX_FILE=own).run("ls-files", "-z")))
        update: list[bytes] = []
        remove: list[bytes] = []
        private: list[bytes] = []
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
            elif kind == "special" and path in known:
                raise Failed(f"{_shown(path)} is neither a file nor a link nor a directory any more")
            else:
                remove.append(path)
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=_listed(remove))
        git.run("update-index", "-z", "--add", "--replace", "--stdin", stdin=_listed(update))
        # git only remarks that it leaves a path out.
        if refused := sorted(set(update) - set(_paths(git.run("ls-files", "-z")))):
            raise Failed(f"git takes no file of this name: {_shown(refused[0])}")
        return git.run("write-tree").decode().strip(), private, nested

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
        """Raises Failed for a file that git opens by its name, and at which it would wait for ever."""
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
                            raise Failed(f"{os.path.relpath(entry.path, self.top)} is no file")
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
        kept = [line for line in _read(alternates).split("\n") if line and f"{self.root}/" not in line]
        _write(alternates, "".join(f"{line}\n" for line in (*kept, quoted(borrowed))))

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


def _remove_tree(path: str) -> None:
    """A tree may be deeper than Python can go."""
    subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


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


def _say(out: BinaryIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer).encode() + b"\n")
    out.flush()


def main(command: str, root: str) -> None:
    """Do what is asked; the answer is a line of JSON on stdout."""
    os.umask(0o022)
    copy, stdin, out = Copy(root), sys.stdin.buffer, sys.stdout.buffer
    try:
        if command == "remove":
            with contextlib.suppress(FileNotFoundError):  # first: half a copy must not be taken for one
                os.unlink(os.path.join(copy.root, "ready"))
            _remove_tree(copy.root)
            _say(out, {"ok": not os.path.lexists(copy.root), "error": f"{copy.root} cannot be removed"})
            return
        header = json.loads(stdin.readline(MAX_HEADER))
        if command == "receive":
            copy.receive(header, stdin)
            _say(
                out,
                {
                    "ok": True,
                    "directory": os.path.realpath(os.path.join(copy.top, os.fsdecode(as_bytes(header["within"])))),
                },
            )
        else:
            copy.send(header, out)
    except Failed as error:
        _say(out, {"ok": False, "error": str(error)})
    except OSError as error:
        _say(out, {"ok": False, "error": f"{_shown(os.fsencode(error.filename or copy.root))}: {error.strerror}"})
    finally:
        with contextlib.suppress(OSError):
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
