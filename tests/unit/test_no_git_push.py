"""The check that nothing shipped runs `git push`."""

import subprocess
import sys

import pytest

from tests.no_git_push import ROOT, found, shipped

PUSHES = [
    ("run.sh", "git push\n"),
    ("run.sh", "cd x && git -C /src push origin main\n"),
    ("run.sh", "git \\\n  push\n"),
    ("Makefile", "release:\n\tgit push --tags\n"),
    ("compose.yml", "command: sh -c 'git push'\n"),
    ("run", "#!/bin/sh\ngit push\n"),
    ("guide.md", "Then:\n```sh\ngit push\n```\n"),
    ("a.py", 'run(["git", "push"])\n'),
    ("a.py", 'run(["git", "-C", path, "push", "origin"])\n'),
    ("a.py", 'run("git", *options, "push")\n'),
    ("a.py", 'await shadow.git.run("push", "origin")\n'),
    ("a.py", 'self._git("push")\n'),
    ("a.py", 'os.system("cd x; git push")\n'),
    ("a.py", 'command = ("git", "push")\n'),
    ("a.py", "# steersman: allow-git-push:\nos.system('git push')\n"),
]
FINE = [
    ("run.sh", "git fetch; push\n"),
    ("run.sh", "legit push\ngit-push-helper\ngit log | push\n"),
    ("run.sh", "git stash pushed\n"),
    ("guide.md", "Nobody has to `git push` anything.\n"),
    ("a.py", 'queue.push("git")\nrun(["docker", "push"])\n'),
    ("a.py", '# steersman: allow-git-push: the release of our own\nrun(["git", "push"])\n'),
    ("a.py", 'run(["git", "push"])  # steersman: allow-git-push: the same\n'),
]


@pytest.mark.parametrize(("name", "text"), PUSHES)
def test_a_push_is_found(name: str, text: str) -> None:
    assert found(name, text)


@pytest.mark.parametrize(("name", "text"), FINE)
def test_what_pushes_nothing_is_left_alone(name: str, text: str) -> None:
    assert not found(name, text)


def test_everything_that_is_shipped_is_looked_at() -> None:
    names = {str(path.relative_to(ROOT)) for path in shipped()}
    assert {"worker.py", "Makefile", ".ci/run", "README.md", "workers/service.py", "docs/loops.md"} <= names
    assert any(name.startswith("deploy/") for name in names)


def test_it_is_part_of_make_check() -> None:
    assert "tests.no_git_push" in (ROOT / "Makefile").read_text()
    assert subprocess.run([sys.executable, "-m", "tests.no_git_push"], cwd=ROOT, check=False).returncode == 0
