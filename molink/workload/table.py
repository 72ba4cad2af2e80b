"""A report for the eyes."""

from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["ROWS", "print_report"]

ROWS = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "gap_s": "gap between tokens",
    "latency_s": "whole answer",
}


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the spreads as a table in milliseconds and the totals beneath."""
    table = Table("milliseconds", title=_title(report["settings"]))
    for column in ("mean", "p50", "p95", "p99"):
        table.add_column(column, justify="right")
    for key, label in ROWS.items():
        table.add_row(label, *(_milliseconds(value) for value in report[key].values()))
    console.print(table)
    console.print(
        f"{report['tokens_per_s']:.1f} tokens/s: {report['generated_tokens']} tokens in "
        f"{report['wall_s']:.2f} s, {report['finished']} requests finished, "
        f"{report['failed']} failed"
    )
    if report["first_error"]:
        console.print(f"first error: {report['first_error']}", style="red", markup=False)


def _title(settings: dict[str, Any]) -> str:
    if "trace" in settings:
        return f"trace {settings['trace']} at {settings['rate']:g} requests/s"
    return (
        f"{settings['requests']} requests, {settings['concurrency']} at once, "
        f"{settings['input_tokens']} tokens in, {settings['output_tokens']} out"
    )


def _milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:.1f}"
