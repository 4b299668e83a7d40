"""Strategies for hypothesis: what somebody who may write in a workspace could put into it and into its repository."""

import errno
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st

from tests.loops.loop_site import PERSON

Trap = Callable[[Path, Path], None]
"""Puts something into a repository; the second directory is where its programs tell that they ran."""

_BYTES = st.integers(1, 255).filter(lambda each: each != ord("/"))
_RESERVED = (b".", b"..", b".git")
_NAME = st.one_of(
    st.lists(_BYTES, min_size=1, max_size=12).map(bytes),
    st.sampled_from(
        [b"a", b"b", b"dir", b".gitignore", b".gitattributes", b".gitmodules", b".env", b"-x", b"\xff", b"HEAD"]
    ),
).filter(lambda name: name.lower() not in _RESERVED)
_PATH = st.lists(_NAME, min_size=1, max_size=4).map(b"/".join)
_GIT_PATHS = st.sampled_from(
    [
        "HEAD",
        "index",
        "config",
        "config.worktree",
        "commondir",
        "gitdir",
        "packed-refs",
        "shallow",
        "info/exclude",
        "info/grafts",
        "info/attributes",
        "objects/info/alternates",
        "objects/info/http-alternates",
        "objects/info/commit-graph",
        "refs/heads/main",
        "refs/heads/x",
        "refs/steersman",
        "refs/steersman/loop-1",
        "refs/steersman/loop-1/1",
        "refs/steersman/loop-1/1.lock",
        "refs/replace/x",
        "objects/pack/multi-pack-index",
        "objects/pack/pack-x.idx",
        "MERGE_HEAD",
        "index.lock",
        "sharedindex.x",
    ]
)
_GIT_DIRECTORIES = st.sampled_from(
    ["objects", "objects/info", "objects/pack", "objects/ab", "refs", "refs/heads", "info", "refs/steersman"]
)
_CONTENT = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            b"ref: refs/heads/none\n",
            b"ref: ../../../x\n",
            b"0" * 40 + b"\n",
            b"*\n",
            b"!*\n",
            b"*.a\n/dir\n",
            b"/etc\n",
            b"DIRC\0",
            b"{outside}/.git\n",
            b"{outside}/.git/objects\n",
        ]
    ),
)
_ATTRIBUTES = st.lists(
    st.sampled_from(
        [
            "* filter=evil",
            "* text eol=crlf",
            "* working-tree-encoding=UTF-16",
            "* ident",
            "* diff=evil",
            "* merge=evil",
            "a -text",
        ]
    ),
    min_size=1,
).map(lambda lines: "\n".join(lines).encode())
_CONFIG = st.sampled_from(
    [
        "[core]\n\tfsmonitor = {run}",
        "[core]\n\thooksPath = {hooks}",
        "[core]\n\tworktree = /",
        "[core]\n\tpager = {run}",
        "[core]\n\tsshCommand = {run}",
        "[core]\n\tattributesFile = {hooks}",
        "[core]\n\texcludesFile = /dev/zero",
        "[core]\n\tbare = true",
        '[filter "evil"]\n\tclean = {run}\n\tsmudge = {run}\n\trequired',
        '[filter "evil"]\n\tprocess = {run}\n\trequired',
        '[diff "evil"]\n\ttextconv = {run}\n\tcommand = {run}',
        "[diff]\n\texternal = {run}",
        "[gpg]\n\tprogram = {run}",
        "[commit]\n\tgpgSign = true",
        '[extensions]\n\tpartialClone = evil\n[remote "evil"]\n\turl = ext::{run}\n\tpromisor = true',
        "[extensions]\n\tworktreeConfig = true",
        "[include]\n\tpath = /dev/zero",
        "[include]\n\tpath = {hooks}/none",
        "[extensions]\n\tobjectFormat = sha256",
        "[extensions]\n\trefStorage = reftable",
        "[core]\n\trepositoryFormatVersion = 99",
        "[core]\n\tsharedRepository = 0777",
        "[core]\n\talternateRefsCommand = {run}",
        "[core]\n\tsplitIndex = true",
        "[core]\n\tsparseCheckout = true",
        "[core]\n\tautocrlf = true",
        "[credential]\n\thelper = !{run}",
        "[alias]\n\tls-files = !{run}",
        "[index]\n\tversion = 4",
        "[gc]\n\tauto = 1",
        "[core",
    ]
)


def _at(top: Path, path: bytes) -> Path:
    """A place in the tree, with its directories; what is in the way stays. Raises OSError where a link leads out."""
    place = top / os.fsdecode(path)
    for parent in (*reversed(place.parents), place.parent):
        if not Path(os.path.realpath(parent)).is_relative_to(os.path.realpath(top)) and parent.is_relative_to(top):
            raise OSError(errno.EXDEV, "a link leads out of the tree", str(parent))
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _named(content: bytes, top: Path) -> bytes:
    """With the path of somebody else's repository, outside of the root."""
    return content.replace(b"{outside}", os.fsencode(top.parent.parent / "outside"))


def _write(place: Path, content: bytes, mode: int = 0o644, *, how: int = os.O_TRUNC) -> None:
    """Into this very file: not through a link, and without waiting at a pipe that another trap is."""
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | how, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)


def _program(canaries: Path, name: str) -> Path:
    """A program that tells that it ran."""
    program = canaries.parent / "programs" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\ntouch {canaries}/{name}\ncat\n")
    program.chmod(0o755)
    return program


