"""Claude Code through claude-agent-sdk: its command line, its options, its defaults."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import claude_agent_sdk
import jsonschema
from pydantic import Field, ValidationError

from activities.agents.claude_conversation import ClaudeConversation, frame_uuid, user_frame
from activities.agents.claude_transcript import Check, ClaudeTranscript
from activities.ports import Channel, Desk, Ladder, Launch, Resumption, Transcript
from steersman.contracts.activities import RunKey
from steersman.contracts.errors import AgentFailed, AgentNotInstalled, InvalidRequest, RunError, sentence
from steersman.contracts.model import JsonObject, JsonValue, Question
from steersman.contracts.request import AbsolutePath, PermissionMode, RunRequest, Text

MODES: Mapping[PermissionMode, str] = {
    "read_only": "dontAsk",
    "ask": "default",
    "accept_edits": "acceptEdits",
    "full": "bypassPermissions",
}
READ_TOOLS = ("Read", "Grep", "Glob", "WebFetch", "WebSearch", "TodoWrite")
WRITE_TOOLS = ("Write", "Edit", "NotebookEdit")
UNATTENDED = ("AskUserQuestion", "EnterPlanMode", "EnterWorktree", "ScheduleWakeup", "CronCreate")
"""Tools that need a person at Claude's own terminal, or that outlive the run."""

GO_ON = (
    "Your process ended unexpectedly and was started again; this conversation was kept. "
    "Check what was done already, then go on with your task where you left off."
)
MAX_ARGUMENT = 120_000
"""One argument of a command line may have 128 KiB on Linux."""


class ClaudeOptions(Question):
    """RunRequest.options for agent "claude"."""

    mcp_servers: dict[str, JsonObject] = Field(default_factory=dict)
    """As in Claude Code's MCP configuration. A value of `env` or `headers` may be {"from_env": NAME}."""
    add_dirs: tuple[AbsolutePath, ...] = ()
    fallback_model: Text | None = None
    setting_sources: tuple[Literal["user", "project", "local"], ...] | None = None


