"""`molink agent join INVITE` and `molink agent run`."""

import asyncio
import os
import platform
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import click

from molink.errors import UserError
from molink_agent.cli.options import data_dir_option, directory
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.local_socket import agent_runs

if TYPE_CHECKING:
    from pathlib import Path

    from molink.control.identity import KeyPair
    from molink.terminal.status_line import StatusLine
    from molink_agent.daemon.membership import Membership
    from molink_agent.data_files import AgentOptions

FROM_INPUT = "-"
"""Instead of the invite: it is asked for, so that no list of processes and no history of a shell
shows it."""

KEY_FILE = "identity.json"
NAME_CHARACTERS_MAX = 60
INVITE_CHARACTERS_MAX = 10_000
"""An invite with a certificate's fingerprint has 500; line breaks do not matter."""

NEXT_STEP = (
    "Let it run: it needs no more help. In another terminal `molink agent status` tells how it is "
    "and `molink agent pause` takes the PC back for a while. Ctrl-C ends it; later "
    "`molink agent run` starts it again, without an invite."
)
LATER = "`molink agent run` lends this PC from now on, without an invite."
OWN_DIRECTORY = "Give --data-dir {data_dir} to each of these commands, too."


@click.command()
@click.argument("invite", envvar="MOLINK_INVITE", default=FROM_INPUT)
@data_dir_option
@click.option("--name", help="Name that the operator sees; else the one so far, or the host's.")
@click.option(
    "--device",
    help="Devices that are lent: auto, cuda:1, cuda:0,cpu, cpu,cpu (two stages on the CPU).",
)
@click.option("--memory-gb", help="Most main memory that stages on the CPU take, in GB.")
@click.option("--threads", help="Threads that stages on the CPU compute with.")
@click.option("--upload-mbps", help="Most upload that is used, in Mbps.")
@click.option("--relay-only", is_flag=True, help="Let nobody connect straight to this PC.")
@click.option(
    "--listen", default="0.0.0.0", show_default=True, help="Address at which neighbours connect."
)
@click.option(
    "--data-port",
    type=int,
    help="First of 64 ports at which this PC listens, so that a firewall can name them; 0 takes "
    "free ones. Without it the one so far, else 0; inside WSL 27600 instead of 0, if it is free.",
)
@click.option(
    "--map-ports/--no-map-ports", default=True, help="Ask the router to let neighbours in."
)
@click.option("--run/--no-run", "then_run", default=True, help="Go on as `molink agent run`.")
def join(
    invite: str,
    data_dir: str | None,
    name: str | None,
    relay_only: bool,
    listen: str,
    data_port: int | None,
    map_ports: bool,
    then_run: bool,
    **limits: str | None,
) -> None:
    """Join the cluster of INVITE (or of $MOLINK_INVITE) and lend this PC until Ctrl-C.

    Without an invite, or with `-`, it is asked for, or read from a pipe. What is lent can be
    changed at any time: `molink agent set`.
    """
    from molink.control.identity import load_or_make_key
    from molink.control.messages.invites import Invite
    from molink.tasks import until_stopped
    from molink.terminal.status_line import StatusLine
    from molink_agent.daemon.membership import join_cluster
    from molink_agent.data_files import AgentOptions

    os.environ.pop("MOLINK_INVITE", None)  # No probe and no stage inherits it.
    where = directory(data_dir)
    parsed = Invite.parse(_typed() if invite == FROM_INPUT else invite)
    if then_run:
        _check_no_agent_runs(where)
    port = _data_port(where) if data_port is None else data_port
    options = AgentOptions(port, listen, map_ports)
    _check_data_port(where, options)
    options.save(where)
    _keep_limits(where, limits, relay_only=relay_only)
    _check_cards(where)
    pair = load_or_make_key(where / KEY_FILE)
    shown_name = name or _name_before(where) or platform.node() or "unnamed"
    shown_name = shown_name[:NAME_CHARACTERS_MAX]
    membership = asyncio.run(join_cluster(parsed, pair, shown_name, where))
    shown = StatusLine()
    _greet(shown, membership, data_dir, stays=then_run)
    _warn_of_nothing_lent(shown, where, membership)
    if not then_run:
        return
    if invite in sys.argv:
        _become_run(where)
    else:
        asyncio.run(until_stopped(_run(where, pair, membership)))


@click.command()
@data_dir_option
def run(data_dir: str | None) -> None:
    """Lend this PC as it was joined, until Ctrl-C; the service runs this."""
    from molink.control.identity import load_or_make_key
    from molink.tasks import until_stopped
    from molink_agent.daemon.membership import load_membership

    where = directory(data_dir)
    membership = load_membership(where)
    if membership is None:
        raise UserError("This PC has not joined a cluster: run `molink agent join INVITE` first.")
    pair = load_or_make_key(where / KEY_FILE)
    asyncio.run(until_stopped(_run(where, pair, membership)))


