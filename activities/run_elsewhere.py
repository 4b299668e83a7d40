"""What the agents of a run have begun where no process of the run is: its end is part of the run's stop."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from activities.agents.agent_kind import AgentKind
from activities.shim.client import JournalCorrupt, LineJoiner, RecordParser
from activities.store.run_directory import RunDirectory
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopReport

_CHUNK = 256 * 1024


def with_elsewhere(
    report: StopReport,
    kinds: Mapping[str, AgentKind],
    environ: Mapping[str, str],
    request: RunRequest,
    directory: RunDirectory,
) -> StopReport:
    """The report of a stop that has ended all processes of the run, once what they began elsewhere is over, too.

    Blocks for as long as that takes. See AgentKind.end_elsewhere.
    """
    for part in map(request.of_part, range(len(request.fallback) + 1)):
        kind = kinds.get(part.agent)
        if kind is None or kind.end_elsewhere is None:
            continue
        found = kind.end_elsewhere(environ, part, _output(directory))
        if found == "unverified" or (found == "stopped" and report.outcome == "already_finished"):
            report = report.model_copy(update={"outcome": found})
    return report


def _output(directory: RunDirectory) -> Iterator[bytes]:
    """The lines that the run's processes have put out, in order, as far as they can be read."""
    for number in range(1, directory.attempts() + 1):
        parser, joiner = RecordParser(), LineJoiner()
        with suppress(OSError, JournalCorrupt), (directory.attempt(number) / "journal").open("rb") as file:
            while chunk := file.read(_CHUNK):
                for line in filter(None, map(joiner.push, parser.feed(chunk))):
                    if line.stream == "out":
                        yield line.data
