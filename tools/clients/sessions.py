"""One agent's session: two prompts, twenty steps, and a look into the folder."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.clients.agents import Agent, Place
from tools.clients.cache import Installed
from tools.clients.model import MODEL_NAME, ScriptedModel, Trouble
from tools.clients.report import Result
from tools.clients.script import DONE, HALF_DONE
from tools.clients.server import running
from tools.clients.session import STEPS, difference

__all__ = ["PROMPTS", "environment", "run_session", "started"]

PROMPTS = (
    "Make a small garden in this folder, step by step.",
    "Go on with the garden until all of it is there.",
)

COMMAND_S_MAX = 240
"""Half a session takes a minute at most; who takes longer hangs."""

SAID_CHARS = 2000


def run_session(agent: Agent, client: Installed, trouble: Trouble) -> Result:
    """The result of a whole session."""
    with scratch() as (home, work):
        model = ScriptedModel(work, trouble)
        with running(model) as server:
            place = Place(server.url, MODEL_NAME, home, work, client)
            for path, text in agent.files(place).items():
                (home / path).parent.mkdir(parents=True, exist_ok=True)
                (home / path).write_text(text, encoding="utf-8")
            why = _prompts(agent, place)
            steps = max((one.calls for one in model.asked), default=0)
            why = why or difference(work)
            tried = f"a session of {steps} of {len(STEPS)} steps, {server.requests.count} requests"
            return Result.of(agent.name, agent.packages[0], tried, why, server.requests)


def _prompts(agent: Agent, place: Place) -> str:
    """Why a session did not come to its end; empty: it did."""
    for command in agent.setup:
        started(command(place, ""), place, agent.variables(place))
    for command, prompt, end in zip(
        (agent.first, agent.more), PROMPTS, (HALF_DONE, DONE), strict=True
    ):
        said = started(command(place, prompt), place, agent.variables(place))
        if end not in said:
            return f"it did not show the end of its answer, but: {' '.join(said[-300:].split())}"
    return ""


@contextmanager
def scratch() -> Iterator[tuple[Path, Path]]:
    """A home and a folder to work in, which are removed."""
    with tempfile.TemporaryDirectory(prefix="molink-client-", ignore_cleanup_errors=True) as name:
        home, work = Path(name, "home"), Path(name, "work")
        home.mkdir()
        work.mkdir()
        yield home, work


def environment(place: Place, more: Mapping[str, str]) -> dict[str, str]:
    """Variables of a client: of the user's own only what finds programs."""
    path = os.pathsep.join([*map(str, place.client.path), os.environ.get("PATH", "")])
    kept = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
    own = {"PATH": path, "HOME": str(place.home), "NO_COLOR": "1", "CI": "1"}
    return {**kept, **own, **more}


def started(command: Sequence[str], place: Place, variables: Mapping[str, str]) -> str:
    """What a command said until its end; one that takes too long is killed."""
    try:
        done = subprocess.run(
            list(command),
            cwd=place.work,
            env=environment(place, variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        return f"{(error.output or b'').decode(errors='replace')}\nkilled after {COMMAND_S_MAX} s"
    except OSError as error:
        return f"it could not be started: {error}"
