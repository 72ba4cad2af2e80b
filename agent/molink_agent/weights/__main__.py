"""Fetch the weights of some layers and nothing else, by hand or from a benchmark.

    MOLINK_WEIGHTS_TOKEN=... python -m molink_agent.weights URL FIRST STOP DIRECTORY

Prints a line of JSON for each step of progress, and at last the directory. Exit status 2 with one
sentence on standard error when it cannot be done.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from molink.errors import MolinkError
from molink_agent.weights.download import ensure_weights
from molink_agent.weights.source import CoordinatorSource, Downloaded

TOKEN_VARIABLE = "MOLINK_WEIGHTS_TOKEN"


def main(url: str, first: str, stop: str, directory: str) -> int:
    """Fetch layers [first, stop)."""
    source = CoordinatorSource(url, os.environ.get(TOKEN_VARIABLE, ""))
    layers = range(int(first), int(stop))
    try:
        found = asyncio.run(ensure_weights(source, layers, Path(directory), progress=_report))
    except MolinkError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"directory": str(found)}), flush=True)
    return 0


def _report(downloaded: Downloaded) -> None:
    print(json.dumps(asdict(downloaded)), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
