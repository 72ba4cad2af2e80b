"""What an experiment leaves behind: a JSON file with every run, and a table in markdown."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tools.experiments.harness.experiment import Setup
from tools.experiments.harness.rounds import Figures, Runs, medians

__all__ = ["markdown_table", "milliseconds", "show", "write_results"]


def write_results(
    name: str, setup: Setup, own: Mapping[str, Any], runs: Runs, more: Mapping[str, Any] = {}
) -> dict[str, Figures]:
    """Write OUT/NAME.json and return the medians."""
    middle = medians(runs)
    report = {
        "experiment": name,
        "setup": {key: value for key, value in asdict(setup).items() if key != "out"}
        | {"model": Path(setup.model).name},
        "options": dict(own),
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "medians": _rounded(middle),
        **more,
        "runs": {name: [one.figures for one in measured] for name, measured in runs.items()},
    }
    (setup.out / f"{name}.json").write_text(json.dumps(_rounded(report), indent=2) + "\n")
    return middle


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 5)
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
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
