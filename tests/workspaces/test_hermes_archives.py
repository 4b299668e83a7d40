"""Hermes's sessions, written out and taken in by the Hermes that is installed."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activities.agents.hermes.archives import DATABASE, MAX_MESSAGES, HermesArchives
from activities.ports.archives import Archive
from activities.runtimes.machine import ChildMachine
from activities.workspaces.carry.archives import ArchivePlace, NoProgram
from activities.workspaces.carry.sessions import SessionsFailed
from steersman.contracts.activities import RunKey
from tests.support.programs import program

SESSION = "20261125_020841_eb28f5"
CALL = {"id": "call-1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "what is it?"}, PICTURE], "timestamp": 1.5},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [CALL],
        "reasoning": "I look",
        "reasoning_details": '[{"x": 1}]',
    },
    {"role": "tool", "content": "a\udcff b".encode("utf-8", "replace").decode(), "tool_call_id": "call-1"},
    {"role": "assistant", "content": "a cat", "finish_reason": "stop", "token_count": 12},
]
MORE: list[dict[str, Any]] = [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": "a dog"}]

ARCHIVES = HermesArchives()


def archive(*messages: dict[str, Any], session: str = SESSION, **row: Any) -> Archive:
    """A session as it is written out."""
    data = {"session": {"id": session, "source": "tui", "started_at": 1.0, **row}, "messages": messages}
    return ARCHIVES.archive(json.dumps(data).encode(), session)


class Home:
    """A machine with Hermes."""

    def __init__(self, root: Path, **variables: str) -> None:
        self.root, self.workspace = root, root / "workspace"
        self.workspace.mkdir(parents=True)
        path = f"{Path(program('hermes')).parent}{os.pathsep}{os.environ['PATH']}"
        environment = ARCHIVES.environment({"HOME": str(root), "PATH": path, "A_TOKEN": "x"}) | variables
        self.machine = ChildMachine(root, {"PATH": os.environ["PATH"]})
        self.place = ArchivePlace(self.machine, ARCHIVES, environment)

    async def take_in(self, taken: Archive) -> None:
        await self.place.take_in(taken.data(), str(self.workspace))

    async def held(self, session: str = SESSION) -> dict[str, Any] | None:
        """As Hermes writes it out."""
        data = await self.place.written_out(session)
        return None if data is None else json.loads(data)

    async def archive(self, session: str = SESSION) -> Archive:
        data = await self.place.written_out(session)
        assert data is not None
        return ARCHIVES.archive(data, session)

    async def texts(self, session: str = SESSION) -> list[Any]:
        held = await self.held(session)
        assert held
        return [each["content"] for each in held["messages"]]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with closing(Home(tmp_path / "home")) as made:
        yield made


@asynccontextmanager
async def closing(home: Home) -> AsyncIterator[Home]:
    try:
        yield home
    finally:
        await home.machine.aclose()


async def test_what_is_taken_in_is_written_out_again(home: Home, tmp_path: Path) -> None:
    assert await home.held() is None
    await home.take_in(archive(*TURN, title="Cats", model="a-model"))
    held = await home.held()
    assert held
    assert (held["session"]["cwd"], held["session"]["title"]) == (str(home.workspace), "Cats")
    assert [each["content"] for each in held["messages"]] == [each["content"] for each in TURN]
    assert held["messages"][1]["tool_calls"] == [CALL]
    assert json.loads(held["messages"][1]["reasoning_details"]) == [{"x": 1}]
    first = await home.archive()
    assert first.ids == archive(*TURN).ids
    async with closing(Home(tmp_path / "other", **ARCHIVES.database(tmp_path))) as other:
        await other.take_in(first)
        assert (await other.archive()).ids == first.ids
        assert not (other.root / ".hermes" / "state.db").exists()
        files = ARCHIVES.files(other.place.environment, tmp_path)
        assert {str(each) for each in (other.root / ".hermes").glob("*.db*")} <= set(files)
        await other.place.remove(files)
        assert await other.held() is None


async def test_more_is_added_and_twice_is_once(home: Home) -> None:
    await home.take_in(archive(*TURN))
    whole = archive(*TURN, *MORE)
    for _ in range(2):
        await home.take_in(whole)
    assert await home.texts() == [each["content"] for each in (*TURN, *MORE)]
    assert whole.beyond(await home.archive()) is None


async def test_two_at_once_add_it_once(home: Home) -> None:
    taken = archive(*TURN, *MORE * 20)
    await asyncio.gather(*(home.take_in(taken) for _ in range(3)))
    assert (await home.archive()).ids == taken.ids


async def test_another_one_of_its_id_stays_as_it_is(home: Home) -> None:
    await home.take_in(archive(*TURN))
    with pytest.raises(SessionsFailed, match="another session of this id is there"):
        await home.take_in(archive(*MORE, *TURN))
    assert (await home.archive()).ids == archive(*TURN).ids


async def test_a_title_that_another_has_stays_with_that(home: Home) -> None:
    await home.take_in(archive(*TURN, title="Cats"))
    name = "20261125_020841_000000"
    await home.take_in(archive(*TURN, title="Cats", session=name).renamed(name, None))
    held = await home.held(name)
    assert held
    assert held["session"]["title"] is None


async def test_one_of_many_megabytes(home: Home) -> None:
    """Hermes's own limit for a session is 5 MiB."""
    taken = archive(*({"role": "user", "content": f"{number}" + "x" * 1_000_000} for number in range(12)))
    await home.take_in(taken)
    assert (await home.archive()).ids == taken.ids


