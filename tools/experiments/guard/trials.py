"""Real processes against members that misbehave, prompts that overflow, owners who stop PCs.

    python -m tools.experiments.guard.trials --out DIR

Runs each trial on a cluster of its own, keeps what it found in DIR/guard-trials.json, and writes
the table of all trials that were run so far into the page of this benchmark.
"""

import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from molink.errors import UserError
from tools.experiments.guard.trial_rows.liars import LIARS
from tools.experiments.guard.trial_rows.orders import ORDERS
from tools.experiments.guard.trial_rows.restarts import RESTARTS
from tools.experiments.guard.trial_rows.rows import ROWS
from tools.experiments.guard.trial_rows.trial import Trial
from tools.experiments.guard.trial_rows.versions import OLDER
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main", "table", "with_table"]

TRIALS: tuple[Trial, ...] = (ORDERS, OLDER, *ROWS, *LIARS, RESTARTS)

FILE = "guard-trials"
PAGE = Path(__file__).parents[3] / "docs" / "benchmarks" / "guard.md"
BEGIN, END = "<!-- trials -->", "<!-- end of trials -->"


@experiment
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([one.name for one in TRIALS]),
    help="Of trials; without it all.",
)
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, help="With the table.")
def main(out: Path, names: tuple[str, ...], page: Path) -> None:
    """Run trials, and write the table of all that were run so far."""
    rows = _rows_so_far(out)
    for trial in TRIALS:
        if not names or trial.name in names:
            rows[trial.name] = _row(trial)
            click.echo(json.dumps(rows[trial.name], default=str), err=True)
            write_report(out, "trials", {"rows": rows}, FILE)
            page.write_text(with_table(page.read_text(encoding="utf-8"), rows), encoding="utf-8")
    show(table(rows))


def _row(trial: Trial) -> dict[str, Any]:
    try:
        row = asdict(asyncio.run(trial.run()))
    except UserError as error:
        row = {"measured": str(error), "reached": False, "found": {}}
    return row | {"load": os.getloadavg()[1]}


def _rows_so_far(out: Path) -> dict[str, Any]:
    file = out / f"{FILE}.json"
    rows: dict[str, Any] = json.loads(file.read_text())["rows"] if file.exists() else {}
    return rows


def table(rows: dict[str, Any]) -> str:
    """One row for each trial that was run."""
    head = ("trial", "before", "aim", "measured", "aim is", "load average")
    return markdown_table(head, [_cells(one, rows[one.name]) for one in TRIALS if one.name in rows])


def _cells(trial: Trial, row: dict[str, Any]) -> list[str]:
    reached = "reached" if row["reached"] else "MISSED"
    return [trial.what, trial.before, trial.aim, row["measured"], reached, f"{row['load']:.0f}"]


def with_table(page: str, rows: dict[str, Any]) -> str:
    """The page with the table between its marks. Raises UserError for one without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"the page has no place for the table: write {BEGIN} and {END} into it")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


if __name__ == "__main__":
    main()