def _data_port(where: "Path") -> int:
    """Data port of one who names none: the one so far, else the one that Windows' firewall is told
    of, else any. Agents of all distributions of WSL share one network, and one of them has it."""
    from molink_agent.doctor.gather import try_port
    from molink_agent.probe.machine import read_wsl
    from molink_agent.windows.ports import DATA_PORT, kept_data_port

    kept = kept_data_port(where)
    if kept:
        return kept
    if asyncio.run(read_wsl()) is None or try_port(DATA_PORT, agent_runs=False).problem:
        return 0
    return DATA_PORT


def _check_data_port(where: "Path", options: "AgentOptions") -> None:
    """Raises UserError where the agent could not listen at the port that it is to have."""
    from molink_agent.doctor.gather import try_port

    if not options.data_port or asyncio.run(agent_runs(where)):
        return
    problem = try_port(options.data_port, host=options.listen, agent_runs=False).problem
    if problem:
        raise UserError(
            f"Cannot listen at {options.listen}:{options.data_port} ({problem}): give the first of "
            "other ports by --data-port, or 0 for any free ones; --listen names another address."
        )


def _check_no_agent_runs(where: "Path") -> None:
    if asyncio.run(agent_runs(where)):
        raise UserError(
            f"An agent runs from {where} already: `molink agent status` shows it. End it before "
            "this PC joins anew."
        )


def _typed() -> str:
    """The invite as somebody types it at a terminal, unseen, or as a pipe brings it."""
    if sys.stdin.isatty():
        answer: str = click.prompt("Invite", hide_input=True, err=True)
        return answer
    read = sys.stdin.read(INVITE_CHARACTERS_MAX)
    if not read.strip():
        raise UserError(
            "No invite was given: run `molink agent join INVITE`, as whoever runs the cluster sent "
            "it to you."
        )
    return read


def _name_before(where: "Path") -> str:
    """Name under which this PC is a member; empty: it is none, or its file cannot be read."""
    from molink_agent.daemon.membership import load_membership

    try:
        membership = load_membership(where)
    except UserError:  # Joining writes it anew.
        return ""
    return "" if membership is None else membership.name


def _become_run(where: "Path") -> None:
    """Go on as `molink agent run` in this same process, whose arguments, which every user of this
    PC may read, then hold no invite."""
    program = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
    sys.stdout.flush()
    command = [sys.executable, *program, "agent", "run", "--data-dir", str(where)]
    os.execv(sys.executable, command)


def _keep_limits(where: "Path", limits: dict[str, str | None], *, relay_only: bool) -> None:
    file = LimitsFile(where)
    for key, value in limits.items():
        if value is not None:
            file.set(key, value)
    if relay_only:
        file.set("direct", "false")


def _check_cards(where: "Path") -> None:
    """Prove that torch computes on the cards before the PC joins: the driver lists them anyhow.
    Raises UserError."""
    from molink_agent.doctor.gather import ask_cards
    from molink_agent.doctor.hardware import unusable_cards

    facts = asyncio.run(ask_cards(where))
    problem = "" if facts is None else unusable_cards(facts)
    if problem:
        raise UserError(f"{problem} Or lend the CPU: `molink agent join --device cpu`.")


def _greet(
    shown: "StatusLine", membership: "Membership", data_dir: str | None, *, stays: bool
) -> None:
    from molink.control.versions import own_protocols
    from molink_agent.probe.clock import clock_trouble

    shown.result(f"joined {membership.url} as {membership.name} ({membership.answer.node_id})")
    shown.hint(NEXT_STEP if stays else LATER)
    if data_dir:
        shown.hint(OWN_DIRECTORY.format(data_dir=data_dir))
    outdated = membership.answer.protocols.trouble(own_protocols().newest)
    for trouble in (outdated, clock_trouble(membership.clock_offset_s)):
        if trouble:
            shown.result(trouble)


def _warn_of_nothing_lent(shown: "StatusLine", where: "Path", membership: "Membership") -> None:
    """The PC joins all the same: its owner may change the limits while it runs."""
    from molink_agent.daemon.this_pc import Measured, ThisPc
    from molink_agent.probe.gpus import VISIBLE_VARIABLE, GpuProbe

    if membership.answer.model is None:
        return
    limits = LimitsFile(where)
    limits.read()
    with closing(GpuProbe(visible=os.environ.get(VISIBLE_VARIABLE))) as probe:
        shortage = ThisPc(where, limits, probe, Measured()).shortage(membership.answer.model)
    if shortage:
        shown.result(f"Nothing is lent yet: {shortage}")


async def _run(where: "Path", pair: "KeyPair", membership: "Membership") -> None:
    from molink.tasks import background_tasks
    from molink.terminal.status_line import StatusLine
    from molink_agent.daemon.process import run_agent
    from molink_agent.page.server import page_served
    from molink_agent.thanks.fetched import ask_for_owner, keep_thanks

    with StatusLine() as shown:
        async with page_served(where), background_tasks() as tasks:
            tasks.create_task(keep_thanks(where, lambda: ask_for_owner(where)))
            await run_agent(where, pair, membership, shown)
