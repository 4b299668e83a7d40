"""Any program as an agent: the prompt on its stdin, each line of its stdout a message, exit code 0 success.

What its journal means, and what is said to it later, must not live here.
"""

from pathlib import Path, PurePath

from activities.agents import commands
from activities.agents.process.conversation import Lines, Silence
from activities.agents.process.options import options_of, prompt_input
from activities.agents.process.transcript import ProcessTranscript
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import AnswerCheck, ApprovalRequester, Conversation, Resumption, Transcript
from activities.ports.runtime import Channel, Launch, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.request import RunRequest


class ProcessAgent:
    """Agent "process"."""

    name = "process"
    files = WorkspaceFiles()
    sessions: AgentSessions | None = None

    def load(self) -> None:
        """It takes nothing."""

    def check(self, request: RunRequest) -> None:
        """The program must be found."""
        options_of(request)
        commands.check_here(request)

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """The command itself. Another machine resolves its program before anything starts there."""
        commands.check_there(request, admission)
        prompt = prompt_input(request)
        return Launch(
            argv=request.command or (),
            cwd=str(admission.directory),
            env={},
            first_input=(("prompt", prompt),) if prompt else (),
            close_stdin=options_of(request).messages is None,
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        return ()

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """The command's program."""
        return commands.executables(request)

    def keeps(self, session: str, directory: Path) -> bool:
        """It keeps none."""
        return False

    def trusts(self, directory: Path) -> bool:
        """It loads nothing of a workspace by itself."""
        return True

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        return (Program("command", request.command or ()),)

    def stop_times(self, request: RunRequest) -> StopTimes:
        """Its stdin is closed by then; the program has a short time to obey SIGTERM."""
        return StopTimes.asked(request.stop, 0.25, 1.5)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> ProcessTranscript:
        return ProcessTranscript((request.command or ("",))[0], structured=request.output_schema is not None)

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> Conversation:
        messages = options_of(request).messages
        if messages is None:
            return Silence()
        assert isinstance(transcript, ProcessTranscript)
        return Lines(messages, channel, transcript)
