"""The agents to which the conformance suite is applied."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.shim.client import ShimError, connect
from tests.agents.installed_kits import installed_kit
from tests.agents.kits import (
    ACP_KITS,
    AcpKit,
    ClaudeKit,
    CodexAcpKit,
    CodexKit,
    GeminiKit,
    HermesKit,
    Kit,
    OpencodeKit,
    ProcessKit,
)
from tests.scripted_model import ScriptedModel
from tests.support.files import below


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as model:
        yield model


@pytest.fixture
def private() -> Iterator[Path]:
    """A directory below none that others can write to, as a state directory is: Gemini CLI looks at that."""
    base = Path.home() / ".cache" / "steersman-tests"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base) as directory:
        yield Path(directory)
        asyncio.run(_stop_all(Path(directory)))


KITS: dict[str, Callable[[Path, ScriptedModel], Kit]] = {
    "process": lambda directory, _model: ProcessKit(directory),
    "claude": ClaudeKit,
    "codex": CodexKit,
    "acp": AcpKit,
    "codex-acp": CodexAcpKit,
    "gemini": GeminiKit,
    "opencode": OpencodeKit,
    "hermes": HermesKit,
}
"""One program for each agent, and for `acp` the adapters for Claude Code and for Codex."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`steer agents test NAME` says which agent it is."""
    parser.addoption("--agent", help="the agent to test, of another package, too; by default all that come along")


def pytest_configure(config: pytest.Config) -> None:
    """Told before anything is tried: an agent without a kit."""
    if named := config.getoption("--agent", None):
        kit_of(named)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each agent in turn."""
    if "kit" in metafunc.fixturenames:
        named = metafunc.config.getoption("--agent", None)
        metafunc.parametrize("kit", [named] if named else list(KITS), indirect=True)


def kit_of(name: str) -> Callable[[Path, ScriptedModel], Kit]:
    """What makes the agent's kit. Raises UsageError."""
    return KITS.get(name) or installed_kit(name)


@pytest.fixture
def kit(request: pytest.FixtureRequest, private: Path, model: ScriptedModel) -> Kit:
    """The agent, with what makes it do things."""
    made = kit_of(request.param)(private, model)
    if (missing := made.not_installed()) is not None:
        pytest.skip(missing)
    return made


THOROUGHLY = ("acp",)
"""Programs with which every case of the protocol is tried each time. The others are each driven by the same code, go
through the conformance suite, and have suites of their own.
"""
ON_ALL = (
    "test_rules_are_refused",
    "test_what_a_mode_lets_it_do_unasked",
    "test_a_refused_key",
    "test_a_program_that_speaks_another_language",
)
"""Cases in which the programs themselves differ."""
SLOW = ("acp", "codex-acp", "gemini", "hermes", "opencode")
"""Programs that need seconds of a processor for each start: each time they go through a part of the suite. That they
are interrupted shows what they are told then, a text with an image or, after a while, one without.
"""
NOT_OF_SLOW = (
    "test_it_resumes_and_forks_sessions_as_declared",
    "test_it_asks_for_approval_as_declared",
    "test_a_killed_agent_goes_on_or_is_a_crash_with_facts",
    "test_it_reports_what_it_uses_as_declared",
    "test_messages_are_taken_as_declared",
    "test_its_session_goes_on_wherever_its_files_are",
    "test_it_answers_by_a_schema_as_declared",
    "test_output_of_a_tool_at_work_is_told_as_the_kit_says",
    "test_the_newest_worker_has_it",
    "test_another_worker_that_reads_a_finished_journal_comes_to_the_same",
    "test_a_stop_by_another_hand_ends_the_session",
    "test_it_answers_beside_a_megabyte_of_errors",
    "test_it_is_interrupted_as_declared",
    "test_secrets_are_in_no_argument_and_in_no_file_of_the_run",
    "test_an_answer_given_while_nobody_listened_is_not_lost",
    "test_another_worker_goes_on_with_the_same_process",
    "test_a_silent_agent_is_stopped",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and _is_left_out(item):
            item.add_marker(pytest.mark.exhaustive)


def _is_left_out(item: pytest.Function) -> bool:
    """Of `make test`: `make test-all` runs it."""
    given, case = item.callspec.params, item.originalname
    if "acp" in given:
        return given["acp"] not in THOROUGHLY and case not in ON_ALL
    return given.get("kit") in SLOW and case in NOT_OF_SLOW


@pytest.fixture(params=ACP_KITS)
def acp(request: pytest.FixtureRequest, private: Path, model: ScriptedModel) -> AcpKit:
    """Each agent that speaks ACP, in turn."""
    made = ACP_KITS[request.param](private, model)
    if (missing := made.not_installed()) is not None:
        pytest.skip(missing)
    return made


@pytest.fixture
def claude(tmp_path: Path, model: ScriptedModel) -> ClaudeKit:
    return ClaudeKit(tmp_path, model)


@pytest.fixture
def codex(tmp_path: Path, model: ScriptedModel) -> CodexKit:
    return CodexKit(tmp_path, model)


@pytest.fixture
def hermes(private: Path, model: ScriptedModel) -> HermesKit:
    made = HermesKit(private, model)
    if (missing := made.not_installed()) is not None:
        pytest.skip(missing)
    return made


@pytest.fixture
def process(tmp_path: Path) -> ProcessKit:
    return ProcessKit(tmp_path)


@pytest.fixture(autouse=True)
def no_shim_is_left(tmp_path: Path) -> Iterator[None]:
    """What a test started ends with it, also where the test's point is that nobody stops it."""
    yield
    asyncio.run(_stop_all(tmp_path))


async def _stop_all(root: Path) -> None:
    for attempt in [path.parent for path in below(root) if path.name == "shim.sock"]:
        with contextlib.suppress(ShimError):
            async with await connect(attempt, epoch=None) as connection:
                await connection.stop(terminate_after=timedelta(0), kill_after=timedelta(0))
                await connection.release()
