"""Runs clients and prints a line for each: `make clients`, or `python -m tools.clients NAME...`."""

import argparse
import sys
from collections.abc import Iterator

from tools.clients.agents import AGENTS
from tools.clients.cache import NotInstalledError, install
from tools.clients.model import Trouble
from tools.clients.report import Result
from tools.clients.sessions import run_session


def main() -> int:
    """Exit status: 1 when a client failed that could be had."""
    parser = argparse.ArgumentParser(prog="python -m tools.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="clients; none: all")
    asked = parser.parse_args()
    failed = 0
    for result in results(set(asked.names)):
        print(result.line(), flush=True)
        failed += not result.passed and not result.not_run
    return int(failed > 0)


def results(names: set[str]) -> Iterator[Result]:
    """Of each client, as they end."""
    for agent in AGENTS:
        if names and agent.name not in names:
            continue
        try:
            client = install(agent.name, agent.index, agent.packages)
        except NotInstalledError as error:
            yield Result(agent.name, agent.packages[0], "nothing", str(error), not_run=True)
            continue
        yield run_session(agent, client, Trouble(fails_at=5, is_silent_at=7))


if __name__ == "__main__":
    sys.exit(main())
