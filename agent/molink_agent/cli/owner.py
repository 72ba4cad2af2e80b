"""What an owner does with an agent that runs: see it, pause it, take it back."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from molink_agent.cli.options import data_dir_option, directory, json_option

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["drain", "leave", "logs", "pause", "resume", "set_limit", "status"]

LOG_LINES = 50


@click.command()
@data_dir_option
@json_option
def status(data_dir: str | None, as_json: bool) -> None:
    """Say what this PC is doing, what is lent of it, and what it has given."""
    from molink_agent.cli.given import given_so_far

    answer = _ask(data_dir, command="status")
    own = [device["id"] for device in answer["devices"]]
    given = given_so_far(answer["cluster"], own) if answer["connected"] else None
    _show(answer | {"given": given}, as_json=as_json)


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
    """Lend again."""
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

    where = _joined(data_dir)
    if _runs(data_dir):
        _ask(data_dir, command="leave")
        click.echo("leaving: the agent ends when nothing counts on it any more")
        return
    forget_membership(where)
    click.echo("left: no agent ran here, so for the operator this PC is just gone")


class _WithLimits(click.Command):
    """Its help shows every limit there is."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list of keys: what each means, and a value to begin with."""
        from molink_agent.limits.limits import KEYS

        with formatter.section("Limits, each with an example"):
            formatter.write_dl([(f"{key.name} {key.typed}", key.meaning) for key in KEYS])


@click.command("set", cls=_WithLimits)
@click.argument("key")
@click.argument("value")
@data_dir_option
def set_limit(key: str, value: str, data_dir: str | None) -> None:
    """Change a limit of what is lent; the value `none` takes it back.

    Upload, memory, hours and idle time hold at once; device, threads and direct from the next ring
    on.
    """
    from molink_agent.limits.limits_file import LimitsFile

    file = LimitsFile(directory(data_dir))
    file.set(key, value)
    runs = _runs(data_dir)
    answer = _ask(data_dir, command="look") if runs else {}
    when = "the agent knows" if runs else "it holds when the agent starts"
    click.echo(f"{key} = {value} is saved in {file.path}; {when}")
    if answer.get("shortage"):
        click.echo(f"nothing is lent now: {answer['shortage']}")


@click.command()
@data_dir_option
@click.option("--lines", default=LOG_LINES, show_default=True, help="Of its end.")
def logs(data_dir: str | None, lines: int) -> None:
    """Show the end of the agent's log."""
    from molink.errors import UserError
    from molink_agent.daemon.process import LOG_FILE

    path = directory(data_dir) / LOG_FILE
    try:
        text = path.read_text(errors="replace").splitlines()
    except OSError:
        raise UserError(f"There is no log at {path}: the agent has not run yet.") from None
    for line in text[-lines:]:
        click.echo(line)


def _ask(data_dir: str | None, **question: str) -> dict[str, Any]:
    from molink_agent.daemon.local_socket import ask_agent

    return asyncio.run(ask_agent(_joined(data_dir), question))


def _joined(data_dir: str | None) -> "Path":
    """The data directory. Raises UserError when there never was a cluster."""
    from molink.errors import UserError
    from molink_agent.data_dir import MEMBERSHIP_FILE

    where = directory(data_dir)
    if not (where / MEMBERSHIP_FILE).exists():
        raise UserError(
            f"This PC has not joined a cluster (nothing is kept in {where}): "
            "`molink agent join INVITE` does it, or give --data-dir."
        )
    return where


def _runs(data_dir: str | None) -> bool:
    from molink_agent.daemon.local_socket import agent_runs

    return asyncio.run(agent_runs(directory(data_dir)))


async def _drained(data_dir: str | None, timeout_s: float) -> None:
    from molink.errors import UserError
    from molink_agent.daemon.local_socket import ask_agent

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


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    from molink_agent.cli.status_lines import status_lines

    if as_json:
        click.echo(json.dumps(answer))
        return
    for line in status_lines(answer):
        click.echo(line)
