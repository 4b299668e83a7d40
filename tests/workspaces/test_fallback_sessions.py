"""The sessions of each of a run's agents: Codex's, which goes on with one, and Claude Code's, the fallback. See
test_sessions.
"""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.files import below
from tests.workspaces.session_carrying import FIRST, MORE, SESSION, CodexCarrying, SessionCarrying, thread

pytestmark = pytest.mark.integration
THREAD = thread(SESSION)


@dataclass(frozen=True)
class Both:
    codex: CodexCarrying
    claude: SessionCarrying

    async def out(self, backup: Path | None = None) -> None:
        await self.codex.out(backup)
        await self.claude.out(backup)

    def work(self) -> None:
        """Each says something there."""
        self.codex.started()
        self.codex.hold(self.codex.theirs(), THREAD + MORE)
        self.claude.hold(self.claude.theirs(self.claude.begun))

    @property
    def here(self) -> tuple[bytes, bytes]:
        """What of them is on the leader."""
        return self.codex.ours().read_bytes(), self.claude.ours(self.claude.begun).read_bytes()

    @property
    def there(self) -> list[Path]:
        """The files of both at the place."""
        return [each for work in (self.codex, self.claude) for each in below(work.there) if each.is_file()]


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    codex, claude = CodexCarrying(tmp_path), SessionCarrying(tmp_path, session=None)
    codex.parts, claude.parts = (0, 2), (1,)
    codex.share(claude)
    codex.hold(codex.ours(), THREAD)
    made = Both(codex, claude)
    await made.out()
    made.work()
    yield made
    await codex.close()
    await claude.close()


@pytest.fixture
async def backup(both: Both, tmp_path: Path) -> Path:
    """What was kept of them before the place was lost."""
    await both.codex.sessions.back_up(both.codex.run, tmp_path / "backup")
    for work in (both.codex, both.claude):
        shutil.rmtree(work.there)
    return tmp_path / "backup"


async def test_those_of_each_come_back(both: Both) -> None:
    told = await both.codex.back()
    assert (told.sessions, told.session_error) == ({}, None)
    assert both.here == (THREAD + MORE, FIRST)
    assert both.there == []
    assert await both.codex.back() == told, "twice is once"


async def test_what_cannot_come_back_keeps_no_others_away(both: Both) -> None:
    sessions, begun = both.claude.agent.sessions, both.claude.begun
    assert sessions
    for name in (begun, sessions.kept(both.claude.run.agent_key, begun)):
        both.claude.hold(both.claude.ours(name), b"somebody else's\n")
    left = both.there
    told = await both.codex.back()
    assert f"session {begun}" in (told.session_error or "")
    assert both.codex.ours().read_bytes() == THREAD + MORE
    assert both.there == left, "nothing goes there that may be needed"


async def test_a_place_that_is_made_anew_is_given_those_of_each(both: Both, backup: Path) -> None:
    await both.out(backup)
    assert both.claude.theirs(both.claude.begun).read_bytes() == FIRST
    await both.codex.back()
    assert both.here == (THREAD + MORE, FIRST)


async def test_those_of_each_come_back_from_a_backup(both: Both, backup: Path) -> None:
    await both.codex.sessions.back_from(both.codex.run, backup)
    assert both.here == (THREAD + MORE, FIRST)
