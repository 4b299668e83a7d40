"""What this worker's operator allows requests to ask of it. What is not allowed is InvalidRequest, by name."""

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from activities.ports import Agent
from steersman.contracts.agents import AGENT_VARIABLES, CAPABILITIES
from steersman.contracts.errors import InvalidRequest, WorkspaceError
from steersman.contracts.request import PERMISSION_ORDER, FromEnv, FromFile, PermissionMode, RunRequest

BASE_ENV = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
        "TERM",
        "COLORTERM",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NODE_EXTRA_CA_CERTS",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "SSH_AUTH_SOCK",
    ]
)
"""What every agent inherits of the worker's environment; the worker's other variables stay with the worker."""

_GUARDED_PREFIXES = (
    "ANTHROPIC_",
    "BUN_",
    "CLAUDE_",
    "DYLD_",
    "GIT_CONFIG",
    "GIT_SSH",
    "LD_",
    "NODE_",
    "PYTHON",
    "SSL_",
    "STEERSMAN_",
    "TEMPORAL_",
    "XDG_",
)
_GUARDED_NAMES = frozenset(
    [
        "PATH",
        "HOME",
        "SHELL",
        "IS_SANDBOX",
        "ENV",
        "BASH_ENV",
        "PAGER",
        "EDITOR",
        "VISUAL",
        "BROWSER",
        "GIT_EXTERNAL_DIFF",
        "GIT_PAGER",
        "GIT_EDITOR",
        "GIT_ASKPASS",
        "GIT_EXEC_PATH",
        "GIT_DIR",
        "SSH_ASKPASS",
        "PERL5OPT",
        "RUBYOPT",
        "JAVA_TOOL_OPTIONS",
        "DISABLE_AUTOUPDATER",
    ]
)
"""A literal for these could redirect the operator's key, load other settings, or change which program runs."""

MAX_SECRET_FILE = 64 * 1024


