"""`steer agents`: which agents there are, and their capabilities; `steer agents test`: one held to what all owe.

Agents of other packages are known to a worker alone: worker.py of this installation says which it has.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from steersman.cli.exits import Exit
from steersman.cli.formatting import clean
from steersman.cli.json_output import last_json
from steersman.cli.options import AsJson
from steersman.cli.output import complain, console, emit, table
from steersman.cli.worker_code import has_worker, suite_command, worker_command

GROUP = "steersman.agents"
"""The group of entry points by which packages bring agents."""
TIMEOUT_S = 60.0

_STYLES = {"yes": "green", "asked": "yellow", "no": "dim"}

app = typer.Typer(name="agents", add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def agents(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show which agents there are, and what each can do at most; `asked`: where the request asks for it."""
    if ctx.invoked_subcommand is not None:
        return
    import steersman
    from steersman.contracts.agents import CAPABILITIES, WHERE_ASKED_FOR, Capabilities

    own = f"steersman {steersman.__version__}"
    rows = {name: (can.model_dump(), WHERE_ASKED_FOR.get(name, {}), own) for name, can in CAPABILITIES.items()}
    others, problems = _of_packages()
    rows |= {name: (each["capabilities"], each["asked_for"], each["package"]) for name, each in others.items()}
    if as_json:
        emit({name: {**can, "package": package} for name, (can, _, package) in rows.items()})
    else:
        _print(rows, list(Capabilities.model_fields))
    for problem in problems:
        complain(clean(f"{problem['check']} {problem['detail']}; {problem['hint']}"))
    raise typer.Exit(Exit.OK)


@app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The agent, also of a package that is installed.")]
) -> None:
    """Hold an agent to what every agent owes, its own program included: the conformance suite.

    What else is given goes to pytest: `steer agents test NAME -x -k interrupt`.
    """
    import subprocess

    command, directory = suite_command(name, *ctx.args)
    done = subprocess.run(command, cwd=directory, check=False)
    raise typer.Exit({0: Exit.OK, 1: Exit.FAILED}.get(done.returncode, Exit.USAGE))


def _print(rows: Mapping[str, tuple[Mapping[str, bool], Mapping[str, str], str]], names: list[str]) -> None:
    from rich.text import Text

    marks = {
        agent: [_mark(can=bool(can.get(name)), where_asked=name in asked) for name in names]
        for agent, (can, asked, _) in rows.items()
    }
    packages = {agent: clean(package) for agent, (_, _, package) in rows.items()}
    heads = [name.replace("_", " ") for name in names]
    if console().width >= _width(marks, [each.upper() for each in heads], packages):
        shown = table("AGENT", *map(str.upper, heads), "PACKAGE")
        for agent, cells in marks.items():
            shown.add_row(
                Text(agent, style="bold"),
                *(Text(cell, style=_STYLES[cell]) for cell in cells),
                Text(packages[agent], style="dim"),
            )
        console().print(shown)
    else:
        for agent, cells in marks.items():
            console().print(Text.assemble((agent, "bold"), (f"  {packages[agent]}", "dim")))
            for mark, style in _STYLES.items():
                if named := [head for head, cell in zip(heads, cells, strict=True) if cell == mark]:
                    console().print(Text.assemble((f"  {mark}: ", style), ", ".join(named)))
    for agent, (_, asked, _) in rows.items():
        for name, field in asked.items():
            words = clean(f"{agent}: {name.replace('_', ' ')} where the request asks for it, by {field}")
            console().print(Text(words))


def _width(marks: Mapping[str, Sequence[str]], heads: Sequence[str], packages: Mapping[str, str]) -> int:
    """Of the table of all of them."""
    columns = [list(marks), list(packages.values()), *zip(heads, *marks.values(), strict=True)]
    return sum(max(map(len, column)) + 2 for column in columns)


def _of_packages() -> tuple[Mapping[str, Any], Iterable[Mapping[str, str]]]:
    """The agents of other packages that a worker of this installation has, and what is wrong with others."""
    import subprocess

    if not _are_declared() or not has_worker():
        return {}, ()
    try:
        done = subprocess.run(worker_command("agents"), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        complain(f"`worker.py agents` took more than {TIMEOUT_S:.0f} s: those of other packages are not shown")
        return {}, ()
    found = last_json(done.stdout)
    if not isinstance(found, dict) or "agents" not in found:
        complain(f"`worker.py agents` failed: {done.stderr.strip()[-500:]}")
        return {}, ()
    return found["agents"], found["problems"]


def _are_declared() -> bool:
    try:
        return bool(entry_points(group=GROUP))
    except Exception:  # noqa: BLE001 - what is written down of some package is torn: the worker says of which
        return True


def _mark(*, can: bool, where_asked: bool) -> str:
    return ("asked" if where_asked else "yes") if can else "no"
