"""Claude Code's command line, environment and files for one process of a run."""

import functools
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from activities.agents.claude import mcp, sessions
from activities.agents.claude.options import ClaudeOptions
from activities.agents.prompts import instructions
from activities.ports.admission import Admission, Untrusted
from activities.ports.agent import Resumption
from steersman.contracts.activities import RunKey
from steersman.contracts.model import JsonObject
from steersman.contracts.request import PermissionMode, RunRequest

MODES: Mapping[PermissionMode, str] = {
    "read_only": "dontAsk",
    "ask": "default",
    "accept_edits": "acceptEdits",
    "full": "bypassPermissions",
}
READ_TOOLS = ("Read", "Grep", "Glob", "WebFetch", "WebSearch", "TodoWrite")
WRITE_TOOLS = ("Write", "Edit", "NotebookEdit")
UNATTENDED = ("AskUserQuestion", "EnterPlanMode", "EnterWorktree", "ScheduleWakeup", "CronCreate", "ListAgents")
"""Tools that need a person at Claude's own terminal, that outlive the run, or that see other runs of the same user."""

MAX_ARGUMENT = 120_000
"""Claude Code's arguments may have this many characters: Linux takes 128 KiB for one argument."""
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./-]+")


@dataclass(frozen=True)
class PrivateFile:
    """A text that an option names by its file, for every user of the machine can read a command line."""

    option: str
    name: str
    text: str = field(repr=False)

    @property
    def data(self) -> bytes:
        return self.text.encode("utf-8", "surrogateescape")

    def argument(self, directory: PurePath) -> str:
        """The option, with the file where it will be."""
        return f"{self.option}={directory / self.name}"


def permission_arguments(program: str, request: RunRequest, environ: Mapping[str, str]) -> list[str]:
    """The program, its protocol, and what it may use. `environ` is the worker's."""
    argv = [program, "--output-format", "stream-json", "--verbose", "--input-format", "stream-json"]
    argv += ["--include-partial-messages", "--replay-user-messages", "--permission-prompt-tool", "stdio"]
    argv += ["--permission-mode", MODES[request.permissions.mode]]
    allow, deny = list(request.permissions.allow), list(UNATTENDED)
    if request.permissions.mode == "read_only":
        named = [rule.split("(", 1)[0] for rule in allow]
        argv += ["--restricted", "--tools", ",".join(dict.fromkeys([*READ_TOOLS, *named]))]
        deny += WRITE_TOOLS
    if request.permissions.mode != "full":
        deny += ["SendMessage", *_own_files_rule(environ)]
    # One argument for each rule: Claude Code looks for the end of a rule within one argument only. Ours come first.
    argv += [f"--disallowedTools={rule}" for rule in (*deny, *request.permissions.deny)]
    argv += [f"--allowedTools={rule}" for rule in allow]
    if request.model:
        argv.append(f"--model={request.model}")
    return argv


def session_arguments(key: RunKey, request: RunRequest, resumption: Resumption | None) -> list[str]:
    """The session that this process resumes, forks or begins."""
    attempt = resumption.attempt if resumption else 1
    if resumption and resumption.session_id:
        return [f"--resume={resumption.session_id}"]
    fresh = [f"--session-id={sessions.ClaudeSessions().begun(key, attempt)}"]
    if request.session is None:
        return fresh
    return [f"--resume={request.session}", *(["--fork-session", *fresh] if request.fork_session else [])]


def configuration_arguments(request: RunRequest, options: ClaudeOptions, admission: Admission) -> list[str]:
    """Directories, settings and the schema: what every user of the machine may read. See `private_files`."""
    untrusted = admission.untrusted
    argv = [f"--add-dir={directory}" for directory in admission.further]
    sources = options.setting_sources
    if untrusted and request.permissions.mode != "read_only":  # which loads none in any case
        sources = ("user",) if sources is None else tuple(each for each in sources if each == "user")
    argv.append(f"--settings={json.dumps(_settings(untrusted))}")
    if request.output_schema is not None:
        argv.append(f"--json-schema={json.dumps(request.output_schema)}")
    if options.fallback_model:
        argv.append(f"--fallback-model={options.fallback_model}")
    if sources is not None:
        argv.append(f"--setting-sources={','.join(sources)}")
    if admission.restricted:
        argv.append("--disable-slash-commands")  # `/config` would change the operator's settings for good
    return argv


def private_files(
    request: RunRequest, options: ClaudeOptions, admission: Admission, lent: Mapping[str, str]
) -> list[PrivateFile]:
    """Texts that may be secret."""
    files = []
    if system_prompt := _system_prompt(request, admission.untrusted):
        files.append(PrivateFile("--append-system-prompt-file", "system-prompt.md", system_prompt))
    if options.mcp_servers:
        config = json.dumps(mcp.configuration(options.mcp_servers, lent))
        files.append(PrivateFile("--mcp-config", "mcp.json", config))
    return files


def environment(request: RunRequest, admission: Admission) -> dict[str, str]:
    """Variables of the process beside those of the admission."""
    return {
        "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        "CLAUDE_AGENT_SDK_VERSION": _sdk_version(),
        "CLAUDE_CODE_SDK_READS_SESSION_STATE": "1",
        # A session whose `init` was seen is on disk: it can be resumed, however its process ends.
        "CLAUDE_CODE_EAGER_FLUSH": "1",
        "PWD": str(admission.directory),
        # `@/any/file` in a text would be read unasked, wherever it lies.
        **({} if request.permissions.mode == "full" else {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1"}),
        # What one run noted there unasked would be in the prompts of later ones, of people with more rights.
        **({"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"} if admission.restricted or admission.untrusted else {}),
    }


@functools.cache
def _sdk_version() -> str:
    return importlib.metadata.version("claude-agent-sdk")


def _own_files_rule(environ: Mapping[str, str]) -> list[str]:
    """A rule against writing Claude Code's own files, its memory of the workspace above all. There is none for a path
    that no rule could hold: that is left to Claude Code's own care.
    """
    home = sessions.own_directory(environ)
    return [f"Edit(/{home}/**)"] if home and _PLAIN_PATH.fullmatch(home) else []


def _settings(untrusted: Untrusted | None) -> JsonObject:
    """Settings of every run; other sessions of the same user may not speak to its agent."""
    asks = ["Bash"] if untrusted and untrusted.leads_out else []
    if untrusted and untrusted.git_runs_programs and not asks:
        asks = ["Bash(git *)"]
    return {"crossSessionInbound": "refuse", **({"permissions": {"ask": list(asks)}} if asks else {})}


def _system_prompt(request: RunRequest, untrusted: Untrusted | None) -> str:
    """The request's, and the instructions of an untrusted workspace, which a read_only run is not given."""
    return instructions(request.system_prompt, None if request.permissions.mode == "read_only" else untrusted)
