"""How each program is made to talk to a script, and to nothing else: its environment and its own files.

Each keeps its state in a directory that the caller gives, which is its home, too: a tool's login shell must
not run the profile of whoever runs the tests.
"""

from __future__ import annotations

import functools
import json
import os
import ssl
from pathlib import Path


def claude_env(url: str, config: Path) -> dict[str, str]:
    env = {
        "HOME": str(config),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-test",
        "CLAUDE_CONFIG_DIR": str(config),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }
    if os.geteuid() == 0:
        env["IS_SANDBOX"] = "1"  # the CLI refuses bypassPermissions to root otherwise
    return env


def codex_env(url: str, home: Path) -> dict[str, str]:
    directory = home / ".codex"
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {value}\n" for key, value in _codex_settings(url).items()]
    (directory / "config.toml").write_text("".join(lines), encoding="utf-8")
    return {"HOME": str(home), "CODEX_HOME": str(directory), "MOCK_KEY": "mock"}


def codex_arguments(url: str) -> list[str]:
    return [argument for key, value in _codex_settings(url).items() for argument in ("-c", f"{key}={value}")]


def _codex_settings(url: str) -> dict[str, str]:
    """Dotted keys of its config.toml, and values as TOML has them."""
    provider = {
        "name": '"mock"',
        "base_url": json.dumps(f"{url}/v1"),
        "wire_api": '"responses"',
        "env_key": '"MOCK_KEY"',
        "requires_openai_auth": "false",
        "request_max_retries": "0",
        "stream_max_retries": "0",
    }
    return {
        "model": '"mock-model"',
        "model_provider": '"mock"',
        **{f"model_providers.mock.{key}": value for key, value in provider.items()},
        "analytics.enabled": "false",
        "check_for_update_on_startup": "false",
        "features.unbounded_connection_retries": "false",
    }


def gemini_env(url: str, home: Path) -> dict[str, str]:
    settings = {
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "sessionRetention": {"enabled": False},
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "advanced": {"autoConfigureMemory": False},
    }
    directory = home / ".gemini"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return {
        "HOME": str(home),
        "GEMINI_API_KEY": "dummy",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_CLI_NO_RELAUNCH": "1",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "NO_COLOR": "1",
    }


def opencode_env(url: str, home: Path) -> dict[str, str]:
    limit = {"context": 128_000, "output": 8_192}
    # Of a model that is not said to see, it is told instead of each image that it cannot.
    sees = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Mock",
        "options": {"baseURL": f"{url}/v1", "apiKey": "mock"},
        "models": {
            "mock-model": {"name": "M", "tool_call": True, "limit": limit, **sees},
            "mock-small": {"name": "S", "limit": limit},
        },
    }
    config = {
        "model": "mock/mock-model",
        "small_model": "mock/mock-small",
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "enabled_providers": ["mock"],
        "permission": {"*": "allow"},
        "provider": {"mock": provider},
    }
    _install_library(home / "config" / "opencode")
    off = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "SHARE", "PROJECT_CONFIG")
    return {
        "HOME": str(home),
        **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
        "npm_config_offline": "true",
        **{f"OPENCODE_DISABLE_{what}": "1" for what in off},
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
    }


def _install_library(config: Path) -> None:
    """As opencode's first start with a network leaves it. Without, each start that has a plugin tries to install it and
    waits for that, by a lock that a process which ends meanwhile leaves behind for a minute.
    """
    (config / "node_modules").mkdir(parents=True, exist_ok=True)
    needs = {"dependencies": {"@opencode-ai/plugin": "*"}}
    (config / "package.json").write_text(json.dumps(needs))
    (config / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "packages": {"": needs}}))


def hermes_env(url: str, home: Path) -> dict[str, str]:
    """Its config.yaml is JSON, which is YAML, too."""
    model = {
        "default": "mock-model",
        "provider": "custom",
        "base_url": f"{url}/v1",
        "api_key": "dummy",
        "context_length": 131_072,
    }
    quiet = {
        # Which Python and pip a machine has it finds out by starting them: a third of the time that a run takes it.
        "agent": {"api_max_retries": 1, "environment_probe": False},
        "auxiliary": {"title_generation": {"enabled": False}},
        "memory": {"memory_enabled": False, "user_profile_enabled": False},
        "security": {"tirith_enabled": False, "allow_lazy_installs": False},
    }
    directory = home / ".hermes"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(json.dumps({"model": model, **quiet}), encoding="utf-8")
    return {"HOME": str(home), "HERMES_HOME": str(directory), **_one_authority(home / "authority.pem")}


@functools.cache
def _an_authority() -> str:
    """A certificate of one that this machine trusts, as PEM; empty where it has none."""
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(trusted[0]) if trusted else ""


def _one_authority(file: Path) -> dict[str, str]:
    """Hermes reads all that there are for each of its clients, five of them, before it asks a model without TLS."""
    if not _an_authority():
        return {}
    file.write_text(_an_authority(), encoding="utf-8")
    return {"SSL_CERT_FILE": str(file)}
