"""Agent "recipe": the command line of its program.

What its journal means is in `transcript`, the talk with it in `conversation`.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from activities.agents.options import parse_options
from activities.ports.admission import Admission, Program, WorkspaceFiles
from activities.ports.agent import AnswerCheck, ApprovalRequester, Conversation, Resumption, Transcript
from activities.ports.runtime import Channel, Launch, StopTimes
from activities.ports.sessions import AgentSessions
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentNotInstalled, InvalidRequest
from steersman.contracts.request import RunRequest
from steersman_recipe import program
from steersman_recipe.conversation import RecipeConversation
from steersman_recipe.options import RecipeOptions
from steersman_recipe.sessions import RecipeSessions
from steersman_recipe.transcript import RecipeTranscript


class RecipeAgent:
    """See activities.ports.agent.Agent."""

    name = "recipe"
    files = WorkspaceFiles()
    sessions: AgentSessions | None = RecipeSessions()

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def load(self) -> None:
        """It takes no library of its own."""

    def check(self, request: RunRequest) -> None:
        """See the port. What the contract leaves to the agent is judged here: an agent of our own has no model."""
        parse_options(RecipeOptions, request)
        for field in ("model", "system_prompt"):
            if getattr(request, field) is not None:
                raise InvalidRequest(f'{field} is not supported by agent "recipe"')
        if request.runtime.kind == "local" and shutil.which("python3", path=self._environ.get("PATH")) is None:
            raise AgentNotInstalled("python3 is not on this host")

    def launch(
        self, key: RunKey, request: RunRequest, admission: Admission, files: PurePath, resumption: Resumption | None
    ) -> Launch:
        """The program goes along as a file, so it runs on any machine that has Python."""
        if admission.place and "python3" not in admission.place.programs:
            raise AgentNotInstalled(f"python3 is not on {admission.place.name}")
        home = RecipeSessions().home(admission.environment)
        if home is None:
            raise InvalidRequest("where recipe keeps its sessions is not known (HOME is not set)")
        goes_on = resumption is not None and resumption.session_id is not None
        session = resumption.session_id if resumption and goes_on else request.session
        session = session or RecipeSessions().begun(key, resumption.attempt if resumption else 1)
        pace = str(parse_options(RecipeOptions, request).pace_s)
        prompt = json.dumps({"type": "prompt", "id": "prompt", "text": request.prompt}) + "\n"
        return Launch(
            argv=("python3", "-u", str(files / "recipe.py"), home, session, "no" if goes_on else "yes", pace),
            cwd=str(admission.directory),
            env={},
            files={"recipe.py": Path(program.__file__).read_bytes()},
            first_input=() if goes_on else (("prompt", prompt),),  # a session that goes on has it already
        )

    def executables(self, request: RunRequest) -> Sequence[str]:
        return ("python3",)

    def keeps(self, session: str, directory: Path) -> bool:
        """The first line of a session says where it was begun."""
        home, files = RecipeSessions().home(self._environ), RecipeSessions().files(session, directory)
        if home is None or files is None:
            return False
        try:
            with Path(home, files.conversation).open(encoding="utf-8") as lines:
                first = json.loads(lines.readline(10_000))
        except (OSError, ValueError):
            return False
        return isinstance(first, dict) and first.get("directory") == str(directory)

    def trusts(self, directory: Path) -> bool:
        """It loads nothing of a workspace by itself."""
        return True

    def directories(self, request: RunRequest) -> Sequence[str]:
        return ()

    def programs(self, request: RunRequest) -> Sequence[Program]:
        """Its prompt may run anything and nobody is asked: that is for operators who allow everything."""
        return (Program("prompt"),)

    def stop_times(self, request: RunRequest) -> StopTimes:
        return StopTimes.asked(request.stop, 0.25, 1.5)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> RecipeTranscript:
        return RecipeTranscript(structured=request.output_schema is not None)

    def converse(
        self,
        key: RunKey,
        request: RunRequest,
        channel: Channel,
        transcript: Transcript,
        approvals: ApprovalRequester,
        check: AnswerCheck,
    ) -> Conversation:
        assert isinstance(transcript, RecipeTranscript)
        return RecipeConversation(channel, transcript)
