"""Whatever a copy's machine sends: the workspace stays as it was or is merged rightly, and the failure says why."""

import asyncio
import dataclasses
import hashlib
import json
import os
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import currently_in_test_context, event, given
from hypothesis import strategies as st

from activities.ports.machine import Machine, Stream
from activities.workspaces.carry.carrier import Returned, WorkspaceCarrier
from activities.workspaces.carry.copies import CopyFailed, WorkspaceCopy
from activities.workspaces.carry.snapshots import NoSnapshot
from activities.workspaces.carry.work_tree import is_safe
from activities.workspaces.git.runner import GitFailed
from activities.workspaces.git.shadows import Shadows
from tests.hostile.test_carry_properties import disk, git
from tests.workspaces.carrying import COMMIT, NAMES, Carrying

pytestmark = [pytest.mark.integration, pytest.mark.property, pytest.mark.timeout(0)]

HANG_S = 60
BEFORE = (
    "printf '*.log\\n' > .gitignore; echo one > a; mkdir -p d/e; echo two > d/b; ln -s a link; echo x > run; "
    "chmod +x run"
    + COMMIT
    + "first; git tag -a v1 -m v1; git branch other; echo staged > s; git add s; echo dirty >> a; echo new > u; "
    "echo log > x.log; git config alias.x '!touch /tmp/never'; echo '#!/bin/sh' > .git/hooks/post-merge; git gc -q"
)
THERE = "echo theirs > t; echo more >> d/b; git add -A; git commit -qm theirs; echo later > later; git tag v2; rm u"


# ---- a machine that answers what it wants to


class Answering:
    """A program that has answered this and ended."""

    def __init__(self, answer: bytes) -> None:
        self.stdin: Any = self
        self.stdout = asyncio.StreamReader(limit=1024 * 1024)
        self.stdout.feed_data(answer)
        self.stdout.feed_eof()

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait(self) -> int:
        return 0

    def said(self) -> str:
        return "\x1b[31mhostile\n"

    def kill(self) -> None: ...


class AnsweringMachine:
    """Each program answers the same."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        return Answering(self.answer)

    async def aclose(self) -> None: ...


# ---- a workspace that was carried out, and what an honest copy sends back


@dataclasses.dataclass(frozen=True)
class Scene:
    """A workspace below `root`, which was carried out as `work`. `header` and `pack`: what the copy sends."""

    root: Path
    work: Carrying
    header: dict[str, Any]
    pack: bytes

    @property
    def answer(self) -> bytes:
        return json.dumps(self.header).encode() + b"\n" + self.pack

    @property
    def base(self) -> dict[str, Any]:
        """The state that the base's snapshot has."""
        assert self.work.carried
        said = git(self.work.top, "log", "-1", "--format=%B", self.work.carried.snapshot)
        return dict(json.loads(said))


