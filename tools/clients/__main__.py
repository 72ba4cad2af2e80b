"""Runs clients and prints a line for each: `make clients`, or `python -m tools.clients NAME...`.

A client that cannot be had, because no index can be reached or has that version, is named and is no
failure. Each one that is had meets the API as it is, in front of a model that does what a script
says; agents meet it once more with the words of a script from a real ring, one stage of which is
killed meanwhile (`--ring`).
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from tools.clients.agents import AGENTS, Agent
from tools.clients.cache import NotInstalledError, install
from tools.clients.libraries import LIBRARIES, Library
from tools.clients.model import Trouble
from tools.clients.report import Result
from tools.clients.ring import Ring, served_ring
from tools.clients.sessions import run_library, run_session

Client = Agent | Library

FAILS_AT, IS_SILENT_AT = 5, 7
"""Steps of each session in which the model fails in the middle of an answer, and is silent."""


def main() -> int:
    """Exit status: 1 when a client failed that could be had."""
    parser = argparse.ArgumentParser(prog="python -m tools.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="clients; none: all")
    parser.add_argument("--big", action="store_true", help="those that most people use")
    parser.add_argument(
        "--ring", action="store_true", help="agents alone, with a real ring's words"
    )
    parser.add_argument(
        "--within", type=float, metavar="S", help="begin none after so many seconds"
    )
    asked = parser.parse_args()
    clients = in_time(chosen(set(asked.names), big=asked.big), asked.within)
    failed = 0
    for result in over_ring(clients) if asked.ring else map(tried, clients):
        print(result.line(), flush=True)
        failed += not result.passed and not result.not_run
    return int(failed > 0)


def chosen(names: set[str], *, big: bool) -> Iterator[Client]:
    """The clients to run: those of these names, or all."""
    for client in (*AGENTS, *LIBRARIES):
        if client.name in names or (not names and (client.is_big or not big)):
            yield client


def in_time(clients: Iterator[Client], within_s: float | None) -> Iterator[Client]:
    """The clients, as long as there is time; of the others a line says that they did not run."""
    ends_at = None if within_s is None else time.monotonic() + within_s
    for client in clients:
        if ends_at is None or time.monotonic() < ends_at:
            yield client
        else:
            late = f"{within_s:g} s had passed"
            print(Result(client.name, client.packages[0], "nothing", late, not_run=True).line())


def tried(client: Client, ring: Ring | None = None) -> Result:
    """The result of one client; with a `ring`, an agent's words are generated there."""
    try:
        installed = install(client.name, client.index, client.packages)
    except NotInstalledError as error:
        return Result(client.name, client.packages[0], "nothing", str(error), not_run=True)
    if isinstance(client, Library):
        return run_library(client, installed)
    if ring is not None:
        return run_session(client, installed, Trouble(), ring.write)
    trouble = Trouble(FAILS_AT if client.retries else None, IS_SILENT_AT)
    return run_session(client, installed, trouble)


def over_ring(clients: Iterator[Client]) -> Iterator[Result]:
    """The results of agents whose ring loses a stage in each session."""
    with served_ring() as ring:
        for client in clients:
            if isinstance(client, Agent):
                ring.begin()
                result = tried(client, ring)
                told = f"{result.tried}, a stage killed: {ring.pause_s:.1f} s of silence"
                why = result.why or ("" if ring.pause_s else "no stage was killed")
                yield replace(result, tried=told, why=why)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that what was started is ended.
    sys.exit(main())
