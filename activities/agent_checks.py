"""The programs and keys of a worker's agents, as the worker itself sees them: `steer doctor` asks it."""

from collections.abc import Mapping

from activities.agents.agent_kind import AgentKind, Finding
from steersman.contracts.activities import AgentCheck, AgentChecks


def check_agents(kinds: Mapping[str, AgentKind], environ: Mapping[str, str]) -> AgentChecks:
    """What this process, a worker, finds. It starts processes, and blocks."""
    checks: list[AgentCheck] = []
    usable = False
    for kind in kinds.values():
        try:
            found = [*kind.findings(environ)]
        except Exception as error:  # noqa: BLE001 - another package's: the other checks go on
            found = [Finding(f"agent {kind.name}", f"{type(error).__name__}: {error}", ok=False)]
        usable = usable or (len(found) > 1 and all(each.ok and not each.lacks for each in found))
        checks += [AgentCheck(check=each.check, ok=each.ok, detail=each.detail, hint=each.hint) for each in found]
    return AgentChecks(checks=tuple(checks), usable=usable)
