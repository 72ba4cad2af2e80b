"""The `molink` command as these tests start it, and a program that is refused many times."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.end_to_end.forked import format_probe, program, stage, step_probe
from tests.end_to_end.forked.asking import ADDRESS
from tests.end_to_end.forked.process import ForkedProcess
from tests.end_to_end.forked.server import COMMANDS, STAGES, server_of

READY_WITHIN_S = 120

CAN_FORK = hasattr(os, "pidfd_open")

ALONE = """
from molink.node import stage_manager
stage_manager.STAND_READY_AFTER_S = float("inf")
"""
"""Without the process that waits for the loss of a stage: few of these tests lose one."""

WAITING = """
from molink.node import stage_manager
stage_manager.STAND_READY_AFTER_S = 0.5
"""
"""With it, and soon."""

FORKED = f"""
from molink.node import stage_handle
stage_handle.STAGE_MODULE = {stage.__name__!r}
"""
"""With stages that are forked."""

FORKED_BELOW = f"""
import sys
if not any(word.startswith("{stage.__package__}.") for word in sys.orig_argv):
    exec({FORKED!r})
"""
"""What Python runs first in all programs, which are not forked, so that their stages are."""

FORKED_AGENT = f"""
import os, sys
from molink_agent.daemon import step_times
step_times.STEP_PROBE_MODULE = {step_probe.__name__!r}
step_times.FORMAT_PROBE_MODULE = {format_probe.__name__!r}
def go_on(program, command):
    from molink.cli.main import main
    sys.argv = ["molink", *command[command.index("agent") :]]
    main()
os.execv = go_on
"""
"""With forked probes of an agent, which goes on in its process after it has joined."""

RUN = """
from molink.cli.main import main
main()
"""

REFUSED = """
import contextlib, io, json, sys
from molink.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv, said, code = ["molink", *arguments], io.StringIO(), None
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]), flush=True)
"""
"""One process for all: what a command line imports takes longer than to refuse it."""


def command_line(*arguments: str, forks: bool = False) -> list[str]:
    """How an order to `molink` is started; `forks`: in a process that need not import."""
    if forks and CAN_FORK:
        return _forked(server_of(*COMMANDS), "molink.cli.main", *arguments)
    return [sys.executable, "-m", "molink.cli.main", *arguments]


def torch_program(module: str) -> list[str]:
    """How a module is started whose `main` uses torch; its arguments follow. It need not import."""
    if CAN_FORK:
        return _forked(server_of(*STAGES), module)
    return [sys.executable, "-m", module]


def _forked(server: str, module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", program.__name__, server, module, *arguments]


def started(
    *arguments: str,
    waits: bool,
    forks: bool,
    stderr: int,
    changes: str = "",
    environment: Mapping[str, str] = {},
) -> subprocess.Popen | ForkedProcess:
    """A `molink` that goes on, with pipes to its output; `waits`: with a process that waits for the
    loss of a stage; `forks`: it and its stages need not import; `changes`: Python that is run
    first."""
    changes += WAITING if waits else ALONE
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    if forks and CAN_FORK:
        environment[ADDRESS] = server_of(*STAGES)
        changes += FORKED + (FORKED_AGENT if arguments[0] == "agent" else "")
        own = {"changes": changes, "environment": environment, "stderr": stderr}
        return ForkedProcess(server_of(*COMMANDS), *arguments, **own)
    line = (
        [sys.executable, "-c", changes + RUN, *arguments] if changes else command_line(*arguments)
    )
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)


def forking_environment(folder: Path) -> dict[str, str]:
    """Environment of a program that imports, and whose stages need not."""
    if not CAN_FORK:
        return {}
    (folder / "sitecustomize.py").write_text(FORKED_BELOW)
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    return {"PYTHONPATH": path, ADDRESS: server_of(*STAGES)}


def refusals(lines: list[tuple[str, ...]]) -> list[str]:
    """The sentence with which each command line is refused, all in one process with forked
    stages."""
    changes, environment = (FORKED, {ADDRESS: server_of(*STAGES)}) if CAN_FORK else ("", {})
    done = subprocess.run(
        [sys.executable, "-c", changes + REFUSED, json.dumps(lines)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(lines), done.stderr
    for line, (code, said) in zip(lines, found, strict=True):
        assert code == 2 and said.strip() and "Traceback" not in said, (line, code, said)
    return [said for _, said in found]
