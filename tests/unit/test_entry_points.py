"""Agents of other packages: found, loaded and made, and whatever is wrong with one is told, and harms no other."""

import ast
import re
from importlib.metadata import distributions
from pathlib import Path

import pytest

from activities.admission.policy import Policy
from activities.agents.agents import Agents
from activities.agents.catalog import AGENTS
from activities.agents.entry_points import Catalog, installed_catalog
from activities.agents.process.agent import ProcessAgent
from steersman.contracts.errors import InvalidRequest
from steersman.contracts.request import Caps, parse_request
from tests.support.packages import EXAMPLE, agent_point, write_package

ROOT = Path(__file__).parents[2]

ROW = """
from activities.agents.agent_kind import AgentKind
from activities.agents.process.agent import ProcessAgent
from steersman.contracts.agents import Capabilities

class Agent(ProcessAgent):
    name = "{name}"

    def check(self, request):
        pass

CAN = Capabilities(
    steer=False, interrupt=False, resume=False, structured_output=False, permissions=False, turns=False
)
ROW = AgentKind(**dict(dict(name="{name}", make=lambda environ, lent: Agent(), can=CAN), {fields}))
"""


def row(name: str, fields: str = "") -> str:
    return ROW.format(name=name, fields=fields)


class Packages:
    def __init__(self, target: Path) -> None:
        self.target = target

    def add(self, package: str, name: str, source: str, value: str | None = None) -> None:
        module = package.replace("-", "_")
        write_package(self.target, package, agent_point(name, value or f"{module}:ROW"), source)

    def catalog(self, *wanted: str) -> Catalog:
        return installed_catalog(wanted, distributions(path=[str(self.target)]))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    monkeypatch.syspath_prepend(str(tmp_path / "target"))
    return Packages(tmp_path / "target")


def test_a_package_adds_an_agent(packages: Packages) -> None:
    packages.add("pkg-one", "one", row("one"))
    catalog = packages.catalog()
    assert catalog.packages == {"one": "pkg-one 1.0"}
    assert set(catalog.kinds) == {*AGENTS, "one"}
    assert catalog.problems == ()
    agents, problems = catalog.make({}, frozenset())
    assert (agents["one"].name, problems) == ("one", ())


