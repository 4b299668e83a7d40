"""The words of a command line as the JSON of a RunRequest. Pure but for the files that the words name.

Whether the request is valid is decided by the contract, in one place for every client.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr

import typer

if TYPE_CHECKING:
    from steersman.contracts.attachments import Attachment


class Never:
    """No time limit: null in a request, where a field that is left out means the default."""


NEVER = Never()
MAX_FILE = 16 * 1024 * 1024
"""Of a file with a text or a request so much is read; how much a request may have is the contract's to say."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def text_of(word: str) -> str:
    """`-` is stdin, `@FILE` a file, anything else itself."""
    if word == "-":
        return _bounded(sys.stdin.read(MAX_FILE + 1), "stdin")
    if not word.startswith("@"):
        return word
    try:
        return _read(word[1:])
    except typer.BadParameter as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise typer.BadParameter(f"{error.message}; a text that begins with @ is read from stdin: -") from error


def optional_text(word: str | None) -> str | None:
    """As `text_of`; None where the option was not given."""
    return text_of(word) if word is not None else None


def json_of(source: str) -> Any:
    """The JSON in a file, or on stdin for `-`."""
    text = _bounded(sys.stdin.read(MAX_FILE + 1), "stdin") if source == "-" else _read(source)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{source}: not JSON: {error}") from error


def pairs(words: Iterable[str], what: str) -> dict[str, str]:
    """NAME=VALUE words."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{what}: expected NAME=VALUE")
        found[name] = value
    return found


def environment(words: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE, NAME=from_env:NAME or NAME=from_file:PATH."""
    return {name: _env_value(value) for name, value in pairs(words, "--env").items()}


def _env_value(value: str) -> Any:
    kind, colon, rest = value.partition(":")
    return {kind: rest} if colon and kind in ("from_env", "from_file") else value


def _webhook_url(word: str) -> Any:
    """URL, from_env:NAME or from_file:PATH. The message does not have the word: it may be a secret."""
    value = _env_value(word)
    if isinstance(value, str) and not value.lower().startswith(("https://", "http://")):
        raise typer.BadParameter("--webhook: it has to begin with https:// or http://")
    return value


def options(words: Iterable[str]) -> dict[str, Any]:
    """NAME=JSON; a word that is no JSON is a string."""
    return {name: _json_or_text(value, f"--option {name}") for name, value in pairs(words, "--option").items()}


def _json_or_text(value: str, what: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        if value.lstrip().startswith(("{", "[", '"')):
            raise typer.BadParameter(f"{what}: not JSON: {error}") from error
        return value


def seconds(word: str | None, option: str) -> float | None:
    """90, 90s, 15m, 2h, 1d."""
    if word is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", word)
    if not found:
        raise typer.BadParameter(f"{option}: expected seconds, or a number with s, m, h or d")
    return float(found[1]) * _UNITS[found[2]]


def approval_time(word: str | None, option: str) -> float | Never | None:
    """As `seconds`; or `never`."""
    return NEVER if word == "never" else seconds(word, option)


def ssh_runtime(word: str | None) -> dict[str, Any] | None:
    """[USER@]ADDRESS[:PORT], an address of version 6 in brackets."""
    if word is None:
        return None
    found = re.fullmatch(r"(?:(?P<user>\S+)@)?(?P<address>\[[^\[\]@\s]+\]|[^\[\]@:\s]+)(?::(?P<port>\d+))?", word)
    if not found:
        raise typer.BadParameter(f"{word!r} is no machine that ssh reaches: expected [USER@]ADDRESS[:PORT]")
    port = int(found["port"]) if found["port"] else None
    return given(kind="ssh", address=found["address"].strip("[]"), user=found["user"], port=port)


def runtime(
    ssh: str | None, kubernetes: str | None, image: str | None, pod: Iterable[str] | None
) -> dict[str, Any] | None:
    """Where the agent is to live: one of them, or None for the worker's machine."""
    if ssh is not None and kubernetes is not None:
        raise typer.BadParameter("--ssh and --kubernetes: one of them")
    return kubernetes_runtime(kubernetes, image, pod) or ssh_runtime(ssh)


def kubernetes_runtime(
    word: str | None, image: str | None, given_fields: Iterable[str] | None
) -> dict[str, Any] | None:
    """[CONTEXT/]NAMESPACE, an image, and FIELD=JSON for what else a pod may have."""
    if word is None:
        if image is not None or given_fields:
            raise typer.BadParameter("--image and --pod go with --kubernetes")
        return None
    context, slash, namespace = word.rpartition("/")
    if slash and not context:
        raise typer.BadParameter("--kubernetes: expected [CONTEXT/]NAMESPACE")
    fields = {name: _json_or_text(value, f"--pod {name}") for name, value in pairs(given_fields or (), "--pod").items()}
    return {**fields, **given(kind="kubernetes", context=context or None, namespace=namespace or None, image=image)}


def agent_fields(
    model: str | None,
    system_prompt: str | None,
    env: Iterable[str] | None,
    option: Iterable[str] | None,
    label: Iterable[str] | None,
    fallback: Iterable[str] | None,
    home: str | None = None,
    webhook: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The fields of a RunRequest that a run and the runs of a loop have alike. Without those that were not given."""
    return given(
        model=model,
        system_prompt=optional_text(system_prompt),
        env=environment(env or ()),
        labels=pairs(label or (), "--label"),
        options=options(option or ()),
        home=home,
        notify=[{"url": _webhook_url(url)} for url in webhook or ()],
        fallback=[given(agent=agent, model=named or None) for agent, _, named in _parted(fallback or ())],
    )


def _parted(fallback: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """AGENT[:MODEL], each."""
    for each in fallback:
        agent, colon, model = each.partition(":")
        if not agent or (colon and not model):
            raise typer.BadParameter(f"--fallback: expected AGENT[:MODEL], not {each!r}")
        yield agent, colon, model


def given(**fields: Any) -> dict[str, Any]:
    """The fields that were given: neither None, nor False, nor empty."""
    return {
        name: None if value is NEVER else value
        for name, value in fields.items()
        if value is not None and value is not False and value not in ([], {})
    }


def merged(base: Any, said: dict[str, Any]) -> Any:
    """A request from a file, overridden by the command line's fields. What is no object is left for the contract."""
    if not isinstance(base, dict):
        return base
    both = {**base, **said}
    for name in ("workspace", "runtime", "permissions", "limits", "env", "labels", "options"):
        if isinstance(base.get(name), dict) and isinstance(said.get(name), dict):
            both[name] = {**base[name], **said[name]}
    return both


def attachments(paths: Iterable[str] | None) -> "list[Attachment]":
    """The files that go with a prompt or message."""
    if not paths:
        return []
    from steersman.attachments import attachment, typed
    from steersman.contracts.errors import InvalidRequest

    try:
        return [attachment(typed(path)) for path in paths]
    except InvalidRequest as error:
        raise typer.BadParameter(f"--attach: {error.message.removeprefix('attachment: ')}") from error


def workspace_path(path: str | None) -> str:
    """The directory that a person means: by default this one."""
    if path is not None and not path.strip():
        raise typer.BadParameter("--workspace: must not be empty")
    return os.path.abspath(path or ".")  # noqa: PTH100 - resolve() would follow links on this machine


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return _bounded(file.read(MAX_FILE + 1), path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {path or '@'}: {getattr(error, 'strerror', None) or error}") from error


def _bounded(text: AnyStr, what: str) -> AnyStr:
    if len(text) > MAX_FILE:
        raise typer.BadParameter(f"{what}: longer than {MAX_FILE >> 20} MiB: put long texts into files and name those")
    return text
