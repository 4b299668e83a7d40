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
CHUNK = 1024 * 1024

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

    def with_variables(self, **variables: str) -> Git:
        """The same, with further environment variables."""
        return Git(self.environment["GIT_DIR"], **{**self.environment, **variables})

    def run(self, *arguments: str, stdin: bytes | IO[bytes] = b"", stdout: int | IO[bytes] = subprocess.PIPE) -> bytes:
        """What git prints. `stdin`: bytes, or a file. Raises Failed."""
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        try:
            done = subprocess.run(
                ["git", *arguments],
                env=self.environment,
                cwd=self.environment.get("GIT_WORK_TREE") or self.environment["GIT_DIR"],
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
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise Failed(f"git {arguments[0]}: {said[0][:500]}")
        return done.stdout or b""


class Copy:
    """A copy below `root`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.store = os.path.join(self.root, "store")
        self.index = os.path.join(self.root, "index")

    @property
    def ready(self) -> str:
        return _read(os.path.join(self.root, "ready"))

    @property
    def top(self) -> str:
        return os.path.join(self.root, "copy", _read(os.path.join(self.root, "name")))

    @property
    def own_git(self) -> str:
        return os.path.join(self.top, ".git")

    def git(self, **variables: str) -> Git:
        """Git for the copy's files: what is in the copy's own repository is only read."""
        ours = {
            "GIT_WORK_TREE": self.top,
            "GIT_INDEX_FILE": self.index,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(os.path.join(self.own_git, "objects")),
        }
        return Git(self.store, **{**ours, **variables})

    # ---- receive

    def receive(self, header: dict[str, Any], stream: IO[bytes]) -> None:
        """Make the copy of a snapshot; nothing where it is there already: an agent may have worked in it."""
        if self.ready:
            if self.ready != header["snapshot"]:
                raise Failed(f"another snapshot was brought to {self.root}")
            return
        shutil.rmtree(self.root, ignore_errors=True)
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
        user = "".join(f"\t{key} = {json.dumps(value)}\n" for key, value in sorted(header["user"].items()))
        _init(own, header["format"], "[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n"
              "\tlogAllRefUpdates = true\n{extensions}" + (f"[user]\n{user}" if user else ""))  # fmt: skip
        _write(os.path.join(own, "info", "exclude"), header["excludes"])
        _write(os.path.join(own, "objects", "info", "alternates"), quoted(os.path.join(self.store, "objects")) + "\n")
        refs = "".join(f"{value} {name}\n" for name, value in sorted(header["refs"].items()))
        _write(os.path.join(own, "packed-refs"), refs)
        _write(os.path.join(own, "HEAD"), f"ref: {header['head']}\n" if header["head"] else f"{header['commit']}\n")
        index = os.path.join(own, "index")
        _copy_index(self.index, index)
        # What both have keeps what is known of the file: the agent's first `git status` need not read it.
        self.git().with_variables(GIT_INDEX_FILE=index).run("read-tree", "--reset", header["index"])

    # ---- send

    def send(self, header: dict[str, Any], out: BinaryIO) -> None:
        """Write a line of JSON and, where there is something that the other side lacks, a pack of it."""
        if not self.ready:
            raise Failed(f"there is no copy in {self.root}")
        repository = header["repository"]
        if repository and not _is_directory(self.own_git):
            raise Failed("the copy's .git is no directory any more")
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            head, commit, refs = self._refs(scratch) if repository else (None, None, {})
            files, private, nested = self._files(scratch, everything=not repository)
            if nested:
                shown = ", ".join(sorted(_shown(each) for each in nested)[:5])
                raise Failed(f"a repository of its own lies in the copy: {shown}")
            empty = self._empty(scratch, everything=not repository)
            index = self._staged(scratch) if repository else files
            state = {
                "steersman": FORMAT,
                "head": head,
                "commit": commit,
                "refs": refs,
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
            wanted = [snapshot, *sorted(set(refs.values())), *(f"^{each}" for each in header["have"])]
            pack = os.path.join(scratch, "pack")
            with open(pack, "wb") as file:
                git.run("pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q",
                        stdin="".join(f"{each}\n" for each in wanted).encode(), stdout=file)  # fmt: skip
            _say(out, {"ok": True, "snapshot": snapshot, "size": os.path.getsize(pack)})
            with open(pack, "rb") as file:
                shutil.copyfileobj(file, out, CHUNK)
            out.flush()

    def _files(self, scratch: str, *, everything: bool) -> tuple[str, list[bytes], set[bytes]]:
        """The tree of the files; paths that only their user may read; nested repositories."""
        index = os.path.join(scratch, "files")
        _copy_index(self.index, index)
        git = self.git(GIT_INDEX_FILE=index)
        known = set(_paths(git.run("ls-files", "-z")))
        linked = {line.split(b"\t", 1)[1] for line in _paths(git.run("ls-files", "-s", "-z")) if line[:6] == b"160000"}
        paths = known | set(_paths(git.run("ls-files", "-z", "-o", *(() if everything else ("--exclude-standard",)))))
        if not everything:
            paths |= set(_paths(self.git(GIT_INDEX_FILE=os.path.join(self.own_git, "index")).run("ls-files", "-z")))
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
            elif kind == "directory" and path in linked:
                pass  # a submodule that is not checked out
            else:
                remove.append(path)
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=_listed(remove))
        git.run("update-index", "-z", "--add", "--replace", "--stdin", stdin=_listed(update))
        return git.run("write-tree").decode().strip(), private, nested

    def _kind(self, path: bytes, behind: dict[bytes, bool]) -> tuple[str, int]:
        top = os.fsencode(self.top)
        parent = os.path.dirname(path)
        if parent and self._is_behind_link(top, parent, behind):
            return "other", 0
        try:
            mode = os.lstat(os.path.join(top, path)).st_mode
        except OSError:
            return "missing", 0
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            return "file", mode
        if stat.S_ISDIR(mode):
            return ("repository" if os.path.lexists(os.path.join(top, path, b".git")) else "directory"), mode
        return "other", mode

    def _is_behind_link(self, top: bytes, directory: bytes, behind: dict[bytes, bool]) -> bool:
        if directory not in behind:
            above = os.path.dirname(directory)
            behind[directory] = bool(above and self._is_behind_link(top, above, behind)) or os.path.islink(
                os.path.join(top, directory)
            )
        return behind[directory]

    def _empty(self, scratch: str, *, everything: bool) -> list[bytes]:
        """Directories without any entry that are not ignored."""
        git = self.git(GIT_INDEX_FILE=os.path.join(scratch, "files"))
        listed = _paths(
            git.run("ls-files", "-z", "-o", "--directory", *(() if everything else ("--exclude-standard",)))
        )
        return empty_directories(os.fsencode(self.top), [path.rstrip(b"/") for path in listed if path.endswith(b"/")])

    def _staged(self, scratch: str) -> str:
        """The tree of the copy's own index. Of a path that is not merged our side counts."""
        own = os.path.join(self.own_git, "index")
        if not os.path.isfile(own) or os.path.islink(own):
            return self.git(GIT_INDEX_FILE=os.path.join(scratch, "empty")).run("write-tree").decode().strip()
        lines = _paths(self.git(GIT_INDEX_FILE=own).run("ls-files", "-s", "-z"))
        git = self.git(GIT_INDEX_FILE=os.path.join(scratch, "staged"))
        git.run("update-index", "-z", "--index-info", stdin=_listed(staged_entries(lines)))
        return git.run("write-tree").decode().strip()

    def _refs(self, scratch: str) -> tuple[str | None, str | None, dict[str, str]]:
        """The branch that is checked out, its commit, and all branches and tags."""
        look = os.path.join(scratch, "look")
        shutil.copytree(self.store, look, ignore=lambda *_: ("objects", "refs", "packed-refs"))
        for name in ("refs", "packed-refs"):
            os.symlink(os.path.join(self.own_git, name), os.path.join(look, name))
        head = os.path.join(self.own_git, "HEAD")
        if os.path.islink(head) or not os.path.isfile(head) or os.path.getsize(head) > 8192:
            raise Failed("the copy's HEAD is no file any more")
        _write(os.path.join(look, "HEAD"), _read(head) + "\n")
        objects = os.path.join(self.store, "objects")
        git = Git(
            look,
            GIT_OBJECT_DIRECTORY=objects,
            GIT_ALTERNATE_OBJECT_DIRECTORIES=quoted(os.path.join(self.own_git, "objects")),
        )
        form = "--format=%(objectname) %(refname) %(symref)"
        refs = {}
        for line in names(git.run("for-each-ref", form, "refs/heads", "refs/tags")):
            value, name, symbolic = line.split(" ", 2)
            if not symbolic:
                refs[name] = value
        text = _read(head)
        branch = text[5:].strip() if text.startswith("ref:") else None
        if branch is None:
            return None, text, refs
        return branch, refs.get(branch), refs

    def _commits(self, objects: Iterable[str]) -> list[str]:
        """The commits among these, or to which tags among these lead."""
        asked = "".join(f"{each}^{{commit}}\n" for each in sorted(set(objects))).encode()
        answers = (
            self.git().run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).decode().splitlines()
        )
        return sorted({line.split(" ")[0] for line in answers if line.endswith(" commit")})


def names(output: bytes) -> list[str]:
    """Lines of refs. Raises Failed for a name that is no text: no JSON could have it."""
    try:
        return output.decode().splitlines()
    except UnicodeDecodeError:
        raise Failed("a branch or a tag has a name that is no UTF-8") from None


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


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
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
            shutil.rmtree(copy.root, ignore_errors=True)
            if os.path.lexists(copy.root):  # a tree may be deeper than Python can go
                subprocess.run(["rm", "-rf", "--", copy.root], check=False, stderr=subprocess.DEVNULL)
            _say(out, {"ok": not os.path.lexists(copy.root), "error": f"{copy.root} cannot be removed"})
            return
        header = json.loads(stdin.readline(MAX_HEADER))
        if command == "receive":
            copy.receive(header, stdin)
            _say(
                out,
                {
                    "ok": True,
                    "directory": os.path.normpath(os.path.join(copy.top, os.fsdecode(as_bytes(header["within"])))),
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
