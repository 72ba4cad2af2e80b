"""What an owner does with an agent that runs: see it, pause it, take it back."""

import asyncio
import json
from typing import Any

import click

from molink_agent.cli.options import data_dir_option, directory, json_option

__all__ = ["drain", "leave", "logs", "pause", "resume", "set_limit", "status"]

LOG_LINES = 50


@click.command()
@data_dir_option
@json_option
def status(data_dir: str | None, as_json: bool) -> None:
    """Say what this PC is doing, and what is lent of it."""
    _show(_ask(data_dir, command="status"), as_json=as_json)


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
    _ask(data_dir, command="leave")
    click.echo("leaving: the agent ends when nothing counts on it any more")


@click.command("set")
@click.argument("key")
@click.argument("value")
@data_dir_option
def set_limit(key: str, value: str, data_dir: str | None) -> None:
    """Change a limit of what is lent: `set upload_mbps 10`, `set hours "18:00-02:00"`; the value
    `none` takes it back. Upload, memory, hours and idle time hold at once; device, threads and
    direct from the next ring on."""
    from molink.errors import UserError
    from molink_agent.daemon.local_socket import SOCKET_NAME
    from molink_agent.limits.limits_file import LimitsFile

    where = directory(data_dir)
    LimitsFile(where).set(key, value)
    if (where / SOCKET_NAME).exists():
        try:
            shortage = _ask(data_dir, command="look").get("shortage")
        except UserError as error:
            click.echo(f"saved; {error}")
            return
        if shortage:
            click.echo(f"nothing is lent now: {shortage}")
    click.echo(f"saved in {where / 'limits.toml'}")


@click.command()
@data_dir_option
@click.option("--lines", default=LOG_LINES, show_default=True, help="Of its end.")
def logs(data_dir: str | None, lines: int) -> None:
    """Show the end of the agent's log."""
    from molink.errors import UserError
    from molink_agent.daemon.life import LOG_FILE

    path = directory(data_dir) / LOG_FILE
    try:
        text = path.read_text(errors="replace").splitlines()
    except OSError:
        raise UserError(f"There is no log at {path}: the agent has not run yet.") from None
    for line in text[-lines:]:
        click.echo(line)


def _ask(data_dir: str | None, **question: str) -> dict[str, Any]:
    from molink_agent.daemon.local_socket import ask_agent

    return asyncio.run(ask_agent(directory(data_dir), question))


async def _drained(data_dir: str | None, timeout_s: float) -> None:
    from molink.errors import UserError
    from molink_agent.daemon.local_socket import ask_agent

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await ask_agent(directory(data_dir), {"command": "status"})
                if answer["layers"] is None:
                    return
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise UserError(
            f"After {timeout_s:g} s something still counts on this PC: wait longer, or switch it "
            "off; the cluster goes on without it."
        ) from None


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo(f"{answer['name']} ({answer['id']}) in {answer['cluster']}")
    click.echo(f"state: {answer['state']}" + (f" - {answer['reason']}" if answer["reason"] else ""))
    if not answer["connected"]:
        click.echo("not connected to the coordinator now; it tries again by itself")
    if answer["layers"] is not None:
        start, end = answer["layers"]
        click.echo(f"holds: layers {start} to {end - 1} of {answer['model']} on {answer['device']}")
        links = ", ".join(f"{name} {kind}" for name, kind in answer["paths"].items())
        click.echo(f"links: {links or 'none yet'}; busy {answer['busy_share']:.0%} of the time")
    caps = {
        key: value for key, value in answer["limits"].items() if value not in (None, [], "auto")
    }
    click.echo("limits: " + ", ".join(f"{key} {value}" for key, value in caps.items()))
    if answer["limits_problem"]:
        click.echo(f"limits.toml: {answer['limits_problem']}")
