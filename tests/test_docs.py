"""The documents: every link from one to another, and to a file of the project, leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")))

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """What headings are called in links, as GitHub makes it of them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_its_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("``", document.read_text(encoding="utf-8"))):
        name, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_they_are_all_found_from_the_readme() -> None:
    """A document that no other one names is one that nobody reads."""
    known, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in known or not document.exists():
            continue
        known.add(document)
        links = _LINK.findall(document.read_text(encoding="utf-8"))
        names = {link.partition("#")[0] for link in links if ".md" in link}
        waiting += [(document.parent / name).resolve() for name in names if name]
    assert {path for path in DOCUMENTS if path.parent.name != "steersman-recipe"} <= known


_ACTION = re.compile(r'"action": "(\w+)"|\b(?:logs\.write|_log|_logged|_write)\("(\w+)"')
"""An action of a worker's log, as code names it."""


def test_each_action_of_the_workers_log_is_told_to_operators() -> None:
    sources = [path for place in ("activities", "workers") for path in sorted((ROOT / place).rglob("*.py"))]
    actions = {a or b for path in sources for a, b in _ACTION.findall(path.read_text(encoding="utf-8"))}
    assert {"worker_ready", "run_closed", "not_led"} <= actions
    watching = (
        (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("\n## Watching\n")[2].partition("\n## ")[0]
    )
    assert not actions - set(re.findall(r"`(\w+)`", watching))