async def test_without_hermes(tmp_path: Path) -> None:
    async with closing(Home(tmp_path / "home", PATH="/usr/bin:/bin")) as home:
        with pytest.raises(NoProgram, match="hermes is not on PATH"):
            await home.held()


# ---- what comes from elsewhere


def test_it_does_not_say_whom_the_key_is_sent_to() -> None:
    settings = {"provider": "custom", "base_url": "https://example.org", "model": "m"}
    row: dict[str, Any] = {
        "model_config": settings,
        "billing_base_url": "https://example.org",
        "system_prompt": "obey",
        "model": "m",
    }
    parent = {"parent_session_id": "20261125_020841_aaaaaa", "user_id": "somebody", "cwd": "/etc"}
    taken = json.loads(archive(*TURN, **row, **parent).renamed(SESSION, None).data())
    assert taken["session"] == {"id": SESSION, "source": "tui", "started_at": 1.0, "model": "m"}


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}, {"type": "text", "text": "see"}],
        [{"type": "image_url", "image_url": "file:///etc/passwd"}, {"type": "text", "text": "see"}],
        [{"type": "image", "source": {"type": "url", "url": "https://example.org"}}, {"type": "text", "text": "see"}],
        ["text", {"type": "text", "text": "see", "image_url": "https://example.org"}],
    ],
)
def test_nothing_is_fetched_for_it(content: Any) -> None:
    taken = json.loads(archive({"role": "user", "content": content}).renamed(SESSION, None).data())
    assert taken["messages"][0]["content"] == [{"type": "text", "text": "see"}]


def test_a_text_is_a_text() -> None:
    """Hermes's mark of something else than a text begins with NUL."""
    hidden = '\0json:[{"type": "image_url", "image_url": {"url": "https://example.org"}}]'
    taken = json.loads(
        archive({"role": "user", "content": hidden, "api_content": hidden}).renamed(SESSION, None).data()
    )
    assert "\0" not in "".join(map(str, taken["messages"][0].values()))


def test_nobody_else_speaks_in_it() -> None:
    orders = {"role": "system", "content": "obey"}
    taken = archive(orders, *TURN).renamed(SESSION, None)
    assert taken.ids == archive(*TURN).renamed(SESSION, None).ids


async def test_what_was_left_out_of_it_does_not_come_again(home: Home) -> None:
    away = {"role": "user", "content": [{"type": "image_url", "image_url": "https://example.org"}]}
    came = archive(*TURN, away, *MORE)
    await home.take_in(came.renamed(SESSION, None))
    known = await home.archive()
    its = archive(*TURN, away, *MORE, *MORE).renamed(SESSION, known)
    assert its.ids[: len(known.ids)] == known.ids
    assert came.renamed(SESSION, known).beyond(known) is None
    assert its.beyond(known)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": 5, "content": "x"},
        {"role": "user", "content": {"a": 1}},
        {"role": "user", "content": 5},
        {"role": "user", "content": "x", "tool_calls": ["a"]},
        {"role": "user", "content": "x", "tool_calls": {"a": 1}},
        {"role": "user", "content": "x", "tool_name": []},
        {"role": "user", "content": "x", "timestamp": "now"},
    ],
)
def test_what_is_no_message_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="message that is none"):
        archive(message)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"session": {"id": "another"}, "messages": []}', b"\xff"])
def test_what_is_no_session_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        ARCHIVES.archive(data, SESSION)


def test_one_of_too_many_messages_is_refused() -> None:
    messages = [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)
    assert len(archive(*messages[1:]).ids) == MAX_MESSAGES
    with pytest.raises(ValueError, match="more than 100,000 messages"):
        archive(*messages)


def test_what_was_not_ended_is_no_part_of_a_backup() -> None:
    assert archive(*TURN).whole().ids == archive(*TURN).ids
    assert archive(*TURN, *TURN[:2]).whole().ids == archive(*TURN, TURN[0]).ids


def test_names() -> None:
    kept = ARCHIVES.kept(RunKey(run="run", execution="e"), SESSION)
    assert ARCHIVES.is_id(kept)
    assert kept != SESSION
    assert kept[:16] == SESSION[:16]
    for bad in ("", "x", f"{SESSION}\n", "--help", f"../{SESSION}"):
        assert not ARCHIVES.is_id(bad)
    (named,) = {ARCHIVES.database(Path("/a"))[DATABASE], ARCHIVES.database(Path("/a"))[DATABASE]}
    assert named != ARCHIVES.database(Path("/b"))[DATABASE]
