"""The port Agent for agents that speak ACP, and agent "acp": any command that a request names."""

from pathlib import Path, PurePath
from typing import ClassVar

from activities.agents import commands
from activities.agents.acp import frames, session_start
from activities.agents.acp.conversation import AcpConversation, Opening
from activities.agents.acp.options import options_of
from activities.agents.acp.session_start import Setting, Start
from activities.agents.acp.transcript import AcpTranscript
from activities.agents.prompts import instructions
from activities.agents.structured import asking
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import CONTINUE_PROMPT, AnswerCheck, ApprovalRequester, Resumption, Transcript
from activities.ports.runtime import Channel, Launch, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import RunRequest


class AcpAgent:
    """Agent "acp", and what every agent that speaks ACP has in common."""

    name = "acp"
    files = WorkspaceFiles()
    sessions: AgentSessions | None = None
    conversation_kind: ClassVar[type[AcpConversation]] = AcpConversation
    transcript_kind: ClassVar[type[AcpTranscript]] = AcpTranscript

    def load(self) -> None:
        """It takes nothing."""

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        options_of(request)
        self._check_common(request)
        commands.check_here(request)

    def _check_common(self, request: RunRequest) -> None:
        for field, given in (("allow", request.permissions.allow), ("deny", request.permissions.deny)):
            if given:
                raise InvalidRequest(f'permissions.{field}: agent "{self.name}" has no rules, only modes')

    def arguments(self, request: RunRequest, admission: Admission) -> tuple[str, ...]:
        """The command line. Raises AgentNotInstalled where another machine lacks the program."""
        commands.check_there(request, admission)
        return request.command or ()

    def own_files(self, request: RunRequest, admission: Admission) -> dict[str, bytes]:
        """Files beside the process: see Launch.files."""
        return {}

    def own_environment(self, request: RunRequest, admission: Admission, files: PurePath) -> dict[str, str]:
        """Variables of the process beside those of the admission."""
        return {}

    def settings(self, request: RunRequest) -> tuple[Setting, ...]:
        """What a session is given before its first prompt."""
        mode = options_of(request).mode
        given = (("mode", mode), ("model", request.model))
        return tuple(Setting(name, value) for name, value in given if value is not None)

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """See ports.Agent. The prompt is not among the first input: the agent has to name its session before."""
        preamble = instructions(request.system_prompt, admission.untrusted)
        start = Start(str(admission.directory), preamble, restricted=admission.restricted)
        return Launch(
            argv=self.arguments(request, admission),
            cwd=str(admission.directory),
            env=self.own_environment(request, admission, files),
            files=self.own_files(request, admission),
            first_input=((frames.INITIALIZE, session_start.initialize(start)),),
            stdin_has_authority=True,  # answers to its requests for permission
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        """None: the protocol has one working directory."""
        return ()

    def executables(self, request: RunRequest) -> tuple[str, ...]:
        """The command's program."""
        return commands.executables(request)

    def keeps(self, session: str, directory: Path) -> bool:
        """Nobody knows where such an agent keeps its sessions."""
        return False

    def trusts(self, directory: Path) -> bool:
        """What such a program loads of a workspace nobody knows; the operator has allowed the command."""
        return True

    def programs(self, request: RunRequest) -> tuple[Program, ...]:
        """The command."""
        return (Program("command", request.command or ()),)

    def stop_times(self, request: RunRequest) -> StopTimes:
        """SIGTERM at once, to the whole tree: most of these agents end by it and leave their tools alive (measured)."""
        return StopTimes.asked(request.stop, 0.0, 1.5)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> AcpTranscript:
        """See ports.Agent."""
        session, structured = _session(request, resumption), request.output_schema is not None
        found = self.transcript_kind(session, resumption, structured=structured)
        if resumption and resumption.parked:
            told = () if resumption.session_id else (_first_prompt(request),)
            found.told = list(resumption.unsaved or told)
        return found

    def session_wait_s(self, request: RunRequest, session: str) -> float:
        """Seconds before this session may be asked for."""
        return 0.0

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> AcpConversation:
        """See ports.Agent."""
        assert isinstance(transcript, AcpTranscript)
        resumption = transcript.resumption
        prompt: tuple[str, str] | None = (frames.PROMPT, _first_prompt(request))
        if resumption and resumption.parked:
            prompt = None
        elif resumption and resumption.session_id:
            prompt = f"resume-{resumption.attempt}", CONTINUE_PROMPT
        opening = Opening(
            session=_session(request, resumption),
            fork=request.fork_session and not (resumption and resumption.session_id),
            settings=self.settings(request),
            prompt=prompt,
            images=request.attachments if prompt and prompt[0] == frames.PROMPT else (),
            wait_s=lambda session: self.session_wait_s(request, session),
        )
        return self.conversation_kind(opening, request.permissions.mode, channel, transcript, approvals, check)


def _session(request: RunRequest, resumption: Resumption | None) -> str | None:
    """The session that a process goes on with."""
    return (resumption.session_id if resumption else None) or (None if resumption else request.session)


def _first_prompt(request: RunRequest) -> str:
    asked = asking(request.output_schema) if request.output_schema is not None else ""
    return f"{request.prompt}\n\n{asked}" if asked else request.prompt
