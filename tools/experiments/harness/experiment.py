"""What every experiment has: options, rounds, and what it leaves behind.

`experiment` makes a function a command. `in_turn` measures conditions that are compared next to
each other in time, several times over, because the machine's mood drifts over minutes (other
tenants, clock rates): A B C, B C A, C A B rather than A A A, B B B, C C C. What comes out are the
medians of the rounds: as a table in markdown on the terminal, and in OUT/NAME.json with every run.
"""

import asyncio
import functools
import json
import os
import platform
import signal
import statistics
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from molink.errors import UserError

__all__ = [
    "PRODUCT_POLICY",
    "Condition",
    "Figures",
    "Measured",
    "Runs",
    "Setup",
    "experiment",
    "figures_of",
    "in_turn",
    "markdown_table",
    "median_figures",
    "medians",
    "milliseconds",
    "policy_conditions",
    "ring_experiment",
    "rounds_option",
    "show",
    "slowest",
    "turns",
    "write_report",
    "write_results",
]

PRODUCT_POLICY = "molink"
POLICIES_COMPARED = (PRODUCT_POLICY, "fifo", "fair")

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Condition:
    """One of the things that an experiment compares."""

    name: str
    options: tuple[str, ...] = ()
    """Of `molink serve`."""
    policy: str = PRODUCT_POLICY
    """Order on the links between the stages: a name of `molink_sim.network.policies.POLICIES`."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The options that all experiments on a ring of three stages take."""

    model: str
    out: Path
    """Where its JSON and its picture go."""
    rounds: int
    link: str
    serve_options: tuple[str, ...]
    """Further options of every server."""

    @property
    def link_mbps(self) -> float:
        """The rate of `link`."""
        return float(self.link.partition(":")[0])

    @property
    def one_way_s(self) -> float:
        """The delay of `link`."""
        return float(self.link.partition(":")[2]) / 1000


def policy_conditions(*options: str) -> list[Condition]:
    """MoLink's policy and the two baselines, alike in everything else."""
    return [Condition(name, options, name) for name in POLICIES_COMPARED]


# -- options --------------------------------------------------------------------------------------


def experiment(function: Command) -> click.Command:
    """Make a command of a function of `out`, the folder for its results, and of its own options."""

    @functools.wraps(function)
    def command(out: Path, **own: Any) -> None:
        # What was started is ended as well when the experiment is.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        out.mkdir(parents=True, exist_ok=True)
        try:
            function(out=out, **own)
        except UserError as error:
            raise click.ClickException(str(error)) from error

    option = click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="Folder for the JSON, and for pictures.",
    )
    return click.command()(option(command))


def rounds_option(default: int = 3) -> Callable[[Command], Command]:
    """Add the option --rounds."""
    return click.option(
        "--rounds",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="Of which medians are taken.",
    )


def ring_experiment(link: str = "20:30") -> Callable[[Command], click.Command]:
    """Make a command of a function of a Setup and of its own options."""

    def decorate(function: Command) -> click.Command:
        @functools.wraps(function)
        def with_setup(
            out: Path, model: str, rounds: int, link: str, serve_options: str, **own: Any
        ) -> None:
            function(Setup(model, out, rounds, link, tuple(serve_options.split())), **own)

        options = (
            click.argument("model"),
            rounds_option(),
            click.option(
                "--link", metavar="MBPS:MS", default=link, show_default=True, help="Emulated."
            ),
            click.option("--serve-options", default="", help="Further options of `molink serve`."),
        )
        command: Command = with_setup
        for option in reversed(options):
            command = option(command)
        return experiment(command)

    return decorate


# -- rounds ---------------------------------------------------------------------------------------


Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of one condition came to."""

    figures: Figures
    samples: Mapping[str, Any] = field(default_factory=dict)
    """What the picture is drawn from."""


Runs = dict[str, list[Measured]]
"""Runs of each condition, in the order of rounds."""


def turns(conditions: Sequence[Condition], rounds: int) -> Iterator[Condition]:
    """Every condition once in each round, each round beginning with another."""
    for number in range(rounds):
        first = number % len(conditions)
        yield from (*conditions[first:], *conditions[:first])


def in_turn(
    conditions: Sequence[Condition],
    rounds: int,
    measure: Callable[[Condition, int], Awaitable[Measured]],
) -> Runs:
    """Measure everything; `measure` is given the condition and the number of its round."""
    runs: Runs = {condition.name: [] for condition in conditions}
    for condition in turns(conditions, rounds):
        number = len(runs[condition.name])
        measured = asyncio.run(_awaited(measure(condition, number)))
        runs[condition.name].append(measured)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in measured.figures.items())
        click.echo(f"round {number + 1}, {condition.name}: {shown}", err=True)
    return runs


async def _awaited(measured: Awaitable[Measured]) -> Measured:
    """A task group's first failure stands for all."""
    try:
        return await measured
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


def median_figures(rows: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def medians(runs: Runs) -> dict[str, Figures]:
    """Medians of each condition's figures over its rounds."""
    return {name: median_figures(rows) for name, rows in figures_of(runs).items()}


def figures_of(runs: Runs) -> dict[str, list[Figures]]:
    """The figures of every run, without its samples."""
    return {name: [run.figures for run in measured] for name, measured in runs.items()}


# -- results --------------------------------------------------------------------------------------


def write_report(out: Path, name: str, report: Mapping[str, Any], file: str | None = None) -> None:
    """Write OUT/NAME.json (or OUT/FILE.json): the experiment, the machine, and `report`."""
    machine = {"cores": os.cpu_count(), "system": platform.platform()}
    whole = {"experiment": name, "machine": machine, **report}
    (out / f"{file or name}.json").write_text(json.dumps(_rounded(whole), indent=2) + "\n")


def write_results(
    name: str, setup: Setup, own: Mapping[str, Any], runs: Runs, more: Mapping[str, Any] = {}
) -> dict[str, Figures]:
    """Write the report of an experiment on a ring, and return the medians."""
    middle = medians(runs)
    options = {key: value for key, value in asdict(setup).items() if key != "out"}
    report = {
        "setup": options | {"model": Path(setup.model).name},
        "options": dict(own),
        "medians": middle,
        **more,
        "runs": figures_of(runs),
    }
    write_report(setup.out, name, report)
    return middle


def _rounded(value: Any) -> Any:
    """Numbers to six significant digits; what JSON does not know, as text."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
        case _:
            return value if isinstance(value, int | str | None) else str(value)


def show(table: str) -> None:
    """Print a table, a line free before and after."""
    click.echo(f"\n{table}\n")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as the documentation holds it: first column to the left, numbers to the right."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def milliseconds(value_s: float) -> str:
    """Milliseconds as the text of a cell."""
    return f"{value_s * 1000:,.0f}" if abs(value_s) >= 0.1 else f"{value_s * 1000:,.1f}"


def slowest(times_s: Sequence[float | None], digits: int) -> str:
    """The longest of these times as the text of a cell; `never` when one of them has no end."""
    known = [time_s for time_s in times_s if time_s is not None]
    return f"{max(known):.{digits}f}" if len(known) == len(times_s) else "never"
