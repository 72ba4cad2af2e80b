"""`molink backup` and `molink restore`: a cluster in one file, and back."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.terminal.tables import DATA_FOLDER, data_dir_option

if TYPE_CHECKING:
    from molink.control.backup import Contents

FILE = click.Path(path_type=Path)

VALID_AGAIN = (
    "Who was removed and what was revoked or rotated since is valid again. Before you start it: "
    "molink node remove those PCs, molink key revoke or rotate those keys, molink invite revoke "
    "those invites, each with this --data-dir."
)
"""What a backup cannot know, told after each restore."""


@click.command()
@click.argument("file", type=FILE)
@data_dir_option
def backup(file: Path, data_dir: str | None) -> None:
    """Write members, invites, keys, certificates and records of a cluster into a new FILE, whether
    its coordinator runs or not."""
    from molink.config.data_dir import data_dir as folder
    from molink.control.backup import write_backup
    from molink.version import version

    names = write_backup(file, folder(DATA_FOLDER, data_dir), backup_contents(), version())
    click.echo(f"{file} holds {', '.join(names)}.")
    click.echo("It opens the cluster to whoever has it: keep it like a password.", err=True)


@click.command()
@click.argument("file", type=FILE)
@data_dir_option
def restore(file: Path, data_dir: str | None) -> None:
    """Put a cluster back from FILE into a folder that holds none."""
    from molink.config.data_dir import data_dir as folder
    from molink.config.data_dir import only_one
    from molink.control.backup import read_backup, restore_backup
    from molink.coordinator.start import LOCK_FILE

    where = folder(DATA_FOLDER, data_dir)
    found = read_backup(file, backup_contents())
    with only_one("A coordinator", where / LOCK_FILE):
        restore_backup(found, where, backup_contents())
        next_step = _made_ready(where)
    click.echo(f"{where} holds the cluster of {found.created} again.")
    click.echo(VALID_AGAIN)
    click.echo(next_step)


def _made_ready(where: Path) -> str:
    """Make a restored registry ready for a start, and say how."""
    from molink.control.registry.registry import Registry, skip_revisions

    with closing(Registry.open(where, make=False)) as registry:
        skip_revisions(registry)
        members = sum(one.removed is None for one in registry.list_nodes())
        url = registry.url
    return (
        f"Start it with molink up MODEL --data-dir {where}. Its {members} PCs look for it at "
        f"{url}: at another address each joins once more with a new invite, under the name it has."
    )


def backup_contents() -> "Contents":
    """What cannot be made anew; the members come last, as `write_backup` wants it."""
    from molink.api.keys import store as keys
    from molink.control import certificate
    from molink.control.backup import Contents
    from molink.control.registry import database, registry
    from molink.coordinator.reports import ledger

    databases = {
        ledger.LEDGER_FILE: len(ledger.MIGRATIONS),
        keys.FILE_NAME: len(keys.MIGRATIONS),
        registry.FILE_NAME: len(database.MIGRATIONS),
    }
    return Contents(databases, (certificate.FILE_NAME, certificate.API_FILE_NAME))