class Recorder(Machine):
    """Keeps what comes back."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.said = b""

    async def exec(self, *argv: str, stdin: bytes | None = None) -> Stream:
        stream = await self.machine.exec(*argv, stdin=stdin)
        recorder = self

        class Reader:
            async def read(self, most: int) -> bytes:
                data = await stream.stdout.read(most)
                recorder.said += data
                return data

            async def readline(self) -> bytes:
                line = await stream.stdout.readline()
                recorder.said += line
                return line

        stream_copy: Any = type("Recorded", (), {})()
        stream_copy.stdin, stream_copy.stdout = stream.stdin, Reader()
        stream_copy.wait, stream_copy.said, stream_copy.kill = stream.wait, stream.said, stream.kill
        recorded: Stream = stream_copy
        return recorded

    async def aclose(self) -> None:
        await self.machine.aclose()


async def _scene(root: Path) -> Scene:
    work = Carrying(root, borrow=False)
    try:
        work.git()
        await work.out(BEFORE)
        work.in_copy(THERE)
        recorder = Recorder(work.machine)
        place = dataclasses.replace(work.place, machine=recorder)
        assert work.carried
        base = git(work.top, "rev-list", "-1", work.carried.snapshot).decode().strip()
        trees = [git(work.top, "rev-parse", f"{base}{each}").decode().strip() for each in ("^{tree}", "^1^{tree}")]
        await place.send(
            {"run": NAMES.run, "have": [base, *trees], "repository": True, "empty": [], "include": []}, root / "pack"
        )
        (root / "pack").unlink()
    finally:
        await work.close()
    line, _, pack = recorder.said.partition(b"\n")
    return Scene(root, work, dict(json.loads(line)), pack)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="steersman-carry-") as directory:
        yield asyncio.run(_scene(Path(directory)))


# ---- what must hold


def repository(top: Path) -> dict[str, bytes]:
    """What a person has of a repository: all but objects and our own refs."""
    found = {}
    for directory, names, here in os.walk(top / ".git"):
        names[:] = [name for name in names if name != "objects" and not directory.endswith("refs/steersman")]
        for name in here:
            path = Path(directory) / name
            if "steersman" not in str(path.relative_to(top)) and name != "packed-refs":
                found[str(path.relative_to(top))] = path.read_bytes()
    found["refs"] = git(top, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags")
    return found


def litter(root: Path) -> list[str]:
    """Scratch files."""
    found = [str(path) for path in (root / "state").iterdir() if not path.name.endswith("-carry")]
    found += [str(path) for path in (root / "state").glob("*-carry/*") if path.name not in ("git", "lock", "own")]
    objects = root / "work" / "top" / ".git" / "objects"
    found += [str(path) for path in (*objects.glob("tmp*"), *objects.glob("pack/*")) if "tmp" in path.name]
    found += [str(path) for path in objects.glob("??/tmp*")]
    return found + [str(path) for path in (root / "work" / "top").rglob("*steersman-*") if path.is_file()
                    and "refs/steersman" not in str(path)]  # fmt: skip


@contextmanager
def restored(scene: Scene) -> Iterator[tuple[Path, Path]]:
    """The workspace as it was carried out, somewhere else; and its root."""
    with tempfile.TemporaryDirectory(prefix="steersman-carry-") as directory:
        root = Path(directory) / "root"
        root.mkdir()
        for name in ("work", "home"):
            subprocess.run(["cp", "-a", scene.root / name, root / name], check=True)
        (root / "outside").write_text("outside")
        yield root, root / "work" / "top"


def carried_back(scene: Scene, answer: bytes) -> Returned | None:
    """What came of the answer, None where it was refused; all that must hold of it is looked at."""
    with restored(scene) as (root, top):
        assert scene.work.carried
        carried = dataclasses.replace(scene.work.carried, top=top)
        carrier = WorkspaceCarrier(Shadows({**scene.work.environ, "HOME": str(root / "home")}, [root / "work"]),
                                   root / "state")  # fmt: skip
        copy = WorkspaceCopy(AnsweringMachine(answer), "/nowhere", "python3")
        files, mine = disk(top), repository(top)

        async def back() -> Returned:
            async with asyncio.timeout(HANG_S):
                return await carrier.carry_back(carried, copy, NAMES, "run", root / "kept")

        returned: Returned | None = None
        refused = ""
        try:
            returned = asyncio.run(back())
        except (CopyFailed, NoSnapshot, GitFailed) as error:
            said = str(error)
            assert 0 < len(said.strip()) < 2000, said
            assert said.isprintable(), said
            refused = type(error).__name__
            assert disk(top) == files, said
            assert repository(top) == mine, said
        assert not litter(root)
        assert (root / "outside").read_text() == "outside"
        assert sorted(path.name for path in root.iterdir() if path.name != "kept") == [
            "home",
            "outside",
            "state",
            "work",
        ]
        assert [path.name for path in (root / "work").iterdir()] == ["top"]
        assert git(top, "fsck", "--strict", "--no-dangling", check=True) == b""
        git(top, "status", check=True)
        if returned:
            check_merged(top, returned, files, mine)
        if currently_in_test_context():
            event(f"refused: {refused}" if refused else "merged")
        return returned


def entry(kind: str, content: bytes) -> tuple[bytes, ...]:
    """Mode and object of what lies on the disk."""
    mode = {"link": b"120000", "program": b"100755", "file": b"100644"}[kind]
    return mode, hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest().encode()


def check_merged(top: Path, returned: Returned, files: dict[bytes, Any], mine: dict[str, bytes]) -> None:
    after, now = disk(top), repository(top)
    theirs = {}
    for line in git(top, "ls-tree", "-r", "-z", returned.files).split(b"\0")[:-1]:
        head, path = line.split(b"\t", 1)
        theirs[path] = tuple(head.split(b" ")[::2])
    for path in after.keys() | files.keys():  # nobody has changed anything here meanwhile
        if after.get(path) != files.get(path):
            assert path not in returned.conflicts, path
            assert (entry(*after[path]) if path in after else None) == theirs.get(path), path
    assert all(is_safe(path) for path in after)
    assert after[b"x.log"] == files[b"x.log"]  # ignored
    for name, content in mine.items():
        if "/logs/" not in name and name not in (".git/HEAD", ".git/index", "refs") and "/refs/" not in name:
            assert now[name] == content, name
    assert now.keys() - mine.keys() <= {name for name in now if "/refs/" in name or "/logs/" in name}
    refs = git(top, "for-each-ref", "--format=%(objectname)", "refs/heads", "refs/tags").split()
    git(top, "rev-list", "--objects", *refs, check=True)


def test_an_honest_answer_is_merged(scene: Scene) -> None:
    returned = carried_back(scene, scene.answer)
    assert returned
    assert (returned.changed, returned.conflicts) == (True, [])


# ---- bytes


Change = Callable[[bytes], bytes]


def flip(at: int, mask: int) -> Change:
    return lambda data: data[: at % len(data)] + bytes([data[at % len(data)] ^ mask]) + data[at % len(data) + 1 :]


def cut(at: int) -> Change:
    return lambda data: data[: at % len(data)]


def splice(at: int, to: int, of: bytes) -> Change:
    return lambda data: data[: at % len(data)] + of + data[to % len(data) :]


places = st.integers(0, 1 << 30)
CHANGES = st.one_of(
    st.builds(flip, places, st.integers(1, 255)),
    st.builds(cut, places),
    st.builds(splice, places, places, st.binary(max_size=100)),
    st.just(lambda data: data + data),
    st.just(lambda data: data.split(b"\n", 1)[0] + b"\n" + data),
)


@pytest.mark.exhaustive
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_bytes_that_were_changed(scene: Scene, changes: list[Change]) -> None:
    answer = scene.answer
    for change in changes:
        answer = change(answer) or b"\n"
    carried_back(scene, answer)


@pytest.mark.exhaustive
@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_a_pack_that_was_changed(scene: Scene, changes: list[Change]) -> None:
    pack = scene.pack
    for change in changes:
        pack = change(pack) or b"\n"
    carried_back(scene, json.dumps({**scene.header, "size": len(pack)}).encode() + b"\n" + pack)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=50),
    st.just("x" * 2_000_000), st.just([[]] * 1000), st.just("0" * 40), st.just("HEAD"), st.just("--all"),
    st.just(0), st.just(1 << 40),
)  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(["ok", "snapshot", "size", "error", "lacking"]), VALUES, min_size=1)


@pytest.mark.exhaustive
@given(header=HEADERS, times=st.integers(1, 3))
def test_headers(scene: Scene, header: dict[str, Any], times: int) -> None:
    line = json.dumps({**scene.header, **header}).encode() + b"\n"
    carried_back(scene, line * times + scene.pack)


@pytest.mark.parametrize("answer", [
    b"", b"\n", b"null\n", b"[]\n", b"{\n", b"\xff\xfe\n", b"[" * 500_000 + b"\n", b"{" * 3_000_000, b"0" * 3_000_000,
    b'{"ok": true}\n', b'{"ok": true, "snapshot": "", "size": 1e400}\n', b'{"ok": true, "ok": false}\n',
], ids=lambda answer: str(answer[:20]))  # fmt: skip
def test_lines_that_are_no_answer(scene: Scene, answer: bytes) -> None:
    assert carried_back(scene, answer[:4_000_000]) is None


# ---- forged objects, in a pack that is good by itself


class Pack:
    """A pack of objects of any content."""

    TYPES: ClassVar = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, bytes]] = {}

    def add(self, kind: str, content: bytes) -> str:
        name = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()
        self.objects[name] = kind, content
        return name

    def data(self, *, without: str = "") -> bytes:
        kept = [each for name, each in self.objects.items() if name != without]
        data = b"PACK" + struct.pack(">II", 2, len(kept))
        for kind, content in kept:
            size, head = len(content) >> 4, [self.TYPES[kind] << 4 | len(content) & 15]
            while size:
                head[-1] |= 0x80
                head.append(size & 0x7F)
                size >>= 7
            data += bytes(head) + zlib.compress(content, 1)
        return data + hashlib.sha1(data, usedforsecurity=False).digest()


PERSON = b"A <a@a> 1 +0000"
NAMED = [b"a", b"new", b"d", b"..", b".", b".git", b".GIT", b".Git ", b"git~1", b"GIT~1", b"/etc", b"a/b", b"../x", b"",
         b".git\xe2\x80\x8c", b"\xff", b"link", b".gitmodules", b".gitattributes", b"x.log", b"-rf", b"n\nl",
         b"x" * 300, b"con"]  # fmt: skip
MODES = [
    b"100644",
    b"100755",
    b"120000",
    b"40000",
    b"160000",
    b"100664",
    b"100777",
    b"0",
    b"140000",
    b"040000",
    b"9" * 30,
]
TARGETS = [b"", b"a", b"/etc/passwd", b"../../outside", b".git/hooks", b"x" * 5000, b"d/../.git/config", b"a\0b"]
Entries = list[tuple[bytes, bytes, Any]]
LEAVES = st.one_of(st.sampled_from(TARGETS), st.binary(max_size=20), st.just(None))
TREES: st.SearchStrategy[Entries] = st.recursive(
    st.lists(st.tuples(st.sampled_from(MODES), st.sampled_from(NAMED), LEAVES), max_size=5),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(MODES), st.sampled_from(NAMED), st.one_of(LEAVES, inner)), max_size=4
    ),
    max_leaves=20,
)
REFS = st.dictionaries(
    st.sampled_from(["refs/heads/main", "refs/heads/new", "refs/heads/../../x", "refs/heads/x.lock", "refs/heads/-x",
                     "refs/heads/a..b", "refs/heads/main/below", "refs/tags/v1", "refs/tags/.x", "refs/steersman/x",
                     "refs/heads/HEAD", "refs/heads/" + "x" * 600, "HEAD", "refs/heads/@{", "refs/heads/\u2028"]),
    st.sampled_from(["commit", "files", "index", "blob", "missing", "HEAD", "tag"]), max_size=4,
)  # fmt: skip
ODD_PATHS = st.lists(
    st.sampled_from(["..", "../x", "/etc/x", ".git/x", "%2e%2e/x", "d", "a", "new/dir", "", "%00", ".git", "x" * 5000]),
    max_size=4,
)


@st.composite
def forgeries(draw: st.DrawFn) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if draw(st.booleans()):
        state["refs"] = draw(REFS)
    if draw(st.booleans()):
        state["head"] = draw(st.sampled_from([None, "refs/heads/new", "refs/heads/../x", "HEAD", "refs/heads/a b", 3]))
    for name in ("empty", "private", "include"):
        if draw(st.booleans()):
            state[name] = draw(ODD_PATHS)
    if draw(st.booleans()):
        state["others"] = draw(REFS)
    if draw(st.integers(0, 9)) == 0:
        state["steersman"] = 2
    return {
        "state": state,
        "files": draw(TREES),
        "index": draw(st.one_of(st.none(), TREES)),
        "parent": draw(st.sampled_from(["HEAD", "HEAD", "missing", "blob", "none", "two"])),
        "commit": draw(st.sampled_from(["HEAD", "HEAD", "forged", "missing", None])),
        "without": draw(st.sampled_from(["", "", "", "tree", "blob", "files"])),
        "sorted": draw(st.booleans()),
    }


def tree(pack: Pack, entries: Entries, *, ordered: bool) -> str:
    """A tree object of these entries: a list is a tree, None an object that is nowhere."""
    lines: dict[bytes, bytes] = {}
    listed = list(entries)
    for mode, name, what in listed:
        if isinstance(what, list):
            object_id, mode = tree(pack, what, ordered=ordered), b"40000"  # noqa: PLW2901
        else:
            object_id = "1" * 40 if what is None else pack.add("blob", what)
        lines[name + b"/" * (mode == b"40000")] = mode + b" " + name + b"\0" + bytes.fromhex(object_id)
    return pack.add("tree", b"".join(lines[key] for key in (sorted(lines) if ordered else lines)))


def forged(scene: Scene, what: dict[str, Any]) -> bytes:
    """The answer that has this snapshot."""
    pack, base = Pack(), scene.base
    blob = pack.add("blob", b"a blob\n")
    files = tree(pack, what["files"], ordered=what["sorted"])
    index = files if what["index"] is None else tree(pack, what["index"], ordered=what["sorted"])
    head = str(base["commit"])
    made = pack.add("commit", b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nx\n"
                    % (files.encode(), head.encode(), PERSON, PERSON))  # fmt: skip
    commit = {"HEAD": head, "forged": made, "missing": "2" * 40, None: None}[what["commit"]]
    parents = {"HEAD": [commit] if commit else [], "missing": ["3" * 40], "blob": [blob], "none": [],
               "two": [head, made]}[what["parent"]]  # fmt: skip
    lines = b"".join(b"parent %s\n" % each.encode() for each in parents)
    named = pack.add(
        "commit", b"tree %s\n%sauthor %s\ncommitter %s\n\nfiles\n" % (files.encode(), lines, PERSON, PERSON)
    )
    tag = pack.add("tag", b"object %s\ntype commit\ntag t\ntagger %s\n\nt\n" % (named.encode(), PERSON))
    ids = {"commit": made, "files": named, "index": index, "blob": blob, "missing": "4" * 40, "HEAD": head, "tag": tag}
    state = {**base, "commit": commit, **what["state"]}
    for name in ("refs", "others"):
        if name in what["state"]:
            state[name] = {ref: ids[each] for ref, each in what["state"][name].items()}
    snapshot = pack.add("commit", b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\n%s"
                        % (index.encode(), named.encode(), PERSON, PERSON, json.dumps(state).encode()))  # fmt: skip
    data = pack.data(without={"tree": files, "blob": blob, "files": named}.get(what["without"], ""))
    return json.dumps({"ok": True, "snapshot": snapshot, "size": len(data)}).encode() + b"\n" + data


PLAIN: dict[str, Any] = {"state": {}, "index": None, "parent": "HEAD", "commit": "HEAD", "without": "", "sorted": True}


def test_a_forgery_that_is_none_is_merged(scene: Scene) -> None:
    assert carried_back(scene, forged(scene, {**PLAIN, "files": [(b"100644", b"new", b"forged\n")]}))


@pytest.mark.exhaustive
@given(what=forgeries())
def test_forged_snapshots(scene: Scene, what: dict[str, Any]) -> None:
    carried_back(scene, forged(scene, what))


@pytest.mark.parametrize("name", [name for name in NAMED if not is_safe(name)])
@pytest.mark.parametrize("mode", [b"100644", b"120000", b"40000"])
def test_names_that_no_work_tree_may_have(scene: Scene, name: bytes, mode: bytes) -> None:
    inner = [(b"100644", b"config", b"[core]\n")] if mode == b"40000" else b"x"
    assert carried_back(scene, forged(scene, {**PLAIN, "files": [(mode, name, inner)]})) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("depth", [500, 20_000])
def test_deep_trees(scene: Scene, depth: int) -> None:
    pack_of: Entries = [(b"100644", b"f", b"deep")]
    answer = _deep(scene, depth, pack_of)
    carried_back(scene, answer)


def _deep(scene: Scene, depth: int, entries: Entries) -> bytes:
    pack = Pack()
    inner = tree(pack, entries, ordered=True)
    for _ in range(depth):
        inner = pack.add("tree", b"40000 d\0" + bytes.fromhex(inner))
    return _of_tree(scene, pack, inner)


def _of_tree(scene: Scene, pack: Pack, files: str) -> bytes:
    base = scene.base
    named = pack.add("commit", b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nfiles\n"
                     % (files.encode(), str(base["commit"]).encode(), PERSON, PERSON))  # fmt: skip
    snapshot = pack.add("commit", b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\n%s"
                        % (files.encode(), named.encode(), PERSON, PERSON, json.dumps(base).encode()))  # fmt: skip
    data = pack.data()
    return json.dumps({"ok": True, "snapshot": snapshot, "size": len(data)}).encode() + b"\n" + data


@pytest.mark.exhaustive
def test_a_tree_with_very_many_entries(scene: Scene) -> None:
    pack = Pack()
    blob = pack.add("blob", b"x")
    entries = b"".join(b"100644 f%07d\0" % number + bytes.fromhex(blob) for number in range(20_000))
    returned = carried_back(scene, _of_tree(scene, pack, pack.add("tree", entries)))
    assert returned is None or returned.changed


@pytest.mark.exhaustive
def test_a_small_pack_that_unfolds_to_very_much(scene: Scene) -> None:
    """A tree of trees, each many times the next: 10 ** 12 files in a few kilobytes."""
    pack = Pack()
    inner = tree(pack, [(b"100644", b"f", b"x")], ordered=True)
    for _ in range(12):
        inner = pack.add("tree", b"".join(b"40000 d%d\0" % number + bytes.fromhex(inner) for number in range(10)))
    assert carried_back(scene, _of_tree(scene, pack, inner)) is None
