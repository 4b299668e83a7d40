"""Runs of agent "hermes" at a gateway that already runs: what a request may ask of one, and how it is talked to.

What is said over HTTP, and the program that says it, are in relay.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from activities.agents.agent_kind import Finding
from activities.agents.frames import Frame
from activities.agents.hermes import frames, relay
from activities.agents.hermes.errors import session_error
from activities.agents.hermes.transcript import HermesTranscript
from activities.agents.options import parse_options
from activities.ports.admission import Admission
from activities.ports.agent import ExitFact, Verdict
from activities.ports.runtime import Launch, StopTimes
from activities.untrusted_json import name_of, object_at
from steersman.contracts.agents import Capabilities
from steersman.contracts.errors import AgentCrashed, InvalidRequest
from steersman.contracts.events import EventBase, InitEvent
from steersman.contracts.model import StrictModel
from steersman.contracts.request import RunRequest
from steersman.contracts.run import StopOutcome

_OUTCOMES: Final[Mapping[str, StopOutcome]] = {
    "stopped": "stopped",
    "already_finished": "already_finished",
    "unverified": "unverified",
}
KILL_AFTER_S: Final = relay.STOP_S + 2.0
"""The program ends once it has seen the gateway's run end, or has waited as long as it does for that."""


class HermesOptions(StrictModel):
    """RunRequest.options for agent "hermes"."""

    gateway: bool = False
    """The run is one of the gateway that HERMES_GATEWAY_URL of the worker's environment names."""


def asks_for_gateway(request: RunRequest) -> bool:
    """Raises InvalidRequest naming a wrong option."""
    return parse_options(HermesOptions, request).gateway


def narrow(can: Capabilities, request: RunRequest) -> Capabilities:
    """A gateway takes no text while it works, and sends no earlier session to its model."""
    if not asks_for_gateway(request):
        return can
    return can.model_copy(update={"steer": False, "resume": False, "turns": False, "tokens": False})


def gateway_of(environ: Mapping[str, str]) -> relay.Gateway:
    """The operator's. Raises InvalidRequest."""
    url = environ.get(relay.URL)
    if not url:
        raise InvalidRequest(f"options.gateway: the operator of this worker has named none in {relay.URL}")
    try:
        return relay.Gateway(url, environ.get(relay.KEY, ""))
    except ValueError as error:
        raise InvalidRequest(f"options.gateway: of the worker's environment, {error}") from error


def check(request: RunRequest, environ: Mapping[str, str]) -> None:
    """Raise InvalidRequest where the request asks for what a gateway cannot do."""
    gateway_of(environ)
    limits, workspace = request.limits, request.workspace
    wrong = {
        "session": request.session is not None,
        "home": request.home == "isolated",
        "runtime": request.runtime.kind != "local",
        "workspace": request.is_carried or workspace.worktree is not None,
        "limits.turns": limits.turns is not None,
        "limits.tokens": limits.tokens is not None,
    }
    for name in (name for name, asked in wrong.items() if asked):
        raise InvalidRequest(f"{name}: a gateway of Hermes works in sessions, a home and a directory of its own")


def launch(request: RunRequest, admission: Admission, environ: Mapping[str, str], resumed: str | None) -> Launch:
    """The program that talks to the gateway. `resumed`: the gateway's run that the process before was at."""
    return Launch(
        argv=(sys.executable, "-I", "-S", str(Path(relay.__file__).resolve())),
        cwd=str(admission.directory),
        env={relay.URL: environ[relay.URL], relay.KEY: environ.get(relay.KEY, "")},
        first_input=((frames.SESSION, frames.session(request, admission, resumed)),),
        stdin_has_authority=True,
    )


def stop_times(request: RunRequest) -> StopTimes:
    """SIGTERM at once, and the time that the gateway may take."""
    return StopTimes.asked(request.stop, 0.0, KILL_AFTER_S)


def end_elsewhere(environ: Mapping[str, str], request: RunRequest, said: Iterable[bytes]) -> StopOutcome | None:
    """See AgentKind.end_elsewhere."""
    if not asks_for_gateway(request):
        return None
    try:
        return _OUTCOMES.get(relay.end_elsewhere(gateway_of(environ), said) or "")
    except InvalidRequest:  # nobody can ask it any more
        return "unverified"


def finding(environ: Mapping[str, str]) -> Finding:
    """Whether the operator's gateway answers, and takes the key. Blocks for up to 5 s."""
    check, url = "gateway of hermes", environ.get(relay.URL, "")
    try:
        status, _ = gateway_of(environ).ask("GET", "/v1/capabilities", timeout_s=5.0)
    except (InvalidRequest, relay.Unanswered) as error:
        hint = f"start it, or mend {relay.URL} of the worker's environment"
        return Finding(check, str(error), ok=False, hint=hint)
    if status in (401, 403):
        return Finding(check, f"{url} does not take the key", ok=False, hint=f"{relay.KEY} is its API_SERVER_KEY")
    wrong = status != 200
    return Finding(check, f"{url} answered HTTP {status}" if wrong else url, ok=not wrong)


class GatewayTranscript(HermesTranscript):
    """Of a process that talks to a gateway. The session that it tells of is the gateway's newest run."""

    def verdict(self, exit_fact: ExitFact) -> Verdict:
        """See ports.Transcript."""
        state = self.state
        found = super().verdict(exit_fact)
        if found.resumable and (state.doubt or (state.owed and state.turn != "open")):
            # Which run to go on with nobody knows, and another one would do the work a second time.
            lost = AgentCrashed("the gateway may have begun a run whose name is lost: look for it there")
            return Verdict(lost, unproven=True)
        return replace(found, unproven=state.doubt)

    def _session(self, time: datetime, result: Frame, refused: Frame) -> list[EventBase]:
        self.state.live = name_of(result.get("session_id")) or ""
        return [] if self.state.live else self._no_session(time, session_error(refused))

    def _output(self, time: datetime, frame: Frame) -> list[EventBase]:
        kind, payload = object_at(frame, "params").get("type"), object_at(frame, "params", "payload")
        if kind == relay.RUN:
            return self._run_named(time, name_of(payload.get("run_id")) or relay.UNKNOWN)
        if kind == relay.STOPPED:
            self.state.doubt = self.state.doubt or payload.get("outcome") == "unverified"
            return []
        return super()._output(time, frame)

    def _run_named(self, time: datetime, run: str) -> list[EventBase]:
        progress = self.state.progress
        if run == relay.UNKNOWN:
            self.state.doubt = True
            return []
        is_first, progress.session_id = progress.session_id is None, run
        return [InitEvent(time=time, session_id=run)] if is_first else []