BROKEN = [
    ("one", "import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    ("one", "raise SystemExit(3)", "it could not be loaded: SystemExit: 3"),
    ("one", "raise RuntimeError('a\\nb' + 'x' * 10_000)", "it could not be loaded: RuntimeError: a bxxx"),
    ("one", "def def", "it could not be loaded: SyntaxError"),
    ("one", "", "has no attribute 'ROW'"),
    ("one", "ROW = object()", "broken:ROW is no AgentKind, but of type object"),
    ("one", row("two"), "broken:ROW is named 'two'"),
    ("One two", row("One two"), "its name is not of the form"),
    ("one", row("one", "can=None"), "of the wrong type: can"),
    ("one", row("one", "make=3"), "of the wrong type: make"),
    ("one", row("one", "variables=['A_B']"), "of the wrong type: variables"),
    ("one", row("one", "variables=frozenset({'STEERSMAN_CODEC_KEYS'})"), "'STEERSMAN_CODEC_KEYS' cannot be"),
    ("one", row("one", "guarded_prefixes=('',)"), "'' cannot be a variable"),
    ("one", row("one", "guarded_names=frozenset({3})"), "it could not be loaded: TypeError"),
    ("one", row("one", "where_asked_for={'fly': 'options.fly'}"), "names no capabilities: fly"),
    ("claude", "raise AssertionError('it is not even imported')", "Steersman has an agent of this name itself"),
]


@pytest.mark.parametrize(("name", "source", "problem"), BROKEN)
def test_a_broken_package_is_told_and_harms_no_other(
    packages: Packages, monkeypatch: pytest.MonkeyPatch, name: str, source: str, problem: str
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "broken", raising=False)
    packages.add("broken", name, source)
    packages.add(f"good-{abs(hash(source))}", "good", row("good"))
    catalog = packages.catalog()
    assert set(catalog.kinds) == {*AGENTS, "good"}
    assert all(catalog.kinds[each] is AGENTS[each] for each in AGENTS)
    (told,) = catalog.problems
    assert told.check == f"agent {name}"
    assert told.detail.startswith("of broken 1.0: ")
    assert problem in told.detail
    assert "\n" not in told.detail
    assert len(told.detail) <= 500


def test_of_two_packages_with_one_name_neither_is_taken(packages: Packages) -> None:
    packages.add("twin-a", "twin", row("twin"))
    packages.add("twin-b", "twin", row("twin"))
    catalog = packages.catalog()
    assert "twin" not in catalog.kinds
    assert [each.detail for each in catalog.problems] == [
        "of twin-a 1.0 and twin-b 1.0: more than one has an agent of this name, so none of them is taken"
    ]
    assert catalog.unusable == {"twin"}


def test_a_package_whose_entry_points_are_torn_is_told(packages: Packages) -> None:
    write_package(packages.target, "torn", "[steersman.agents]\nthis is no entry point\n")
    packages.add("pkg-whole", "whole", row("whole"))
    catalog = packages.catalog()
    assert "whole" in catalog.kinds
    (told,) = catalog.problems
    assert "torn" in told.detail


def test_what_the_operator_has_not_named_is_not_imported(packages: Packages) -> None:
    packages.add("pkg-unwanted", "unwanted", "raise AssertionError('imported')")
    packages.add("pkg-wanted", "wanted", row("wanted"))
    catalog = packages.catalog("process", "wanted")
    assert set(catalog.kinds) == {*AGENTS, "wanted"}
    assert catalog.problems == ()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("make=lambda environ, lent: 1 / 0", "it could not be made: ZeroDivisionError: division by zero"),
        ("make=lambda environ, lent: object()", "is no Agent: it lacks check, "),
        ("make=lambda environ, lent: ProcessAgent()", "what it makes is named 'process'"),
    ],
)
def test_an_agent_that_cannot_be_made_is_left_out(packages: Packages, fields: str, problem: str) -> None:
    package = f"unmade-{abs(hash(fields))}"
    packages.add(package, "unmade", row("unmade", fields))
    agents, problems = packages.catalog().make({}, frozenset())
    assert set(agents) == set(AGENTS)
    (told,) = problems
    assert problem in told.detail


def test_a_request_for_an_agent_that_is_not_there_names_those_that_are() -> None:
    agents = Agents({"process": ProcessAgent(), "claude": ProcessAgent()}, {"process", "broken"})
    with pytest.raises(InvalidRequest, match=r'^agent: this worker has no "cluade" that can be used; it has process$'):
        agents["cluade"]


def test_the_example_imports_the_port_that_is_documented_and_nothing_else() -> None:
    lines = (ROOT / "docs" / "agents.md").read_text().splitlines()
    table = [
        line.split("|")[1] for line in lines if line.startswith(("| `activities.", "| `steersman.", "| `conformance`"))
    ]
    port = set()
    for cell in table:
        first, *more = re.findall(r"`([^`]+)`", cell)
        parent = first.rpartition(".")[0]
        port |= {first, *(f"{parent}{each}" for each in more)}
    assert "activities.ports.agent" in port
    imported = set()
    for path in EXAMPLE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                submodules = {f"{node.module}.{each.name}" for each in node.names}
                imported |= submodules & port or {node.module}
    ours = {name for name in imported if name.partition(".")[0] in {"activities", "steersman", "conformance", "tests"}}
    assert {"activities.ports.agent", "activities.untrusted_json", "conformance"} <= ours
    contract = {name for name in ours if name.startswith("steersman.contracts.")}
    assert ours - contract <= port


