"""Commands of an owner to an agent: see how it is, pause it, take the PC back."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import cast

import click

from molink.errors import UserError
from molink.printable import printable_line
from molink_agent.cli.options import data_dir_option, directory, joined_directory, json_option
from molink_agent.limits.limits import KEYS
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.local_socket import agent_runs, ask_agent
from molink_agent.status_text import ShownStatus, status_lines

LOG_LINES = 50

EXIT_FAILED = 1
"""Something must be mended; 2 is for commands that were not understood."""


@click.command()
@data_dir_option
@json_option
def status(data_dir: str | None, as_json: bool) -> None:
    """Say what this PC is doing, what is lent of it, and what it has given."""
    from molink_agent.cli.report import given_until_now, model_layers

    answer = _ask(data_dir, command="status")
    ledger = given_until_now(directory(data_dir), connected=answer["connected"])
    night = ledger.last_night(datetime.now())
    answer["given"] = ledger.totals.model_dump() if ledger.totals is not None else None
    answer["last_night"] = night.model_dump(mode="json") if night is not None else None
    answer["model_layers"] = model_layers(directory(data_dir))
    _show(answer, as_json=as_json)


@click.command()
@data_dir_option
@json_option
def pause(data_dir: str | None, as_json: bool) -> None:
    """Stop lending until `resume`; what it was doing finishes or moves to another PC."""
    _show(_ask(data_dir, command="pause"), as_json=as_json)


@click.command()
@data_dir_option
@json_option
def resume(data_dir: str | None, as_json: bool) -> None:
    """Lend this PC again after `molink agent pause`."""
    _show(_ask(data_dir, command="resume"), as_json=as_json)


@click.command()
@data_dir_option
@click.option("--timeout-s", default=120.0, show_default=True, help="How long to wait for it.")
def drain(data_dir: str | None, timeout_s: float) -> None:
    """Pause, and wait until nothing counts on this PC any more: then it may be switched off."""
    _ask(data_dir, command="pause")
    asyncio.run(_drained(data_dir, timeout_s))
    click.echo("drained: nothing counts on this PC now")


@click.command()
@data_dir_option
def leave(data_dir: str | None) -> None:
    """Leave the cluster for good; what it was doing finishes or moves, then the agent ends."""
    from molink_agent.daemon.membership import forget_membership

    where = joined_directory(data_dir, "does it, or give --data-dir.")
    if asyncio.run(agent_runs(where)):
        _ask(data_dir, command="leave")
        click.echo("leaving: the agent ends when nothing counts on it any more")
        return
    forget_membership(where)
    click.echo("left: no agent ran here, so for the operator this PC is just gone")


class _LimitsCommand(click.Command):
    """Command whose help shows every limit: what each means, and a value to begin with."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Limits, each with an example"):
            formatter.write_dl([(f"{key.name} {key.typed}", key.meaning) for key in KEYS])


@click.command(
    "set",
    cls=_LimitsCommand,
    context_settings={"ignore_unknown_options": True},  # -1 is a wrong value, and told so.
)
@click.argument("key", required=False)
@click.argument("value", required=False)
@data_dir_option
def set_limit(key: str | None, value: str | None, data_dir: str | None) -> None:
    """Change a limit of what is lent; the value `none` takes it back. Without a KEY all limits are
    shown, as they are.

    Upload, memory, hours and idle time hold at once; device, threads, direct and what is for the
    cache from the next ring on.
    """
    from molink_agent.page.orders import change_limit

    where = directory(data_dir)
    if key is None:
        _show_limits(where)
        return
    if value is None:
        raise UserError(f"molink agent set {key} takes a value; `none` takes the limit back.")
    for line in asyncio.run(change_limit(where, key, value)):
        click.echo(printable_line(line))


def _show_limits(where: Path) -> None:
    from molink.terminal.tables import show_rows
    from molink_agent.page.view import limit_views

    limits = LimitsFile(where).read()
    rows = [
        {
            "limit": one["name"],
            "value": _typed(one["value"]),
            "usually": _typed(one["usual"]),
            "example": one["example"],
        }
        for one in limit_views(limits)
    ]
    show_rows(rows, as_json=False, nothing="")
    click.echo("molink agent set --help says what each means.", err=True)


def _typed(value: object) -> str:
    """A limit's value as it is typed; a dash where there is no limit."""
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@click.command()
@data_dir_option
@click.option(
    "--lines", default=LOG_LINES, show_default=True, help="Lines of its end that are shown."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what it says from now on.")
def logs(data_dir: str | None, lines: int, follow: bool) -> None:
    """Show the end of the agent's log."""
    from molink_agent.daemon.agent_log import LOG_FILE

    path = directory(data_dir) / LOG_FILE
    try:
        text = path.read_text(errors="replace").splitlines()
    except OSError:
        raise UserError(f"There is no log at {path}: the agent has not run yet.") from None
    for line in text[-lines:]:
        click.echo(printable_line(line))
    if follow:
        _follow(path)


def _follow(path: Path) -> None:
    """Show what is added to a log, also after it was begun anew, until Ctrl-C."""
    command = ["tail", "-n", "0", "-F", f"--pid={os.getpid()}", str(path)]
    tail = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert tail.stdout is not None
    with closing(tail.stdout) as lines:
        for line in lines:
            click.echo(printable_line(line.decode(errors="replace").rstrip("\n")))


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the agent to look at; without it the user's only one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings for machines.")
def doctor(data_dir: Path | None, as_json: bool) -> None:
    """Look at all that an agent needs, and say how to mend what is wrong.

    Exits with 1 when something keeps this PC from helping.
    """
    from rich.console import Console

    from molink_agent.doctor import gather, report

    with Console(stderr=True).status("Looking at this PC"):
        facts = asyncio.run(gather.gather(data_dir or directory(None)))
    findings = report.examine(facts)
    found = report.as_json(findings)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        report.print_findings(findings, Console())
    if not found["ok"]:
        sys.exit(EXIT_FAILED)


def _ask(data_dir: str | None, **question: str) -> ShownStatus:
    where = joined_directory(data_dir, "does it, or give --data-dir.")
    return cast(ShownStatus, asyncio.run(ask_agent(where, question)))


async def _drained(data_dir: str | None, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await ask_agent(directory(data_dir), {"command": "status"})
                if all(device["layers"] is None for device in answer["devices"]):
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise UserError(
            f"After {timeout_s:g} s something still counts on this PC: wait longer, or switch it "
            "off; the cluster goes on without it."
        ) from None


def _show(answer: ShownStatus, *, as_json: bool) -> None:
    lines = [json.dumps(answer)] if as_json else status_lines(answer)
    for line in lines:
        click.echo(printable_line(line))