class ClaudeAgent:
    """Agent "claude". `cli`: another binary than the SDK's own."""

    name = "claude"

    def __init__(self, environ: Mapping[str, str], cli: str | None = None) -> None:
        self._environ = environ
        self._cli = cli

    def check(self, request: RunRequest) -> None:
        """Raises InvalidRequest, AgentNotInstalled."""
        options = self._options(request)
        self.program()
        if request.output_schema is not None:
            try:
                jsonschema.validators.validator_for(request.output_schema).check_schema(request.output_schema)
            except jsonschema.SchemaError as error:
                raise InvalidRequest(f"output_schema: not a JSON Schema: {error.message[:500]}") from error
            if len(json.dumps(request.output_schema)) > MAX_ARGUMENT:
                raise InvalidRequest("output_schema: larger than Claude Code takes (120,000 characters)")
        if len(request.system_prompt or "") > MAX_ARGUMENT:
            raise InvalidRequest("system_prompt: longer than Claude Code takes (120,000 characters)")
        if request.permissions.mode == "read_only" and options.setting_sources is not None:
            raise InvalidRequest("options.setting_sources: read_only runs load no settings")
        if request.permissions.mode == "full" and os.geteuid() == 0 and "IS_SANDBOX" not in self._environ:
            raise InvalidRequest(
                'permissions.mode: Claude Code refuses "full" as root; run the worker as another user, '
                "or set IS_SANDBOX=1 for a worker whose machine is a sandbox"
            )
        _mcp_config(options, self._environ)

    def program(self) -> str:
        """Path of the CLI: the SDK's own, else the one on PATH. Raises AgentNotInstalled."""
        bundled = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
        if self._cli or bundled.is_file():
            return self._cli or str(bundled)
        found = shutil.which("claude")
        if found is None:
            raise AgentNotInstalled("claude: neither in claude-agent-sdk's wheel nor on PATH of this host")
        return found

    def launch(self, key: RunKey, request: RunRequest, scratch: Path, resumption: Resumption | None) -> Launch:
        """See ports.Agent."""
        argv = [*self._base(request), *self._session(key, request, resumption), *self._configured(request, scratch)]
        name, text = "prompt", request.prompt
        if resumption and resumption.session_id:
            name, text = f"resume-{resumption.attempt}", GO_ON
        frame = json.dumps(user_frame(key, name, text)) + "\n"
        return Launch(
            argv=tuple(argv),
            cwd=request.workspace.path,
            env={
                "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
                "CLAUDE_AGENT_SDK_VERSION": claude_agent_sdk.__version__,
                "CLAUDE_CODE_SDK_READS_SESSION_STATE": "1",
                # A session whose `init` was seen is on disk: it can be resumed, however its process ends.
                "CLAUDE_CODE_EAGER_FLUSH": "1",
                "PWD": request.workspace.path,
            },
            first_input=() if resumption and resumption.parked else ((name, frame),),
            stdin_has_authority=True,  # answers to its requests for permission
        )

    def directories(self, request: RunRequest) -> tuple[str, ...]:
        """options.add_dirs."""
        return self._options(request).add_dirs

    def runs_commands(self, request: RunRequest) -> bool:
        """An MCP server with a command is a program of the requester's choice."""
        return any("command" in server for server in self._options(request).mcp_servers.values())

    def ladder(self, request: RunRequest) -> Ladder:
        """SIGTERM to the whole tree at once ends Claude Code in about 0.1 s; a grace only delays it (measured)."""
        terminate, kill = request.stop.terminate_after_s, request.stop.kill_after_s
        return Ladder(0.0 if terminate is None else terminate, 1.5 if kill is None else kill)

    def transcript(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> ClaudeTranscript:
        """See ports.Agent."""
        return ClaudeTranscript(_check(request), resumption, request.limits.rate_limit_s)

    def converse(
        self, key: RunKey, request: RunRequest, channel: Channel, transcript: Transcript, desk: Desk
    ) -> ClaudeConversation:
        """See ports.Agent."""
        assert isinstance(transcript, ClaudeTranscript)
        return ClaudeConversation(key, request.permissions.mode, channel, transcript, desk)

    # ---- the command line

    def _base(self, request: RunRequest) -> list[str]:
        argv = [self.program(), "--output-format", "stream-json", "--verbose", "--input-format", "stream-json"]
        argv += ["--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool", "stdio"]
        argv += ["--permission-mode", MODES[request.permissions.mode]]
        allow, deny = list(request.permissions.allow), [*request.permissions.deny, *UNATTENDED]
        if request.permissions.mode == "read_only":
            named = [rule.split("(", 1)[0] for rule in allow]
            argv += ["--restricted", "--tools", ",".join(dict.fromkeys([*READ_TOOLS, *named]))]
            deny += WRITE_TOOLS
        if allow:
            argv.append(f"--allowedTools={','.join(allow)}")
        argv.append(f"--disallowedTools={','.join(deny)}")
        if request.model:
            argv.append(f"--model={request.model}")
        return argv

    def _session(self, key: RunKey, request: RunRequest, resumption: Resumption | None) -> list[str]:
        attempt = resumption.attempt if resumption else 1
        if resumption and resumption.session_id:
            return [f"--resume={resumption.session_id}"]
        fresh = [f"--session-id={frame_uuid(key, f'session-{attempt}')}"]
        if request.session is None:
            return fresh
        return [f"--resume={request.session}", *(["--fork-session", *fresh] if request.fork_session else [])]

    def _configured(self, request: RunRequest, scratch: Path) -> list[str]:
        options = self._options(request)
        argv = [f"--add-dir={directory}" for directory in options.add_dirs]
        if request.system_prompt:
            argv.append(f"--append-system-prompt={request.system_prompt}")
        if request.output_schema is not None:
            argv.append(f"--json-schema={json.dumps(request.output_schema)}")
        if options.fallback_model:
            argv.append(f"--fallback-model={options.fallback_model}")
        if options.setting_sources is not None:
            argv.append(f"--setting-sources={','.join(options.setting_sources)}")
        if options.mcp_servers:
            # In a file, not in argv, which every user of the machine can read.
            config = scratch / "mcp.json"
            config.touch(mode=0o600)
            config.write_text(json.dumps(_mcp_config(options, self._environ)))
            argv.append(f"--mcp-config={config}")
        return argv

    def _options(self, request: RunRequest) -> ClaudeOptions:
        try:
            return ClaudeOptions.model_validate_json(json.dumps(request.options))
        except ValidationError as error:
            raise InvalidRequest(sentence(error, "RunRequest", under=("options",))) from error


def _mcp_config(options: ClaudeOptions, environ: Mapping[str, str]) -> JsonObject:
    servers: JsonObject = {}
    for name, server in options.mcp_servers.items():
        resolved = dict(server)
        for group in ("env", "headers"):
            values = resolved.get(group)
            if isinstance(values, dict):
                resolved[group] = {key: _secret(name, key, value, environ) for key, value in values.items()}
        servers[name] = resolved
    return {"mcpServers": servers}


def _secret(server: str, key: str, value: object, environ: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and list(value) == ["from_env"] and str(value["from_env"]) in environ:
        return environ[str(value["from_env"])]
    raise InvalidRequest(
        f'options.mcp_servers.{server}: {key} must be a string or {{"from_env": NAME}} with a variable that the '
        "worker may hand out (see --allow-env)"
    )


def _check(request: RunRequest) -> Check:
    schema = request.output_schema
    if schema is None:
        return lambda _: None
    validator = jsonschema.validators.validator_for(schema)(schema)

    def check(value: JsonValue) -> RunError | None:
        if value is None:
            return AgentFailed("output_schema: the agent gave no structured answer")
        error = next(iter(validator.iter_errors(value)), None)
        return AgentFailed(f"output_schema: the answer does not fit: {error.message[:500]}") if error else None

    return check
