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


THOROUGHLY = ("acp", "codex-acp")
"""Programs with which every case of the protocol is tried each time. The others are each driven by the same code, go
through the conformance suite like these, and have suites of their own.
"""
ON_ALL = (
    "test_rules_are_refused",
    "test_what_a_mode_lets_it_do_unasked",
    "test_it_is_acknowledged_or_refused_in_words",
    "test_before_its_session_began_it_ends_the_run",
    "test_a_refused_key",
    "test_a_program_that_speaks_another_language",
)
"""Cases in which the programs themselves differ."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "acp" in item.fixturenames and hasattr(item, "callspec"):
            is_one_of_all = item.originalname in ON_ALL
            if item.callspec.params["acp"] not in THOROUGHLY and not is_one_of_all:
                item.add_marker(pytest.mark.exhaustive)


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
