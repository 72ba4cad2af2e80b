"""Runs of clients: sessions of agents, with a look into the folder, and what libraries try."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tools.clients.agents import Agent, Place
from tools.clients.cache import Installed
from tools.clients.libraries import Library
from tools.clients.model import MODEL_NAME, ScriptedModel, Trouble, Writer, at_once
from tools.clients.report import Result
from tools.clients.script import DONE, HALF_DONE
from tools.clients.server import Requests, Server, in_front_of, running
from tools.clients.session import HALF, STEPS, difference

__all__ = ["run_first_prompt", "run_library", "run_session", "scratch"]

PROMPTS = (
    "Make a small garden in this folder, step by step.",
    "Go on with the garden until all of it is there.",
)

FIRST, FIRST_S_MAX = "Say hello in one word.", 240.0
"""To a real model, which takes minutes to read what an agent says before it."""

COMMAND_S_MAX = 600.0
"""Half a session takes a minute on a PC that does nothing else; who takes longer hangs."""

TOO_LONG = ("maximum context length is", "prompt is too long")
"""Words of the refusals that libraries provoke, to see what becomes of them."""

SAID_CHARS = 300
"""Of what a client printed last, in a result."""


def run_session(
    agent: Agent,
    client: Installed,
    trouble: Trouble,
    write: Writer = at_once,
    patience: float = 1.0,
) -> Result:
    """The result of a whole session; each half may take `patience` times as long as usual."""
    with scratch() as (home, work):
        half = HALF if agent.more is not None else None
        model = ScriptedModel(work, trouble, write, half)
        with running(model) as server, in_front_of(server.url) as shown:
            place = _place(shown, home, work, client, agent.files)
            why = _prompts(agent, place, COMMAND_S_MAX * patience) or difference(work)
            steps = max((one.calls for one in model.asked), default=0)
            tried = f"a session of {steps} of {len(STEPS)} steps, {_silence(shown.requests)}"
            return Result.of(agent.name, agent.packages[0], tried, why, server.requests)


def run_first_prompt(agent: Agent, client: Installed, url: str, patience: float = 1.0) -> Result:
    """The result of a short prompt to a real model at `url`. Who is at work when the time is over,
    or is told that its prompt is too long for the model, does well: only refusals do not."""
    with scratch() as (home, work), in_front_of(url) as server:
        place = _place(server, home, work, client, agent.files)
        variables = agent.variables(place)
        for command in agent.setup:
            _run(command(place, ""), place, variables)
        said, _ = _run(agent.first(place, FIRST), place, variables, FIRST_S_MAX * patience)
        long, count = server.requests.forgive(TOO_LONG), server.requests.count
        tried = f"a first prompt, {count} requests, {long} too long, {_silence(server.requests)}; "
        tried += f"it said: {_last_line(said)}"
        why = "" if count else "it asked nothing"
        return Result.of(agent.name, agent.packages[0], tried, why, server.requests)


def _silence(requests: Requests) -> str:
    return f"{requests.silence_s:.1f} s without a byte at most"


def _prompts(agent: Agent, place: Place, seconds: float) -> str:
    """Why a session did not come to its end; empty: it did."""
    variables = agent.variables(place)
    for command in agent.setup:
        _run(command(place, ""), place, variables)
    if agent.more is None:
        return _lacking(_run(agent.first(place, PROMPTS[0]), place, variables, seconds)[0], DONE)
    said, _ = _run(agent.first(place, PROMPTS[0]), place, variables, seconds)
    if HALF_DONE not in said:
        return _lacking(said, HALF_DONE)
    return _lacking(_run(agent.more(place, PROMPTS[1]), place, variables, seconds)[0], DONE)


def _lacking(said: str, wanted: str) -> str:
    if wanted in said:
        return ""
    return f"it did not show the end of its answer, but: {' '.join(said[-SAID_CHARS:].split())}"


def run_library(library: Library, client: Installed) -> Result:
    """The result of a library's program, or of a program's commands."""
    with scratch() as (home, work), running(ScriptedModel(work)) as server:
        place = _place(server, home, work, client, library.files)
        tried, why = [], ""
        for command in library.commands(place):
            said, status = _run(command, place, library.variables(place))
            tried += [line[3:] for line in said.splitlines() if line.startswith("ok ")]
            why = _lacking(said, library.shows)
            if status and not why:
                why = f"after {tried[-1] if tried else 'nothing'}: {_last_line(said)}"
            if why:
                break
        if any("too long" in one for one in tried):
            server.requests.forgive(TOO_LONG)
        told = ", ".join(tried) or f"{len(library.commands(place))} commands"
        return Result.of(library.name, library.packages[0], told, why, server.requests)


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1].strip()[:SAID_CHARS]


def _place(
    server: Server,
    home: Path,
    work: Path,
    client: Installed,
    files: Callable[[Place], Mapping[str, str]],
) -> Place:
    """A place with a client's settings in it."""
    place = Place(server.url, MODEL_NAME, home, work, client)
    for path, text in files(place).items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text, encoding="utf-8")
    return place


@contextmanager
def scratch() -> Iterator[tuple[Path, Path]]:
    """A home and a folder to work in, which are removed, once the services that a client left
    behind are ended."""
    with tempfile.TemporaryDirectory(prefix="molink-client-", ignore_cleanup_errors=True) as name:
        home, work = Path(name, "home"), Path(name, "work")
        home.mkdir()
        work.mkdir()
        try:
            yield home, work
        finally:
            _end_services(home)


def _end_services(home: Path) -> None:
    """End what still runs in a home: some agents start a service that outlives them."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                process.kill()


def _environment(place: Place, more: Mapping[str, str]) -> dict[str, str]:
    """Variables of a client: of the user's own only what finds programs."""
    path = os.pathsep.join([*map(str, place.client.path), os.environ.get("PATH", "")])
    kept = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
    own = {"PATH": path, "HOME": str(place.home), "NO_COLOR": "1", "CI": "1"}
    return {**kept, **own, **more}


def _run(
    command: Sequence[str],
    place: Place,
    variables: Mapping[str, str],
    seconds: float = COMMAND_S_MAX,
) -> tuple[str, int]:
    """What a command said until its end, and its status; one that takes too long is killed."""
    try:
        done = subprocess.run(
            list(command),
            cwd=place.work,
            env=_environment(place, variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        return done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as error:
        said = (error.output or b"").decode(errors="replace")
        return f"{said}\nit was killed after {seconds:g} s", 1
    except OSError as error:
        return f"it could not be started: {error}", 1
