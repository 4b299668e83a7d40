"""`steer codec`: keys of the payload codec, and the server that decodes for the Web UI."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steersman.cli.exits import Exit
from steersman.cli.output import complain, remark, write_line

if TYPE_CHECKING:
    import socket

app = typer.Typer(
    name="codec", help="Encrypt what Temporal keeps: keys, and a server for the Web UI.", no_args_is_help=True
)


@app.command(name="new-key")
def new_key(
    file: Annotated[
        Path | None, typer.Argument(help="The file of keys, made where it is missing; default: STEERSMAN_CODEC_KEYS.")
    ] = None,
    key_id: Annotated[str | None, typer.Option("--id", help="The key's name; default: today's date.")] = None,
    last: Annotated[bool, typer.Option("--last", help="Only to decrypt for now: behind the other keys.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the key, too.")] = False,
) -> None:
    """Make a random key. It becomes the file's first, which encrypts from now on; the others go on to decrypt."""
    import os

    from steersman.errors import BadCodec
    from steersman.keys import add_key
    from steersman.keys import new_key as made

    named = file or Path(os.environ.get("STEERSMAN_CODEC_KEYS", ""))
    if named == Path():
        raise typer.BadParameter("which file? Name it, or set STEERSMAN_CODEC_KEYS")
    key = made(key_id)
    try:
        add_key(named.expanduser(), key, last=last)
    except BadCodec as error:
        if not isinstance(error.__cause__, OSError):
            raise
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from error
    remark(f"key {key.id} is the {'last' if last else 'first'} in {named}; without this file nobody can read the runs")
    if show:
        write_line(key.line.rstrip())


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="On 127.0.0.1.")] = 8081,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="The Web UI's address; may be repeated.", show_default="http://127.0.0.1:8233"),
    ] = None,
) -> None:
    """Decode payloads for the Web UI and the `temporal` CLI, with the codec that STEERSMAN_CODEC names."""
    import os
    import signal

    from steersman.codec import VARIABLE, codec_of, name_of
    from steersman.errors import BadCodec

    codec = codec_of(os.environ)
    if codec is None:
        raise BadCodec(f"{VARIABLE} is not set: there is nothing to decode with")
    try:
        import uvicorn

        from steersman.cli.codecserver import IP, application
    except ImportError as error:
        raise BadCodec(f"the codec server needs steersman[codec]: {error}") from error
    pages = origin or ["http://127.0.0.1:8233"]
    with _listening(IP, port) as listening:
        config = uvicorn.Config(
            application(codec, pages, os.geteuid()),
            http="h11",
            ws="none",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        # uvicorn ends in order on these, and raises them once more.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        remark(f"codec server for pages of {', '.join(pages)}, with {name_of(codec)}; Ctrl-C ends it")
        write_line(f"http://{IP}:{port}")
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _listening(ip: str, port: int) -> "Iterator[socket.socket]":
    """A listening socket. Ends the command where the port is in use."""
    import socket

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((ip, port))
        except OSError as error:
            complain(f"port {port} cannot be used ({error.strerror}): choose with --port")
            raise typer.Exit(Exit.FAILED) from error
        listening.listen()
        yield listening
