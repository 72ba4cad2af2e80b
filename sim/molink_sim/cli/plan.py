"""`molink sim plan`: what a set of PCs could do, before anybody joins."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from molink_sim.forecast import Bounds, Plan

__all__ = ["plan"]


@click.command()
@click.option("--model", required=True, help="A known model, or the path of any config.json.")
@click.option(
    "--nodes",
    "nodes_path",
    required=True,
    type=click.Path(path_type=Path),
    help="The PCs: a TOML file with [[nodes]], see docs/simulator.md.",
)
@click.option("--target-rate", type=float, help="Requests per second, else the highest possible.")
@click.option("--tpot-bound-s", default=0.25, show_default=True, help="Most, in the mean.")
@click.option("--ttft-bound-s", default=5.0, show_default=True, help="Most, in the mean.")
@click.option("--seed", default=0, show_default=True, help="Of the simulated requests.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write numbers there.")
def plan(
    model: str,
    nodes_path: Path,
    target_rate: float | None,
    tpot_bound_s: float,
    ttft_bound_s: float,
    seed: int,
    json_path: Path | None,
) -> None:
    """Can these PCs hold the model, for how many users, how fast, and what holds them back?"""
    from molink_sim.forecast import Bounds, make_plan, plan_json, plan_with_one_more, read_nodes
    from molink_sim.hardware import model_shape
    from molink_sim.report import to_json

    _check(target_rate is None or target_rate > 0, "--target-rate must be above 0.")
    _check(min(tpot_bound_s, ttft_bound_s) > 0, "The bounds must be above 0 s.")
    shape, nodes = model_shape(model), read_nodes(nodes_path)
    bounds = Bounds(ttft_bound_s, tpot_bound_s)
    found = make_plan(shape, nodes, target_rate, bounds, seed)
    _show_split(found, shape.name)
    more = plan_with_one_more(shape, nodes, found.rate_per_s, bounds, seed)
    _show_answers(found, more, bounds)
    if json_path is not None:
        json_path.write_text(to_json(plan_json(found, more, bounds)))


def _show_split(found: "Plan", model: str) -> None:
    from rich.console import Console

    from molink_sim.forecast import split_table
    from molink_sim.report import print_table

    print_table(split_table(found, model), Console())


def _show_answers(found: "Plan", more: "Plan | None", bounds: "Bounds") -> None:
    from rich.console import Console

    from molink_sim.forecast import plan_lines

    console = Console()
    for line in plan_lines(found, more, bounds):
        console.print(line, markup=False, highlight=False)


def _check(holds: bool, sentence: str) -> None:
    from molink.errors import UserError

    if not holds:
        raise UserError(sentence)
