"""`molink sim compare`: one scenario, simulated and on real processes, and how far they differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.terminal.command_line import quiet_option
from molink.terminal.tables import STDOUT, report_option, write_report

if TYPE_CHECKING:
    from molink.workload.scenario_file import ValidationScenario
    from molink_sim.stage_profile import StageProfile
    from molink_sim.validation.comparison import Comparison
    from molink_sim.validation.real import RealRound


@click.command()
@click.option(
    "--scenario",
    "scenario_path",
    required=True,
    type=click.Path(path_type=Path),
    help="A TOML file such as those of docs/benchmarks/scenarios, see docs/simulator.md.",
)
@click.option("--model", help="A directory or hub id, where the scenario names none.")
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(path_type=Path),
    help="Step times of the model on this PC; measured and written there when missing.  "
    "[default: profile-MODEL.json]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Real runs, each on a fresh ring; their medians count.",
)
@report_option
@quiet_option
def compare(
    scenario_path: Path,
    model: str | None,
    profile_path: Path | None,
    rounds: int,
    json_file: Path | None,
    quiet: bool,
) -> None:
    """Run a scenario in the simulator and on real processes of this PC, and compare.

    Starts `molink serve` with emulated links and asks it the scenario's requests, then simulates
    the same ring with step times measured on this PC. Wants a PC that does nothing else. Exit code
    1 when a mean differs by more than 15 %.
    """
    from molink.terminal.progress import WorkProgress
    from molink.workload.scenario_file import read_scenario
    from molink_sim.report.summary import to_json
    from molink_sim.validation.comparison import compare_figures, comparison_json
    from molink_sim.validation.real import real_rounds
    from molink_sim.validation.simulated import run_simulated

    scenario = read_scenario(scenario_path)
    model = _model(model or scenario.model)
    profile = _profile(profile_path or _profile_path(model, json_file), model)
    simulated = run_simulated(scenario, profile)
    with WorkProgress("rounds", rounds, quiet=quiet) as bar:
        real = real_rounds(scenario_path, model, rounds, bar.advance)
    found = compare_figures([one.requests for one in real], simulated.requests)
    if json_file != STDOUT:
        _show(scenario, found, real)
    if json_file is not None:
        write_report(json_file, to_json(comparison_json(scenario, found, real, simulated)))
    if not found.passes:
        raise SystemExit(1)


def _show(scenario: "ValidationScenario", found: "Comparison", real: "Sequence[RealRound]") -> None:
    from rich.console import Console

    from molink_sim.report.tables import print_table
    from molink_sim.validation.comparison import comparison_table, disturbed, verdict

    print_table(comparison_table(scenario, found), Console())
    click.echo(verdict(found))
    if (sentence := disturbed(real)) is not None:
        click.echo(sentence)


def _model(model: str | None) -> str:
    """Model that is served; a path that is none is found out here, not by three processes."""
    from molink.errors import UserError

    if model is None:
        raise UserError("Which model? Give --model DIR, or name one in the scenario.")
    if model.startswith((".", "/", "~")) and not Path(model, "config.json").is_file():
        raise UserError(f"{model} is no model: give a directory with a config.json, or a hub id.")
    return model


def _profile(path: Path, model: str) -> "StageProfile":
    """Found or measured; one found beside the output may be of another model of this name."""
    from molink_sim.validation.real import measured_profile

    profile = measured_profile(path, model)
    _check_same(profile, model)
    return profile


def _check_same(profile: "StageProfile", model: str) -> None:
    from molink.checkpoint.model_config import model_shape
    from molink.errors import UserError

    config = Path(model, "config.json")
    if not config.is_file():
        return
    shape = model_shape(str(config))
    if (shape.layers, shape.hidden_size) != (profile.model_layers, profile.hidden_size):
        raise UserError(
            f"The profile is of a model with {profile.model_layers} layers of "
            f"{profile.hidden_size}, {model} has {shape.layers} of {shape.hidden_size}: give "
            "another --profile."
        )


def _profile_path(model: str, json_file: Path | None) -> Path:
    """Next to the output, else here."""
    folder = Path() if json_file is None else json_file.parent
    return folder / f"profile-{Path(model).resolve().name}.json"
