"""`python -m tests.no_git_push`: nothing that Steersman ships runs `git push`: workspaces come back without a remote.

Looked at are shell lines (scripts, Makefile, YAML, code blocks of Markdown), and in Python texts and argument lists.
A use that is meant says why, on its line or on the one above: `steersman: allow-git-push: <reason>`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("steersman", "workflows", "activities", "workers", "deploy", "bench", "docs", ".ci")
TOP = ("worker.py", "Makefile", "README.md", "docker-compose.temporal.yml")
ALLOWED = re.compile(r"steersman: allow-git-push: \S")
IN_SHELL = re.compile(r"(?<![\w-])git(?![\w-])[^|;&\n]*?\spush(?![\w-])")
FENCE = re.compile(r"\s*(```|~~~)")


def found(name: str, text: str) -> list[int]:
    """The numbers of the lines with a `git push`. `name`: the file's, for what it is written in."""
    lines = text.splitlines()
    if name.endswith(".py"):
        numbers = set(_in_python(text))
    elif name.endswith(".md"):
        numbers = set(_in_markdown(lines))
    else:
        numbers = set(_in_shell(lines))
    return sorted(number for number in numbers if not _is_allowed(lines, number))


def _is_allowed(lines: list[str], number: int) -> bool:
    return any(ALLOWED.search(line) for line in lines[max(number - 2, 0) : number])


def _in_shell(lines: list[str]) -> Iterator[int]:
    for number, line in enumerate(lines, 1):
        # A line that ends in a backslash goes on.
        whole, last = line, number
        while whole.endswith("\\") and last < len(lines):
            whole, last = whole[:-1] + " " + lines[last], last + 1
        if IN_SHELL.search(whole):
            yield number


def _in_markdown(lines: list[str]) -> Iterator[int]:
    within = False
    shown = []
    for line in lines:
        fence = FENCE.match(line)
        shown.append(line if within and not fence else "")
        within ^= bool(fence)
    return _in_shell(shown)


def _in_python(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if IN_SHELL.search(node.value):
                yield node.lineno
        elif isinstance(node, ast.List | ast.Tuple | ast.Call):
            # Of `run("git", "push")` the arguments, of `run(["git", *options, "push"])` the list.
            words = [each.value for each in _items(node) if isinstance(each, ast.Constant)]
            if "push" in words and ("git" in words[: words.index("push")] or _runs_git(node)):
                yield node.lineno


def _items(node: ast.List | ast.Tuple | ast.Call) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else node.elts


def _runs_git(node: ast.AST) -> bool:
    """Whether a function is called whose name says that it runs git, e.g. `shadow.git.run`."""
    return isinstance(node, ast.Call) and "git" in re.split(r"\W|_", ast.unparse(node.func).lower())


def shipped() -> list[Path]:
    """The files that are looked at."""
    kinds = {".py", ".md", ".sh", ".yml", ".yaml", ".toml", ".service", ""}
    files = [path for name in SHIPPED for path in sorted((ROOT / name).rglob("*")) if path.suffix in kinds]
    return [path for path in (*files, *(ROOT / name for name in TOP)) if path.is_file()]


def main() -> int:
    """The exit code: 1 where something pushes."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: git push; if it is meant, say `steersman: allow-git-push: <reason>` there"
        for path in shipped()
        for number in found(path.name, path.read_text(encoding="utf-8", errors="replace"))
    ]
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
