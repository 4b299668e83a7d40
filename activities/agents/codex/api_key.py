"""A key in the environment: Codex's app-server, unlike `codex exec`, looks for none there (measured with 0.163.0).

So a process that has one is given a provider that takes it, unless Codex's user has logged in, keeps logins elsewhere
than in a file, or names a provider. That is looked at where the process starts: the files are those of its machine.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

KEYS = ("CODEX_API_KEY", "OPENAI_API_KEY")
"""The first one counts, as for `codex exec`."""
BASE_URL = "https://api.openai.com/v1"
PROVIDER = "openai-by-key"
"""Its name in Codex's settings. What Codex itself calls `openai` cannot be given a key so."""

_UNLESS_SET_UP = (
    'own="${CODEX_HOME:-$HOME/.codex}"\n'
    'pattern="^[[:space:]]*(model_provider|cli_auth_credentials_store)[[:space:]]*="\n'
    'if ! [ -e "$own/auth.json" ] && ! grep -Eqs "$pattern" "$own/config.toml" /etc/codex/config.toml; then\n'
    '  exec "$0" "$@" {settings}\n'
    "fi\n"
    'exec "$0" "$@"\n'
)


def command(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command line that runs this one with the key of its environment. `argv` as it is where there is none."""
    key = next((name for name in KEYS if environ.get(name)), None)
    if key is None:
        return tuple(argv)
    provider = {
        "name": "OpenAI",  # by which Codex knows what it can ask of it
        "base_url": environ.get("OPENAI_BASE_URL") or BASE_URL,
        "wire_api": "responses",
        "env_key": key,
    }
    settings = {"model_provider": PROVIDER, **{f"model_providers.{PROVIDER}.{n}": v for n, v in provider.items()}}
    words = " ".join(f"-c {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in settings.items())
    return ("/bin/sh", "-c", _UNLESS_SET_UP.replace("{settings}", words), *argv)