@dataclass(frozen=True)
class Policy:
    """Read once from flags and STEERSMAN_* variables; see worker.py."""

    environ: Mapping[str, str] = field(repr=False)
    allow_env: frozenset[str] = frozenset()
    allow_file: tuple[Path, ...] = ()
    workspace_roots: tuple[Path, ...] = (Path("/"),)
    git_roots: tuple[Path, ...] = ()
    """Where git directories of workspaces may lie beside those."""
    agents: frozenset[str] = frozenset(CAPABILITIES)
    max_permission: PermissionMode = "full"

    def admit(self, request: RunRequest, agent: Agent) -> dict[str, str]:
        """The agent's complete environment, if the request may run here.

        Raises InvalidRequest naming what is wrong or not allowed, WorkspaceError for an unusable directory,
        AgentNotInstalled.
        """
        if request.agent not in self.agents:
            raise InvalidRequest(f'agent: "{request.agent}" is not allowed on this worker (see --agent)')
        self.workspace(request.workspace.path)
        agent.check(request)
        self._check_permission(request, unasked=agent.runs_commands(request))
        for directory in agent.directories(request):
            self._resolve(directory, "options.add_dirs")
        for name, value in request.env.items():
            self._check_env(request.agent, name, value)
        return self.environment(request)

    def environment(self, request: RunRequest) -> dict[str, str]:
        """The agent's complete environment. Raises InvalidRequest where a value is not to be had."""
        names = BASE_ENV | AGENT_VARIABLES[request.agent]
        env = {name: value for name, value in self.environ.items() if name in names or name.startswith("LC_")}
        for name, value in request.env.items():
            env[name] = self._value(name, value)
        return env

    def _value(self, name: str, value: "str | FromEnv | FromFile") -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, FromEnv):
            if value.from_env not in self.environ:
                raise InvalidRequest(f"env.{name}: the worker's environment has no {value.from_env}")
            return self.environ[value.from_env]
        try:
            data = _read_regular(self._allowed_file(name, value.from_file))
        except OSError as error:
            raise InvalidRequest(f"env.{name}: {value.from_file} cannot be read: {error.strerror}") from error
        if len(data) > MAX_SECRET_FILE or b"\0" in data:
            raise InvalidRequest(f"env.{name}: {value.from_file} is larger than 64 KiB or holds a NUL byte")
        return data.decode("utf-8", "surrogateescape").rstrip("\r\n")

    def _check_env(self, agent: str, name: str, value: "str | FromEnv | FromFile") -> None:
        own = AGENT_VARIABLES[agent] | self.allow_env
        if isinstance(value, FromEnv):
            if value.from_env not in own:
                raise InvalidRequest(
                    f"env.{name}.from_env: {value.from_env} is not allowed on this worker (see --allow-env)"
                )
        elif isinstance(value, FromFile):
            self._allowed_file(name, value.from_file)
        upper = name.upper()
        guarded = upper in _GUARDED_NAMES or upper.startswith(_GUARDED_PREFIXES) or upper.endswith("_PROXY")
        if guarded and name not in self.allow_env and not (isinstance(value, FromEnv) and value.from_env == name):
            raise InvalidRequest(f"env.{name}: may not be set by a request on this worker (see --allow-env)")

    def _allowed_file(self, name: str, path: str) -> Path:
        if not _leads_into(path, [Path(os.path.realpath(each)) for each in self.allow_file]):
            raise InvalidRequest(f"env.{name}.from_file: {path} is not allowed on this worker (see --allow-file)")
        return Path(os.path.realpath(path))

    def _check_permission(self, request: RunRequest, *, unasked: bool) -> None:
        # Programs that the request itself names ask nobody: that is every permission.
        mode: PermissionMode = "full" if unasked else request.permissions.mode
        if PERMISSION_ORDER.index(mode) > PERMISSION_ORDER.index(self.max_permission):
            what = f'agent "{request.agent}" with a command' if unasked else "permissions.mode"
            raise InvalidRequest(
                f'{what}: "{mode}" is more than this worker allows, "{self.max_permission}" (see --max-permission)'
            )

    def workspace(self, path: str) -> Path:
        """The directory that is meant, if requests may work there. Raises InvalidRequest, WorkspaceError."""
        real = self._resolve(path, "workspace.path")
        if not os.access(real, os.R_OK | os.X_OK):
            raise WorkspaceError(f"workspace.path: {path} is not readable by the worker's user")
        return real

    def within(self, path: str, field_name: str) -> Path:
        """The path with all links followed, whether or not it is there. Raises InvalidRequest, the same for all that is
        outside: an answer that differed would tell what is there.
        """
        roots = [Path(os.path.realpath(root)) for root in self.workspace_roots]
        if not _leads_into(path, roots):
            raise InvalidRequest(f"{field_name}: {path} is outside this worker's --workspace-root")
        return Path(os.path.realpath(path))

    def _resolve(self, path: str, field_name: str) -> Path:
        real = self.within(path, field_name)
        try:
            real = real.resolve(strict=True)
        except FileNotFoundError:
            raise InvalidRequest(f"{field_name}: {path} does not exist on this host") from None
        except (OSError, RuntimeError) as error:
            raise WorkspaceError(f"{field_name}: {path}: {error}") from error
        if not real.is_dir():
            raise InvalidRequest(f"{field_name}: {path} is not a directory")
        return real


def _leads_into(path: str, roots: Sequence[Path]) -> bool:
    """Whether a path leads into one of these, all links followed. Its way back by `..` may not lead through elsewhere:
    where it came out would tell what is there.
    """
    way = Path(path)
    for end, part in enumerate(way.parts):
        passed = Path(os.path.realpath(Path(*way.parts[:end])))
        if part == ".." and not any(passed.is_relative_to(root) or root.is_relative_to(passed) for root in roots):
            return False
    real = Path(os.path.realpath(way))
    return any(real.is_relative_to(root) for root in roots)


def _read_regular(path: Path) -> bytes:
    """The file's beginning. Opening a pipe or a device could wait for ever: they are refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(MAX_SECRET_FILE + 1)
