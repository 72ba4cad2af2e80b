"""How soon does each who looks on say what has gone wrong?

    python -m tools.experiments.dashboard.told_within --out DIR

A coordinator and three agents on this machine, users who ask all the time, and beside them `molink
dashboard`, the page in a browser, and a Prometheus with the rules of deploy/ that scrapes and
evaluates each second. One trouble after another is made, each after the last has passed. A user who
is refused is one of many who ask at once. The full disk is a small file system: root only.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from molink.errors import UserError
from tools.experiments.dashboard.onlookers import Onlookers, Said, onlookers
from tools.experiments.dashboard.stories import members, stage_process, users
from tools.experiments.harness.agents import AgentsRun, agents_run
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

NAMES = ("anna", "ben", "carl")
DISK_MB, LEFT_MB = 1500, 30
CROWD, PROMPT_TOKENS = 60, 300
"""Who ask at once: more than a ring of this machine answers in a second."""
REFUSED_WITHIN_S = 30.0
READY_WITHIN_S, OVER_WITHIN_S = 180.0, 150.0

ONLOOKERS = ("dashboard", "page", "findings", "metrics", "alert")

Seconds = dict[str, float | None]


@dataclass(slots=True)
class Stage:
    """The cluster in which things go wrong, and who looks on."""

    run: AgentsRun
    looking: Onlookers
    disk: Path
    began_s: float = 0.0
    """When the trouble began."""

    def agent(self, place: int) -> int:
        """The agent whose stage has this place in the first ring."""
        report = self.run.wait(lambda found: bool(found["rings"]), READY_WITHIN_S)
        return self.run.names.index(report["rings"][0]["stages"][place]["node"])


@contextmanager
def killed_stage(stage: Stage) -> Iterator[None]:
    """As when a PC is switched off."""
    agent = stage.agent(1)
    stage.run.kill(agent)
    yield
    stage.run.run_again(agent)


@contextmanager
def stalled_ring(stage: Stage) -> Iterator[None]:
    """A stage process that stands still; its sockets stay open."""
    process = stage_process(stage.run, stage.agent(1))
    process.suspend()
    yield
    with suppress(Exception):  # It may have been ended meanwhile.
        process.resume()


@contextmanager
def refused_user(stage: Stage) -> Iterator[None]:
    """More ask at once than can be answered in time; the reader of the page is one of them."""
    done, refused = threading.Event(), threading.Event()
    told = stage.run.url, done, refused
    crowd = [threading.Thread(target=_asks, args=told) for _ in range(CROWD)]
    for one in crowd:
        one.start()
    if not refused.wait(REFUSED_WITHIN_S):
        raise UserError(f"nobody was refused within {REFUSED_WITHIN_S:g} s")
    stage.began_s = time.perf_counter()
    stage.looking.page.fill("#question", "Tell me of a boat.")
    stage.looking.page.keyboard.press("Enter")
    yield
    done.set()
    for one in crowd:
        one.join()


@contextmanager
def full_disk(stage: Stage) -> Iterator[None]:
    """The coordinator's disk has some megabytes left."""
    filler = stage.disk / "filler"
    room = shutil.disk_usage(stage.disk).free - LEFT_MB * 10**6
    subprocess.run(["fallocate", "-l", str(room), str(filler)], check=True)
    yield
    filler.unlink()


@contextmanager
def revoked_key(stage: Stage) -> Iterator[None]:
    """A key opens nothing any more; its holder opens the page by the link with it, and asks."""
    place = ("--data-dir", str(stage.disk))
    secret = _molink("key", "create", "--name", "mia", *place).split()[0]
    _molink("key", "revoke", "mia", *place)
    page = stage.looking.page
    page.goto("about:blank")
    stage.began_s = time.perf_counter()
    page.goto(f"{stage.run.url}/#key={secret}")
    yield
    page.goto("about:blank")
    page.goto(f"{stage.run.url}/#key={os.environ['MOLINK_API_KEY']}")


@contextmanager
def lost_coordinator(stage: Stage) -> Iterator[None]:
    """Its process is killed; agents go on."""
    stage.run.up.process.kill()
    yield
    stage.run.start_again()


