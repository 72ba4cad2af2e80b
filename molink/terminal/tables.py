"""Tables of commands that list things, with the data folder and lengths of time."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.errors import UserError
from molink.printable import printable_line

if TYPE_CHECKING:
    from rich.console import Console

DATA_FOLDER = "molink"
"""Under $XDG_DATA_HOME; `molink up` keeps its registry there too."""

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
"""30m, 24h, 7d."""

Row = Mapping[str, object]
"""Cells of a row by the names of their columns."""

data_dir_option = click.option(
    "--data-dir",
    metavar="FOLDER",
    help="Where the coordinator keeps its registry; without it $XDG_DATA_HOME/molink.",
)
STDOUT = Path("-")
"""What stands for standard output where a file is named."""

report_option = click.option(
    "--json",
    "json_file",
    is_flag=False,
    flag_value=str(STDOUT),
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="[FILE]",
    help="As JSON, for programs; with a FILE there, beside the table.",
)
"""`--json` of what measures: alone as all other commands have it, or with a file."""

json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")


def duration_s(option: str, text: str) -> float:
    """Seconds of a length of time as people write it. Raises UserError for what is none."""
    match = DURATION.fullmatch(text)
    if match is None or not math.isfinite(seconds := float(match[1]) * UNITS_S[match[2]]):
        raise UserError(
            f"{option} takes a length of time such as 30m, 24h or 7d, got {text!r:.40}."
        )
    return seconds


def local_time(unix_s: float) -> datetime:
    """Time in this PC's zone, for a cell: to the minute for people, ISO 8601 for programs."""
    return datetime.fromtimestamp(unix_s).astimezone()


def show_rows(rows: Sequence[Row], as_json: bool, nothing: str) -> None:
    """A table, or a list of objects for programs."""
    if as_json:
        click.echo(json.dumps(rows, indent=2, default=_iso_time))
        return
    if not rows:
        click.echo(nothing)
        return
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def write_report(path: Path, text: str) -> None:
    """Write what `report_option` asks for. Raises OSError."""
    text = text.rstrip()
    if path == STDOUT:
        click.echo(text)
    else:
        path.write_text(f"{text}\n")


def report_console(json_file: Path | None) -> "Console":
    """Console for the tables beside `report_option`; it shows nothing where JSON stands instead."""
    from rich.console import Console

    return Console(quiet=json_file == STDOUT)


def _iso_time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ", "minutes")
    return "-" if value in (None, "") else printable_line(str(value))
