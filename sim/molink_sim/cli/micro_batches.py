"""`molink sim micro-batches`: where extra micro-batches stop paying."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from molink.terminal.command_line import quiet_option
from molink.terminal.tables import report_console, report_option, write_report

if TYPE_CHECKING:
    from molink_sim.micro_batch_sweep import SweepSetting
    from molink_sim.report.summary import Sweep

PICTURE_SUFFIX = ".png"


@click.command(name="micro-batches")
@click.option(
    "--model",
    default="qwen-7b",
    show_default=True,
    help="A known model, or the path of any config.json.",
)
@click.option("--gpu", default="rtx4090", show_default=True, help="Device of every stage.")
@click.option("--stages", default=3, show_default=True, help="Stages of the ring.")
@click.option("--bandwidth-mbps", default=100.0, show_default=True, help="Rate of every link.")
@click.option(
    "--latency-ms",
    "latencies",
    default="5,15,30,50",
    show_default=True,
    help="One-way delays of every link, with commas between them.",
)
@click.option(
    "--slowdown",
    "slowdowns",
    default="1,4,16",
    show_default=True,
    help="Stage times, as multiples of what the device takes.",
)
@click.option(
    "--users", default="2,8,32,128", show_default=True, help="How many get answers at a time."
)
@click.option(
    "--micro-batches-max", type=int, help="Most that are tried, else twice the stages and one."
)
@report_option
@click.option(
    "--curves", "curves_path", type=click.Path(path_type=Path), help="Draw each ring there (PNG)."
)
@click.option(
    "--heat-map",
    "map_path",
    type=click.Path(path_type=Path),
    help="Draw there how many are enough (PNG).",
)
@quiet_option
def micro_batches(
    latencies: str,
    slowdowns: str,
    users: str,
    json_file: Path | None,
    curves_path: Path | None,
    map_path: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Show where extra micro-batches stop paying, over round-trip time, stage time and users.

    A ring is simulated with each number of them, and with the one that it chooses itself. Enough is
    the smallest number whose time per token is within 2 % of the best.
    """
    from molink.terminal.progress import WorkProgress
    from molink_sim.micro_batch_sweep import simulate_sweep, sweep_json
    from molink_sim.report.summary import to_json

    _check_pictures(curves_path, map_path)
    setting = _setting(latencies, slowdowns, users, options)
    with WorkProgress("runs", setting.run_count, quiet=quiet) as bar:
        sweep = simulate_sweep(setting, bar.advance)
    _show(sweep, setting, json_file)
    if json_file is not None:
        write_report(json_file, to_json(sweep_json(setting, sweep)))
    _draw(sweep, _title(setting), curves_path, map_path)


def _setting(
    latencies: str, slowdowns: str, users: str, options: Mapping[str, Any]
) -> "SweepSetting":
    from molink_sim.micro_batch_sweep import SweepSetting

    return SweepSetting(
        latencies_ms=_numbers("--latency-ms", latencies, float),
        slowdowns=_numbers("--slowdown", slowdowns, float),
        users=_numbers("--users", users, int),
        **options,
    )


def _show(sweep: "Sweep", setting: "SweepSetting", json_file: Path | None) -> None:
    from molink_sim.micro_batch_sweep import findings, findings_table
    from molink_sim.report.tables import print_table

    table = findings_table(findings(sweep, setting.stages), setting.stages)
    print_table(table, report_console(json_file))


def _draw(sweep: "Sweep", title: str, curves_path: Path | None, map_path: Path | None) -> None:
    from molink_sim.report.micro_batches import plot_micro_batch_curves, plot_micro_batches

    if curves_path is not None:
        plot_micro_batch_curves(curves_path, sweep, title=title)
    if map_path is not None:
        plot_micro_batches(map_path, sweep, title=f"Enough micro-batches: {title}")


def _numbers(option: str, text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    from molink.errors import UserError

    try:
        return tuple(kind(word) for word in text.split(","))
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{option} takes {what} with commas between them: got {text!r}.") from error


def _check_pictures(*paths: Path | None) -> None:
    """Before the simulation, not after it."""
    from molink.errors import UserError

    for path in paths:
        if path is None:
            continue
        if path.suffix != PICTURE_SUFFIX or not path.absolute().parent.is_dir():
            raise UserError(
                f"A picture needs a name that ends with {PICTURE_SUFFIX} in a folder that exists: "
                f"got {path}."
            )


def _title(setting: "SweepSetting") -> str:
    return f"{setting.model} on {setting.stages} {setting.gpu}, {setting.bandwidth_mbps:g} Mbps"
