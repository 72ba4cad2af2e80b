"""`molink`: one command, one subcommand for each thing that a person does.

What MoLink foresees ends with one sentence on standard error and exit code 2; a traceback means a
bug of ours. Subcommands import what they need when they run, so that `--help` is quick.

Packages that stand on this one (the simulator) bring commands of their own: they name them in the
entry point group `molink.commands`, and are imported only when they are asked for.
"""

import logging
import sys
from importlib.metadata import EntryPoint, entry_points

import click

from molink import __version__
from molink.cli.client import bench, chat, generate
from molink.cli.command_line import SentenceGroup
from molink.cli.dashboard import dashboard
from molink.cli.demo import demo
from molink.cli.keys import key
from molink.cli.members import invite, node
from molink.cli.plan import plan
from molink.cli.relay import relay
from molink.cli.serve import serve
from molink.cli.up import up
from molink.errors import MolinkError
from molink.printable import PrintableFormatter, printable

__all__ = ["cli", "main"]

EXIT_USER_ERROR = 2

COMMANDS_GROUP = "molink.commands"


class MolinkGroup(SentenceGroup):
    """Our own commands, then those of other packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order of the alphabet."""
        return sorted({*super().list_commands(ctx), *_brought()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported if it is another package's."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _brought():
            return own
        command = _brought()[cmd_name].load()
        assert isinstance(command, click.Command), f"{cmd_name} is no command"
        return command


def _brought() -> dict[str, EntryPoint]:
    """Commands that other packages bring, by name."""
    return {point.name: point for point in entry_points(group=COMMANDS_GROUP)}


@click.group(cls=MolinkGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="molink")
def cli() -> None:
    """Serve large language models over a ring of home PCs joined by slow links."""


for command in (serve, up, dashboard, relay, demo, generate, chat, bench, invite, key, node, plan):
    cli.add_command(command)


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