TROUBLES: Sequence[tuple[str, Callable[[Stage], AbstractContextManager[None]], Said]] = (
    (
        "a stage is killed",
        killed_stage,
        Said("stage_lost", "stage is lost", "does not answer", "MolinkFinding"),
    ),
    (
        "a ring stands still",
        stalled_ring,
        Said("stage_silent", "has said nothing|no token for", "does not answer", "MolinkFinding"),
    ),
    (
        "users are refused",
        refused_user,
        Said("refusals", "were refused", "Asking again in", "MolinkFinding"),
    ),
    ("the disk is full", full_disk, Said("disk", "disk is full", "", "MolinkFinding")),
    (
        "a revoked key is used",
        revoked_key,
        Said("key_refused", "mia", "does not open|no longer|revoked", "MolinkKeyRefused"),
    ),
    (
        "the coordinator is lost",
        lost_coordinator,
        Said("", "! ", "cannot be reached", "MolinkCoordinatorGone"),
    ),
)


@experiment
@click.option("--only", default="", help="Part of the name of the troubles that are made.")
def main(out: Path, only: str) -> None:
    """Make each trouble, and say how soon each onlooker told of it."""
    chosen = [one for one in TROUBLES if only in one[0]]
    rows: dict[str, Seconds] = {}
    with _served() as stage:
        for name, make, said in chosen:
            _settled(stage)
            rows[name] = _told(stage, make, said)
            show(f"{name}: {rows[name]}")
    write_report(out, "told_within", {"seconds": rows})
    cells = [[name, *(_cell(told, one) for one in ONLOOKERS)] for name, told in rows.items()]
    show(markdown_table(["trouble", *ONLOOKERS], cells))


@contextmanager
def _served() -> Iterator[Stage]:
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)], check=True
        )
        stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
        options = ("--split", "even", "--min-nodes", str(len(NAMES)), "--queue-s", "1")
        run = stack.enter_context(agents_run("demo", options, data_dir=disk, keys=True))
        for name in NAMES:
            run.join(name)
        run.wait(lambda report: members(report) == set(NAMES), READY_WITHIN_S)
        place = ("--data-dir", str(disk))
        key = _molink("key", "create", "--name", "ops", "--admin", *place).split()[0]
        os.environ["MOLINK_API_KEY"] = key
        stack.callback(os.environ.pop, "MOLINK_API_KEY")
        stack.enter_context(users(run.url))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        looking = stack.enter_context(onlookers(run.url, key, folder))
        yield Stage(run, looking, disk)


def _told(
    stage: Stage, make: Callable[[Stage], AbstractContextManager[None]], said: Said
) -> Seconds:
    stage.began_s = time.perf_counter()
    with make(stage):
        return stage.looking.seconds_until_told(said, 30.0, stage.began_s)


def _settled(stage: Stage) -> None:
    """Wait until the ring is whole, and nothing has stood out for some seconds."""
    stage.run.wait(lambda report: members(report) == set(NAMES), READY_WITHIN_S)
    deadline_s, quiet_since_s = time.perf_counter() + OVER_WITHIN_S, time.perf_counter()
    while time.perf_counter() - quiet_since_s < 5.0:
        standing = stage.looking.standing() - {"node_lost", "key_refused", "slow"}
        if standing:
            quiet_since_s = time.perf_counter()
        if time.perf_counter() > deadline_s:
            raise UserError(f"this still stands out: {standing}")
        time.sleep(0.2)


def _asks(url: str, done: threading.Event, refused: threading.Event) -> None:
    random = Random()
    asked_for = {"max_tokens": 40, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    headers["Authorization"] = f"Bearer {os.environ['MOLINK_API_KEY']}"
    while not done.is_set():
        ids = [random.randrange(3, 90) for _ in range(PROMPT_TOKENS)]  # Nobody has asked it before.
        body = json.dumps(asked_for | {"prompt_token_ids": ids}).encode()
        asked = urllib.request.Request(f"{url}/generate", body, headers)
        try:
            urllib.request.urlopen(asked, timeout=30).read()
        except (urllib.error.URLError, OSError) as error:
            if getattr(error, "code", 0) == 429:
                refused.set()
            done.wait(0.5)


def _molink(*words: str) -> str:
    command = [shutil.which("molink") or ".venv/bin/molink", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _cell(told: Seconds, onlooker: str) -> str:
    if onlooker not in told:
        return "-"
    took_s = told[onlooker]
    return "not in 30 s" if took_s is None else f"{took_s:.1f} s"


if __name__ == "__main__":
    main()
