"""A Hermes gateway that already runs, driven over HTTP: a program that talks on stdin and stdout as Hermes's own stdio
gateway does, and what makes sure that a run there has ended.

Of the standard library alone: the program is run as a file by the worker's Python.

Relied on (measured with 0.19.0): a gateway's run works on when nobody listens to it; its events can be followed once
by one; a stop is answered at once, and has been carried out when a further one finds no such run. The status of a run
that was stopped may say "stopping" for good.
"""

import contextlib
import http.client
import json
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

URL: Final = "HERMES_GATEWAY_URL"
KEY: Final = "HERMES_GATEWAY_KEY"
"""Of the worker's environment: the gateway's address, and its API_SERVER_KEY."""

RUN, STOPPED = "gateway.run", "gateway.stopped"
"""What the program says beside what Hermes says: which run of the gateway it has begun, and what became of a stop."""
UNKNOWN = "unknown"
"""A run's name where the gateway may have begun one, and its answer did not arrive."""

STOP_S = 10.0
"""A stop is waited for this many seconds."""
LOST_S = 60.0
"""A gateway that does not answer for this many seconds is given up."""

_LIVE: Final = "gateway"
_PAUSE_S = 0.2
_SILENT_S = 75.0
"""The gateway writes to a stream that nobody else writes to every 30 s."""
_MAX_LINE = 8 * 1024 * 1024
_MAX_ANSWER = 32 * 1024 * 1024
_MAX_SAID = 1_000_000
_MAX_TOOLS = 200
"""This much is kept of a turn's text, and of the calls that have not ended."""
_FINAL = frozenset({"completed", "failed", "cancelled"})
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Unanswered(Exception):
    """Nobody answers there as a gateway does. `sent`: the question may have arrived."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Gateway:
    """A gateway's API. Raises ValueError for an address that is none."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
            raise ValueError(f"{URL}: not the address of a gateway, such as http://127.0.0.1:8642")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = 10.0) -> tuple[int, dict[str, Any]]:
        """The status and the object that is answered. Raises Unanswered."""
        with self._answer(method, path, body, timeout_s) as answer:
            try:
                said = json.loads(answer.read(_MAX_ANSWER))
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                raise Unanswered(f"{self._host} answered no JSON: {error}") from error
            return answer.status, said if isinstance(said, dict) else {}

    def events(self, run: str) -> Iterator[dict[str, Any]]:
        """The events of a run that nobody has followed before, until the stream ends. Raises Unanswered."""
        with self._answer("GET", f"/v1/runs/{run}/events", None, _SILENT_S) as answer:
            while answer.status == 200:
                try:
                    line = answer.readline(_MAX_LINE)
                    if not line:
                        return
                    event = json.loads(line[6:]) if line.startswith(b"data: ") else None
                except (OSError, http.client.HTTPException) as error:
                    raise Unanswered(f"the events of {run} broke off: {error}") from error
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    yield event

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: Any, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Unanswered(f"no gateway answers at {self._host}: {error}", sent=False) from error
            try:
                data = None if body is None else json.dumps(body)
                connection.request(method, self._path + path, data, self._headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise Unanswered(f"the gateway at {self._host} did not answer: {error}") from error
            yield answer
        finally:
            connection.close()


def stop_run(gateway: Gateway, run: str, timeout_s: float = STOP_S) -> str:
    """Stop a run, and see it end. Blocks for up to `timeout_s`.

    Returns:
        "stopped", "already_finished" where the gateway has none of this name at work, "unverified" where it does not
        say either.
    """
    deadline, asked = time.monotonic() + timeout_s, False
    while True:
        with contextlib.suppress(Unanswered):
            status, _ = gateway.ask("POST", f"/v1/runs/{run}/stop", {}, max(deadline - time.monotonic(), 0.5))
            if status == 404:
                return "stopped" if asked else "already_finished"
            asked = asked or status < 300
        if time.monotonic() >= deadline:
            return "unverified"
        time.sleep(_PAUSE_S)


def end_elsewhere(gateway: Gateway, said: Iterable[bytes]) -> str | None:
    """Make sure that the run at the gateway which a program of this module has begun is over.

    Args:
        gateway: where it is.
        said: all that such programs have put out, line by line, in order.

    Returns:
        See `stop_run`; None where none was begun, or the last one was over by itself.
    """
    run, stopped, doubt = None, None, False
    for line in said:
        if b'"gateway.' not in line and b'"message.complete"' not in line and b'"error"' not in line:
            continue
        try:
            params = json.loads(line)["params"]
            kind, payload = params["type"], params.get("payload") or {}
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if kind == RUN:
            run, stopped = str(payload.get("run_id")), None
            doubt = doubt or not _RUN_ID.fullmatch(run) or run == UNKNOWN
        elif kind == STOPPED:
            stopped = str(payload.get("outcome"))
        elif kind in ("message.complete", "error"):
            run = None
    if stopped not in ("stopped", "already_finished"):
        stopped = stop_run(gateway, run) if run and run != UNKNOWN and _RUN_ID.fullmatch(run) else None
    return "unverified" if doubt else stopped


class _Ended(BaseException):
    """The program was told to end."""


class Relay:
    """The program. One thread reads what is asked of it, one has the turns."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._writing, self._prompts = threading.Lock(), queue.SimpleQueue[tuple[str, str]]()
        self._idle = threading.Event()
        self._idle.set()
        self._run: str | None = None
        """The gateway's run that is at work."""
        self._begun: str | None = None
        """One of a program before this one."""
        self._first: str | None = None
        self._model: str | None = None
        self._history: list[dict[str, str]] = []
        self._used = {"calls": 0, "input": 0, "output": 0}
        self._said = ""
        self._tools: list[tuple[str, str]] = []
        self._calls = 0

    def serve(self) -> int:
        """Until stdin ends, or SIGTERM comes. The exit code: 1 where what was begun may still be at work."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._take_turns, daemon=True).start()
        with contextlib.suppress(_Ended):
            for line in sys.stdin.buffer:
                self._hear(line)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self._end()

    def _on_sigterm(self, _signal: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Ended

    def _end(self) -> int:
        deadline = time.monotonic() + STOP_S
        while self._run is None and not self._idle.wait(_PAUSE_S) and time.monotonic() < deadline:
            pass  # the gateway is being asked to begin one
        if self._idle.is_set():
            return 0
        run = self._run
        outcome = stop_run(self._gateway, run, max(deadline - time.monotonic(), 1.0)) if run else "unverified"
        self._tell(STOPPED, outcome=outcome)
        return int(outcome == "unverified")

    # ---- what is asked

    def _hear(self, line: bytes) -> None:
        try:
            frame = json.loads(line)
            command, method, params = frame["id"], frame["method"], frame.get("params") or {}
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if method in ("session.create", "session.resume"):
            self._model, self._begun = params.get("model"), params.get("session_id")
            self._answer(command, session_id=_LIVE, gateway=True, info={"model": self._model})
        elif method == "prompt.submit":
            self._idle.clear()
            self._answer(command, status="streaming")
            self._prompts.put((command, str(params.get("text"))))
        elif method == "session.interrupt":
            self._answer(command, status="interrupted")
            threading.Thread(target=self._interrupt, daemon=True).start()
        elif method == "session.usage":
            self._answer(command, **self._used)
        elif method == "session.cwd.set":
            self._answer(command)
        else:
            self._write({"id": command, "error": {"code": -32601, "message": f"a gateway has no {method}"}})

    def _interrupt(self) -> None:
        run = self._run
        if run:
            stop_run(self._gateway, run, LOST_S)

    # ---- turns

    def _take_turns(self) -> None:
        while True:
            command, text = self._prompts.get()
            try:
                self._take_turn(command, text)
            except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
                # Whatever a gateway says: whoever waits is told, and the next one has its turn.
                if self._run and stop_run(self._gateway, self._run) == "unverified":
                    self._tell(RUN, run_id=UNKNOWN)
                self._tell("error", message=f"the gateway was not understood: {error!r}"[:1000])
                self._tell("session.info", running=False)
            self._run = None
            if self._prompts.empty():
                self._idle.set()

    def _take_turn(self, command: str, text: str) -> None:
        is_older, run = self._begun is not None, self._begun or self._begin(text)
        self._begun = None
        if run is None:
            return
        self._run, self._first, self._said = run, self._first or run, ""
        self._tools.clear()
        self._tell(RUN, run_id=run)
        self._tell("message.start")
        end = self._follow(run)
        if end.get("event") == UNKNOWN:
            self._tell(RUN, run_id=UNKNOWN)
        status = {"run.completed": "complete", "run.cancelled": "interrupted"}.get(str(end.get("event")), "error")
        whole = str(end.get("output") or "") if status == "complete" else self._said
        if not is_older:
            self._history += [{"role": "user", "content": text}, {"role": "assistant", "content": whole}]
        self._count(end.get("usage"))
        told = str(end.get("error") or "the gateway gave no reason") if status == "error" else whole
        self._tell("message.complete", text=told, status=status, usage=self._used)
        self._tell("session.info", running=False)

    def _begin(self, text: str) -> str | None:
        body: dict[str, Any] = {"input": text}
        if self._first:
            body |= {"session_id": self._first, "conversation_history": self._history}
        if self._model:
            body["model"] = self._model
        try:
            status, said = self._gateway.ask("POST", "/v1/runs", body, LOST_S)
        except Unanswered as error:
            if error.sent:
                self._tell(RUN, run_id=UNKNOWN)
            self._tell("error", message=str(error))
            return None
        run = said.get("run_id")
        if status >= 300 or not isinstance(run, str) or not _RUN_ID.fullmatch(run):
            reason = said.get("error")
            reason = reason.get("message") if isinstance(reason, dict) else reason
            self._tell("error", message=f"HTTP {status}: {reason or 'the gateway began no run'}"[:2000])
            return None
        return run

    def _follow(self, run: str) -> dict[str, Any]:
        """The event that ends the run."""
        with contextlib.suppress(Unanswered):
            for event in self._gateway.events(run):
                if str(event.get("event")) in ("run.completed", "run.failed", "run.cancelled"):
                    return event
                self._pass_on(run, event)
        return self._poll(run)

    def _poll(self, run: str) -> dict[str, Any]:
        """The same by its status: its events are gone with whoever followed them first."""
        answered = time.monotonic()
        while True:
            try:
                status, said = self._gateway.ask("GET", f"/v1/runs/{run}")
            except Unanswered as error:
                if time.monotonic() - answered > LOST_S:
                    return {"event": UNKNOWN, "error": str(error)}
            else:
                answered = time.monotonic()
                if status == 404:
                    return {"event": "run.failed", "error": "the gateway does not know the run any more"}
                if said.get("status") in _FINAL:
                    return {**said, "event": f"run.{said['status']}"}
                if said.get("status") == "waiting_for_approval":
                    self._allow(run)
            time.sleep(_PAUSE_S)

    def _pass_on(self, run: str, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "message.delta":
            self._said = (self._said + str(event.get("delta") or ""))[-_MAX_SAID:]
            self._tell("message.delta", text=event.get("delta"))
        elif kind == "reasoning.available":
            self._tell("reasoning.delta", text=event.get("text"))
        elif kind == "tool.started":
            self._calls += 1
            name, ident = str(event.get("tool")), f"{run}-{self._calls}"
            self._tools = [*self._tools[-_MAX_TOOLS:], (name, ident)]
            # What it said before the call is no part of its answer.
            self._said = ""
            self._tell("tool.start", tool_id=ident, name=name, context=event.get("preview"))
        elif kind == "tool.completed":
            name = str(event.get("tool"))
            found = next((each for each in self._tools if each[0] == name), None)
            if found:
                self._tools.remove(found)
            failed = {"error": "it failed"} if event.get("error") else {}
            self._tell("tool.complete", tool_id=found[1] if found else "", name=name, result={"output": "", **failed})
        elif kind == "approval.request":
            self._allow(run)
            self._tell("status.update", text=f"allowed: {event.get('command')}")

    def _allow(self, run: str) -> None:
        """Mode "full" says so."""
        with contextlib.suppress(Unanswered):
            self._gateway.ask("POST", f"/v1/runs/{run}/approval", {"choice": "once"})

    def _count(self, usage: object) -> None:
        self._used["calls"] += 1
        if isinstance(usage, dict):
            for name in ("input", "output"):
                count = usage.get(f"{name}_tokens")
                self._used[name] += count if isinstance(count, int) and 0 <= count < 1 << 50 else 0

    # ---- what is said

    def _answer(self, command: object, **result: Any) -> None:
        self._write({"id": command, "result": result})

    def _tell(self, kind: str, **payload: Any) -> None:
        self._write({"method": "event", "params": {"type": kind, "session_id": _LIVE, "payload": payload}})

    def _write(self, frame: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **frame}) + "\n"
        with self._writing:
            sys.stdout.write(line)
            sys.stdout.flush()


if __name__ == "__main__":
    code = Relay(Gateway(os.environ[URL], os.environ.pop(KEY, ""))).serve()
    sys.stdout.flush()
    os._exit(code)
