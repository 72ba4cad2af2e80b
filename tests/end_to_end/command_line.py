"""The `molink` command as these tests start it, and a program that is refused many times."""

import json
import os
import subprocess
import sys

from tests.end_to_end.forked_stages import MODULE, fork_server

READY_WITHIN_S = 120

ALONE = """
from molink.node import stage_manager
stage_manager.STAND_READY_AFTER_S = float("inf")
"""
"""Without the process that waits for the loss of a stage: few of these tests lose one."""

FORKED = f"""
import os
from molink.node import stage_handle
stage_handle.STAGE_MODULE = {MODULE!r}
os.environ.update(%r)
"""
"""With stages that are forked."""

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


def command_line(
    *arguments: str, waits: bool = False, forks: bool = False, changes: str = ""
) -> list[str]:
    """How `molink` is started; `waits`: with a process that waits for the loss of a stage; `forks`:
    with stages that need not import torch; `changes`: Python that is run first."""
    forks = forks and hasattr(os, "pidfd_open")
    changes += ("" if waits else ALONE) + (FORKED % fork_server() if forks else "")
    start = ("-c", changes + RUN) if changes else ("-m", "molink.cli.main")
    return [sys.executable, *start, *arguments]


def refusals(lines: list[tuple[str, ...]]) -> list[str]:
    """The sentence with which each command line is refused, all in one process."""
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, json.dumps(lines)],
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(lines), done.stderr
    for line, (code, said) in zip(lines, found, strict=True):
        assert code == 2 and said.strip() and "Traceback" not in said, (line, code, said)
    return [said for _, said in found]
