"""Agents that other packages bring, by entry points of the group `steersman.agents`: found, loaded, made.

A package runs with the worker's rights as soon as it is loaded. Whatever is wrong with one becomes a finding, and the
other agents go on: no agent that comes along is ever replaced, and of two packages with one name neither is taken.
What an agent owes must not live here: see activities.ports.agent.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Final

from activities.agents.agent_kind import AgentKind, Finding, what_is_wrong
from activities.agents.catalog import AGENTS
from activities.ports.agent import Agent

GROUP: Final = "steersman.agents"
HINT: Final = "mend or uninstall the package, or leave the agent out by --agent"
MAX_SHOWN: Final = 500
_PORT: Final = sorted(name for name in {*vars(Agent), *Agent.__annotations__} if not name.startswith("_"))
_BROKEN: Final = (Exception, SystemExit)
"""What a package may raise: one that ends the process while it is imported is as broken as any other."""


@dataclass(frozen=True)
class Offer:
    """An agent as a package declares it. `package`: its name and version."""

    name: str
    package: str
    point: EntryPoint


@dataclass(frozen=True)
class Catalog:
    """All agents that a worker can have: those that come along, and those of other packages."""

    kinds: Mapping[str, AgentKind] = field(default_factory=lambda: AGENTS)
    packages: Mapping[str, str] = field(default_factory=dict)
    """Agent -> name and version of the package that brings it; of those that come along nothing."""
    problems: tuple[Finding, ...] = ()
    """Why packages' agents are not among them."""
    unusable: frozenset[str] = frozenset()
    """The names of those."""

    def make(self, environ: Mapping[str, str], lent: frozenset[str]) -> tuple[Mapping[str, Agent], tuple[Finding, ...]]:
        """The agents, given what `AgentKind.make` is given, and why others could not be made."""
        agents: dict[str, Agent] = {}
        problems: list[Finding] = []
        for name, kind in self.kinds.items():
            if name not in self.packages:
                agents[name] = kind.make(environ, lent)
                continue
            agent, wrong = _made(kind, environ, lent)
            if agent is None:
                problems.append(_problem(name, self.packages[name], wrong))
            else:
                agents[name] = agent
        return agents, tuple(problems)


def installed_catalog(wanted: Collection[str] = (), found: Iterable[Distribution] | None = None) -> Catalog:
    """The catalog of this installation. `wanted`: packages of no other agents are loaded; none: all are.

    `found`: where the packages are, by default on sys.path.
    """
    offers: dict[str, list[Offer]] = {}
    problems: list[Finding] = []
    for offer in _offers(distributions() if found is None else found, problems):
        if not wanted or offer.name in wanted:
            offers.setdefault(offer.name, []).append(offer)
    kinds, packages, unusable = dict(AGENTS), {}, set()
    for name, of_name in sorted(offers.items()):
        kind = _kind(of_name)
        if isinstance(kind, AgentKind):
            kinds[name], packages[name] = kind, of_name[0].package
        else:
            problems.append(kind)
            unusable.add(name)
    return Catalog(kinds, packages, tuple(problems), frozenset(unusable - set(AGENTS)))


def _offers(found: Iterable[Distribution], problems: list[Finding]) -> Iterator[Offer]:
    """Each package once, as it would be imported: the first on sys.path hides others of its name."""
    seen: set[str] = set()
    for distribution in found:
        try:
            if f"[{GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            package = f"{distribution.metadata['Name']} {distribution.version}"
            points = [point for point in distribution.entry_points if point.group == GROUP]
        except _BROKEN as error:  # what is written down of a package may be torn
            where = getattr(distribution, "_path", "a package")
            problems.append(Finding("agents", f"{where}: its entry points cannot be read: {_said(error)}", ok=False))
            continue
        name = re.sub(r"[-_.]+", "-", package.partition(" ")[0]).lower()
        if name in seen:
            continue
        seen.add(name)
        yield from (Offer(point.name, package, point) for point in points)


def _kind(offers: list[Offer]) -> AgentKind | Finding:
    """The row that is to be taken of these, which have one name; or why there is none."""
    name, packages = offers[0].name, " and ".join(sorted({offer.package for offer in offers}))
    if name in AGENTS:
        return _problem(name, packages, "Steersman has an agent of this name itself, which stays as it is")
    if len(offers) > 1:
        return _problem(name, packages, "more than one has an agent of this name, so none of them is taken")
    try:
        kind = offers[0].point.load()
        if not isinstance(kind, AgentKind):
            return _problem(
                name, packages, f"{offers[0].point.value} is no AgentKind, but of type {type(kind).__name__}"
            )
        if kind.name != name:
            return _problem(name, packages, f"{offers[0].point.value} is named {kind.name!r}")
        wrong = what_is_wrong(kind)
    except _BROKEN as error:
        return _problem(name, packages, f"it could not be loaded: {_said(error)}")
    return _problem(name, packages, wrong) if wrong else kind


def _made(kind: AgentKind, environ: Mapping[str, str], lent: frozenset[str]) -> tuple[Agent | None, str]:
    """The agent, or what is wrong with it."""
    try:
        agent = kind.make(environ, lent)
        lacks = [each for each in _PORT if not hasattr(agent, each)]
        if lacks:
            return None, f"what it makes is no Agent: it lacks {', '.join(lacks)}"
        return (agent, "") if agent.name == kind.name else (None, f"what it makes is named {agent.name!r}")
    except _BROKEN as error:
        return None, f"it could not be made: {_said(error)}"


def _problem(name: str, package: str, wrong: str) -> Finding:
    return Finding(f"agent {_plain(name)}", _plain(f"of {package}: {wrong}"), ok=False, hint=HINT)


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a package's own exception, whose words it makes itself
        return type(error).__name__


def _plain(text: str) -> str:
    """One line of at most MAX_SHOWN characters."""
    return " ".join(text.split())[:MAX_SHOWN]
