"""`molink plan`: which PCs would hold which layers, and what that would give, without doing it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.cli.options import auto_or_count
from molink.errors import UserError

if TYPE_CHECKING:
    from molink_scheduler.placement import Goal

__all__ = ["plan"]

CONTEXT_TOKENS_MAX = 131_072
"""As much KV as a stage offers at most, for one user."""

TPOT_MS_MAX = 60_000.0


@click.command()
@click.argument("model")
@click.option(
    "--nodes",
    "nodes_path",
    required=True,
    type=click.Path(path_type=Path),
    help="The PCs: a TOML file with [[nodes]], see docs/placement.md.",
)
@click.option(
    "--tpot-ms",
    default=250.0,
    show_default=True,
    help="Most milliseconds between two tokens of an answer.",
)
@click.option(
    "--context-tokens",
    default=2048,
    show_default=True,
    help="KV that a user keeps, prompt and answer together.",
)
@click.option(
    "--rings",
    "rings_max",
    default="auto",
    show_default=True,
    metavar="auto|N",
    callback=lambda context, option, value: auto_or_count("--rings", value),
    help="Most rings; auto takes as many as serve the most users.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    model: str,
    nodes_path: Path,
    tpot_ms: float,
    context_tokens: int,
    rings_max: int | None,
    as_json: bool,
) -> None:
    """Show how MODEL would be spread over a set of PCs, and forecast what they would do with it.

    MODEL is a directory, a hub id, a config.json or a known model such as qwen-7b.
    """
    from rich.console import Console

    from molink.cli.plan_report import plan_json, print_plan
    from molink.config.planned_nodes import read_planned_nodes
    from molink.executor.layer_sizes import planned_model
    from molink_scheduler.placement import Shortage, make_plan

    if rings_max is not None and rings_max < 1:
        raise UserError(f"--rings takes auto or a number from 1 up, got {rings_max}.")
    goal = _goal(tpot_ms, context_tokens)
    planned, nodes = planned_model(model), read_planned_nodes(nodes_path)
    facts = nodes.facts(planned.shape, goal.context_tokens)
    found = make_plan(planned.cost, facts, nodes.network(), goal, rings_max)
    if isinstance(found, Shortage):
        raise UserError(f"{planned.name} does not fit: {found.sentence}")
    if as_json:
        click.echo(plan_json(found, planned.name))
    else:
        print_plan(found, planned.name, Console())


def _goal(tpot_ms: float, context_tokens: int) -> "Goal":
    from molink_scheduler.placement import Goal

    if not 0 < tpot_ms <= TPOT_MS_MAX:
        raise UserError(f"--tpot-ms takes a number above 0 up to {TPOT_MS_MAX:g}, got {tpot_ms:g}.")
    if not 1 <= context_tokens <= CONTEXT_TOKENS_MAX:
        raise UserError(
            f"--context-tokens takes 1 to {CONTEXT_TOKENS_MAX} tokens, got {context_tokens}."
        )
    return Goal(tpot_s=tpot_ms / 1e3, context_tokens=context_tokens)
