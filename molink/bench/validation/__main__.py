"""Run a scenario on real processes and write what its users saw: see `live`."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import click

from molink.bench.validation.live import run_live
from molink.errors import MolinkError
from molink.workload.scenario_file import read_scenario

__all__ = ["main"]

EXIT_USER_ERROR = 2


@click.command()
@click.option("--scenario", type=click.Path(path_type=Path), required=True, help="A TOML file.")
@click.option("--model", required=True, help="A directory or hub id.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), required=True, help="Output.")
@click.option("--round", "number", default=0, show_default=True, help="Seeds the prompts' tokens.")
def main(scenario: Path, model: str, json_path: Path, number: int) -> None:
    """Ask a scenario's requests of a real ring."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The server is ended as well.
    try:
        found = asyncio.run(run_live(read_scenario(scenario), model, number))
    except MolinkError as error:
        print(f"molink: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    json_path.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
