"""`molink sim plan`: what a set of PCs could do, before anybody joins."""

from pathlib import Path

import click

from molink.terminal.tables import report_console, report_option, write_report


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
@click.option(
    "--tpot-bound-s", default=0.25, show_default=True, help="Most seconds a token, in the mean."
)
@click.option(
    "--ttft-bound-s",
    default=5.0,
    show_default=True,
    help="Most seconds to a first token, in the mean.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the simulated requests.")
@report_option
def plan(
    model: str,
    nodes_path: Path,
    target_rate: float | None,
    tpot_bound_s: float,
    ttft_bound_s: float,
    seed: int,
    json_file: Path | None,
) -> None:
    """Can these PCs hold the model, for how many users, how fast, and what holds them back?

    Prints the rings and the forecast of `molink plan`, then what these rings do when simulated.
    """
    from molink.checkpoint.model_config import model_shape
    from molink.checkpoint.model_shape import PlannedModel
    from molink.terminal.plan_report import print_line, print_plan
    from molink_sim import forecast
    from molink_sim.report.summary import to_json

    _check(target_rate is None or target_rate > 0, "--target-rate must be above 0.")
    _check(min(tpot_bound_s, ttft_bound_s) > 0, "The bounds must be above 0 s.")
    planned, nodes = PlannedModel.of_shape(model_shape(model)), forecast.read_nodes(nodes_path)
    bounds, console = forecast.Bounds(ttft_bound_s, tpot_bound_s), report_console(json_file)
    found = forecast.simulate_plan(planned, nodes, bounds, target_rate, seed)
    print_plan(found.plan, planned.name, console)
    more_nodes = forecast.with_one_more(nodes)
    more = forecast.simulate_plan(planned, more_nodes, bounds, found.rate_per_s, seed)
    for line in forecast.forecast_lines(found, more, bounds):
        print_line(console, line)
    if json_file is not None:
        fields = forecast.forecast_json(planned.name, found, more, bounds)
        write_report(json_file, to_json(fields))


def _check(holds: bool, sentence: str) -> None:
    from molink.errors import UserError

    if not holds:
        raise UserError(sentence)