def _file(path: bytes, content: bytes, mode: int) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        _write(_at(top, path), content, mode)

    return plant


def _link(path: bytes, target: bytes) -> Trap:
    return lambda top, canaries: _at(top, path).symlink_to(os.fsdecode(_named(target, top)))


def _pipe(path: bytes) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        _at(top, path).unlink(missing_ok=True)
        os.mkfifo(_at(top, path))

    return plant


def _socket(path: bytes) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.fsencode(_at(top, path)))

    return plant


def _git_file(path: str, content: bytes) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        place = _at(top, f".git/{path}".encode())
        place.unlink(missing_ok=True)
        _write(place, _named(content, top))

    return plant


def _git_link(path: str, target: bytes) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        place = _at(top, f".git/{path}".encode())
        if place.is_dir() and not place.is_symlink():
            place.rename(place.with_name(f"{place.name}.old"))
            if path.startswith("objects"):
                (canaries.parent / "damaged").touch()
        place.unlink(missing_ok=True)
        place.symlink_to(os.fsdecode(_named(target, top)))

    return plant


def _config(text: str) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        hooks = canaries.parent / "programs"
        said = "\n" + text.format(run=_program(canaries, "config"), hooks=hooks) + "\n"
        _write(_at(top, b".git/config"), said.encode(), how=os.O_APPEND)

    return plant


def _hooks(top: Path, canaries: Path) -> None:
    for name in ("post-index-change", "post-checkout", "pre-commit", "reference-transaction", "fsmonitor-watchman"):
        place = _at(top, f".git/hooks/{name}".encode())
        place.unlink(missing_ok=True)
        place.symlink_to(_program(canaries, name))


def _nested(path: bytes, head: bytes) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        place = _at(top, path)
        place.mkdir(exist_ok=True)
        _git(place, "init", "-q")
        _write(place / "f", b"x")
        _git(place, "add", "f")
        _git(place, "commit", "-q", "-m", "x")
        if head:
            _write(place / ".git" / "HEAD", head)

    return plant


def _commands(*arguments: str) -> Trap:
    return lambda top, canaries: _git(top, *arguments)


def _damage(number: int, how: str) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        loose = sorted(each for each in (top / ".git" / "objects").glob("??/*") if each.is_file())
        if loose:
            (canaries.parent / "damaged").touch()
            chosen = loose[number % len(loose)]
            chosen.chmod(0o600)
            chosen.unlink() if how == "gone" else _write(chosen, b"x")

    return plant


def _deep(depth: int) -> Trap:
    def plant(top: Path, canaries: Path) -> None:
        place = _at(top, b"deep/" * depth + b"x").parent
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "file", b"x")

    return plant


def _git(directory: Path, *arguments: str) -> None:
    """The person's own git, before anything hostile was there that it might run."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **PERSON}
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.excludesFile=/dev/null")
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            ["git", *safe, *arguments], cwd=directory, env=environment, capture_output=True, check=False, timeout=5
        )


def _guarded(trap: Trap) -> Trap:
    """What does not fit to what is there already is left away."""

    def plant(top: Path, canaries: Path) -> None:
        with suppress(OSError, ValueError):
            trap(top, canaries)

    return plant


_TARGETS = st.one_of(
    st.binary(min_size=1, max_size=30).filter(lambda each: b"\0" not in each),
    st.sampled_from(
        [
            b"..",
            b".",
            b"/dev/zero",
            b"/etc/passwd",
            b"{outside}",
            b"{outside}/.git",
            b"{outside}/none",
            b"{outside}/.git/objects",
            b"a",
        ]
    ),
)

TRAPS: st.SearchStrategy[list[Trap]] = st.lists(
    st.one_of(
        st.builds(_file, _PATH, _CONTENT, st.sampled_from([0o644, 0o755, 0o000, 0o4755, 0o666])),
        st.builds(_file, _PATH.map(lambda path: path + b"/.gitattributes"), _ATTRIBUTES, st.just(0o644)),
        st.builds(_file, st.just(b".gitattributes"), _ATTRIBUTES, st.just(0o644)),
        st.builds(_link, _PATH, _TARGETS),
        st.builds(_pipe, _PATH),
        st.builds(_socket, _PATH),
        st.builds(_pipe, _GIT_PATHS.map(lambda path: f".git/{path}".encode())),
        st.builds(_git_file, _GIT_PATHS, _CONTENT),
        st.builds(_git_link, _GIT_PATHS, _TARGETS),
        st.builds(_git_link, _GIT_DIRECTORIES, _TARGETS),
        st.builds(_config, _CONFIG),
        st.just(_hooks),
        st.builds(_nested, _PATH, st.sampled_from([b"", b"", b"ref: refs/heads/none\n", b"x", b"0" * 40])),
        st.sampled_from(
            [
                _commands("add", "-A"),
                _commands("commit", "-q", "-am", "more"),
                _commands("update-index", "--assume-unchanged", "a.txt"),
                _commands("update-index", "--skip-worktree", "a.txt"),
                _commands("update-index", "--split-index"),
                _commands("checkout", "-q", "--detach"),
                _commands("checkout", "-q", "--orphan", "none"),
                _commands("replace", "HEAD^{tree}", "HEAD:dir"),
                _commands("repack", "-adq"),
                _commands("pack-refs", "--all"),
            ]
        ),
        st.builds(_damage, st.integers(0, 100), st.sampled_from(["gone", "garbage"])),
        st.builds(_deep, st.integers(1, 200)),
    ).map(_guarded),
    min_size=1,
    max_size=8,
)
