"""`molink`: one command, one subcommand for each thing that a person does.

What MoLink foresees ends with one sentence on standard error and exit code 2; a traceback means a
bug of ours. A subcommand's module is imported when the subcommand is asked for, and imports what
it needs when it runs, so that each starts quickly.

Packages that stand on this one (the agent, the simulator) bring commands of their own: they name
them in the entry point group `molink.commands`.
"""

import logging
import sys
from importlib.metadata import EntryPoint, entry_points
from keyword import iskeyword

import click

from molink.cli.extras import SIMULATOR, missing_extra
from molink.errors import MolinkError
from molink.printable import PrintableFormatter, printable
from molink.terminal.command_line import SentenceGroup

EXIT_USER_ERROR = 2

COMMANDS_GROUP = "molink.commands"

MODULES = {
    "molink.cli.cache": ("cache",),
    "molink.cli.cell": ("cell",),
    "molink.cli.client": ("generate", "chat", "bench"),
    "molink.cli.dashboard": ("dashboard",),
    "molink.cli.demo": ("demo",),
    "molink.cli.models.importing": ("import",),
    "molink.cli.keys": ("key",),
    "molink.cli.members": ("invite", "node"),
    "molink.cli.models.catalogue": ("models",),
    "molink.cli.models.plan": ("plan",),
    "molink.cli.relay": ("relay",),
    "molink.cli.serve": ("serve",),
    "molink.cli.up": ("up",),
}
"""Where our own commands are; each has its own name there, `import` one more underscore."""

OWN = {
    name: EntryPoint(name, f"{module}:{name}{'_' * iskeyword(name)}", COMMANDS_GROUP)
    for module, names in MODULES.items()
    for name in names
}


class MolinkGroup(SentenceGroup):
    """Group of our own commands and those of other packages, each imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order of the alphabet."""
        return sorted({*OWN, *_brought()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name. Raises UserError for the simulator's where it is missing."""
        point = OWN.get(cmd_name) or _brought().get(cmd_name)
        if point is None and cmd_name == SIMULATOR:
            raise missing_extra(cmd_name)
        if point is None:
            return None
        command = point.load()
        assert isinstance(command, click.Command), f"{cmd_name} is no command"
        return command


def _brought() -> dict[str, EntryPoint]:
    """Commands that other packages bring, by name."""
    return {point.name: point for point in entry_points(group=COMMANDS_GROUP)}


def _show_version(context: click.Context) -> None:
    """Ask for it only now: in a checkout that starts git."""
    from molink.version import version

    click.echo(f"molink, version {version()}")
    context.exit()


@click.group(cls=MolinkGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda context, parameter, asked: _show_version(context) if asked else None,
    help="Show the version and exit.",
)
def cli() -> None:
    """Serve large language models over a ring of home PCs joined by slow links."""


def main() -> None:
    """Run the command line; exits with 0, or 2 after one sentence that says what to do."""
    assert logging.lastResort is not None, "where warnings go without a handler of our own"
    logging.lastResort.setFormatter(PrintableFormatter())
    try:
        cli(prog_name="molink")
    except MolinkError as error:
        print(f"molink: {printable(str(error))}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
