"""`molink service` and `molink logs`: a coordinator that starts with the PC, and what it says."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.errors import UserError
from molink.terminal.command_line import SentenceGroup, shown_option
from molink.terminal.tables import DATA_FOLDER, data_dir_option

if TYPE_CHECKING:
    from molink.systemd.user_service import UserService

AS_UP = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(cls=SentenceGroup)
def service() -> None:
    """Run the coordinator as a service of your account (systemd)."""


@service.command("install", context_settings=AS_UP)
@click.argument("up", nargs=-1, required=True, type=click.UNPROCESSED, metavar="MODEL [OPTIONS]")
def install(up: tuple[str, ...]) -> None:
    """Start `molink up MODEL OPTIONS` with your session, and again when it crashes.

    Options are those of `molink up`, in the folder that you are in, and variables of the hub, of
    proxies and of the broker are those of your environment. Installing once more, with another
    model or other options, takes the place of what ran.
    """
    from molink.control.private_file import write_private
    from molink.systemd.coordinator_unit import ENVIRONMENT_FILE, coordinator_unit
    from molink.systemd.unit_file import environment_file, molink_program

    where, replaced, broker = _checked(up)
    given = () if any(word.startswith("--data-dir") for word in up) else ("--data-dir", str(where))
    command = [*molink_program(), "up", *_without(up, "--broker"), *given]
    others = [*_hub_folders(), *replaced]
    where.mkdir(mode=0o700, parents=True, exist_ok=True)

    def unit(isolated: bool) -> str:
        """Its text, asked for once it is certain that there can be a service."""
        write_private(where / ENVIRONMENT_FILE, environment_file(_variables(broker)))
        return coordinator_unit(command, where, Path.cwd(), others, isolated=isolated)

    for line in _coordinator_service(where).install(unit):
        click.echo(line)
    click.echo("molink service status says whether it runs, molink logs -f shows what it does.")


@service.command("remove")
@data_dir_option
def remove(data_dir: str | None) -> None:
    """Stop the service; the cluster's data stay."""
    from molink.systemd.coordinator_unit import ENVIRONMENT_FILE

    where = _folder(data_dir)
    for line in _coordinator_service(where).remove():
        click.echo(line)
    (where / ENVIRONMENT_FILE).unlink(missing_ok=True)


@service.command("status")
@data_dir_option
def status(data_dir: str | None) -> None:
    """Whether it is installed and runs."""
    found = _coordinator_service(_folder(data_dir)).status()
    for line in found.sentences:
        click.echo(line)


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what it says from now on.")
@shown_option("-n", "--lines", default=100, help="Most lines of what it has said.")
@data_dir_option
def logs(follow: bool, lines: int, data_dir: str | None) -> None:
    """Show what the coordinator's service has said."""
    found = _coordinator_service(_folder(data_dir))
    if not found.file.exists():
        raise UserError(
            "No service runs this coordinator: what it says stands in its terminal; "
            "`molink service install MODEL` lets systemd keep it."
        )
    words = ["journalctl", "--user", "--unit", found.unit, "--lines", str(lines), "--output=cat"]
    try:
        os.execvp(words[0], [*words, *(["--follow"] if follow else ["--no-pager"])])
    except FileNotFoundError:
        raise UserError("journalctl is not installed: install systemd's journal.") from None


def _checked(words: Sequence[str]) -> tuple[Path, list[Path], str]:
    """What `molink up` would read from these words and the environment: its data folder, that of
    the coordinator that it replaces, if any, and its broker.

    Raises what `molink up` raises for words that it does not take.
    """
    from molink.cli.up import up

    with up.make_context("molink up", list(words)) as context:
        wanted = context.params
        replaced = [Path(one).absolute() for one in [wanted["replaces"]] if one]
        return _folder(wanted["data_dir"]), replaced, wanted["broker"]


def _without(words: Sequence[str], option: str) -> list[str]:
    """The words without an option and its values."""
    kept, left = [], iter(words)
    for word in left:
        if word == option:
            next(left)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept


def _variables(broker: str) -> dict[str, str]:
    """Variables with which the service starts: the caller's, and the broker, whose URL may hold a
    password and is therefore no option."""
    from molink.systemd.coordinator_unit import PASSED_ON

    found = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    return {**found, "MOLINK_BROKER": broker}


def _hub_folders() -> list[Path]:
    """Folders in which the hub's client keeps models; they are made, as a sandbox cannot."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    named = [home, *map(Path, filter(None, [os.environ.get("HF_HUB_CACHE")]))]
    folders = [one.expanduser().absolute() for one in named]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def _folder(data_dir: str | None) -> Path:
    from molink.config.data_dir import data_dir as folder

    return folder(DATA_FOLDER, data_dir).absolute()


def _coordinator_service(where: Path) -> "UserService":
    from molink.systemd.coordinator_unit import MADE_BY
    from molink.systemd.unit_file import unit_name
    from molink.systemd.user_service import UserService, xdg_folder

    usual = xdg_folder("XDG_DATA_HOME", ".local/share") / DATA_FOLDER
    return UserService(
        unit_name("coordinator", where, usual),
        what="coordinator",
        command="molink up",
        installed_by="molink service install MODEL",
        made_by=MADE_BY,
    )
