"""`molink sim run`: one system, one ring or several, one load."""

from pathlib import Path
from typing import Any

import click

from molink.terminal.command_line import quiet_option
from molink.terminal.tables import report_console, report_option, write_report
from molink_sim.network.policies import POLICIES

MILLISECONDS = 1e-3


@click.command()
@click.option(
    "--system",
    default="molink",
    show_default=True,
    help="Who schedules and sends: vllm, helix, paper or molink.",
)
@click.option(
    "--policy",
    help=f"Order on the links instead of the system's own: {', '.join(POLICIES)}.",
)
@click.option(
    "--model",
    default="qwen-7b",
    show_default=True,
    help="A known model, or the path of any config.json.",
)
@click.option("--gpu", default="rtx4090", show_default=True, help="Device of every stage.")
@click.option("--stages", default=3, show_default=True, help="Stages of each ring.")
@click.option("--rings", default=1, show_default=True, help="Rings that share the load.")
@click.option("--bandwidth-mbps", default=100.0, show_default=True, help="Rate of every link.")
@click.option("--latency-ms", default=30.0, show_default=True, help="One-way delay of every link.")
@click.option("--jitter-ms", default=0.0, show_default=True, help="Most extra delay of a chunk.")
@click.option("--loss", default=0.0, show_default=True, help="Share of chunks sent twice.")
@click.option("--upload-mbps", type=float, help="Upload of every node, over all that leaves it.")
@click.option("--rate", default=0.2, show_default=True, help="Requests per second, all rings.")
@click.option("--duration-s", default=1800.0, show_default=True, help="How long requests arrive.")
@click.option("--warmup-s", default=60.0, show_default=True, help="Part that is not counted.")
@click.option(
    "--drain-s", default=600.0, show_default=True, help="How long what is under way may take."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Arrivals and lengths: Azure CSV, Mooncake JSONL or our CSV; without it, generated.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of everything that is random.")
@click.option("--wire", help="How activations are packed: raw, lossless, int8 or fp8.")
@click.option("--micro-batches", type=int, help="How many circle; without it the system chooses.")
@click.option("--span-tokens", type=int, help="Prompt tokens per batch, else as links allow.")
@click.option("--kv-tokens", type=int, help="Most tokens of KV per stage, else what fits.")
@click.option("--link-model", help="paced (as live) or ideal (quick, for many rings).")
@report_option
@click.option("--page", "page_path", type=click.Path(path_type=Path), help="Write an HTML report.")
@quiet_option
def run(json_file: Path | None, page_path: Path | None, quiet: bool, **options: Any) -> None:
    """Run one system under one load, and print times, totals and how busy everything was."""
    from molink.terminal.progress import WorkProgress
    from molink_sim.report.page import write_run_page
    from molink_sim.report.summary import summary, to_json
    from molink_sim.report.tables import print_summary
    from molink_sim.simulate import simulate

    scenario = _scenario(options, timeline=page_path is not None)
    with WorkProgress("simulated seconds", scenario.duration_s, quiet=quiet) as bar:
        outcome = simulate(scenario, bar.reach)
    found = summary(outcome)
    print_summary(found, report_console(json_file), _title(options))
    if json_file is not None:
        write_report(json_file, to_json(found))
    if page_path is not None:
        write_run_page(page_path, outcome, title=_title(options), settings=options)


def _scenario(options: dict[str, Any], *, timeline: bool) -> Any:
    from molink_sim.even_ring import even_ring
    from molink_sim.scenario import LinkSpec, Scenario
    from molink_sim.systems import system_named

    link = LinkSpec(
        options["bandwidth_mbps"],
        options["latency_ms"] * MILLISECONDS,
        options["jitter_ms"] * MILLISECONDS,
        options["loss"],
    )
    ring = even_ring(
        options["model"],
        options["gpu"],
        options["stages"],
        link,
        upload_mbps=options["upload_mbps"],
        kv_tokens_max=options["kv_tokens"],
    )
    changes = ("policy", "micro_batches", "span_tokens", "link_model")
    return Scenario(
        rings=(ring,) * options["rings"],
        arrivals=_arrivals(options),
        system=system_named(
            options["system"], codec=options["wire"], **{name: options[name] for name in changes}
        ),
        duration_s=options["duration_s"],
        warmup_s=options["warmup_s"],
        drain_s=options["drain_s"],
        seed=options["seed"],
        record_timeline=timeline,
    )


def _arrivals(options: dict[str, Any]) -> Any:
    from molink_sim.workload import generate, load_trace, thin

    rate, duration_s, seed = options["rate"], options["duration_s"], options["seed"]
    if options["trace"] is None:
        return generate(rate, duration_s, seed)
    return thin(load_trace(options["trace"]), rate, duration_s, seed)


def _title(options: dict[str, Any]) -> str:
    return (
        f"{options['system']}: {options['model']} on {options['rings']} x {options['stages']} "
        f"{options['gpu']}, {options['bandwidth_mbps']:g} Mbps, {options['latency_ms']:g} ms, "
        f"{options['rate']:g} requests/s"
    )
