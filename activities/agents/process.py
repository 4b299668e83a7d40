"""Agent "process", any program: the prompt on its stdin, each line of its stdout a message, exit code 0 success."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path, PurePath

from activities import untrusted_json
from activities.agents.agent_kind import AgentKind
from activities.agents.crashes import exit_facts, last_words
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import ApprovalRequester, Conversation, ExitFact, Progress, Resumption, Verdict
from activities.ports.runtime import Channel, Launch, Record, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import OutgoingDecision, OutgoingMessage, RunKey, Settlement
from steersman.contracts.errors import AgentCrashed, AgentNotInstalled, InvalidRequest
from steersman.contracts.events import MAX_TEXT, EventBase, InitEvent, MessageEvent
from steersman.contracts.request import RunRequest

MAX_RESULT = 64 * 1024
"""The run's text is this many characters at the end of the output."""


class ProcessAgent:
    """Agent "process"."""

    name = "process"
    files = WorkspaceFiles()
    sessions: AgentSessions | None = None

    def load(self) -> None:
        """It takes nothing."""

    def check(self, request: RunRequest) -> None:
        """No options; the program must be found."""
        if request.options:
            raise InvalidRequest(f'options.{next(iter(request.options))}: agent "process" has no options')
        if request.runtime.kind != "local":
            return
        program = (request.command or ("",))[0]
        found = Path(request.workspace.path, program).exists() if "/" in program else True
        if not found or any(shutil.which(each) is None for each in self.executables(request)):
            raise AgentNotInstalled(f"command: {program} is not on this host")

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """The command itself. Another machine resolves its program before anything starts there."""
        if admission.place:
            for missing in set(self.executables(request)) - admission.place.programs.keys():
                raise AgentNotInstalled(f"command: {missing} is not on {admission.place.name}")
        return Launch(
            argv=request.command or (),
            cwd=str(admission.directory),
            env={},
            first_input=(("prompt", request.prompt),) if request.prompt else (),
            close_stdin=True,
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        return ()

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """The command's program, where its name is no path. On a PATH of the request its shim looks for it."""
        program = (request.command or ("",))[0]
        return () if "/" in program or "PATH" in request.env else (program,)

    def keeps(self, session: str, directory: Path) -> bool:
        """It keeps none."""
        return False

    def trusts(self, directory: Path) -> bool:
        """It loads nothing of a workspace by itself."""
        return True

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        return (Program("command", request.command or ()),)

    def stop_times(self, request: RunRequest) -> StopTimes:
        """Stdin is closed already; the program has a short time to obey SIGTERM."""
        terminate, kill = request.stop.terminate_after_s, request.stop.kill_after_s
        return StopTimes(0.25 if terminate is None else terminate, 1.5 if kill is None else kill)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> "ProcessTranscript":
        return ProcessTranscript((request.command or ("",))[0])

    def converse(
        self, key: RunKey, request: RunRequest, channel: Channel, transcript: object, approvals: ApprovalRequester
    ) -> Conversation:
        return Silence()


class ProcessTranscript:
    """See ports.Transcript: each line of output is a message."""

    working = True
    finished = False
    parked = False
    hopeless = None

    def __init__(self, program: str) -> None:
        self.progress = Progress(stop_reason="exit")
        self._program = program
        self._begun = False

    def feed(self, record: Record) -> list[EventBase]:
        time = datetime.fromtimestamp(record.time_ms / 1000, UTC)
        events: list[EventBase] = []
        if not self._begun:
            self._begun = True
            events.append(InitEvent(time=time, version=self._program))
        if record.stream == "out":
            # A character has at most four bytes: no more of a long line is decoded than can be shown.
            end = record.data[-4 * MAX_RESULT :].decode("utf-8", "replace")
            self.progress.text = f"{self.progress.text}\n{end}"[-MAX_RESULT:].lstrip("\n")
            text = record.data[: 4 * MAX_TEXT + 4].decode("utf-8", "replace")
            events.append(MessageEvent(time=time, text=text[:MAX_TEXT], truncated=len(text) > MAX_TEXT))
        return events

    def snapshot(self) -> bytes:
        return json.dumps([self._begun, self.progress.text]).encode()

    def restore(self, snapshot: bytes) -> None:
        try:
            begun, text = untrusted_json.parse(snapshot)
        except TypeError as error:
            raise ValueError("that is no snapshot of a process") from error
        if not isinstance(begun, bool) or not isinstance(text, str) or len(text) > MAX_RESULT:
            raise ValueError("that is no snapshot of a process")
        self._begun, self.progress.text = begun, text

    def settlements(self) -> list[Settlement]:
        return []

    def last_words(self) -> list[Settlement]:
        return []

    def wrote(self, message_id: str) -> bool:
        return False

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        if exit_fact.code == 0:
            return Verdict()
        how = f"signal {exit_fact.signal}" if exit_fact.signal else f"exit code {exit_fact.code}"
        if exit_fact.lost:
            how = "its end was not seen (the machine or its shim died)"
        message = f"{self._program} ended with {how}{last_words(exit_fact)}"
        return Verdict(AgentCrashed(message[:2000], **exit_facts(exit_fact)))


class Silence:
    """The conversation with a process, which takes no messages: the workflow's validators refuse them earlier."""

    async def open(self) -> None: ...

    async def hear(self, record: Record) -> None: ...

    async def say(self, message: OutgoingMessage) -> Settlement:
        return Settlement(id=message.id, state="rejected", how='agent "process" takes no messages')

    async def decide(self, decision: OutgoingDecision) -> None: ...

    async def close(self) -> None: ...


PROCESS = AgentKind(name="process", make=lambda _environ, _lent: ProcessAgent())