class TestPolicy:
    """What only the row says of an agent is held as the contract's table is."""

    def policy(self, packages: Packages, fields: str = "", **settings: str) -> tuple[Policy, Agents]:
        package = f"held-{abs(hash(fields))}"
        packages.add(package, "held", row("held", fields))
        catalog = packages.catalog()
        environ = {"HELD_KEY": "secret", "OTHER": "no", "PATH": "/bin"}
        policy = Policy(environ=environ, agents=frozenset(catalog.kinds), kinds=catalog.kinds, **settings)  # type: ignore[arg-type]
        return policy, Agents(catalog.make({}, frozenset())[0], policy.agents)

    def request(self, tmp_path: Path, **fields: object) -> dict[str, object]:
        return {"agent": "held", "prompt": "p", "workspace": {"path": str(tmp_path)}, **fields}

    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"session": "s"}, "session"),
            ({"output_schema": {}}, "output_schema"),
            ({"permissions": {"mode": "ask"}}, "permissions"),
            ({"limits": {"turns": 3}}, "limits.turns"),
            ({"limits": {"cost_usd": 3}}, "limits.cost_usd"),
            ({"limits": {"tokens": 3}}, "limits.tokens"),
        ],
    )
    def test_what_the_agent_lacks_is_refused_by_name(
        self, packages: Packages, tmp_path: Path, fields: dict[str, object], named: str
    ) -> None:
        policy, agents = self.policy(packages)
        request = parse_request(self.request(tmp_path, **fields))
        with pytest.raises(InvalidRequest, match=f'^RunRequest: {named} is not supported by agent "held"'):
            policy.check(request, agents["held"])

    def test_a_cap_on_what_it_does_not_report_refuses_nothing(self, packages: Packages, tmp_path: Path) -> None:
        policy, _ = self.policy(packages)
        request = parse_request(self.request(tmp_path))
        assert Caps(cost_usd=1).held(request, policy.kinds["held"].at_most) == request

    def test_its_variables_are_passed_on_and_guarded(self, packages: Packages, tmp_path: Path) -> None:
        policy, agents = self.policy(packages, "variables=frozenset({'HELD_KEY'}), guarded_prefixes=('HELD_',)")
        assert policy.environment(parse_request(self.request(tmp_path))) == {"HELD_KEY": "secret", "PATH": "/bin"}
        policy.check(parse_request(self.request(tmp_path, env={"HELD_KEY": {"from_env": "HELD_KEY"}})), agents["held"])
        for env in ({"HELD_URL": "x"}, {"held_url": "x"}, {"A": {"from_env": "OTHER"}}):
            with pytest.raises(InvalidRequest, match=r"^env\."):
                policy.check(parse_request(self.request(tmp_path, env=env)), agents["held"])
        process = {"agent": "process", "command": ["true"], "workspace": {"path": str(tmp_path)}}
        assert "HELD_KEY" not in policy.environment(parse_request(process))
        with pytest.raises(InvalidRequest, match=r"^env\.HELD_URL"):
            policy.check(parse_request({**process, "env": {"HELD_URL": "x"}}), agents["process"])

    def test_one_that_asks_nobody_is_for_operators_who_allow_everything(
        self, packages: Packages, tmp_path: Path
    ) -> None:
        asks_nobody = "make=lambda e, l: type('A', (Agent,), {'programs': lambda self, request: ()})()"
        policy, agents = self.policy(packages, asks_nobody, max_permission="read_only")
        with pytest.raises(InvalidRequest, match='asks for no approvals, and "full" is more than this worker allows'):
            policy.check(parse_request(self.request(tmp_path)), agents["held"])

    def test_narrowing_adds_nothing(self, packages: Packages, tmp_path: Path) -> None:
        adds = "narrow=lambda can, request: can.model_copy(update={'steer': True})"
        policy, _ = self.policy(packages, adds)
        assert not policy.kinds["held"].capabilities(parse_request(self.request(tmp_path))).steer
